"""Views of modules: the module itself, with names that it no longer has."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType, SimpleNamespace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping

_PYTHON_WITHOUT_DISTUTILS = (3, 12)
# What MXNet gets views of, and where their names are.
_TABLES = {"numpy": ".old_numpy", "onnx": ".old_onnx", "scipy": ".views"}
_views: Dict[str, ModuleType] = {}

PACKAGES = (*_TABLES, "distutils")
"""Of which MXNet gets something else than Python imports."""


class View(ModuleType):
    """A module with further names. Whatever else is read, set or deleted, is read, set or deleted in the module."""

    def __init__(self, module: ModuleType, names: Mapping[str, Any]) -> None:
        super().__init__(module.__name__, module.__doc__)
        own = vars(self)
        own.clear()
        own.update(names, _module=module, __doc__=module.__doc__)  # else it is the class's

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_module"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(vars(self)["_module"], name, value)

    def __delattr__(self, name: str) -> None:
        delattr(vars(self)["_module"], name)

    def __dir__(self) -> List[str]:
        own = vars(self)
        return sorted({*dir(own["_module"]), *own} - {"_module"})

    def __repr__(self) -> str:
        return f"<mxmp's view of {vars(self)['_module']!r}>"


def names(scipy: ModuleType) -> Dict[str, Any]:
    """Return ``scipy.sparse.csr``, which MXNet reads: SciPy 1.8 and later warn of it, and SciPy 2 will have none."""
    sparse = importlib.import_module("scipy.sparse")
    return {"sparse": View(sparse, {"csr": SimpleNamespace(csr_matrix=sparse.csr_matrix)})}


def of(module: ModuleType) -> ModuleType:
    """Return the view of numpy, scipy or onnx; any other module as it is."""
    name = module.__name__
    if name not in _TABLES:
        return module
    if name not in _views:
        table = importlib.import_module(_TABLES[name], __package__)
        _views[name] = View(module, table.names(module))
    return _views[name]


def stand_in(name: str) -> Any:
    """Return what MXNet gets for a dotted name in place of the module that Python imports, None for the same."""
    package, _, part = name.partition(".")
    if part and package in _TABLES:
        view = _views.get(package) or of(importlib.import_module(package))
        return vars(view).get(part)
    if name == "distutils.version" and sys.version_info >= _PYTHON_WITHOUT_DISTUTILS:
        from . import old_distutils

        return old_distutils
    return None
