"""``mxmp run --amp``: gives the program `mxmp.amp` where it, or a library, imports ``mxnet.contrib.amp``."""

from __future__ import annotations

import functools
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Optional

_REPLACED = "mxnet.contrib.amp"


class _Finder:
    """Finds ``mxnet.contrib.amp`` before Python's own finders do, and makes it of `mxmp.amp`.

    It does so when the program imports it, so that the program still comes before the import of MXNet.
    """

    def __init__(self, dtype: str) -> None:
        self._dtype = dtype

    def find_spec(self, name: str, path: Any = None, target: Optional[ModuleType] = None) -> Optional[ModuleSpec]:
        """Return the spec of ``mxnet.contrib.amp`` and its parts, None for others."""
        if name != _REPLACED and not name.startswith(_REPLACED + "."):
            return None
        return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]  # a loader by its methods

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave it to Python to make the module."""

    def exec_module(self, module: ModuleType) -> None:
        """Fill the module with the names of ours; an ImportError for a part that mxmp lacks."""
        part = module.__name__[len(_REPLACED) :]
        from .. import amp

        ours = amp if part == ".amp" else import_module(f"mxmp.amp{part}")  # contrib's functions are in amp.amp
        names = vars(module)
        names.update((name, value) for name, value in vars(ours).items() if not name.startswith("_"))
        names["__file__"] = ours.__file__
        if "init" in names:

            @functools.wraps(amp.init)
            def init(target_dtype: Any = self._dtype, *args: Any, **kwargs: Any) -> None:
                amp.init(target_dtype, *args, **kwargs)

            names["init"] = init
        if ours is amp:
            names["__getattr__"] = lambda name: _private(module, name)


def _private(module: ModuleType, name: str) -> bool:
    """Return what libraries read of contrib.amp's state: GluonNLP chooses the value of masked scores by it."""
    if name == "_amp_initialized":
        from ..amp.contrib import installed_hook

        return installed_hook() is not None
    raise AttributeError(f"module {module.__name__!r}, which is mxmp.amp here, has no attribute {name!r}")


def stand_in(dtype: str) -> None:
    """Let imports of ``mxnet.contrib.amp`` give `mxmp.amp` in this process; its `init` is for ``dtype`` by default."""
    sys.meta_path.insert(0, _Finder(dtype))
