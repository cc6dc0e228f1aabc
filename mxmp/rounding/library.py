"""The library with the operators: found in the user's cache folder and loaded, or built for the next process.

A process decides once, when it first makes a graph that emulates float16. The library is there: it is loaded, which
adds two operators to those that MXNet knows in this process. It is not: casts round, with the same bits, and where a
compiler is, a process in the background builds the library, in ten seconds or so, for those that start later.
``MXMP_ROUNDING=0`` in the environment leaves all as it is: nothing is loaded and nothing built.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import List, NamedTuple, Optional

import mxnet as mx

from ..files import cache_folder

_LOG = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("round_float16.cc")
SWITCH = "MXMP_ROUNDING"

_PACKAGES = str(Path(__file__).resolve().parents[2])
_decided: Optional[bool] = None
_builds: List["subprocess.Popen[bytes]"] = []  # a process that is let go of while it runs would warn


class State(NamedTuple):
    """Whether emulated float16 is rounded by the operators, and why or why not."""

    ready: bool
    text: str


def available() -> bool:
    """Return whether the operators are there, loaded; the answer is the same throughout a process."""
    global _decided
    if _decided is None:
        _decided = _decide()
    return _decided


def _decide() -> bool:
    found = path()
    if found is None or os.environ.get(SWITCH) == "0" or _is_shared(found.parent):
        return False
    if is_whole(found):
        return load(found)
    if not failure(found).exists():
        _LOG.info("a process in the background builds %s, with which later ones emulate float16 faster", found)
        start_build(found)
    return False


def state() -> State:
    """Return what a process that starts now would decide; nothing is loaded or built."""
    found = path()
    if os.environ.get(SWITCH) == "0":
        return State(False, f"rounded by casts: {SWITCH}=0")
    if found is None:
        return State(False, "rounded by casts: the user has no cache folder")
    if _is_shared(found.parent):
        return State(False, f"rounded by casts: {found.parent} is another user's, or others may write to it")
    if is_whole(found):
        return State(True, f"rounded by an operator of mxmp: {found}")
    if failure(found).exists():
        return State(False, f"rounded by casts: the operators could not be built, {failure(found)} says why")
    if not _can_write(found.parent):
        return State(False, f"rounded by casts: {found.parent} cannot be written")
    return State(False, "rounded by casts: the operators are not built yet, which the first emulated network starts")


def path() -> Optional[Path]:
    """Return where the library is kept for this source and this build of MXNet; None if the user has no folder."""
    folder = cache_folder()
    if folder is None:
        return None
    library = os.stat(mx.libinfo.find_lib_path()[0])
    key = hashlib.sha256(SOURCE.read_bytes())
    key.update(f"{mx.__version__} {library.st_size} {library.st_mtime_ns}".encode())
    return Path(folder) / f"rounding-{key.hexdigest()[:16]}.so"


def failure(library: Path) -> Path:
    """Return the file that stands in a library's place when it could not be built; it says why."""
    return library.with_suffix(".failed.txt")


def sealed(content: bytes) -> bytes:
    """Return the content of a library with its checksum at the end, where the loader of programs does not look."""
    return content + hashlib.sha256(content).digest()


def is_whole(library: Path) -> bool:
    """Return whether a library is there and as it was written; loading one that was cut off ends the process."""
    try:
        content = library.read_bytes()
    except OSError:
        return False
    size = hashlib.sha256().digest_size
    return sealed(content[:-size]) == content


def _is_shared(folder: Path) -> bool:
    """Return whether another user may put a library into a folder that is there."""
    try:
        state = folder.stat()
    except OSError:
        return False
    return state.st_uid != os.getuid() or bool(state.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def _can_write(folder: Path) -> bool:
    """Return whether a folder can be written, or made."""
    existing = next((each for each in (folder, *folder.parents) if each.exists()), folder)
    return existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)


def load(library: Path) -> bool:
    """Load a library, which adds its operators to MXNet's; False if that fails."""
    try:
        code = ctypes.CDLL(str(library)).mxmp_register_rounding()
    except (OSError, AttributeError) as e:
        _LOG.info("emulated float16 is rounded by casts: %s", e)
        return False
    return bool(code == 0)


def start_build(library: Path) -> None:
    """Start a process that builds a library, if it can be started."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); from mxmp.rounding import build; build.main(sys.argv[2])"
    quiet = subprocess.DEVNULL
    try:
        _builds.append(
            subprocess.Popen(
                [sys.executable, "-c", code, _PACKAGES, str(library)],
                stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True, close_fds=True,
            )
        )  # fmt: skip
    except OSError as e:
        _LOG.info("emulated float16 is rounded by casts: %s", e)
