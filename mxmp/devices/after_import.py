"""Runs an action once a module has been imported, without importing it."""

from __future__ import annotations

import sys
from importlib.util import find_spec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any, Callable, Optional, Sequence, Set


def after_import(name: str, action: Callable[[], object]) -> None:
    """Call an action at the end of a module's first import from here on, and leave nothing behind.

    Whoever imports the module, its own import statements have run by then, and the importer's have not gone on.
    """
    sys.meta_path.insert(0, Finder(name, action))


class Finder:
    """Finds one module as the other finders of ``sys.meta_path`` do, with a `Loader` around theirs."""

    def __init__(self, name: str, action: Callable[[], object]) -> None:
        self.name = name
        self.action = action
        self._searching: Set[int] = set()  # threads that ask the other finders, some of which ask all again

    def find_spec(
        self, name: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        """Return the spec of the module, None for any other (`importlib.abc.MetaPathFinder`)."""
        from _thread import get_ident

        thread = get_ident()
        if name != self.name or thread in self._searching:
            return None
        self._searching.add(thread)
        try:
            spec = find_spec(name)
        finally:
            self._searching.discard(thread)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            loader: Any = Loader(spec.loader, self)
            spec.loader = loader
        return spec

    def remove(self) -> None:
        """Take the finder out of ``sys.meta_path``."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)


class Loader:
    """Loads a module as another loader does, which takes its place, and calls the finder's action."""

    def __init__(self, loader: Any, finder: Finder) -> None:
        self._loader = loader
        self._finder = finder

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # not set yet, as in a copy
            raise AttributeError(name)
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> Optional[ModuleType]:
        """Return what the loader makes; None leaves it to Python (`importlib.abc.Loader`)."""
        module: Optional[ModuleType] = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Run the module (`importlib.abc.Loader`), then the action; an import that fails may be tried again."""
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._finder.remove()
        self._finder.action()
