"""Values of a training step that are computed on the devices, and read when they are written down."""

from __future__ import annotations

import math
from typing import Any, List, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np

from ..arrays import copies_in_float32, is_low_precision, sum_of_squares, to_float32
from ..errors import TrainerError
from ..train.step import Weights


class GradientNorm:
    """The norm of the gradients of a step, the largest of several contexts; computed on the devices and read later."""

    def __init__(self, weights: Weights, scale: float) -> None:
        groups = [group for group in weights.groups() if group]
        groups = groups[:1] if weights.kvstore is not None else groups  # all contexts have the same
        self._squares = [_squares([update.grad for update in group]) for group in groups]
        self._scale = scale

    def read(self) -> float:
        """Return the norm of the true gradients, NaN if one of them is."""
        squares = [_number(square) for square in self._squares]
        return math.nan if any(map(math.isnan, squares)) else math.sqrt(max(squares, default=0.0)) / self._scale


class MeanLoss:
    """The mean of the losses of a step: numbers, or arrays that are averaged on their devices and read later."""

    def __init__(self) -> None:
        self._parts: List[Tuple[Any, int]] = []

    def add(self, loss: Any) -> None:
        """Add the loss of a batch."""
        parts = list(loss) if isinstance(loss, (list, tuple)) else [loss]
        wrong = [part for part in parts if not isinstance(part, (int, float, np.number, mx.nd.NDArray))]
        if wrong or not parts:
            found = f"a {type(wrong[0]).__name__}" if wrong else "an empty list"
            raise TrainerError(f"log: loss is {found}; expected a number, an NDArray, or a list of them.")
        with mx.autograd.pause():
            self._parts += [_mean(part) for part in parts]

    def read(self) -> Optional[float]:
        """Return the mean of all elements; None if no loss was given."""
        count = sum(size for _, size in self._parts)
        if not self._parts:
            return None
        return sum(_number(value) * size for value, size in self._parts) / count if count else math.nan


def _squares(grads: Sequence[mx.nd.NDArray]) -> mx.nd.NDArray:
    """Return the sum of the squares of the gradients of one context, shape (1,), in float32."""
    low = [grad for grad in grads if is_low_precision(grad)]
    return sum_of_squares([*copies_in_float32(low), *(grad for grad in grads if not is_low_precision(grad))])


def _mean(loss: Any) -> Tuple[Any, int]:
    """Return the mean of a loss, on its device, and the number of its elements."""
    if not isinstance(loss, mx.nd.NDArray):
        return float(loss), 1
    array = to_float32(loss.as_nd_ndarray())
    return array.astype("float32", copy=False).mean(), loss.size


def _number(value: Any) -> float:
    return float(value.asnumpy().reshape(-1)[0]) if isinstance(value, mx.nd.NDArray) else value
