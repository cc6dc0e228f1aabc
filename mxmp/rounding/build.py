"""``mxmp build``: compiles the library of rounding operators, tries it, and keeps it in the user's cache folder.

The library uses MXNet's C++ classes, which differ between builds of MXNet. So it is tried in a process of its own, in
case it crashes. It is kept only if it has rounded correctly, forward and backward.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable, List, Mapping

import mxnet as mx
import numpy as np

from ..errors import DependencyError
from ..files import replacing
from ..passes.emulate import ROUND, ROUND_FORWARD
from . import SOURCE, load, path

# The trial must not import modules of the current folder, which Python puts first on the path of such a program.
_TRIAL = "import sys; sys.path[0] = sys.argv[1]; from mxmp.rounding import build; build.check(sys.argv[2])"
_SHAPE = (4, 16, 32, 32)  # oneDNN has a layout of its own for 16 channels, and the size uses several threads.


def build() -> Path:
    """Compile the library, try it, and keep it; return its path.

    Raises:
        DependencyError: If there is no compiler or no folder, or if compiling or the trial fails.
    """
    target = path()
    if target is None:
        raise DependencyError("there is no folder to keep the library in: neither HOME nor XDG_CACHE_HOME is a path.")
    compiler = shutil.which(os.environ.get("CXX", "")) or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        raise DependencyError("there is no C++ compiler: install g++, or name another in CXX.")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.parent.chmod(0o700)  # `kept` refuses a folder that others may write to.
    except OSError as e:
        raise DependencyError(f"there is no folder to keep the library in: {e}.") from e
    with replacing(str(target)) as (temporary,):
        _run(command(compiler, temporary))
        os.chmod(temporary, 0o600)
        _run([sys.executable, "-c", _TRIAL, str(Path(__file__).resolve().parents[2]), temporary])
    return target


def command(compiler: str, output: str) -> List[str]:
    """Return the command that compiles the library for the installed MXNet."""
    library, include = mx.libinfo.find_lib_path()[0], mx.libinfo.find_include_path()
    options = [
        *("-std=c++14", "-O1", "-fPIC", "-shared", "-fopenmp", "-fvisibility=hidden", "-w", "-Wl,-z,now"),
        *(f"-I{include}", f"-I{os.path.join(include, 'mkldnn')}"),
        f"-DMXNET_USE_MKLDNN={int(mx.runtime.Features().is_enabled('MKLDNN'))}",
        "-DMSHADOW_STAND_ALONE=1",  # without BLAS, because MXNet does not ship its headers.
        "-DMSHADOW_USE_SSE=0",
        # The library needs the same std::string as MXNet: before GCC 5, MXNet has this symbol of nnvm::Op::Get.
        f"-D_GLIBCXX_USE_CXX11_ABI={int(not hasattr(ctypes.CDLL(library), '_ZN4nnvm2Op3GetERKSs'))}",
    ]
    return [compiler, *options, str(SOURCE), library, "-o", output]


def _run(arguments: List[str]) -> None:
    done = subprocess.run(arguments, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode:
        raise DependencyError(
            f"the operators cannot be built: {arguments[0]} ended with {done.returncode}:\n"
            f"{done.stderr.decode(errors='replace').strip()}"
        )


def check(library: str) -> None:
    """Load a library; raise an error if a network computes other bits with its operators than with casts."""
    if not load(Path(library)):
        raise DependencyError(f"{library} cannot be loaded.")
    for static in (False, True):
        by_casts, by_operators = run_block(CASTS, static), run_block(OPERATORS, static)
        for number, (one, other) in enumerate(zip(by_casts, by_operators)):
            np.testing.assert_array_equal(one.view(np.uint32), other.view(np.uint32), err_msg=f"array {number}")


def run_block(rounding: Mapping[str, Callable[..., Any]], static: bool) -> List[np.ndarray[Any, Any]]:
    """Run a residual block twice, forward and backward; return its outputs and gradients.

    Some gradients add up over the two runs. One input has all float16 values, each slightly changed, infinities and NaN
    among them.
    """
    rng = np.random.RandomState(0)
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).reshape(_SHAPE)
    values = {
        "data": rng.standard_normal(_SHAPE),
        "weight": rng.standard_normal((16, 16, 3, 3)),
        "halves": mx.nd.array(halves) * 1.0004,
    }
    twice, forward = rounding[ROUND], rounding[ROUND_FORWARD]
    data, weight, every = map(mx.sym.var, values)
    layer = mx.sym.Convolution(twice(data), weight, kernel=(3, 3), pad=(1, 1), num_filter=16, no_bias=True)
    layer = twice(layer)
    norm = forward(mx.sym.BatchNorm(layer, name="norm"))
    total = mx.sym.tanh(twice(norm + layer))
    symbol = mx.sym.Group([mx.sym.BatchNorm(total, name="last"), twice(every), forward(every)])
    arrays = {name: mx.nd.array(values.get(name, np.ones(16))) for name in symbol.list_inputs()}
    for name, array in arrays.items():
        array.attach_grad("write" if name == "weight" else "add")
    run = mx.nd.CachedOp(symbol, [("static_alloc", static), ("static_shape", static)])
    for _ in range(2):
        with mx.autograd.record():
            outputs = run(*arrays.values())
        mx.autograd.backward(outputs, [arrays[name] for name in ("data", "halves", "halves")])
    gradients = [array.grad for array in arrays.values()]
    return [array.asnumpy() for array in (*outputs, *gradients)]


def operator(op: str) -> Any:
    """Return the symbol of one of the operators, which reads the variable ``data``."""
    # MXNet made its functions for operators when it was imported, so that this operator has none.
    graph = {
        "nodes": [{"op": "null", "name": "data", "inputs": []}, {"op": op, "name": "rounded", "inputs": [[0, 0, 0]]}],
        "arg_nodes": [0],
        "heads": [[1, 0, 0]],
        "attrs": {"mxnet_version": ["int", 10901]},
    }
    return mx.sym.load_json(json.dumps(graph))


def _cast(data: Any) -> Any:
    return mx.sym.Cast(mx.sym.Cast(data, dtype="float16"), dtype="float32")


# The two roundings as `passes.emulate` writes them: of a value and its gradient, and of only the value.
CASTS = {ROUND: _cast, ROUND_FORWARD: lambda data: data + mx.sym.BlockGrad(_cast(data) - data)}
OPERATORS = {op: (lambda data, op=op: operator(op)(data=data)) for op in CASTS}
