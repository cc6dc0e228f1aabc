"""The update of all weights of a step: the user's optimizer updates float32 weights and masters; masters are rounded.

For a low precision weight the optimizer gets its master and its gradient in float32. There are two exceptions, with the
same result. On a GPU SGD's kernel for float16 weights casts and rounds by itself. On a CPU a large weight goes to SGD's
kernel for one weight.
"""

from __future__ import annotations

import math
from typing import Any, Iterable, List, NamedTuple, Optional, Sequence

import mxnet as mx
import numpy as np

from ..arrays import (
    MOST_ARRAYS,
    MOST_ELEMENTS,
    all_to_float32,
    by_context,
    chunks,
    is_low_precision,
    on_gpu,
    round_all,
    to_float32,
)
from .masters import Masters, changed_dtype

# The largest weights that are updated together on a CPU. MXNet's kernel for many weights walks the longest as often as
# there are weights. At every element it asks which weights are that long, so no compiler vectorizes it (MultiSGDKernel
# in src/operator/optimizer_op-inl.h at tag 1.9.1). With one weight it takes two to three times as long as
# sgd_mom_update.
_SMALL = 4096


class Update(NamedTuple):
    """One weight on one context, with its index and its gradient, for an ``mx.optimizer.Updater``."""

    index: int  # type: ignore[assignment]  # it hides tuple.index
    grad: mx.nd.NDArray
    weight: mx.nd.NDArray


class Exact(float):
    """A number that MXNet reads as the nearest float32, as it reads numbers in a list.

    MXNet gets a single number as text, and reads it with an error in the last bit if it is written with an exponent or
    with many digits.
    """

    def __str__(self) -> str:
        """Return the text that MXNet reads."""
        return f"{float(np.float32(self)):.60f}"


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
        """Whether the weight and its gradient are dense."""
        return bool(self.weight.stype == self.grad.stype == "default")

    @property
    def is_plain(self) -> bool:
        """Whether kernels for many weights take it: a dense float16 weight of a GPU with a dense gradient."""
        return bool(on_gpu(self.weight) and self.weight.dtype == np.float16 and self.is_dense and self.weight.size)


def update(updater: mx.optimizer.Updater, masters: Masters, updates: Sequence[Update]) -> None:
    """Update weights, all weights of a context together.

    Finite values are those of an update of one weight after the other, except the sign of zero. The optimizer gets the
    weights in their order. An optimizer of MXNet that takes several at once gets the dense float32 weights first.

    Raises:
        TrainerError: If a weight changed its dtype after its state was made; then none of its context is updated.
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
    is_low = is_low_precision(weight)
    if masters.is_low.setdefault(index, is_low) != is_low:
        raise changed_dtype(masters.optimizer, index)
    master = masters.of(index, weight) if is_low else None
    if index not in updater.states:
        value = to_float32(weight) if master is None else master
        updater.states[index] = masters.optimizer.create_state_multi_precision(index, value)
    elif not updater.states_synced.get(index):  # An interrupt may have come before the assignment below.
        updater.states[index] = updater.sync_state_context(updater.states[index], weight.ctx)
    updater.states_synced[index] = True
    return Weight(index, weight, update.grad.as_nd_ndarray(), updater.states[index], master, is_low)


def _without_kernel_for_masters(optimizer: mx.optimizer.Optimizer, weights: List[Weight]) -> List[Weight]:
    """Update float16 weights of a GPU by SGD's kernel that casts and rounds by itself, and return the others."""
    if type(optimizer) is not mx.optimizer.SGD or optimizer.aggregate_num <= 0 or not on_gpu(weights[0].weight):
        return weights
    plain = [each for each in weights if each.master is not None and each.is_plain]
    for_kernel = [each for each in plain if each.grad.dtype == np.float16]
    for part in chunks(for_kernel, MOST_ARRAYS):
        index, weight, grad, state, master, _ = map(list, zip(*part))
        optimizer._update_impl(index, weight, grad, list(zip(state, master)), multi_precision=True)
    indices = {each.index for each in for_kernel}
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
    """Have an optimizer update float32 weights, and the masters of low precision weights; round the masters."""
    low_weights = [each for each in weights if each.is_low]
    low_arrays = [each.weight for each in low_weights]
    masters = all_to_float32([each.weight if each.master is None else each.master for each in low_weights])
    grads = all_to_float32([each.grad for each in low_weights])
    rows = zip(low_weights, masters, grads)
    in_float32 = {each.index: Weight(each.index, master, grad, each.state) for each, master, grad in rows}
    try:
        _update_float32(optimizer, [in_float32.get(each.index, each) for each in weights])
        round_all(masters, low_arrays)
    except BaseException:  # After a Ctrl-C a loop saves its states, or goes on.
        round_all(masters, low_arrays)
        raise


def _update_float32(optimizer: mx.optimizer.Optimizer, weights: Sequence[Weight]) -> None:
    """Have an optimizer update float32 weights and masters, and weights of dtypes that have no masters."""
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
    """Update float32 weights of a CPU one by one. The kernel for one weight computes the same as that for many."""
    indices = [each.index for each in weights]
    sgd._update_count(indices)
    options = {"momentum": sgd.momentum, "rescale_grad": sgd.rescale_grad}
    if sgd.clip_gradient:
        options["clip_gradient"] = sgd.clip_gradient
    rates = zip(weights, sgd._get_lrs(indices), sgd._get_wds(indices))
    for (_, weight, grad, momentum, *_), rate, decay in rates:
        mx.nd.sgd_mom_update(weight, grad, momentum, out=weight, lr=Exact(rate), wd=Exact(decay), **options)
