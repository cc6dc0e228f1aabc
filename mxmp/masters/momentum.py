"""SGD with momentum on a CPU: the operator for one weight, which is two to three times as fast there as that for many.

MXNet's SGD gives four weights at a time to multi_sgd_mom_update, whose kernel asks at every element which of them are
that long, so that no compiler vectorizes it; with float16 weights and masters it converts one element at a time, too.
sgd_mom_update does the same operations in the same order (SGDMomKernel and MultiSGDKernel in
src/operator/optimizer_op-inl.h at tag 1.9.1), so that the results are equal bit for bit. Of small weights it is the
calls that take the time: these still go together, more at once.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Sequence, Tuple

import mxnet as mx
import numpy as np

from ..arrays.casts import is_low_precision, pieces, round_into, scratch
from ..arrays.together import MOST_ARRAYS, chunks
from ..mxnet_private import optimizers
from .optimizer import MasterState, MultiPrecision
from .weight import Weight

# Elements of weights that go together: the kernel for many walks the longest as often as there are weights.
_SMALL = 4096

# A weight with its learning rate and weight decay.
_Rated = Tuple[Weight, float, float]


def fits(inner: mx.optimizer.Optimizer, weights: Sequence[Weight]) -> bool:
    """Return whether an optimizer is MXNet's SGD with momentum, and all weights are dense and have one."""
    if type(inner) is not mx.optimizer.SGD or not inner.momentum > 0 or inner.aggregate_num <= 0:
        return False
    return all(each.is_dense and isinstance(_momentum(each), mx.nd.NDArray) for each in weights)


def update_sgd(optimizer: MultiPrecision, weights: Sequence[Weight]) -> None:
    """Update weights of a CPU that `fits`, as ``mx.optimizer.Updater`` does."""
    sgd = optimizer.inner
    options = {"momentum": sgd.momentum, "rescale_grad": sgd.rescale_grad}
    if sgd.clip_gradient:
        options["clip_gradient"] = sgd.clip_gradient
    groups: Dict[Any, List[_Rated]] = {}
    for rated in _with_rates(sgd, weights):
        weight = rated[0]
        if weight.weight.size > _SMALL or not _is_for_many(weight):
            _update_one(optimizer, *rated, options)
        else:
            groups.setdefault((weight.weight.ctx, weight.weight.dtype), []).append(rated)
    for group in groups.values():
        group.sort(key=lambda rated: rated[0].weight.size)
        for part in chunks(group, MOST_ARRAYS):
            _update_many(optimizer, part, options)


def _with_rates(sgd: mx.optimizer.SGD, weights: Sequence[Weight]) -> Iterator[_Rated]:
    """Yield weights with their options, counted by dtype and as many at once as MXNet's ``Updater`` does.

    A schedule goes by the count of the weight that was updated most often so far.
    """
    groups: Dict[Any, List[Weight]] = {}
    for each in weights:
        groups.setdefault(each.weight.dtype, []).append(each)
    for group in groups.values():
        for part in chunks(group, sgd.aggregate_num):
            indices = [each.index for each in part]
            optimizers.update_count(sgd, indices)
            yield from zip(part, optimizers.learning_rates(sgd, indices), optimizers.weight_decays(sgd, indices))


def _is_for_many(weight: Weight) -> bool:
    """Return whether the kernels for many take a weight: float32, or float16 with a master and a float16 gradient."""
    dtype = weight.weight.dtype
    fits_kernel = dtype == np.float32 or (dtype == np.float16 and weight.state.master is not None)
    return bool(fits_kernel and weight.grad.dtype == dtype)


def _update_many(optimizer: MultiPrecision, rated: Sequence[_Rated], options: Dict[str, Any]) -> None:
    """Update small weights of one dtype by one operator."""
    weights, rates, decays = zip(*rated)
    out = [each.weight for each in weights]
    options = {**options, "lrs": rates, "wds": decays, "num_weights": len(weights), "out": out}
    if not isinstance(weights[0].state, MasterState):
        inputs = [array for each in weights for array in (each.weight, each.grad, each.state)]
        mx.nd.multi_sgd_mom_update(*inputs, **options)
        return
    masters = [optimizer.wide(each.index, each.weight, each.state) for each in weights]
    groups = [(each.weight, each.grad, each.state.inner, master) for each, master in zip(weights, masters)]
    mx.nd.multi_mp_sgd_mom_update(*[array for group in groups for array in group], **options)
    for each, master in zip(weights, masters):
        each.state.last_rounded.set(master, each.weight)


def _update_one(optimizer: MultiPrecision, each: Weight, rate: float, decay: float, options: Dict[str, Any]) -> None:
    """Update one weight; of low precision piece by piece, so that the casts work in the processor's cache."""
    options = {**options, "lr": _exactly(rate), "wd": _exactly(decay)}
    weight, grad, momentum = each.weight, each.grad, _momentum(each)
    if not is_low_precision(weight):
        mx.nd.sgd_mom_update(weight, grad, momentum, out=weight, **options)
        return
    wide = optimizer.wide(each.index, weight, each.state)
    for low, master, slope, moment in zip(*map(pieces, (weight, wide, grad, momentum))):
        if is_low_precision(slope):
            slope = mx.nd.amp_cast(slope, dtype="float32", out=scratch(slope)[0])
        mx.nd.sgd_mom_update(master, slope, moment, out=master, **options)
        round_into(master, low)
    if each.state.master is not None:
        each.state.last_rounded.set(wide, weight)


def _momentum(weight: Weight) -> Any:
    """Return where SGD has the momentum of a weight."""
    return weight.state.inner if isinstance(weight.state, MasterState) else weight.state


def _exactly(number: float) -> str:
    """Return a number that MXNet reads as the float32 next to it, as it does in a list of numbers.

    One that stands alone it reads with an error in the last bit where it is written with an exponent or many digits.
    """
    return f"{float(np.float32(number)):.60f}"
