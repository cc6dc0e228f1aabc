"""The update of all weights of a step: float32 weights and masters by the user's optimizer, then masters are rounded.

The optimizer gets master and float32 gradient in place of a low precision weight and its own. Two exceptions do the
same with fewer launches: SGD's kernels for float16 weights of a GPU cast and round by themselves, and large weights of
a CPU go to SGD's kernel for one weight.
"""

from __future__ import annotations

import math
from typing import Any, Iterable, List, NamedTuple, Optional, Sequence

import mxnet as mx
import numpy as np

from ..arrays import (
    MOST_ARRAYS,
    MOST_ELEMENTS,
    by_context,
    chunks,
    is_low_precision,
    on_gpu,
    round_all,
    round_into,
    to_float32,
    widen,
)
from .masters import Masters

# Elements of weights that go together on a CPU: MXNet's kernel for many walks the longest as often as there are weights
# and asks at every element which of them are that long, so that no compiler vectorizes it (MultiSGDKernel in
# src/operator/optimizer_op-inl.h at tag 1.9.1). For one it takes two to three times as long as sgd_mom_update.
_SMALL = 4096


class Update(NamedTuple):
    """What an ``mx.optimizer.Updater`` needs for one weight on one context, which is updated in place."""

    index: int  # type: ignore[assignment]  # it hides tuple.index
    grad: mx.nd.NDArray
    weight: mx.nd.NDArray


class Weight(NamedTuple):
    """One weight with its gradient and state, as an optimizer of MXNet takes them, and its master if it has one.

    ``is_low`` says whether it is stored in low precision.
    """

    index: int  # type: ignore[assignment]  # it hides tuple.index
    weight: mx.nd.NDArray
    grad: mx.nd.NDArray
    state: Any
    master: Optional[mx.nd.NDArray] = None
    is_low: bool = False

    @property
    def is_dense(self) -> bool:
        """Whether it is dense, and its gradient too."""
        return bool(self.weight.stype == self.grad.stype == "default")

    @property
    def is_plain(self) -> bool:
        """Whether it is what the kernels for many take: dense float16 on a GPU with a dense gradient."""
        return bool(on_gpu(self.weight) and self.weight.dtype == np.float16 and self.is_dense and self.weight.size)


def update(updater: mx.optimizer.Updater, masters: Masters, updates: Sequence[Update]) -> None:
    """Update weights, those of one context together.

    For finite values the optimizer computes what it does for one weight after the other, but for the sign of zero. It
    gets the weights in their order; one of MXNet that takes several at once gets the dense float32 ones first.
    """
    optimizer = masters.optimizer
    for group in by_context(updates, [each.weight for each in updates]):
        optimizer._set_current_context(group[0].weight.ctx.device_id)
        weights = [_with_state(updater, masters, each) for each in group]
        for part in _parts(_without_kernel_for_masters(optimizer, weights)):
            update_part(optimizer, part)


def _with_state(updater: mx.optimizer.Updater, masters: Masters, update: Update) -> Weight:
    """Return a weight with its state, which is made if there is none, as `mx.optimizer.Updater` does."""
    index, weight = update.index, update.weight.as_nd_ndarray()
    is_low = masters.is_low[index] if index in masters.is_low else is_low_precision(weight)
    master = masters.of(index, weight) if is_low else None
    if index not in updater.states:
        wide = to_float32(weight) if master is None else master
        updater.states[index] = masters.optimizer.create_state_multi_precision(index, wide)
    elif not updater.states_synced.get(index):  # where an interrupt came between the two
        updater.states[index] = updater.sync_state_context(updater.states[index], weight.ctx)
    updater.states_synced[index] = True
    return Weight(index, weight, update.grad.as_nd_ndarray(), updater.states[index], master, is_low)


def _without_kernel_for_masters(optimizer: mx.optimizer.Optimizer, weights: List[Weight]) -> List[Weight]:
    """Update float16 weights of a GPU by SGD's kernel that casts and rounds by itself, and return the others."""
    if type(optimizer) is not mx.optimizer.SGD or optimizer.aggregate_num <= 0 or not on_gpu(weights[0].weight):
        return weights
    done = [each for each in weights if each.master is not None and each.is_plain and each.grad.dtype == np.float16]
    for part in chunks(done, MOST_ARRAYS):
        index, weight, grad, state, master, _ = map(list, zip(*part))
        optimizer._update_impl(index, weight, grad, list(zip(state, master)), multi_precision=True)
    indices = {each.index for each in done}
    return [each for each in weights if each.index not in indices]


