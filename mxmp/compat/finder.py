"""Gives the modules of MXNet and GluonCV an ``import`` of their own, as they are loaded; knows when MXNet is imported.

Python runs a module with the builtins that its name ``__builtins__`` holds, if it holds any. So an ``__import__``
put there serves the import statements of that module alone, at its head and in its functions. It gives *views*: modules
with names that they no longer have.
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
    """Finds what the other finders of ``sys.meta_path`` find, for MXNet and GluonCV, and has `_run` run it."""

    def find_spec(self, name: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None) -> Any:
        """Return the spec of a module of `PACKAGES`; None for any other (`importlib.abc.MetaPathFinder`)."""
        return _found(self, _run, name, path, target) if name.partition(".")[0] in PACKAGES else None


class AfterImport:
    """Calls a function once, as MXNet's own import ends; an import that fails does not count."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call

    def find_spec(self, name: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None) -> Any:
        """Return the spec of MXNet as the other finders have it; None for any other module."""
        return _found(self, self._run, name, path, target) if name == "mxnet" else None

    def _run(self, loader: Any, exec_module: Callable[[ModuleType], None], module: ModuleType) -> None:
        exec_module(module)
        if self in sys.meta_path:  # unless another has emptied it
            sys.meta_path.remove(self)
            self._call()


def _found(
    own: Any, run: Callable[..., None], name: str, path: Optional[Sequence[str]], target: Optional[ModuleType]
) -> Any:
    """Return the spec that the finders behind ``own`` have of a module, which ``run`` will run; None if none has."""
    import copy  # not where only mxmp is imported

    start = sys.meta_path.index(own) + 1 if own in sys.meta_path else 0
    for finder in sys.meta_path[start:]:
        spec: Any = finder.find_spec(name, path, target) if hasattr(finder, "find_spec") else None
        if spec is not None:
            if hasattr(spec.loader, "exec_module"):  # a folder without __init__.py has no loader
                # A copy, since other modules may share it: pytest's loads mxnet.test_utils and all tests.
                spec.loader = copy.copy(spec.loader)
                spec.loader.exec_module = functools.partial(run, spec.loader, spec.loader.exec_module)
            return spec
    return None


def _run(loader: Any, exec_module: Callable[[ModuleType], None], module: ModuleType) -> None:
    """Run a module with builtins of its own.

    No names of the module's, which ``from module import *`` would hand on.
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
    """Return the one view of numpy, scipy or onnx; ImportError where it is not installed."""
    module = import_module(package)
    return old_modules.view(module, _NAMES[package](module))


def _import(
    name: str, globals: Any = None, locals: Any = None, fromlist: Optional[Sequence[str]] = (), level: int = 0
) -> Any:
    """Import as Python does, but a view of the packages in `_NAMES`, and a stand-in for distutils."""
    package, _, part = name.partition(".")
    if name == "distutils.version" and fromlist and not level and sys.version_info >= (3, 12):
        return old_modules
    if level or package not in _NAMES:
        return builtins.__import__(name, globals, locals, fromlist, level)
    if part and fromlist:  # `from onnx.mapping import ...`: a part that the view has, or the real one
        return vars(view_of(package)).get(part) or builtins.__import__(name, globals, locals, fromlist, level)
    builtins.__import__(name, globals, locals, fromlist, level)
    return view_of(package)


# One for nearly all modules: a copy, since a dict alone is fast, and Python's own must not change.
_BUILTINS = {**vars(builtins), "__import__": _import}
