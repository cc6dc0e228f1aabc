"""Float32 master copies of low precision weights: casts, the stash, and how masters follow."""

from __future__ import annotations

import threading
from typing import Any, Dict, Iterator, List, Optional, Sequence

import mxnet as mx
import numpy as np

from ..dtypes import NUMPY_BFLOAT16, canonical

_STASH = "_mxmp_master"

# Elements that are converted at a time: 4 MiB in float32.
_PIECE = 2**20
_LOCAL = threading.local()


def is_low_precision(array: mx.nd.NDArray) -> bool:
    """Return whether an array holds float16 or bfloat16."""
    dtype = array.dtype
    return dtype == np.float16 or dtype == NUMPY_BFLOAT16


def to_float32(array: mx.nd.NDArray) -> mx.nd.NDArray:
    """Return an array as float32: exact for low precision, the array itself if it is float32.

    Args:
        array: Any shape, float16, bfloat16 or float32, dense or row_sparse. A low precision
            row_sparse array passes through a dense one, because MXNet's casts know no other.
    """
    if not is_low_precision(array):
        return array
    if array.stype == "default":
        return mx.nd.amp_cast(array, dtype="float32")
    dense = mx.nd.amp_cast(array.tostype("default"), dtype="float32")
    return mx.nd.cast_storage(dense, array.stype)


def round_into(source: mx.nd.NDArray, out: mx.nd.NDArray) -> None:
    """Round a float32 array to nearest even into a low precision one of the same shape.

    Float16 goes through Cast and bfloat16 through amp_cast, because Cast truncates to bfloat16
    in MXNet 1.9.1. On CPU amp_cast flushes values below 2**-126 to zero.
    """
    if out.dtype == np.float16:
        mx.nd.Cast(source, dtype="float16", out=out)
    else:
        mx.nd.amp_cast(source, dtype=NUMPY_BFLOAT16, out=out)


def follow(master: mx.nd.NDArray, weight: mx.nd.NDArray) -> None:
    """Bring a master up to date with its weight, in place and without a host read.

    An element keeps its master while the master rounds to the weight. Where it does not,
    somebody changed the weight (``set_data``, ``load_parameters``, an edit in place), and the
    weight wins.

    Args:
        master: Float32, the weight's shape and context.
        weight: Float16 or bfloat16.
    """
    for part, low in zip(pieces(master, _PIECE), pieces(weight, _PIECE)):
        wide, rounded, same = _scratch(low)
        mx.nd.amp_cast(low, dtype="float32", out=wide)
        round_into(part, rounded)
        # Compared in float32: float16 comparisons are 10 to 20 times slower on CPU.
        mx.nd.amp_cast(rounded, dtype="float32", out=same)
        mx.nd._internal._equal(same, wide, out=same)
        mx.nd.where(same, part, wide, out=part)


def pieces(array: mx.nd.NDArray, size: int) -> Iterator[mx.nd.NDArray]:
    """Yield one-dimensional views of at most ``size`` elements that make up a dense array."""
    flat = array.reshape(-1)
    length = flat.shape[0]
    if length <= size:
        yield flat
    else:
        yield from (flat[start : start + size] for start in range(0, length, size))


def wide_pieces(array: mx.nd.NDArray) -> Iterator[mx.nd.NDArray]:
    """Yield a dense low precision array as float32, piece by piece.

    Each piece may be used until the next one is asked for, by operators called on this thread.
    """
    for low in pieces(array, _PIECE):
        wide = _scratch(low)[0]
        mx.nd.amp_cast(low, dtype="float32", out=wide)
        yield wide


def _scratch(like: mx.nd.NDArray) -> List[mx.nd.NDArray]:
    """Return arrays of float32, the dtype of ``like`` and float32, of its size, to write over.

    They are shared by all calls of one thread: on CPU a fresh array of a few MiB costs more than
    what is computed in it. The engine keeps the order of reads and writes.
    """
    cache: Dict[Any, List[mx.nd.NDArray]] = _LOCAL.__dict__
    dtype = canonical(like.dtype)
    whole, key = f"{like.ctx} {dtype}", f"{like.ctx} {dtype} {like.size}"
    if whole not in cache:
        dtypes = ("float32", like.dtype, "float32")
        cache[whole] = [mx.nd.empty((_PIECE,), ctx=like.ctx, dtype=dtype) for dtype in dtypes]
    if key not in cache:
        cache[key] = [array[: like.size] for array in cache[whole]]
    return cache[key]


def stash_master(param: mx.gluon.Parameter, masters: Sequence[mx.nd.NDArray]) -> None:
    """Keep the float32 value of a parameter that is being cast, for the optimizer to find.

    Args:
        param: An initialized parameter.
        masters: Its value before the cast: float32, one array per context, in the order of
            ``param.list_data()``. They are kept, not copied.
    """
    setattr(param, _STASH, {array.ctx: array for array in masters})


def take_master(param: mx.gluon.Parameter, ctx: mx.Context) -> Optional[mx.nd.NDArray]:
    """Return the stashed float32 value on a context and forget it, or None if there is none.

    On contexts that the parameter came to after the stash was made, a copy: all start alike.
    """
    stash: Dict[mx.Context, Optional[mx.nd.NDArray]] = getattr(param, _STASH, {})
    left = [array for array in stash.values() if array is not None]
    if not left:
        return None
    for each in param.list_ctx():
        if each not in stash:
            stash[each] = left[0].copyto(each)
    taken, stash[ctx] = stash.get(ctx), None
    if all(array is None for array in stash.values()):
        delattr(param, _STASH)
    return taken


def new_master(weight: mx.nd.NDArray, param: Optional[mx.gluon.Parameter] = None) -> mx.nd.NDArray:
    """Return a float32 master for a weight.

    Args:
        weight: Float16 or bfloat16.
        param: The parameter that holds the weight. Its stashed value becomes the master, in
            every element that still rounds to the weight.

    Returns:
        A float32 array that rounds to the weight bit for bit (but for the sign of zero).
    """
    stashed = take_master(param, weight.ctx) if param is not None else None
    if stashed is None or stashed.shape != weight.shape:
        return to_float32(weight)
    follow(stashed, weight)
    return stashed
