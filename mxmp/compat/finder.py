"""Gives the modules of MXNet and GluonCV an ``import`` of their own, as they are loaded.

Python runs a module with the builtins that its name ``__builtins__`` holds, if it holds any. So an ``__import__``
put there serves the import statements of that module alone, at its head and in its functions.
"""

from __future__ import annotations

import builtins
import sys

from . import changes, views

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any, Optional, Sequence

PACKAGES = ("mxnet", "gluoncv")


class Finder:
    """Finds what the other finders of ``sys.meta_path`` find, for MXNet and GluonCV, with a `Loader` around theirs."""

    def find_spec(
        self, name: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        """Return the spec of a module of `PACKAGES`; None for any other (`importlib.abc.MetaPathFinder`)."""
        if name.partition(".")[0] not in PACKAGES:
            return None
        for finder in sys.meta_path:
            find_spec = None if isinstance(finder, Finder) else getattr(finder, "find_spec", None)
            spec: Any = find_spec(name, path, target) if find_spec is not None else None
            if spec is not None:
                if hasattr(spec.loader, "exec_module") and not isinstance(spec.loader, Loader):
                    spec.loader = Loader(spec.loader)
                found: ModuleSpec = spec
                return found
        return None


class Loader:
    """Runs a module with builtins of its own; in all else it is the loader that it was made of."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # not set yet, as in a copy
            raise AttributeError(name)
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> Optional[ModuleType]:
        """Return what the loader makes; None leaves it to Python (`importlib.abc.Loader`)."""
        module: Optional[ModuleType] = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Run the module (`importlib.abc.Loader`)."""
        name = module.__name__
        own = changes.builtins_of_module(name)  # no names of the module, which `from module import *` would hand on
        vars(module)["__builtins__"] = {**_BUILTINS, **own} if own else _BUILTINS
        if name in changes.CODE:
            exec(changes.changed_code(self._loader.get_code(name), changes.CODE[name]), vars(module))
        else:
            self._loader.exec_module(module)


def _import(
    name: str, globals: Any = None, locals: Any = None, fromlist: Optional[Sequence[str]] = (), level: int = 0
) -> Any:
    """Import as Python does, but for what `views` has a view of or a stand-in for."""
    if level or name.partition(".")[0] not in views.PACKAGES:
        return builtins.__import__(name, globals, locals, fromlist, level)
    stand_in = views.stand_in(name) if fromlist else None
    return stand_in or views.of(builtins.__import__(name, globals, locals, fromlist, level))


# One for nearly all modules: a copy, since a dict alone is fast, and Python's own must not change.
_BUILTINS = {**vars(builtins), "__import__": _import}
