"""Internal: lets MXNet 1.9.1 import and run with numpy 1.24 or later and on Python 3.12 or later.

MXNet and GluonCV read names that numpy has removed, and a module that Python has removed. Only their modules get views
with these names. numpy, Python and MXNet's files are not changed. With an older numpy and Python nothing is done.

- `finder` finds the modules of MXNet and GluonCV. It runs each with builtins of its own, whose ``__import__`` gives the
  views. With any numpy it can call a function when MXNet's import ends.
- `old_modules` and `old_onnx` have the names in the views of numpy, scipy and onnx, and a replacement of distutils.
- `changes` has replacements for single modules: of ``str``, ``int`` or ``object``, and of names and constants in their
  code.
"""

from __future__ import annotations

import sys
import warnings
from typing import Callable, Optional, Tuple

from .. import requirements
from .finder import PACKAGES, AfterImport, Finder


def install() -> None:
    """Let later imports of MXNet and GluonCV find the names that this numpy and Python have removed.

    A second call does nothing. The modules that a failed import of MXNet has left are dropped, so that the next import
    starts anew. If MXNet was imported before, by a script that sets ``numpy.bool`` itself, it is not changed, and a
    warning is given.
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
    """Call a function when MXNet's import ends; at once if MXNet is imported already."""
    if "mxnet" in sys.modules:
        call()
    else:
        sys.meta_path.insert(0, AfterImport(call))


def needed(python: Tuple[int, ...] = sys.version_info[:2], numpy: Optional[str] = None) -> bool:
    """Return whether MXNet 1.9.1 needs the views with these versions of Python and numpy, by default the installed."""
    if python >= (3, 12):  # the first version without distutils
        return True
    version = numpy or requirements.numpy_version()
    # 1.24 is the first version without np.bool, which MXNet reads on import.
    return version is not None and requirements.release(version) >= (1, 24)


def installed() -> bool:
    """Return whether modules of MXNet that are imported later get the views."""
    return any(isinstance(finder, Finder) for finder in sys.meta_path)
