"""Runs a script or a module in this process, as Python itself would, in place of the command line."""

from __future__ import annotations

import builtins
import io
import os
import pkgutil
import runpy
import sys
from importlib.machinery import BuiltinImporter, SourceFileLoader, SourcelessFileLoader
from types import CodeType, ModuleType, TracebackType
from typing import Any, Callable, NoReturn, Optional, Sequence

from .interrupts import as_python

STDIN = "-"
"""The name of a script that comes from standard input."""


class Program(BaseException):
    """What is to run in place of the command line; raised so that nothing of the command line is around it.

    It is a file, a folder or zip file with a ``__main__.py``, '-', or the name of a module.
    """

    def __init__(self, name: str, args: Sequence[str], is_module: bool = False) -> None:
        super().__init__(name)
        self._name, self._args, self._is_module = name, args, is_module

    def run(self) -> NoReturn:
        """Run it as ``__main__`` and end the process.

        Errors leave it as they leave Python: with the traceback of the program alone.
        """
        self.__traceback__ = None  # it holds the frames of the command line
        as_python()
        sys.argv[:] = [self._name, *self._args]
        sys.modules["__main__"] = main = ModuleType("__main__")
        vars(main).update(__builtins__=builtins, __annotations__={}, __loader__=BuiltinImporter)
        try:
            self._run(main)
        except SystemExit:
            raise
        except BaseException as e:
            sys.excepthook = _hook(sys.excepthook, e.__traceback__)
            raise
        sys.exit()

    def _run(self, main: ModuleType) -> None:
        names_full_path = sys.version_info >= (3, 9)  # of a script; Python 3.8 does not
        path = os.path.join(os.getcwd(), self._name) if names_full_path else self._name
        if self._is_module:
            _set_path(os.getcwd())
            sys.argv[0] = "-m"  # until the module is found
            runpy._run_module_as_main(self._name)  # type: ignore[attr-defined]  # what `python -m` calls
        elif self._name == STDIN:
            _set_path("")
            vars(main).update(__file__="<stdin>", __cached__=None)
            exec(_compile(sys.stdin.buffer.read(), "<stdin>"), vars(main))
        elif pkgutil.get_importer(path) is not None:  # a folder or zip file
            _set_path(path, always=True)
            runpy._run_module_as_main("__main__", False)  # type: ignore[attr-defined]
        else:
            _set_path(os.path.dirname(os.path.realpath(path)))
            exec(_code_of_file(path, main), vars(main))


def _code_of_file(path: str, main: ModuleType) -> CodeType:
    """Compile a script, and say in its module what Python says there."""
    loader = (SourcelessFileLoader if path.endswith(".pyc") else SourceFileLoader)("__main__", path)
    vars(main).update(__file__=path, __cached__=None, __loader__=loader)
    if isinstance(loader, SourcelessFileLoader):
        code = loader.get_code("__main__")
        assert code is not None  # None is for packages without code
        return code
    with io.open_code(path) as file:
        return _compile(file.read(), path)


def _compile(source: bytes, path: str) -> CodeType:
    return compile(source, path, "exec", dont_inherit=True)


def _set_path(first: str, always: bool = False) -> None:
    """Put the program's folder where the command line's was: at the head of the path, unless Python keeps it clean."""
    if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):  # -I; -P, from Python 3.11 on
        sys.path[0] = first
    elif always:
        sys.path.insert(0, first)


def _hook(hook: Callable[..., Any], traceback: Optional[TracebackType]) -> Callable[..., Any]:
    """Return a hook for the error that ends the process, which gives it the traceback from the program's frames on."""
    while traceback is not None and traceback.tb_frame.f_globals.get("__name__") in (__name__, "runpy"):
        traceback = traceback.tb_next

    def show(kind: Any, error: BaseException, _: Any) -> None:
        hook(kind, error.with_traceback(traceback), traceback)

    return show
