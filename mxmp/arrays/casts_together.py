"""Many float16 arrays cast to and from float32, or compared with it, by few operators: see `together`.

SGD with masters (MultiSGDKernel in src/operator/optimizer_op-inl.h at tag 1.9.1) takes up to 60 float16 gradients and
weights and float32 masters in one launch:

    master = master + (0 - lr * wd * master - lr * float32(gradient));  weight = round(master)

A learning rate of -1 adds the gradients to masters of zeros, which casts them to float32; one of 0 rounds the masters
into the weights. Both are exact, but that -0 becomes 0, and with a rate of 0 an infinite master NaN.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Sequence, Tuple, TypeVar

import mxnet as mx
from mxnet import autograd

from ..mxnet_private import equal, multiply
from .casts import amp_cast, pieces, to_float32
from .devices import on_gpu
from .together import MOST_ARRAYS, chunks, copy_all, views

# Elements that are cast or compared at a time: 32 MiB in float32.
MOST_ELEMENTS = 2**23

# The largest float16.
_LARGEST = 65504

_T = TypeVar("_T")
_Pair = Tuple[mx.nd.NDArray, mx.nd.NDArray]


def widen(arrays: Sequence[mx.nd.NDArray]) -> List[mx.nd.NDArray]:
    """Return dense float16 arrays of one context as float32, views of one array."""
    if not arrays:
        return []
    return views(_joined_in_float32(arrays), arrays)


def _joined_in_float32(arrays: Sequence[mx.nd.NDArray]) -> mx.nd.NDArray:
    """Return dense float16 arrays of one context in one of float32, of one dimension."""
    joined = mx.nd.zeros((sum(array.size for array in arrays),), ctx=arrays[0].ctx)
    for group in chunks(list(zip(arrays, views(joined, arrays))), MOST_ARRAYS):
        lows = [low for low, _ in group]
        _sgd(lows, lows, [wide for _, wide in group], lr=-1)
    return joined


def copies_in_float32(arrays: Sequence[mx.nd.NDArray]) -> List[mx.nd.NDArray]:
    """Return low precision arrays of ``mx.nd`` or ``mx.np`` as float32 ones of their kind, those of a GPU together."""
    lows = [array.as_nd_ndarray() for array in arrays]
    fit = [k for k, low in enumerate(lows) if on_gpu(low) and low.stype == "default" and low.size]
    wide: Dict[int, mx.nd.NDArray] = {}
    with autograd.pause():
        for group in by_context(fit, [lows[k] for k in fit]):
            wide.update(zip(group, widen([lows[k] for k in group])))
        found = [wide[k] if k in wide else to_float32(low) for k, low in enumerate(lows)]
    return [each.as_np_ndarray() if isinstance(array, mx.np.ndarray) else each for each, array in zip(found, arrays)]


def by_context(items: Sequence[_T], arrays: Sequence[mx.nd.NDArray]) -> List[List[_T]]:
    """Return items grouped by the context of the array that stands beside each."""
    groups: Dict[mx.Context, List[_T]] = {}
    for item, array in zip(items, arrays):
        groups.setdefault(array.ctx, []).append(item)
    return list(groups.values())


def round_all(masters: Sequence[mx.nd.NDArray], weights: Sequence[mx.nd.NDArray]) -> None:
    """Round float32 arrays to nearest even into float16 ones of the same shapes, which hold no NaN before."""
    for group in chunks(list(zip(weights, masters)), MOST_ARRAYS):
        lows = [low for low, _ in group]
        _sgd(lows, lows, [master for _, master in group], lr=0)


def all_rounded(masters: Sequence[mx.nd.NDArray], weights: Sequence[mx.nd.NDArray]) -> mx.nd.NDArray:
    """Return a flag that is 1 if each float16 array is what its float32 one rounds to, else 0; no host read.

    Shape (1,), float32. 0 if any value is not finite; a float32 value beside a NaN is NaN afterwards.
    """
    groups = list(_comparable(masters, weights, MOST_ELEMENTS))
    squares = mx.nd.empty((len(groups),), ctx=weights[0].ctx)
    for number, group in enumerate(groups):
        lows, wides = [low for _, low in group], [wide for wide, _ in group]
        joined = mx.nd.empty((sum(low.size for low in lows),), ctx=squares.ctx, dtype=lows[0].dtype)
        rounded = views(joined, lows)
        _sgd(rounded, lows, wides, lr=0)
        # In float16, where a difference is 0 only of equal numbers: rounded - low.
        inputs = [array for pair in zip(rounded, lows) for array in pair]
        mx.nd.multi_sgd_update(*inputs, lrs=[1] * len(lows), wds=[0] * len(lows), num_weights=len(lows), out=rounded)
        if not on_gpu(joined):  # where squares are float16 too, and the smallest would be 0
            multiply(joined, scalar=_LARGEST, out=joined)
        mx.nd.multi_sum_sq(joined, num_arrays=1, out=squares[number : number + 1])
    return (squares if len(groups) == 1 else mx.nd.sum(squares)) == 0


def follow(masters: Sequence[mx.nd.NDArray], weights: Sequence[mx.nd.NDArray]) -> None:
    """Bring float32 masters up to date with float16 weights, in place and without a host read.

    As `mxmp.masters.copies.sync_master_from_weight` does: an element that does not round to its weight becomes it.
    Where that is an inf, it becomes NaN.
    """
    for group in _comparable(masters, weights, MOST_ELEMENTS // 2):
        wides, lows = [wide for wide, _ in group], [low for _, low in group]
        rounded = mx.nd.empty((sum(low.size for low in lows),), ctx=lows[0].ctx, dtype=lows[0].dtype)
        _sgd(views(rounded, lows), lows, wides, lr=0)
        masters_joined, weights_joined = mx.nd.empty(rounded.shape, ctx=rounded.ctx), _joined_in_float32(lows)
        copy_all(wides, views(masters_joined, wides))
        same = equal(amp_cast(rounded, "float32"), weights_joined)
        mx.nd.where(same, masters_joined, weights_joined, out=masters_joined)
        copy_all(views(masters_joined, wides), wides)


def _comparable(masters: Sequence[mx.nd.NDArray], weights: Sequence[mx.nd.NDArray], most: int) -> Iterator[List[_Pair]]:
    """Yield pairs of flat parts of the arrays, as many as one launch takes and of at most ``most`` elements in all."""
    group: List[_Pair] = []
    room = most
    for master, weight in zip(masters, weights):
        for part, low in zip(pieces(master, most), pieces(weight, most)):
            if group and (len(group) == MOST_ARRAYS or low.size > room):
                yield group
                group, room = [], most
            group.append((part, low))
            room -= low.size
    yield group


def _sgd(
    weights: Sequence[mx.nd.NDArray], grads: Sequence[mx.nd.NDArray], masters: Sequence[mx.nd.NDArray], lr: float
) -> None:
    count = len(weights)
    inputs = [array for triple in zip(weights, grads, masters) for array in triple]
    options: Dict[str, Any] = {} if lr else {"clip_gradient": 1}  # 0 times a gradient of inf would be NaN
    mx.nd.multi_mp_sgd_update(
        *inputs, lrs=[lr] * count, wds=[0] * count, num_weights=count, out=list(weights), **options
    )
