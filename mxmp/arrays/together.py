"""Many arrays copied, scaled or clipped by one operator: for a GPU, where each operator is a launch and a wait.

MXNet has no such operators, but its SGD takes up to 60 weights in one launch (MultiSGDKernel in
src/operator/optimizer_op-inl.h at tag 1.9.1):

    out = w + (0 - lr * wd * w - (lr * rescale_grad) * grad)
    out = w + (0 - lr * wd * w - lr * clip(rescale_grad * grad)), with clip_gradient

With a learning rate of 0 that is a copy of ``w``; with zeros for weights and a negative one, the gradient times a
number, or clipped. All are exact, but that -0 becomes 0, and an inf that is copied becomes a NaN.
"""

from __future__ import annotations

import math
from typing import Any, Iterator, List, Sequence, TypeVar

import mxnet as mx
import numpy as np
from mxnet import autograd

from .casts import pieces
from .devices import on_gpu

T = TypeVar("T")

# The arrays of one launch: N of MultiSGDKernelParam.
MOST_ARRAYS = 60


def chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield parts of a sequence of at most ``size`` items."""
    return (items[start : start + size] for start in range(0, len(items), size))


def views(joined: mx.nd.NDArray, like: Sequence[mx.nd.NDArray]) -> List[mx.nd.NDArray]:
    """Return parts of a one-dimensional array in the shapes of others, in their order."""
    found, start = [], 0
    for array in like:
        found.append(joined[start : start + array.size].reshape(array.shape))
        start += array.size
    return found


def copy_all(sources: Sequence[mx.nd.NDArray], targets: Sequence[mx.nd.NDArray]) -> None:
    """Copy dense arrays into others of their shapes, dtype and context, 60 in a launch; inf becomes NaN."""
    for group in chunks(list(zip(sources, targets)), MOST_ARRAYS):
        count = len(group)
        inputs = [array for source, _ in group for array in (source, source)]
        out = [target for _, target in group]
        mx.nd.multi_sgd_update(*inputs, lrs=(0,) * count, wds=(0,) * count, num_weights=count, out=out)


def scale_all(arrays: Sequence[mx.nd.NDArray], factor: float) -> None:
    """Multiply dense float32 arrays of one context in place, 60 in a launch; -0 becomes 0."""
    # MXNet 1.9.1 reads rescale_grad with an error in the last bit where it is written with an exponent.
    mantissa, exponent = math.frexp(np.float32(factor))
    _move_zeros(arrays, 2.0 ** (exponent - 1), rescale_grad=2 * mantissa)


def clip_all(arrays: Sequence[mx.nd.NDArray], max_value: float) -> None:
    """Bring every element of dense float32 arrays of one context into [-max_value, max_value], 60 in a launch."""
    _move_zeros(arrays, 1.0, clip_gradient=max_value)


def _move_zeros(grads: Sequence[mx.nd.NDArray], rate: float, **options: Any) -> None:
    """Write over gradients what one step of SGD adds to weights that are zero, at a learning rate of ``-rate``."""
    parts = [part for grad in grads for part in pieces(grad)]
    zeros = mx.nd.zeros((max(part.size for part in parts),), ctx=parts[0].ctx)
    for group in chunks(parts, MOST_ARRAYS):
        count = len(group)
        inputs = [array for part in group for array in (zeros[: part.size], part)]
        options.update(lrs=(-rate,) * count, wds=(0,) * count, num_weights=count)
        mx.nd.multi_sgd_update(*inputs, out=list(group), **options)


def gather(numbers: Sequence[mx.nd.NDArray]) -> mx.nd.NDArray:
    """Return float32 arrays of shape (1,) as one of shape (N,), on the context of the first; one alone as it is.

    On a GPU an inf becomes a NaN.
    """
    if len(numbers) == 1:
        return numbers[0]
    with autograd.pause():
        here = [number.as_in_context(numbers[0].ctx) for number in numbers]
        if not on_gpu(here[0]):
            return mx.nd.concat(*here, dim=0)
        joined = mx.nd.empty((len(here),), ctx=here[0].ctx)
        copy_all(here, views(joined, here))
        return joined
