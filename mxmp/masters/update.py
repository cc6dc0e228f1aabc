"""The update of all weights of a step, by as few operators as MXNet has them for on a GPU."""

from __future__ import annotations

from typing import Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np

from ..arrays.casts import round_into, to_float32
from ..arrays.casts_together import MOST_ELEMENTS, all_rounded, by_context, follow, round_all, widen
from ..arrays.devices import on_gpu
from ..arrays.finite import merge_flags
from ..arrays.together import MOST_ARRAYS, chunks
from ..mxnet_private import optimizers
from .momentum import prepare, update_sgd
from .optimizer import MasterState, MultiPrecision
from .weight import Weight


class Update(NamedTuple):
    """What an ``mx.optimizer.Updater`` needs for one weight on one context, which is updated in place."""

    index: int  # type: ignore[assignment]  # it hides tuple.index
    grad: mx.nd.NDArray
    weight: mx.nd.NDArray


def update(
    updater: mx.optimizer.Updater, updates: Sequence[Update], masters_follow: bool = False, may_wait: bool = False
) -> None:
    """Update weights: those of one GPU all together.

    ``masters_follow`` says that every low precision weight is known to be what its master rounds to, ``may_wait`` that
    the host has waited for the gradients and may for the weights of a CPU, which are there earlier.
    """
    if not updates:
        return
    optimizers.set_current_context(updater.optimizer, updates[0].weight.ctx.device_id)
    if any(on_gpu(each.weight) for each in updates):
        for group in by_context(updates, [each.weight for each in updates]):
            update_together(updater, group, masters_follow)
    else:
        _update_on_cpu(updater, updates, may_wait)


def _update_on_cpu(updater: mx.optimizer.Updater, updates: Sequence[Update], may_wait: bool) -> None:
    """Update weights, one after the other or a few at a time."""
    optimizer: MultiPrecision = updater.optimizer
    weights = [_with_state(updater, each) for each in updates]
    low = [each for each in weights if each.is_dense and isinstance(each.state, MasterState)] if may_wait else []
    try:
        for each in low:
            each.state.last_rounded.look(each.weight)
        prepared = prepare(optimizer.inner, weights)
        if prepared is None:
            updater(*zip(*updates))
        else:
            update_sgd(optimizer, prepared)
    finally:
        for each in low:
            each.state.last_rounded.end_look()


def all_masters_follow(
    pairs: Iterable[Tuple[mx.optimizer.Updater, Sequence[Update]]],
) -> Optional[mx.nd.NDArray]:
    """Return a flag that is 1 if no weight was changed beside its master, None where each update looks itself."""
    flags = [masters_follow(*pair) for pair in pairs]
    found = [flag for flag in flags if flag is not None]
    return merge_flags(found) if found and len(found) == len(flags) else None


def masters_follow(updater: mx.optimizer.Updater, updates: Sequence[Update]) -> Optional[mx.nd.NDArray]:
    """Return a flag that is 1 if every float16 weight is what its master rounds to; None without masters on a GPU.

    Shape (1,), float32, on a context of the weights. A master beside a NaN may be NaN afterwards, see `all_rounded`.
    """
    if not updates or not all(on_gpu(each.weight) for each in updates):
        return None
    found = [_with_state(updater, each) for each in updates if isinstance(updater.states.get(each.index), MasterState)]
    plain = [each for each in found if each.is_plain]
    masters = [updater.optimizer.share_master(each.index, each.weight, each.state) for each in plain]
    if any(master is None for master in masters) or not masters:
        return None
    pairs = by_context(list(zip(masters, [each.weight for each in plain])), masters)
    return merge_flags([all_rounded(*zip(*group)) for group in pairs])


def update_together(updater: mx.optimizer.Updater, updates: Sequence[Update], masters_follow: bool) -> None:
    """Update the weights of one context, with float16 gradients cast and masters rounded many at a time.

    For finite values the wrapped optimizer computes what it does for one weight after the other, but for the sign of
    zero. It gets the weights in their order; one of MXNet that takes several at once gets the dense float32 ones first.
    """
    optimizer: MultiPrecision = updater.optimizer
    inner = optimizer.inner
    weights = [_with_state(updater, each) for each in updates]
    masters = _masters(optimizer, weights, masters_follow)
    if type(inner) is mx.optimizer.SGD and inner.aggregate_num > 0 and optimizer.masters:
        done = [each for each in weights if each.is_plain and each.grad.dtype == np.float16]
        _update_sgd(inner, done, masters)
        indices = {each.index for each in done}
        weights = [each for each in weights if each.index not in indices]
    for part in _parts(weights):
        _update_part(optimizer, part, masters)