def _parts(weights: Sequence[Weight]) -> Iterable[List[Weight]]:
    """Yield the weights in parts whose gradients are cast at once: as many as a launch takes, of bounded size."""
    part: List[Weight] = []
    count = elements = 0
    for each in weights:
        if each.is_low:
            count, elements = count + 1, elements + each.weight.size
            if part and (count > MOST_ARRAYS or elements > MOST_ELEMENTS):
                yield part
                part, count, elements = [], 1, each.weight.size
        part.append(each)
    if part:
        yield part


def update_part(optimizer: mx.optimizer.Optimizer, weights: Sequence[Weight]) -> None:
    """Have an optimizer update float32 weights, and masters in place of low precision ones; round these."""
    low = [each for each in weights if each.is_low]
    if not low:
        _update_wide(optimizer, weights)
        return
    without = iter(_widened([each.weight for each in low if each.master is None]))
    masters = [next(without) if each.master is None else each.master for each in low]
    grads = iter(_widened([each.grad for each in low]))
    wide = {each.index: Weight(each.index, master, next(grads), each.state) for each, master in zip(low, masters)}
    _update_wide(optimizer, [wide.get(each.index, each) for each in weights])
    together = {number for number, each in enumerate(low) if each.is_plain}
    if together:
        round_all([masters[number] for number in together], [low[number].weight for number in together])
    for number, (master, each) in enumerate(zip(masters, low)):
        if number not in together:
            round_into(master, each.weight)


def _widened(arrays: Sequence[mx.nd.NDArray]) -> List[mx.nd.NDArray]:
    """Return arrays in float32: dense float16 ones of a GPU together, others one by one."""
    fit = [k for k, each in enumerate(arrays) if on_gpu(each) and each.dtype == np.float16 and each.stype == "default"]
    together = dict(zip(fit, widen([arrays[k] for k in fit]))) if fit else {}
    return [together[k] if k in together else to_float32(each) for k, each in enumerate(arrays)]


def _update_wide(optimizer: mx.optimizer.Optimizer, weights: Sequence[Weight]) -> None:
    """Have an optimizer update float32 weights, and what else there is."""
    is_sgd = type(optimizer) is mx.optimizer.SGD
    largest = _SMALL if is_sgd and optimizer.momentum > 0 and not on_gpu(weights[0].weight) else math.inf
    together: List[Weight] = []
    alone: List[Weight] = []
    others: List[Weight] = []
    for each in weights:
        if optimizer.aggregate_num <= 0 or not each.is_dense or each.weight.dtype != np.float32:
            others.append(each)
        else:
            (together if each.weight.size <= largest else alone).append(each)
    if alone:
        _update_sgd(optimizer, alone)
    for part in chunks(together, MOST_ARRAYS if is_sgd else max(1, optimizer.aggregate_num)):
        optimizer.update_multi_precision(*map(list, zip(*(each[:4] for each in part))))
    for each in others:
        optimizer.update_multi_precision(*each[:4])


def _update_sgd(sgd: mx.optimizer.SGD, weights: Sequence[Weight]) -> None:
    """Update float32 weights of a CPU, each by the kernel for one, which does what that for many does in its order."""
    indices = [each.index for each in weights]
    sgd._update_count(indices)
    options = {"momentum": sgd.momentum, "rescale_grad": sgd.rescale_grad}
    if sgd.clip_gradient:
        options["clip_gradient"] = sgd.clip_gradient
    rates = zip(weights, sgd._get_lrs(indices), sgd._get_wds(indices))
    for (_, weight, grad, momentum, *_), rate, decay in rates:
        mx.nd.sgd_mom_update(weight, grad, momentum, out=weight, lr=_exactly(rate), wd=_exactly(decay), **options)


def _exactly(number: float) -> str:
    """Return a number that MXNet reads as the float32 next to it, as it does in a list of numbers.

    One that stands alone it reads with an error in the last bit where it is written with an exponent or many digits.
    """
    return f"{float(np.float32(number)):.60f}"
