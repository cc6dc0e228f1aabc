"""Where training finds the code that explains a step which fails.

The layer of diagnosis is above that of training, so training cannot import it. `mxmp/__init__.py` registers it.
It is loaded when a step has to be explained, or a call to be kept for that.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as in `mxmp/__init__.py`, which imports this file
if TYPE_CHECKING:
    from typing import Any, Callable

_loaders: list[Callable[[], Any]] = []


def register(load: Callable[[], Any]) -> None:
    """Have `explainer` return the result of a function: an object with the functions of `mxmp.diagnose.watch`."""
    _loaders[:] = [load]


def explainer() -> Any:
    """Return the object that explains steps."""
    return _loaders[0]()
