"""Checks that MXNet and numpy are installed in versions that work together.

``mxmp/__init__.py`` calls `check` before MXNet is imported, because MXNet's own errors do not name the cause. This
module does not import MXNet or numpy. It reads their versions from their files, which takes a millisecond.
"""

from __future__ import annotations

import os
import re
import sys
from importlib.util import find_spec

from .errors import DependencyError

_VERSION = re.compile(r"""^\s*["']?(?:__)?version(?:__)?["']?(?:: str)?\s*[=:]\s*["']([^"']+)["']""", re.MULTILINE)
_PYTHON = sys.version_info[:2]
_OLDEST_NUMPY = (1, 21)  # as in setup.py
_NO_OLD_NUMPY = (3, 13)  # the first Python without a wheel of numpy below 2; MXNet's metadata asks for such a numpy


def check() -> None:
    """Check the versions of numpy and MXNet without importing them.

    The version of MXNet is read from its libinfo.py. Every wheel has this file (mxnet, mxnet-cu112, ...), and a build
    from source, which has no metadata.

    Raises:
        DependencyError: If a package is missing or has another version. It has the command that installs the right one
            on this Python.
    """
    version = numpy_version()
    if version is None:
        raise DependencyError(f"numpy is not installed; run: {_install_numpy()}")
    if () < release(version) < _OLDEST_NUMPY:
        raise DependencyError(
            f"numpy {version} is installed, but mxmp needs numpy 1.21 or later; run: {_install_numpy()}"
        )
    folder = _folder("mxnet")
    if folder is None:
        raise DependencyError(f"MXNet is not installed; run: {_install_mxnet()}")
    version = _read_version(folder, "libinfo.py")
    if version is not None and release(version) != (1, 9):
        raise DependencyError(
            f"MXNet {version} is installed in {folder}, but mxmp needs MXNet 1.9.1; uninstall it, then run: "
            f"{_install_mxnet()}"
        )


def _install_numpy() -> str:
    # The numpy that the extras of setup.py install on this Python.
    if _PYTHON < (3, 12):
        return "pip install 'numpy>=1.21,<1.24'"
    return "pip install 'numpy<2'" if _PYTHON < _NO_OLD_NUMPY else "pip install numpy"


def _install_mxnet() -> str:
    # For CPUs and for NVIDIA GPUs.
    by_itself = " && pip install --no-deps {}==1.9.1" if _PYTHON >= _NO_OLD_NUMPY else ""
    wheels = {"cpu": "mxnet", "cu112": "mxnet-cu112"}
    cpu, gpu = (f"pip install './mxmp[{extra}]'{by_itself.format(wheel)}" for extra, wheel in wheels.items())
    return f"{cpu} (or, for NVIDIA GPUs, {gpu})"


def numpy_version() -> str | None:
    """Return the version of numpy; None if it is not installed. It is imported only if its files lack the version."""
    if "numpy" not in sys.modules:
        folder = _folder("numpy")
        version = folder and (_read_version(folder, "_version.py") or _read_version(folder, "version.py"))
        if folder is None or version:
            return version
    import numpy as np

    return str(np.__version__)


def _folder(package: str) -> str | None:
    # None also for a namespace package, a folder that an uninstall left behind.
    spec = find_spec(package)
    return None if spec is None or spec.origin is None else os.path.dirname(spec.origin)


def _read_version(folder: str, name: str) -> str | None:
    # A file of Python assigns its version, or has it in JSON as versioneer writes it.
    try:
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError):
        return None
    match = _VERSION.search(text)
    return match.group(1) if match else None


def release(version: str) -> tuple[int, ...]:
    """Return (major, minor) of a version; an unreadable one gives an empty tuple."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return tuple(int(part) for part in match.groups()) if match else ()
