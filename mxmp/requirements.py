"""Checks that MXNet and numpy are there in versions that work together.

``mxmp/__init__.py`` calls `check` before anything imports MXNet, since MXNet itself fails
with an AttributeError on a newer numpy. Nothing here imports MXNet.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from .errors import DependencyError

_INSTALL_MXNET = "pip install 'mxmp[cpu]' (or, for NVIDIA GPUs, pip install 'mxmp[cu112]')"
_NUMPY_LIMIT = (1, 24)  # first version without np.bool, which MXNet 1.9.1 reads on import


def check() -> None:
    """Check numpy and MXNet without importing MXNet.

    MXNet's version is read as text from its libinfo.py: that holds for each of its wheels
    (mxnet, mxnet-cu112, ...), whatever their distribution is called, and for a build from
    source, which has no metadata.

    Raises:
        DependencyError: If MXNet is missing or not 1.9.x, or numpy is 1.24 or later. The
            message has the command that mends it.
    """
    _check_numpy(np.__version__)
    _check_mxnet(_mxnet_folder())


def _check_numpy(version: str) -> None:
    if _release(version) >= _NUMPY_LIMIT:
        raise DependencyError(
            f"numpy {version} is installed, but MXNet 1.9.1 needs numpy below 1.24 (it uses np.bool); "
            "run: pip install 'numpy<1.24'"
        )


def _check_mxnet(folder: Path | None) -> None:
    if folder is None:
        raise DependencyError(f"MXNet is not installed; run: {_INSTALL_MXNET}")
    version = _mxnet_version(folder)
    if version is not None and _release(version) != (1, 9):
        raise DependencyError(
            f"MXNet {version} is installed in {folder}, but mxmp needs MXNet 1.9.1; uninstall it, then run: "
            f"{_INSTALL_MXNET}"
        )


def _mxnet_folder() -> Path | None:
    """Return the folder of the mxnet package, or None.

    A namespace package (a folder that an uninstall left behind) has no origin: not installed.
    """
    spec = find_spec("mxnet")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def _mxnet_version(folder: Path) -> str | None:
    """Return ``__version__`` of MXNet's libinfo.py, or None where it cannot be read."""
    try:
        text = (folder / "libinfo.py").read_text(encoding="utf-8")
    except OSError:
        return None
    match = re.search(r"""^__version__\s*=\s*["']([^"']+)["']""", text, re.MULTILINE)
    return match.group(1) if match else None


def _release(version: str) -> tuple[int, ...]:
    """Return (major, minor) of a version; an unreadable one gives an empty tuple."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return tuple(int(part) for part in match.groups()) if match else ()