def _update_sgd(sgd: mx.optimizer.SGD, weights: Sequence[Weight], masters: Dict[int, mx.nd.NDArray]) -> None:
    """Update float16 weights by the kernel that casts and rounds by itself."""
    for part in chunks(weights, MOST_ARRAYS):
        states = [(each.state.inner, masters[each.index]) for each in part]
        index, weight, grad, _ = map(list, zip(*part))
        optimizers.update_sgd(sgd, index, weight, grad, states, multi_precision=True)


def _update_part(optimizer: MultiPrecision, weights: Sequence[Weight], masters: Dict[int, mx.nd.NDArray]) -> None:
    """Have the wrapped optimizer update float32 weights, and masters in place of low precision ones; round these."""
    inner = optimizer.inner
    plain = [each for each in weights if each.is_plain]
    without = [each for each in plain if each.index not in masters]  # masters=False
    other = [each for each in weights if isinstance(each.state, MasterState) and not each.is_plain]
    wide = {each.index: masters[each.index] for each in plain if each.index in masters}
    wide.update(zip([each.index for each in without], widen([each.weight for each in without])))
    wide.update((each.index, optimizer.wide(each.index, each.weight, each.state)) for each in other)
    _update_wide(inner, weights, wide, _wide_grads(weights))
    round_all([wide[each.index] for each in plain], [each.weight for each in plain])
    for each in other:
        round_into(wide[each.index], each.weight)


def _update_wide(
    inner: mx.optimizer.Optimizer,
    weights: Sequence[Weight],
    masters: Dict[int, mx.nd.NDArray],
    grads: Dict[int, mx.nd.NDArray],
) -> None:
    """Have an optimizer update masters in place of weights that have one, by float32 gradients."""
    wide = [
        Weight(index, masters.get(index, weight), grads[index], state.inner if index in masters else state)
        for index, weight, grad, state in weights
    ]
    together = [each for each in wide if inner.aggregate_num > 0 and each.is_float32]
    for part in chunks(together, MOST_ARRAYS if type(inner) is mx.optimizer.SGD else max(1, inner.aggregate_num)):
        inner.update_multi_precision(*map(list, zip(*part)))
    for each in wide if inner.aggregate_num <= 0 else (each for each in wide if not each.is_float32):
        inner.update_multi_precision(*each)


def _masters(optimizer: MultiPrecision, weights: Sequence[Weight], masters_follow: bool) -> Dict[int, mx.nd.NDArray]:
    """Return the masters of float16 weights by index, brought up to date."""
    plain = [each for each in weights if each.is_plain]
    shared = [optimizer.share_master(each.index, each.weight, each.state) for each in plain]
    pairs = [(each, master) for each, master in zip(plain, shared) if master is not None]
    if pairs and not masters_follow:
        follow([master for _, master in pairs], [each.weight for each, _ in pairs])
    return {each.index: master for each, master in pairs}


def _parts(weights: Sequence[Weight]) -> Iterator[List[Weight]]:
    """Yield the weights in parts whose gradients are cast at once: as many as a launch takes, of bounded size."""
    part: List[Weight] = []
    count = elements = 0
    for each in weights:
        if each.is_plain:
            count, elements = count + 1, elements + each.weight.size
            if part and (count > MOST_ARRAYS or elements > MOST_ELEMENTS):
                yield part
                part, count, elements = [], 1, each.weight.size
        part.append(each)
    if part:
        yield part


def _wide_grads(weights: Sequence[Weight]) -> Dict[int, mx.nd.NDArray]:
    """Return all gradients by index, low precision ones in float32, as `to_float32` does."""
    low = [each for each in weights if each.is_plain and each.grad.dtype == np.float16]
    wide = dict(zip([each.index for each in low], widen([each.grad for each in low])))
    return {each.index: wide[each.index] if each.index in wide else to_float32(each.grad) for each in weights}


def _with_state(updater: mx.optimizer.Updater, update: Update) -> Weight:
    """Return a weight with its state, which is made if there is none, as `mx.optimizer.Updater` does."""
    index, weight = update.index, update.weight.as_nd_ndarray()
    if index not in updater.states:
        updater.states[index] = updater.optimizer.create_state_multi_precision(index, weight)
    elif not updater.states_synced[index]:
        updater.states[index] = updater.sync_state_context(updater.states[index], weight.ctx)
    updater.states_synced[index] = True
    return Weight(index, weight, update.grad.as_nd_ndarray(), updater.states[index])
