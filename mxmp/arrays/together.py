"""Many small arrays read or copied by one operator: for a GPU, where an operator costs more than what it computes.

MXNet has no copy of many arrays, but its SGD takes up to 60 weights in one launch (MultiSGDKernel in
src/operator/optimizer_op-inl.h at tag 1.9.1): ``out = w + (0 - lr * wd * w - lr * rescale_grad * grad)``. With a
learning rate of 0 that is a copy: exact for finite values, but that -0 becomes 0; an inf becomes a NaN.
"""

from __future__ import annotations

from typing import Iterator, List, Sequence, TypeVar

import mxnet as mx
from mxnet import autograd

T = TypeVar("T")

# The arrays of one launch: N of MultiSGDKernelParam.
MOST_ARRAYS = 60


def on_gpu(array: mx.nd.NDArray) -> bool:
    """Return whether an array lies on a GPU."""
    return bool(array.ctx.device_type == "gpu")


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
