"""Float32 master copies of low precision weights: casts, who keeps them, and how they follow."""

from __future__ import annotations

import threading
from typing import Any, Dict, Iterator, List, Optional, Sequence

import mxnet as mx
import numpy as np

from ..arrays import amp_cast
from ..dtypes import NUMPY_BFLOAT16, canonical

_KEPT = "_mxmp_masters"

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


def keep_masters(param: mx.gluon.Parameter, masters: Sequence[mx.nd.NDArray]) -> None:
    """Keep the float32 value of a low precision parameter, for its optimizer and for saving it.

    Args:
        param: An initialized parameter.
        masters: Its value in float32, one array per context. They are kept, not copied; an
            optimizer updates them in place.
    """
    setattr(param, _KEPT, {array.ctx: array for array in masters})


def forget_masters(param: mx.gluon.Parameter, but: Optional[mx.Context] = None) -> None:
    """Forget the float32 value of a parameter, but for that on one context."""
    kept = _kept(param)
    for ctx in [ctx for ctx in kept if ctx != but]:
        del kept[ctx]


def new_master(weight: mx.nd.NDArray, param: Optional[mx.gluon.Parameter] = None) -> mx.nd.NDArray:
    """Return a float32 master for a weight.

    Args:
        weight: Float16 or bfloat16.
        param: The parameter that holds the weight. The float32 value that it keeps becomes the
            master, in every element that still rounds to the weight; and the master is kept, so that
            all who ask for it share it.

    Returns:
        A float32 array that rounds to the weight bit for bit (but for the sign of zero).
    """
    if param is None:
        return to_float32(weight)
    if not _kept(param):  # on all contexts now: later, those that are updated first are no measure for the others
        keep_masters(param, [to_float32(data.as_nd_ndarray()) for data in param.list_data()])
    return shared_master(exact_value(weight, param), weight, param)


def shared_master(master: mx.nd.NDArray, weight: mx.nd.NDArray, param: mx.gluon.Parameter) -> mx.nd.NDArray:
    """Return the one master of a weight: what its parameter keeps, else ``master``, which it keeps from now on."""
    kept = _kept(param).get(weight.ctx)
    if kept is not None and kept.shape == weight.shape:
        return kept
    if kept is None and _kept(param):  # set since, on the parameter's own contexts
        master = exact_value(weight, param)
    keep_masters(param, [*(array for ctx, array in _kept(param).items() if ctx != weight.ctx), master])
    return master


def keeps_masters(param: mx.gluon.Parameter) -> bool:
    """Return whether the float32 value of a parameter is kept."""
    return bool(_kept(param))


def exact_value(weight: mx.nd.NDArray, param: mx.gluon.Parameter) -> mx.nd.NDArray:
    """Return a weight in float32: its master where one is kept, brought up to date, else the weight as it is.

    On a context that lacks a master, a copy of another context's, where it rounds to the weight.
    """
    kept = _kept(param)
    if kept and weight.ctx not in kept:
        return _brought_up(next(iter(kept.values())).copyto(weight.ctx), weight)
    return _brought_up(kept.get(weight.ctx), weight)


def _brought_up(master: Optional[mx.nd.NDArray], weight: mx.nd.NDArray) -> mx.nd.NDArray:
    if master is None or master.shape != weight.shape:
        return to_float32(weight)
    follow(master, weight)
    return master


def _kept(param: mx.gluon.Parameter) -> Dict[mx.Context, mx.nd.NDArray]:
    return getattr(param, _KEPT, {})
