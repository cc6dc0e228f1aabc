"""``scipy.sparse.csr``, which MXNet 1.9.1 reads: SciPy 1.8 and later warn of it, and SciPy 2 will have none."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

from .views import View

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Dict


def names(scipy: ModuleType) -> Dict[str, Any]:
    """Return the parts of scipy that MXNet and GluonCV get in place of its own, by name."""
    sparse = importlib.import_module("scipy.sparse")
    return {"sparse": View(sparse, {"csr": SimpleNamespace(csr_matrix=sparse.csr_matrix)})}
