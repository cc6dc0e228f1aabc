"""Gives the modules of MXNet and GluonCV an ``import`` of their own; knows when the import of MXNet ends.

Python runs a module with the builtins in the module's name ``__builtins__``. So an ``__import__`` that is put there
serves the import statements of only that module, at its head and in its functions. It gives *views*: modules with names
that they no longer have.
"""

from __future__ import annotations

import builtins
import functools
import sys
from importlib import import_module
from types import ModuleType
from typing import Any, Callable, Dict, Optional, Sequence

from . import changes, old_modules, old_onnx

PACKAGES = ("mxnet", "gluoncv")

_NAMES: Dict[str, Callable[[Any], Dict[str, Any]]] = {
    "numpy": old_modules.numpy_names,
    "scipy": old_modules.scipy_names,
    "onnx": old_onnx.names,
}


class Finder:
    """Finds the modules of MXNet and GluonCV by the other finders of ``sys.meta_path``, and lets `_run` run them."""

    def find_spec(self, name: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None) -> Any:
        """Return the spec of a module of `PACKAGES`; None for any other (`importlib.abc.MetaPathFinder`)."""
        return _found(self, _run, name, path, target) if name.partition(".")[0] in PACKAGES else None


class AfterImport:
    """Calls a function once, when an import of MXNet has succeeded."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call

    def find_spec(self, name: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None) -> Any:
        """Return the spec of MXNet that the other finders give; None for any other module."""
        return _found(self, self._run, name, path, target) if name == "mxnet" else None

    def _run(self, loader: Any, exec_module: Callable[[ModuleType], None], module: ModuleType) -> None:
        exec_module(module)
        if self in sys.meta_path:  # other code may have emptied it.
            sys.meta_path.remove(self)
            self._call()


def _found(
    own: Any, run: Callable[..., None], name: str, path: Optional[Sequence[str]], target: Optional[ModuleType]
) -> Any:
    """Return a module's spec by the finders after ``own``, so that ``run`` runs the module; None if it is not found."""
    import copy  # not needed if only mxmp is imported.

    start = sys.meta_path.index(own) + 1 if own in sys.meta_path else 0
    for finder in sys.meta_path[start:]:
        spec: Any = finder.find_spec(name, path, target) if hasattr(finder, "find_spec") else None
        if spec is not None:
            if hasattr(spec.loader, "exec_module"):  # a folder without __init__.py has no loader.
                # Copy the loader, because modules may share it: pytest's loader loads mxnet.test_utils and all tests.
                spec.loader = copy.copy(spec.loader)
                spec.loader.exec_module = functools.partial(run, spec.loader, spec.loader.exec_module)
            return spec
    return None


def _run(loader: Any, exec_module: Callable[[ModuleType], None], module: ModuleType) -> None:
    """Run a module with builtins of its own.

    Names in the module itself would be handed on by ``from module import *``.
    """
    name = module.__name__
    own = changes.BUILTINS.get(name)
    vars(module)["__builtins__"] = {**_BUILTINS, **own} if own else _BUILTINS
    if name in changes.CODE:
        exec(changes.changed_code(loader.get_code(name), changes.CODE[name]), vars(module))
    else:
        exec_module(module)


@functools.lru_cache(maxsize=None)
def view_of(package: str) -> ModuleType:
    """Return the view of numpy, scipy or onnx, the same at each call; ImportError if the package is not installed."""
    module = import_module(package)
    return old_modules.view(module, _NAMES[package](module))


def _import(
    name: str, globals: Any = None, locals: Any = None, fromlist: Optional[Sequence[str]] = (), level: int = 0
) -> Any:
    """Import as Python does, except that packages in `_NAMES` are views, and that distutils is replaced."""
    package, _, part = name.partition(".")
    if name == "distutils.version" and fromlist and not level and sys.version_info >= (3, 12):
        return old_modules
    if level or package not in _NAMES:
        return builtins.__import__(name, globals, locals, fromlist, level)
    if part and fromlist:  # as in `from onnx.mapping import ...`: a part of the view, or the real module.
        return vars(view_of(package)).get(part) or builtins.__import__(name, globals, locals, fromlist, level)
    builtins.__import__(name, globals, locals, fromlist, level)
    return view_of(package)


# One dict for nearly all modules. It is a copy, because Python's own must not change, and only a plain dict is fast.
_BUILTINS = {**vars(builtins), "__import__": _import}
