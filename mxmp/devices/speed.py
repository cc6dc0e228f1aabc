"""How fast bfloat16 is on this machine's processor beside float32: measured, for flags do not tell.

The same instruction set is 1.7 times as fast as float32 on one processor and 0.7 times on another. What is measured is
what a network in 'mixed_bfloat16' does in its middle: two 3x3 convolutions with 128 channels of 28x28, batch 2, and
two dense layers of 512 units, batch 256, each with a relu behind it, forward and backward. Weights are stored in
float32 and cast in each run. Between the two layers oneDNN keeps its own layouts, as in a network. The times have the
casts and reorders of weights and their gradients in them, which a network has too, and those at the two ends, of which
a network has fewer beside its layers. They have no BatchNorm and no operator without a bfloat16 kernel, with which a
network gains less.
"""

from __future__ import annotations

import logging
import math
import time
import warnings
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import mxnet as mx
import numpy as np

from .. import dtypes
from ..errors import SlowPrecisionWarning, mxnet_reason
from . import speed_file
from .bfloat16 import runs_bfloat16
from .processor import read_processor

_LOG = logging.getLogger(__name__)

LONG, SHORT = 1.0, 0.4  # seconds of measuring: for ``mxmp doctor``, and where others wait
_NOISE = 0.1  # ratios this near to 1 are no difference, on a machine with other work too
_FEWEST, _MOST = 4, 40  # rounds

_Times = Tuple[float, float]  # seconds of forward and of backward


class Gain(NamedTuple):
    """How many times as fast as float32 one kind of layer is."""

    forward: float
    training: float  # forward and backward


class Speed(NamedTuple):
    """How many times as fast as float32 bfloat16 is, on this processor with this build of MXNet."""

    convolution: Gain
    product: Gain

    @property
    def inference(self) -> float:
        """The geometric mean over layers, forward."""
        return math.sqrt(self.convolution.forward * self.product.forward)

    @property
    def training(self) -> float:
        """The geometric mean over layers, forward and backward."""
        return math.sqrt(self.convolution.training * self.product.training)

    @property
    def slower(self) -> bool:
        """Whether bfloat16 is slower than float32 in training and in inference."""
        return max(self.inference, self.training) < 1 - _NOISE

    @property
    def advice(self) -> str:
        """What to take for speed."""
        if self.slower:
            return "For speed take float32."
        if self.training < 1 - _NOISE:
            return "For speed take bfloat16 for inference, and float32 for training."
        if self.inference < 1 - _NOISE:
            return "For speed take bfloat16 for training, and float32 for inference."
        return ""

    def __str__(self) -> str:
        """Return the ratios in words."""
        return (
            f"{self.inference:.2f} times as fast as float32 in inference, {self.training:.2f} in training "
            f"(convolutions {self.convolution.forward:.2f} and {self.convolution.training:.2f}, "
            f"matrix products {self.product.forward:.2f} and {self.product.training:.2f})"
        )


def bfloat16_speed(seconds: float = SHORT, anew: bool = False) -> Optional[Speed]:
    """Return how fast bfloat16 is on this processor; None where it does not run.

    It is measured once for a machine and a build of MXNet, in about ``seconds``, and kept in the user's cache folder.

    Args:
        seconds: About how long to measure.
        anew: Whether to measure though a result is kept.
    """
    machine = speed_file.describe_machine()
    kept = None if anew else speed_file.load(machine)
    if kept is not None:
        return Speed(Gain(*kept[:2]), Gain(*kept[2:]))
    if not runs_bfloat16():
        return None
    try:
        found = measure(dtypes.FLOAT32, dtypes.BFLOAT16, seconds)
    except mx.MXNetError as e:
        _LOG.warning("The speed of bfloat16 cannot be measured: %s", mxnet_reason(e))
        return None
    speed_file.store(machine, [*found.convolution, *found.product])
    return found


