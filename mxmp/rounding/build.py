"""Builds the library: compiled, tried out in a process of its own, and put in its place, or a note why not.

The library is C++ that uses MXNet's classes, which no interface keeps stable. So it is only put in its place when it
has rounded right, forward and backward, in a process that may end in a crash.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, List, Optional

import mxnet as mx
import numpy as np

from ..files import replacing
from ..passes.emulate import ROUND, ROUND_FORWARD
from .library import SOURCE, failure, load

_SECONDS = 1800  # for the compiler, and for the trial; they have a low priority
_OLD_STRINGS = "_ZN4nnvm2Op3GetERKSs"  # nnvm::Op::Get with the std::string from before GCC 5


def main(library: str) -> None:
    """Build a library, unless another process does; what keeps it from being built is noted beside it."""
    target = Path(library)
    os.nice(10)
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = target.with_suffix(".building")
    try:
        lock.mkdir()
    except FileExistsError:  # by another process; or by one that was killed, and the next one builds
        lock.rmdir()
        return
    try:
        why = build(target)
        if why:
            _write(failure(target), why.encode())
    finally:
        if lock.exists():
            lock.rmdir()


def build(target: Path) -> str:
    """Compile a library, try it out, and put it in its place; return why that failed, empty if it did not."""
    compiler = find_compiler()
    if compiler is None:
        return "there is no C++ compiler (CXX, c++ or g++)"
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder, target.name)
        trial = "import sys; sys.path.insert(0, sys.argv[1]); from mxmp.rounding import build; build.check(sys.argv[2])"
        packages = str(Path(__file__).resolve().parents[2])
        for what in (command(compiler, built), [sys.executable, "-c", trial, packages, str(built)]):
            try:
                done = subprocess.run(what, capture_output=True, timeout=_SECONDS, stdin=subprocess.DEVNULL)
            except (OSError, subprocess.TimeoutExpired) as e:
                return str(e)
            if done.returncode:
                return f"{' '.join(what)} ended with {done.returncode}:\n{done.stderr.decode(errors='replace')}"
        _write(target, built.read_bytes())
    return ""


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


def check(library: str) -> None:
    """Load a library and raise unless its operators round as numpy does, forward and backward."""
    if not load(Path(library)):
        raise OSError(f"{library} cannot be loaded")
    values = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    values = values[np.isfinite(values)].reshape(2, 31, 32, 32) * np.float32(1.0004)
    with np.errstate(over="ignore"):
        expected = values.astype(np.float16).astype(np.float32)
    for op, wanted in ((ROUND, expected), (ROUND_FORWARD, values)):
        data = mx.nd.array(values)
        data.attach_grad()
        with mx.autograd.record():
            found = mx.nd.CachedOp(operator(op))(data)
        found.backward(mx.nd.array(values))
        np.testing.assert_array_equal(found.asnumpy(), expected)
        np.testing.assert_array_equal(data.grad.asnumpy(), wanted)


def operator(op: str) -> Any:
    """Return the symbol of one of the operators, which reads the variable ``data``."""
    nodes = [
        {"op": "null", "name": "data", "inputs": []},
        {"op": op, "name": "rounded", "inputs": [[0, 0, 0]]},
    ]
    graph = {"nodes": nodes, "arg_nodes": [0], "node_row_ptr": [0, 1, 2], "heads": [[1, 0, 0]]}
    return mx.sym.load_json(json.dumps({**graph, "attrs": {"mxnet_version": ["int", 10901]}}))


def _write(target: Path, content: bytes) -> None:
    with replacing(str(target)) as (temporary,):
        Path(temporary).write_bytes(content)
