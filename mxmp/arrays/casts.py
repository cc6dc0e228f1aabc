"""Casts of NDArrays between float32 and low precision, whatever layout oneDNN has left them in.

After inference in float32 MXNet keeps a convolution's weight in the layout that oneDNN likes best; that of a
grouped one has an axis more than the weight (g, o, i, h, w). In MXNet 1.9.1 amp_cast (AMPCastExCPU in
src/operator/tensor/amp_cast.cc) asks oneDNN for a cast between the two, which there is not: "could not create a
primitive descriptor for a reorder primitive". A view it takes to the default layout first.
"""

from __future__ import annotations

import threading
from typing import Any, Dict, Iterator, List, Optional

import mxnet as mx
import numpy as np
from mxnet import autograd

from ..dtypes import NUMPY_BFLOAT16, canonical
from .devices import on_gpu

# Elements that are converted at a time: 4 MiB in float32.
PIECE = 2**20
_LOCAL = threading.local()


def amp_cast(array: mx.nd.NDArray, dtype: Any, out: Optional[mx.nd.NDArray] = None) -> mx.nd.NDArray:
    """Return a dense array in another dtype of float16, bfloat16 and float32, in the default layout.

    It is rounded to nearest even, into ``out`` of the same shape if that is given.
    """
    if out is None:
        out = mx.nd.empty(array.shape, ctx=array.ctx, dtype=dtype)
    with autograd.pause():
        mx.nd.amp_cast(flat(array), dtype=dtype, out=flat(out))
    return out


def flat(array: mx.nd.NDArray) -> mx.nd.NDArray:
    """Return a one-dimensional view of a dense array."""
    return array.as_nd_ndarray().reshape((array.size,))


def is_low_precision(array: mx.nd.NDArray) -> bool:
    """Return whether an array holds float16 or bfloat16."""
    dtype = array.dtype
    return bool(dtype == np.float16 or dtype == NUMPY_BFLOAT16)


def to_float32(array: mx.nd.NDArray) -> mx.nd.NDArray:
    """Return an array as float32: exact for low precision, the array itself if it has another dtype.

    A low precision row_sparse array passes through a dense one, because MXNet's casts know no other.
    """
    if not is_low_precision(array):
        return array
    if array.stype == "default":
        return amp_cast(array, "float32")
    dense = amp_cast(array.tostype("default"), "float32")
    return mx.nd.cast_storage(dense, array.stype)


def round_into(source: mx.nd.NDArray, out: mx.nd.NDArray) -> None:
    """Round a float32 array to nearest even into a low precision one of the same shape.

    Float16 goes through Cast and bfloat16 through amp_cast, because Cast truncates to bfloat16
    in MXNet 1.9.1. On CPU amp_cast flushes values below 2**-126 to zero.
    """
    if out.dtype == np.float16:
        mx.nd.Cast(source, dtype="float16", out=out)
    else:
        amp_cast(source, NUMPY_BFLOAT16, out=out)


def pieces(array: mx.nd.NDArray, size: Optional[int] = None) -> Iterator[mx.nd.NDArray]:
    """Yield one-dimensional views of at most ``size`` elements, by default `PIECE`, that make up a dense array."""
    size = PIECE if size is None else size
    flat = array.reshape(-1)
    length = flat.shape[0]
    if length <= size:
        yield flat
    else:
        yield from (flat[start : start + size] for start in range(0, length, size))


def scratch(like: mx.nd.NDArray) -> List[mx.nd.NDArray]:
    """Return arrays of float32, the dtype of ``like`` and float32, of its size; on CPU shared by all calls of a thread.

    There a fresh array of a few MiB costs more than what is computed in it. The engine orders reads and writes.
    """
    if on_gpu(like):  # memory is dear, and MXNet's pool gives it at once
        return [mx.nd.empty((like.size,), ctx=like.ctx, dtype=dtype) for dtype in ("float32", like.dtype, "float32")]
    cache: Dict[Any, List[mx.nd.NDArray]] = _LOCAL.__dict__
    dtype = canonical(like.dtype)
    whole, key = f"{like.ctx} {dtype}", f"{like.ctx} {dtype} {like.size}"
    if whole not in cache:
        dtypes = ("float32", like.dtype, "float32")
        cache[whole] = [mx.nd.empty((PIECE,), ctx=like.ctx, dtype=dtype) for dtype in dtypes]
    if key not in cache:
        cache[key] = [array[: like.size] for array in cache[whole]]
    return cache[key]
