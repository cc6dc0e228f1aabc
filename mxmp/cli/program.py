"""Runs a script or a module in this process, by Python's runpy, in place of the command line."""

from __future__ import annotations

import os
import pkgutil
import runpy
import sys
from types import TracebackType
from typing import Any, Callable, NoReturn, Optional, Sequence

from .interrupts import as_python


class Program(BaseException):
    """What is to run in place of the command line; raised so that nothing of the command line is around it.

    It is a file, a folder or zip file with a ``__main__.py``, or the name of a module.
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
        # The full path, as Python's own `__file__` is: the script may change the folder.
        name = self._name if self._is_module else os.path.join(os.getcwd(), self._name)
        sys.argv[:] = [name, *self._args]
        if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):  # -I; -P, from Python 3.11 on
            # The command line's folder gives way to the program's; of a folder or zip file runpy adds it.
            is_file = not self._is_module and pkgutil.get_importer(name) is None
            sys.path[:1] = [os.path.dirname(os.path.realpath(name))] if is_file else [os.getcwd()] * self._is_module
        try:
            if self._is_module:
                runpy.run_module(name, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(name, run_name="__main__")
        except SystemExit:
            raise
        except BaseException as e:
            sys.excepthook = _hook(sys.excepthook, e.__traceback__)
            raise
        sys.exit()


def _hook(hook: Callable[..., Any], traceback: Optional[TracebackType]) -> Callable[..., Any]:
    """Return a hook for the error that ends the process, which gives it the traceback from the program's frames on."""
    while traceback is not None and traceback.tb_frame.f_globals.get("__name__") in (__name__, "runpy"):
        traceback = traceback.tb_next

    def show(kind: Any, error: BaseException, _: Any) -> None:
        hook(kind, error.with_traceback(traceback), traceback)

    return show
