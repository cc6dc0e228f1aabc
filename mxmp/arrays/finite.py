"""Are all gradients finite? Answered exactly, in one small array on the device."""

from __future__ import annotations

import math
from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np

from .. import dtypes
from .casts import is_low_precision, pieces, to_float32
from .devices import on_gpu
from .together import chunks
from .views import view

# The kernel of multi_all_finite has room for 200 pointers. On CPU it walks max(size) * count elements, which is good
# for many small arrays only; on a GPU it stops at each array's end (src/operator/contrib/all_finite.cc, .cu and
# -inl.h at tag 1.9.1).
_SMALL = 4096
_MOST_ARRAYS = 200

# Elements of the shared array of zeros: 16 MiB in float32. Larger gradients go in pieces.
_MOST_ZEROS = 2**22
_ZEROS: Dict[Tuple[mx.Context, str], mx.nd.NDArray] = {}

_BITS_OF_INF = {dtypes.FLOAT16: 0x7C00, dtypes.BFLOAT16: 0x7F80}
_MOST_BITS = 2**17  # of low precision at a time, which stay in a processor's caches


def all_finite(arrays: Iterable[mx.nd.NDArray]) -> mx.nd.NDArray:
    """Return a device-side flag that is 1 if every element of every array is finite, else 0.

    Exact: huge finite values raise no alarm. Nothing is copied to the host, and nothing waits but for large arrays of
    low precision on a CPU: the host looks at their bits, several times as fast as MXNet's kernels, which take one
    thread there and convert each value.

    Args:
        arrays: At least one; any shapes, contexts and floating point dtypes, dense or
            row_sparse.

    Returns:
        Shape (1,), float32, on the context of the first array.

    Example:
        >>> float(all_finite([mx.nd.array([1, 2]), mx.nd.array([3e38, 3e38])]).asscalar())
        1.0
    """
    groups: Dict[mx.Context, List[mx.nd.NDArray]] = {}
    for array in arrays:
        groups.setdefault(array.ctx, []).append(array.as_nd_ndarray())
    with mx.autograd.pause():
        return merge_flags([_all_finite_on_one(group) for group in groups.values()])


def merge_flags(flags: Sequence[mx.nd.NDArray]) -> mx.nd.NDArray:
    """Return a flag that is 1 if all flags are, on the context of the first."""
    if len(flags) == 1:
        return flags[0]
    here = [flag.as_in_context(flags[0].ctx) for flag in flags]
    return here[0] * here[1] if len(here) == 2 else mx.nd.add_n(*here) == len(here)


def first_non_finite(named: Iterable[Tuple[str, mx.nd.NDArray]]) -> Optional[str]:
    """Return the first name whose array has an inf or a NaN, or None; a host read for each."""
    for name, array in named:
        if all_finite([array]).asscalar() == 0:
            return name
    return None


def _all_finite_on_one(arrays: Sequence[mx.nd.NDArray]) -> mx.nd.NDArray:
    """Return a flag that is 1 if every element of arrays of one context is finite."""
    largest = math.inf if on_gpu(arrays[0]) else _SMALL
    together: Dict[Any, List[mx.nd.NDArray]] = {}
    zeros: List[mx.nd.NDArray] = []
    low: List[mx.nd.NDArray] = []
    for array in arrays:
        if array.stype != "default":
            rows = to_float32(array)
            zeros.append(mx.nd.norm(rows * 0).astype("float32"))  # see _zero_products
            continue
        dtype, is_small = array.dtype, array.size <= largest  # each question to an array takes a call of MXNet
        if is_small and dtype in (np.float16, np.float32):
            together.setdefault(dtype, []).append(array)
        elif is_small and dtype == dtypes.NUMPY_BFLOAT16:
            together.setdefault(np.float32, []).append(to_float32(array))  # the kernel does not know bfloat16
        elif is_low_precision(array):
            low.append(array)
        else:
            zeros.extend(_zero_products(array))
    flag = _checked_together([part for group in together.values() for part in chunks(group, _MOST_ARRAYS)])
    if low:
        zeros.append(mx.nd.full((1,), 0.0 if all(map(_has_finite_bits, low)) else np.nan, ctx=low[0].ctx))
    if not zeros:
        return flag
    return _total(zeros) == 0 if flag is None else flag * (_total(zeros) == 0)


def _checked_together(groups: Sequence[Sequence[mx.nd.NDArray]]) -> Optional[mx.nd.NDArray]:
    """Return a flag that is 1 if all groups of arrays, each of one dtype, are finite; one operator for each."""
    flag = None
    for group in groups:
        first = flag is None
        flag = mx.nd.multi_all_finite(*group, num_arrays=len(group), init_output=first, out=flag)
    return flag


def _zero_products(array: mx.nd.NDArray) -> List[mx.nd.NDArray]:
    """Return arrays of shape (1,), float32: 0 if all elements are finite, else NaN.

    ``x * 0`` is 0 for every finite x and NaN for the rest, so the inner product with zeros is
    an exact test; BLAS does it three times as fast as all_finite does its own.
    """
    products = []
    for part in pieces(array, _MOST_ZEROS):
        zeros = _zeros(part)[: part.shape[0]]
        products.append(mx.nd.dot(part, zeros).astype("float32", copy=False))
    return products


def _has_finite_bits(array: mx.nd.NDArray) -> bool:
    """Return whether all elements of a low precision array on a CPU are finite; waits for it.

    Infinities and NaN have the largest exponents: without the sign, their bits are no less than infinity's.
    """
    bits = view(array).view(np.uint16).reshape(-1)
    limit = 2 * _BITS_OF_INF[dtypes.canonical(array.dtype)]
    doubled = np.empty(min(bits.size, _MOST_BITS), np.uint16)
    for start in range(0, bits.size, _MOST_BITS):
        part = bits[start : start + _MOST_BITS]
        if np.add(part, part, out=doubled[: part.size]).max() >= limit:  # the sum drops the sign
            return False
    return True


def _zeros(like: mx.nd.NDArray) -> mx.nd.NDArray:
    """Return zeros of the context and dtype of ``like``, at least as many."""
    size = like.shape[0]
    key = (like.ctx, np.dtype(like.dtype).name)
    if key not in _ZEROS or _ZEROS[key].size < size:
        _ZEROS[key] = mx.nd.zeros((size,), ctx=like.ctx, dtype=like.dtype)
    return _ZEROS[key]


def _total(parts: Sequence[mx.nd.NDArray]) -> mx.nd.NDArray:
    return parts[0] if len(parts) == 1 else mx.nd.add_n(*parts)