def measure(base: str, other: str, seconds: float) -> Speed:
    """Return how many times as fast as one canonical dtype another is, in about so many seconds.

    Both take turns, each as often the first; of the times of each the shortest counts, which other programs disturb
    least.
    """
    return Speed(*(_gain(layers(base), layers(other), seconds / 2) for layers in (_convolutions, _products)))


def _gain(base: Callable[[], _Times], other: Callable[[], _Times], seconds: float) -> Gain:
    """Return how many times as fast as one function another is."""
    deadline = time.perf_counter() + seconds
    found: Dict[Callable[[], _Times], List[_Times]] = {base: [], other: []}
    order = [base, other]
    for run in order:
        run()  # has oneDNN generate its code
    while len(found[base]) < _FEWEST or (len(found[base]) < _MOST and time.perf_counter() < deadline):
        for run in order:
            found[run].append(run())
        order.reverse()
    (forward, backward), (low_forward, low_backward) = (map(min, zip(*times)) for times in found.values())
    return Gain(forward / low_forward, (forward + backward) / (low_forward + low_backward))


def _convolutions(dtype: str) -> Callable[[], _Times]:
    def layer(data: Any, weight: Any) -> Any:
        return mx.nd.Convolution(data, weight, kernel=(3, 3), pad=(1, 1), num_filter=128, no_bias=True)

    return _layers(dtype, (2, 128, 28, 28), (128, 128, 3, 3), layer)


def _products(dtype: str) -> Callable[[], _Times]:
    def layer(data: Any, weight: Any) -> Any:
        return mx.nd.FullyConnected(data, weight, num_hidden=512, no_bias=True)

    return _layers(dtype, (256, 512), (512, 512), layer)


def _layers(
    dtype: str, shape: Tuple[int, ...], weights: Tuple[int, ...], layer: Callable[[Any, Any], Any]
) -> Callable[[], _Times]:
    """Return a function that runs two layers on float32 arrays, and returns the seconds of forward and backward."""
    random = np.random.RandomState(0)  # MXNet's own random numbers stay where they are

    def array(shape: Tuple[int, ...]) -> Any:
        values = random.normal(scale=1 / math.sqrt(math.prod(shape[1:])), size=shape)
        found = mx.nd.array(values, ctx=mx.cpu(), dtype="float32")
        found.attach_grad()
        return found

    inputs = array(shape), array(weights), array(weights)
    low, full = (dtypes.to_numpy(name) for name in (dtype, dtypes.FLOAT32))

    def run() -> _Times:
        start = time.perf_counter()
        with mx.autograd.record():
            data, *kernels = (mx.nd.amp_cast(each, dtype=low) for each in inputs)
            for kernel in kernels:
                data = mx.nd.Activation(layer(data, kernel), act_type="relu")
            output = mx.nd.amp_cast(data, dtype=full)
        output.wait_to_read()
        middle = time.perf_counter()
        output.backward()
        for each in inputs:
            each.grad.wait_to_read()
        return middle - start, time.perf_counter() - middle

    return run


_checked = False  # whether this process has been told, or need not be


def warn_if_slower(dtype: str) -> None:
    """Warn, once in a process, that a dtype that a network is converted to is slower here than float32.

    Nothing is measured for other dtypes than bfloat16, or where that does not run.

    Args:
        dtype: A canonical dtype.
    """
    global _checked
    if _checked or dtype != dtypes.BFLOAT16:
        return
    found = bfloat16_speed()
    if found is not None and found.slower:
        text = f"bfloat16 is {found} on this processor ({read_processor().name}). {found.advice}"
        warnings.warn(f"{text} `mxmp doctor --policy mixed_bfloat16` says why.", SlowPrecisionWarning, _callers_level())
    _checked = True  # not before: where warnings are errors, the next conversion fails too


def _callers_level() -> int:
    """Return the ``stacklevel`` of the first caller that is not mxmp's."""
    import sys

    package = __name__.partition(".")[0] + "."
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and f"{frame.f_globals.get('__name__', '')}.".startswith(package):
        level, frame = level + 1, frame.f_back
    return level
