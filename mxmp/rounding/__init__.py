"""Internal: two operators for MXNet on a CPU that round float32 arrays to float16's values, for emulated networks.

They are one C++ file. ``mxmp build`` (`build`) compiles it on the user's machine and keeps the library in the user's
cache folder. Without the library MXNet's casts round, with the same bits.
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


@functools.lru_cache(maxsize=None)  # once in a process, because the operators of a graph must not go away
def available() -> bool:
    """Load the operators into this process's MXNet; return whether that succeeded."""
    library = kept()
    return library is not None and load(library)


def state() -> str:
    """Return in words how a process that starts now would round emulated float16; does not load the library."""
    library = kept()
    by_casts = "rounded by casts; `mxmp build` compiles an operator that gives the same bits faster"
    return by_casts if library is None else f"rounded by an operator of mxmp: {library}"


def path() -> Optional[Path]:
    """Return the library's path for this source and this build of MXNet; None if the user has no cache folder."""
    folder = cache_folder()
    if folder is None:
        return None
    mxnet = os.stat(mx.libinfo.find_lib_path()[0])
    key = SOURCE.read_bytes() + f"{mx.__version__} {mxnet.st_size} {mxnet.st_mtime_ns}".encode()
    return Path(folder) / f"rounding-{hashlib.sha256(key).hexdigest()[:16]}.so"


def kept() -> Optional[Path]:
    """Return the path of the library if it exists; None if another user may have written it, because it is code."""
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
    """Load a library, which adds its operators to MXNet's; return False if the file is not such a library."""
    try:
        return bool(ctypes.CDLL(str(library)).mxmp_register_rounding() == 0)
    except (OSError, AttributeError):
        return False
