"""Updates that were lost: a weight in low precision without a master, which its update did not move."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, List, Tuple

import mxnet as mx
import numpy as np

from ...arrays import is_low_precision, on_gpu
from ...train.masters import Update


@dataclass(frozen=True)
class Before:
    """A weight before its update: its values, and which gradients are not 0; on a GPU arrays there, else of numpy."""

    index: int
    weight: mx.nd.NDArray
    values: Any
    moves: Any


def look(group: List[Update]) -> List[Before]:
    """Keep what the weights of one context are before an update; those in low precision with a dense gradient."""
    found = []
    for index, grad, weight in group:
        weight, grad = weight.as_nd_ndarray(), grad.as_nd_ndarray()
        if is_low_precision(weight) and grad.stype == "default" and weight.stype == "default" and weight.size:
            found.append(Before(index, weight, _values(weight), _values(grad) != 0))
    return found


def compare(before: List[Before]) -> List[Tuple[int, Any]]:
    """Begin to count, after the update; by the index of a weight [elements lost, elements with a gradient].

    Those of a GPU are counted there, and read when they are asked for as numpy arrays.
    """
    return [(each.index, _count(each)) for each in before]


def read(counts: Any) -> Tuple[int, int]:
    """Return what was counted of one weight: elements lost, and elements with a gradient."""
    if isinstance(counts, mx.nd.NDArray):
        counts = counts.asnumpy()
    return int(counts[0]), int(counts[1])


def _values(array: mx.nd.NDArray) -> Any:
    return array.copy() if on_gpu(array) else _bits(array.asnumpy())


def _bits(values: Any) -> Any:
    """Return values that can be compared with 0 and each other: bfloat16's bits, without the sign of a zero."""
    if values.dtype.names:
        bits = values.view(np.uint16)
        return np.where(bits == 0x8000, 0, bits)
    return values


def _count(before: Before) -> Any:
    moves = before.moves
    if not on_gpu(before.weight):
        same = _values(before.weight) == before.values
        return np.array([np.count_nonzero(same & moves), np.count_nonzero(moves)])
    with mx.autograd.pause():
        moves = moves.astype("float32")
        same = (before.weight == before.values).astype("float32")
        return mx.nd.concat((same * moves).sum(), moves.sum(), dim=0)
