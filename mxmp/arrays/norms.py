"""Norms of gradients, and gradients times a number."""

from __future__ import annotations

import math
from typing import Any, Dict, Iterable, List, Sequence, Tuple

import mxnet as mx
import numpy as np

from ..errors import TrainerError
from ..mxnet_private import multiply
from .devices import on_gpu
from .together import clip_all, scale_all


def sum_of_squares(arrays: Iterable[mx.nd.NDArray]) -> mx.nd.NDArray:
    """Return the sum of the squares of all elements of arrays of one context, dense or row_sparse.

    Shape (1,), float32, on the device. It overflows to inf when the norm passes 1.8e19.
    """
    arrays = [array.as_nd_ndarray() for array in arrays]
    together: List[mx.nd.NDArray] = []
    squares: List[mx.nd.NDArray] = []
    with mx.autograd.pause():
        for array in arrays:
            if array.stype != "default":
                squares.append(_row_squares(array))
            elif on_gpu(array) and array.dtype == np.float32 and array.size:
                together.append(array.reshape(-1))
            else:
                squares.append(_squares(array.reshape(-1)))
        if together:
            squares.append(_squares_together(together))
        return squares[0] if len(squares) == 1 else mx.nd.add_n(*squares)


def _row_squares(rows: mx.nd.NDArray) -> mx.nd.NDArray:
    return mx.nd.square(mx.nd.norm(rows)).astype("float32")


def _squares(flat: mx.nd.NDArray) -> mx.nd.NDArray:
    # BLAS: faster and more accurate than multi_sum_sq, which adds one by one on CPU.
    return mx.nd.dot(flat, flat).astype("float32", copy=False)


def _squares_together(arrays: Sequence[mx.nd.NDArray]) -> mx.nd.NDArray:
    """Return the sum for all arrays by two operators; a GPU adds in blocks (src/operator/contrib/multi_sum_sq.cu)."""
    return mx.nd.sum(mx.nd.multi_sum_sq(*arrays, num_arrays=len(arrays)), axis=0, keepdims=True)


def host_norm(arrays: Iterable[mx.nd.NDArray]) -> float:
    """Return the norm of all elements, computed on the host in float64; waits for the arrays."""
    squares = (np.square(array.asnumpy(), dtype=np.float64).sum() for array in arrays)
    return math.sqrt(sum(squares))


def clip_coefficient(norm: float, max_norm: float) -> float:
    """Return what brings gradients of a norm to at most ``max_norm``: 1 if it is at most that, or not finite."""
    return max_norm / norm if max_norm < norm < math.inf else 1.0


def scale_in_place(arrays: Iterable[mx.nd.NDArray], factor: float) -> None:
    """Multiply arrays in place, in their dtype; dense or row_sparse."""
    if factor == 1.0:
        return
    together, others = _split(arrays)
    with mx.autograd.pause():
        for group in together:
            scale_all(group, factor)
        for array in others:
            multiply(array, scalar=factor, out=array)


def clip_in_place(arrays: Iterable[mx.nd.NDArray], max_value: float) -> None:
    """Bring every element of arrays into [-max_value, max_value], in place; dense or row_sparse."""
    together, others = _split(arrays)
    with mx.autograd.pause():
        for group in together:
            clip_all(group, max_value)
        for array in others:
            mx.nd.clip(array, -max_value, max_value, out=array)


def _split(arrays: Iterable[mx.nd.NDArray]) -> Tuple[List[List[mx.nd.NDArray]], List[mx.nd.NDArray]]:
    """Return those that are changed together, dense float32 arrays of each GPU, and the others."""
    together: Dict[mx.Context, List[mx.nd.NDArray]] = {}
    others: List[mx.nd.NDArray] = []
    for array in (array.as_nd_ndarray() for array in arrays):
        fits = array.stype == "default" and array.dtype == np.float32 and on_gpu(array)
        (together.setdefault(array.ctx, []) if fits else others).append(array)
    return list(together.values()), others


def require_positive(what: str, value: Any) -> None:
    """Raise a TrainerError that names ``what`` unless a value is a positive number."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not value > 0:
        raise TrainerError(f"{what}={value!r}; expected a positive number.")
