"""Internal: lets MXNet 1.9.1 import and run with numpy 1.24 or later and on Python 3.12 or later.

MXNet and GluonCV read names that numpy has removed, and a module that Python has removed. Their modules, and no
others, get views with these names; numpy, Python and MXNet's files stay as they are. With a numpy and a Python
that fit, nothing is done.

- `finder` finds their modules and runs each with builtins of its own, whose ``__import__`` gives the views. On any
  numpy it can call a function as MXNet's import ends.
- `old_modules` and `old_onnx` have the names in the views of numpy, scipy and onnx, and a stand-in for distutils.
- `changes` has what single modules get: a ``str``, ``int`` or ``object``; other names and constants in their code.
"""

from __future__ import annotations

import sys
import warnings
from typing import Callable, Optional, Tuple

from .. import requirements
from .finder import PACKAGES, AfterImport, Finder


def install() -> None:
    """Give what is imported of MXNet and GluonCV from here on the names that they miss, where they miss any.

    Installed once, however often it is called. What is left of an import of MXNet that failed is dropped, so that
    the next one starts anew. An MXNet that was imported by other means (a script may set ``numpy.bool`` itself)
    stays as it is, with a warning.
    """
    if not needed() or installed():
        return
    if "mxnet" in sys.modules:
        warnings.warn(
            "MXNet was imported before mxmp and does without the names that mxmp gives it on this numpy and Python; "
            "put the line `import mxmp` before the first import of mxnet",
            RuntimeWarning,
            stacklevel=3,
        )
    for package in PACKAGES:
        if package not in sys.modules:
            for name in list(sys.modules):
                if name.startswith(f"{package}."):
                    del sys.modules[name]
    sys.meta_path.insert(0, Finder())


def after_import(call: Callable[[], None]) -> None:
    """Call a function as MXNet's own import ends; at once if MXNet is imported."""
    if "mxnet" in sys.modules:
        call()
    else:
        sys.meta_path.insert(0, AfterImport(call))


def needed(python: Tuple[int, ...] = sys.version_info[:2], numpy: Optional[str] = None) -> bool:
    """Return whether MXNet 1.9.1 needs the views, with a version of Python and one of numpy (the installed one)."""
    if python >= (3, 12):  # the first version without distutils
        return True
    version = numpy or requirements.numpy_version()
    # 1.24 is the first version without np.bool, which MXNet reads on import.
    return version is not None and requirements.release(version) >= (1, 24)


def installed() -> bool:
    """Return whether modules of MXNet that are imported from here on get the views."""
    return any(isinstance(finder, Finder) for finder in sys.meta_path)
