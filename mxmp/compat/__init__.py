"""Internal: lets MXNet 1.9.1 import and run with numpy 1.24 or later and on Python 3.12 or later.

MXNet and GluonCV read names that numpy has removed, and a module that Python has removed. Their modules, and no
others, get views with these names; numpy, Python and MXNet's files stay as they are. With a numpy and a Python
that fit, nothing is done.

- `finder` finds their modules and runs each with builtins of its own, whose ``__import__`` gives the views.
- `views` has the views of numpy, scipy and onnx; `old_numpy` and `old_onnx` have most of the names in them, and
  `old_distutils` stands in for a module of Python.
- `changes` has what single modules get: a ``str``, ``int`` or ``object``; other calls and constants.
"""

from __future__ import annotations

import sys

from .. import requirements
from .finder import PACKAGES, Finder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional, Tuple

_NUMPY_LIMIT = (1, 24)  # the first version without np.bool, which MXNet reads on import
_PYTHON_LIMIT = (3, 12)  # the first version without distutils


def install() -> None:
    """Give what is imported of MXNet and GluonCV from here on the names that they miss, where they miss any.

    Installed once, however often it is called. What is left of an import of MXNet that failed is dropped, so that
    the next one starts anew. An MXNet that was imported by other means (a script may set ``numpy.bool`` itself)
    stays as it is, with a warning.
    """
    if not needed() or installed():
        return
    if "mxnet" in sys.modules:
        import warnings

        warnings.warn(
            "MXNet was imported before mxmp and does without the names that mxmp gives it on this numpy and Python; "
            "put the line `import mxmp` before the first import of mxnet",
            RuntimeWarning,
            stacklevel=3,
        )
    for package in PACKAGES:
        if package not in sys.modules:
            for name in [name for name in sys.modules if name.startswith(f"{package}.")]:
                del sys.modules[name]
    sys.meta_path.insert(0, Finder())


def needed(python: Tuple[int, ...] = sys.version_info[:2], numpy: Optional[str] = None) -> bool:
    """Return whether MXNet 1.9.1 needs the views, with a version of Python and one of numpy (the installed one)."""
    if python >= _PYTHON_LIMIT:
        return True
    version = numpy or requirements.numpy_version()
    return version is not None and requirements.release(version) >= _NUMPY_LIMIT


def installed() -> bool:
    """Return whether modules of MXNet that are imported from here on get the views."""
    return any(isinstance(finder, Finder) for finder in sys.meta_path)
