"""Builds the library: compiled, tried out in a process of its own, and put in its place, or a note why not.

The library is C++ that uses MXNet's classes, which no interface keeps stable. So it is only put in its place when it
has rounded right, forward and backward, in a process that may end in a crash.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import List, Optional

import mxnet as mx

from ..files import replacing
from .library import SOURCE, failure, is_whole, sealed

_SECONDS = 1800  # for the compiler, and for the trial; they have a low priority
_PASSING = re.compile(
    r"\b(Killed|Terminated|Interrupt|Hangup|No space left on device|Cannot allocate memory|out of memory|"
    r"Resource temporarily unavailable)\b"
)  # of signals and of the system, in compilers' messages too: the next build may end well
_OLD_STRINGS = "_ZN4nnvm2Op3GetERKSs"  # nnvm::Op::Get with the std::string from before GCC 5


class Interrupted(Exception):
    """The compiler or the trial was stopped, or ran out of time or memory: nothing is known of the library."""


def main(library: str) -> None:
    """Build a library, unless another process does; what keeps it from being built is noted beside it."""
    target = Path(library)
    os.nice(10)
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(target.with_suffix(".lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until this process ends, however it does
        except BlockingIOError:
            return
        if is_whole(target) or failure(target).exists():  # since the process that wants it has looked
            return
        try:
            why = build(target)
        except Interrupted:
            return
        if why:
            _write(failure(target), why.encode())


def build(target: Path) -> str:
    """Compile a library, try it out, and put it in its place; return why that failed, empty if it did not.

    Raises:
        Interrupted: If it was kept from ending, and may end well another time.
    """
    compiler = find_compiler()
    if compiler is None:
        return "there is no C++ compiler (CXX, c++ or g++)"
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder, target.name)
        trial = "import sys; sys.path.insert(0, sys.argv[1]); from mxmp.rounding import trial; trial.check(sys.argv[2])"
        packages = str(Path(__file__).resolve().parents[2])
        why = _run(command(compiler, built)) or _run([sys.executable, "-c", trial, packages, str(built)])
        if not why:
            _write(target, sealed(built.read_bytes()))
    return why


def _run(what: List[str]) -> str:
    """Run a command, with English messages and two threads; return how it failed, empty if it did not."""
    environment = {**os.environ, "LC_ALL": "C", "OMP_NUM_THREADS": "2"}
    try:
        done = subprocess.run(
            what, capture_output=True, timeout=_SECONDS, stdin=subprocess.DEVNULL, env=environment, check=False
        )
    except subprocess.TimeoutExpired as e:
        raise Interrupted(str(e)) from e
    except OSError as e:
        why = str(e)
    else:
        code = done.returncode
        if code == 0:
            return ""
        why = f"{code if code > 0 else signal.strsignal(-code)}:\n{done.stderr.decode(errors='replace')}"
    if _PASSING.search(why):
        raise Interrupted(why)
    return f"{' '.join(what)} ended with {why}"


def find_compiler() -> Optional[str]:
    """Return the path of a C++ compiler, None if there is none."""
    return next(filter(None, map(shutil.which, (os.environ.get("CXX", ""), "c++", "g++"))), None)


def command(compiler: str, output: Path) -> List[str]:
    """Return the command that compiles the library for the installed MXNet."""
    library, include = mx.libinfo.find_lib_path()[0], mx.libinfo.find_include_path()
    old = hasattr(ctypes.CDLL(library), _OLD_STRINGS)
    macros = {
        "MXNET_USE_MKLDNN": int(mx.runtime.Features().is_enabled("MKLDNN")),
        "MSHADOW_STAND_ALONE": 1,  # no BLAS, whose headers MXNet does not ship
        "MSHADOW_USE_SSE": 0,
        "_GLIBCXX_USE_CXX11_ABI": int(not old),
    }
    flags = ["-std=c++14", "-O1", "-fPIC", "-shared", "-fopenmp", "-fvisibility=hidden", "-w", "-Wl,-z,now"]
    defined = [f"-D{name}={value}" for name, value in macros.items()]
    paths = [f"-I{include}", f"-I{os.path.join(include, 'mkldnn')}"]
    return [compiler, *flags, *defined, *paths, str(SOURCE), library, "-o", str(output)]


def _write(target: Path, content: bytes) -> None:
    with replacing(str(target)) as (temporary,):
        Path(temporary).write_bytes(content)
