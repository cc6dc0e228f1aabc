"""Measures how fast bfloat16 is on this machine's processor compared with float32, and describes the machine.

Flags tell roughly, the clock more: the same instruction set is 1.7 times as fast as float32 on one processor and 0.7
times on another. ``mxmp doctor`` measures; nothing is kept. The measured layers are like those in the middle of a
network in 'mixed_bfloat16', forward and backward. Two are 3x3 convolutions with 128 channels of 28x28, batch 2. Two are
dense layers of 512 units, batch 256. Each has a relu behind it. Weights are stored in float32 and cast in each run.
Between the two layers oneDNN keeps its own layouts, as in a network. The times include the casts and reorders of
weights and their gradients, which a network has too. They include casts at the two ends, of which a network has fewer
for each layer. They have no BatchNorm and no operator without a bfloat16 kernel, with which a network gains less.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import mxnet as mx
import numpy as np

from .. import dtypes
from . import amx
from .processor import read_processor

LONG, SHORT = 1.0, 0.4  # seconds of measuring: for ``mxmp doctor``, and for who has others to measure
_FEWEST, _MOST = 4, 40  # rounds

_INSTRUCTIONS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
_VARIABLES = (
    "OMP_NUM_THREADS",
    "OMP_PLACES",
    "OMP_PROC_BIND",
    "GOMP_CPU_AFFINITY",
    "KMP_AFFINITY",
    "MXNET_MKLDNN_ENABLED",
    "MXNET_SUBGRAPH_BACKEND",
    amx.VARIABLE,
)

# Operators with the shapes of their data and weight: large enough that arithmetic takes most of the time.
_LAYERS: Tuple[Any, ...] = (
    (mx.nd.Convolution, (2, 128, 28, 28), (128, 128, 3, 3), {"kernel": (3, 3), "pad": (1, 1), "num_filter": 128}),
    (mx.nd.FullyConnected, (256, 512), (512, 512), {"num_hidden": 512}),
)

_Times = Tuple[float, float]  # seconds of forward and of backward


class Speed(NamedTuple):
    """How many times as fast as float32 bfloat16 is, on this processor with this build of MXNet."""

    inference: float  # forward
    training: float  # forward and backward

    def __str__(self) -> str:
        return f"{self.inference:.2f} times as fast as float32 in inference, {self.training:.2f} in training"


def runs_bfloat16() -> bool:
    """Return whether MXNet runs a bfloat16 convolution on this machine's CPU, by trying one.

    oneDNN would print its error, so it is not asked if the processor's flags tell. Waits for the result.
    """
    if read_processor().kind.runs is False:
        return False
    try:
        with mx.autograd.pause(), mx.cpu():
            ones = mx.nd.amp_cast(mx.nd.ones((1, 1, 3, 3)), dtype=dtypes.to_numpy(dtypes.BFLOAT16))
            mx.nd.Convolution(ones, ones, kernel=(3, 3), num_filter=1, no_bias=True).wait_to_read()
    except mx.MXNetError:
        return False
    return True


def bfloat16_speed(seconds: float = SHORT) -> Optional[Speed]:
    """Measure, in about ``seconds``, how fast bfloat16 is on this processor; None where it does not run."""
    return measure(_layers(dtypes.FLOAT32), _layers(dtypes.BFLOAT16), seconds) if runs_bfloat16() else None


def measure(base: Callable[[], _Times], other: Callable[[], _Times], seconds: float) -> Speed:
    """Return how many times as fast as one function another is.

    Both take turns, each as often the first. The shortest time of each counts, because other programs only make times
    longer.
    """
    deadline = time.perf_counter() + seconds
    times: Dict[Callable[[], _Times], List[_Times]] = {base: [], other: []}
    order = [base, other]
    for run in order:
        run()  # has oneDNN generate its code
    while len(times[base]) < _FEWEST or (len(times[base]) < _MOST and time.perf_counter() < deadline):
        for run in order:
            times[run].append(run())
        order.reverse()
    forward, backward = map(min, zip(*times[base]))
    low_forward, low_backward = map(min, zip(*times[other]))
    return Speed(forward / low_forward, (forward + backward) / (low_forward + low_backward))


def _layers(dtype: str) -> Callable[[], _Times]:
    """Return a function that runs `_LAYERS` on float32 arrays, and returns the seconds of forward and backward."""
    random = np.random.RandomState(0)  # MXNet's own random numbers stay where they are
    low, full = (dtypes.to_numpy(name) for name in (dtype, dtypes.FLOAT32))
    inputs = []
    for _, data, weight, _ in _LAYERS:
        shapes = (data, weight, weight)
        inputs.append([mx.nd.array(random.normal(scale=np.prod(s[1:]) ** -0.5, size=s)) for s in shapes])
        for array in inputs[-1]:
            array.attach_grad()

    def run() -> _Times:
        start, outputs = time.perf_counter(), []
        with mx.autograd.record():
            for (op, _, _, attrs), arrays in zip(_LAYERS, inputs):
                data, *weights = (mx.nd.amp_cast(array, dtype=low) for array in arrays)
                for weight in weights:
                    data = mx.nd.Activation(op(data, weight, no_bias=True, **attrs), act_type="relu")
                outputs.append(mx.nd.amp_cast(data, dtype=full))
        mx.nd.waitall()
        middle = time.perf_counter()
        mx.autograd.backward(outputs)
        mx.nd.waitall()
        return middle - start, time.perf_counter() - middle

    return run


@dataclass(frozen=True)
class Machine:
    """The machine and settings for which measured times hold.

    Attributes:
        processor: Its name.
        instructions: Its instruction sets that matter here. Processors of one name may differ in them.
        cores: How many of them this process may use.
        amx: Whether MXNet uses AMX.
        variables: Environment variables that matter and are set, as 'NAME=value'. They are about threads, their places,
            and oneDNN.
        mxnet: MXNet's version and the size of its library.
    """

    processor: str
    instructions: Tuple[str, ...]
    cores: int
    amx: bool
    variables: Tuple[str, ...]
    mxnet: str

    def __str__(self) -> str:
        instructions = f" ({', '.join(self.instructions)})" if self.instructions else ""
        processor = f"{self.processor}{instructions}, {self.cores} cores, AMX {'on' if self.amx else 'off'}"
        return f"{', '.join([processor, *self.variables])}; MXNet {self.mxnet}"


def read_machine() -> Machine:
    """Return the machine that this process runs on."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 0
    variables = tuple(f"{name}={os.environ[name]}" for name in _VARIABLES if name in os.environ)
    processor = read_processor()
    instructions = tuple(flag for flag in _INSTRUCTIONS if flag in processor.flags)
    mxnet = f"{mx.__version__}, {os.stat(mx.libinfo.find_lib_path()[0]).st_size} bytes"
    return Machine(processor.name, instructions, cores, processor.amx.on, variables, mxnet)
