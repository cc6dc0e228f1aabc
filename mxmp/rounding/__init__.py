"""Internal: two operators for MXNet on CPU that round float32 arrays to float16's grid, for emulated networks.

They are one C++ file, which ``mxmp build`` (`build`) compiles on the user's machine and keeps in the user's cache
folder. Where that was not done nothing happens, and MXNet's casts round, with the same bits.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import stat
from pathlib import Path
from typing import Optional

import mxnet as mx

from ..files import cache_folder

SOURCE = Path(__file__).with_name("round_float16.cc")


@functools.lru_cache(maxsize=None)  # a process decides once: a graph is computed by the operators that it was made of
def available() -> bool:
    """Return whether the operators are there; loads them, which adds two to those that MXNet knows in this process."""
    library = kept()
    return library is not None and load(library)


def state() -> str:
    """Return in words how emulated float16 is rounded in a process that starts now; loads nothing."""
    library = kept()
    by_casts = "rounded by casts; `mxmp build` compiles an operator that gives the same bits faster"
    return by_casts if library is None else f"rounded by an operator of mxmp: {library}"


def path() -> Optional[Path]:
    """Return where the library is kept for this source and this build of MXNet; None if the user has no folder."""
    folder = cache_folder()
    if folder is None:
        return None
    mxnet = os.stat(mx.libinfo.find_lib_path()[0])
    key = SOURCE.read_bytes() + f"{mx.__version__} {mxnet.st_size} {mxnet.st_mtime_ns}".encode()
    return Path(folder) / f"rounding-{hashlib.sha256(key).hexdigest()[:16]}.so"


def kept() -> Optional[Path]:
    """Return the library that is kept, None if there is none, or if another user may have put it there: it is code."""
    library = path()
    if library is None:
        return None
    try:
        file, folder = os.lstat(library), os.stat(library.parent)
    except OSError:
        return None
    for each in (file, folder):
        if each.st_uid != os.getuid() or each.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return None
    return library if stat.S_ISREG(file.st_mode) else None


def load(library: Path) -> bool:
    """Load a library, which adds its operators to MXNet's; False if it is no such library."""
    try:
        return bool(ctypes.CDLL(str(library)).mxmp_register_rounding() == 0)
    except (OSError, AttributeError):
        return False
