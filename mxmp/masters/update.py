"""The update of all weights of a context, on a GPU in as few kernel launches as MXNet has kernels for."""

from __future__ import annotations

from typing import Any, Dict, NamedTuple, Optional, Sequence

import mxnet as mx
import numpy as np

from ..arrays.casts import round_into, to_float32
from ..arrays.casts_together import all_rounded, round_all, widen
from ..arrays.devices import on_gpu
from ..arrays.together import MOST_ARRAYS, chunks
from ..mxnet_private import optimizers
from .copies import sync_master_from_weight
from .optimizer import MasterState, MultiPrecision


class Update(NamedTuple):
    """What an ``mx.optimizer.Updater`` needs for one weight on one context, which is updated in place."""

    index: int  # type: ignore[assignment]  # it hides tuple.index
    grad: mx.nd.NDArray
    weight: mx.nd.NDArray


class _Weight(NamedTuple):
    """One weight with its state, as an optimizer of MXNet takes them."""

    index: int  # type: ignore[assignment]
    weight: mx.nd.NDArray
    grad: mx.nd.NDArray
    state: Any


def update(updater: mx.optimizer.Updater, updates: Sequence[Update], masters_follow: bool = False) -> None:
    """Update the weights of one context: on a GPU all together.

    ``masters_follow`` says that every low precision weight is known to be what its master rounds to.
    """
    if updates and on_gpu(updates[0].weight):
        update_together(updater, updates, masters_follow)
    elif updates:
        updater(*zip(*updates))


def masters_follow(updater: mx.optimizer.Updater, updates: Sequence[Update]) -> Optional[mx.nd.NDArray]:
    """Return a flag that is 1 if every float16 weight is what its master rounds to; None without masters on a GPU.

    Shape (1,), float32, on the context of the weights.
    """
    if not updates or not on_gpu(updates[0].weight):
        return None
    found = [_with_state(updater, each) for each in updates if isinstance(updater.states.get(each.index), MasterState)]
    plain = [each for each in found if _is_plain(each)]
    masters = [updater.optimizer.share_master(each.index, each.weight, each.state) for each in plain]
    if any(master is None for master in masters) or not masters:
        return None
    return all_rounded(masters, [each.weight for each in plain])


def update_together(updater: mx.optimizer.Updater, updates: Sequence[Update], masters_follow: bool) -> None:
    """Update the weights of one context with all float16 gradients cast at once, and all masters rounded at once.

    The wrapped optimizer computes what it does for one weight after the other, in the order of ``updates``.
    """
    optimizer: MultiPrecision = updater.optimizer
    inner = optimizer.inner
    optimizers.set_current_context(optimizer, updates[0].weight.ctx.device_id)
    weights = [_with_state(updater, each) for each in updates]
    plain = [each for each in weights if _is_plain(each)]
    masters = _masters(optimizer, plain, masters_follow)
    if type(inner) is mx.optimizer.SGD and optimizer.masters:  # its kernel casts and rounds itself
        done = [each for each in plain if each.grad.dtype == np.float16]
        for part in chunks(done, MOST_ARRAYS):
            states = [(each.state.inner, masters[each.index]) for each in part]
            index, weight, grad, _ = map(list, zip(*part))
            optimizers.update_sgd(inner, index, weight, grad, states, multi_precision=True)
        indices = {each.index for each in done}
        weights, plain = ([each for each in some if each.index not in indices] for some in (weights, plain))
    other = [each for each in weights if isinstance(each.state, MasterState) and not _is_plain(each)]
    masters.update((each.index, optimizer.wide(each.index, each.weight, each.state)) for each in other)
    _update_wide(inner, weights, masters, _wide_grads(weights))
    if plain:
        round_all([masters[each.index] for each in plain], [each.weight for each in plain])
    for each in other:
        round_into(masters[each.index], each.weight)


def _update_wide(
    inner: mx.optimizer.Optimizer,
    weights: Sequence[_Weight],
    masters: Dict[int, mx.nd.NDArray],
    grads: Dict[int, mx.nd.NDArray],
) -> None:
    """Have an optimizer update masters in place of weights that have one, by float32 gradients."""
    wide = [
        _Weight(index, masters.get(index, weight), grads[index], state.inner if index in masters else state)
        for index, weight, grad, state in weights
    ]
    together = [each for each in wide if inner.aggregate_num > 0 and _is_float32(each)]
    for part in chunks(together, MOST_ARRAYS if type(inner) is mx.optimizer.SGD else max(1, inner.aggregate_num)):
        inner.update_multi_precision(*map(list, zip(*part)))
    for each in wide if inner.aggregate_num <= 0 else (each for each in wide if not _is_float32(each)):
        inner.update_multi_precision(*each)


def _masters(optimizer: MultiPrecision, plain: Sequence[_Weight], masters_follow: bool) -> Dict[int, mx.nd.NDArray]:
    """Return what float16 weights are updated in, by index: their masters, brought up to date, or copies."""
    masters = {each.index: optimizer.share_master(each.index, each.weight, each.state) for each in plain}
    without = [each for each in plain if masters[each.index] is None]
    for each in () if masters_follow else plain:
        if masters[each.index] is not None:
            sync_master_from_weight(masters[each.index], each.weight)
    copies = widen([each.weight for each in without]) if without else []
    return {**masters, **{each.index: copy for each, copy in zip(without, copies)}}


def _wide_grads(weights: Sequence[_Weight]) -> Dict[int, mx.nd.NDArray]:
    """Return all gradients by index, low precision ones in float32, as `to_float32` does."""
    low = [each for each in weights if _is_plain(each) and each.grad.dtype == np.float16]
    wide = dict(zip([each.index for each in low], widen([each.grad for each in low]) if low else []))
    return {each.index: wide[each.index] if each.index in wide else to_float32(each.grad) for each in weights}


def _with_state(updater: mx.optimizer.Updater, update: Update) -> _Weight:
    """Return a weight with its state, which is made if there is none, as `mx.optimizer.Updater` does."""
    index, weight = update.index, update.weight.as_nd_ndarray()
    if index not in updater.states:
        updater.states[index] = updater.optimizer.create_state_multi_precision(index, weight)
    elif not updater.states_synced[index]:
        updater.states[index] = updater.sync_state_context(updater.states[index], weight.ctx)
    updater.states_synced[index] = True
    return _Weight(index, weight, update.grad.as_nd_ndarray(), updater.states[index])


def _is_plain(each: _Weight) -> bool:
    """Return whether a weight is what the kernels for many take: dense float16 with a dense gradient."""
    return bool(
        each.weight.dtype == np.float16 and each.weight.stype == each.grad.stype == "default" and each.weight.size
    )


def _is_float32(each: _Weight) -> bool:
    return bool(each.weight.dtype == np.float32 and each.weight.stype == each.grad.stype == "default")
