"""SGD with momentum on a CPU: the operator for one weight, in float32 two to three times as fast as that for many.

MXNet's SGD gives four weights at a time to multi_sgd_mom_update, whose kernel asks at every element which of them are
that long, so that no compiler vectorizes it. sgd_mom_update does the same operations in the same order. So does
mp_sgd_mom_update on float16 weights with masters, and gains less: it converts one element at a time, too. The results
are equal bit for bit (SGDMomKernel, MP_SGDMomKernel and MultiSGDKernel in src/operator/optimizer_op-inl.h at tag
1.9.1). Of small weights it is the calls that take the time: these still go together, more at once.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np

from ..arrays.casts import is_low_precision, pieces, round_into, scratch
from ..arrays.together import MOST_ARRAYS, chunks
from ..mxnet_private import optimizers
from .optimizer import MasterState, MultiPrecision
from .weight import Weight

# Elements of weights that go together: the kernel for many walks the longest as often as there are weights.
_SMALL = 4096


class _Sgd(NamedTuple):
    """A weight that MXNet's SGD updates, and what is asked of it: each question to an array takes a call of MXNet."""

    given: Weight
    momentum: mx.nd.NDArray
    dtype: Any
    size: int
    fits_kernel: bool  # MXNet's, for a weight of float32 or of float16 with a master, and a gradient like it

    @property
    def goes_with_others(self) -> bool:
        """Whether it is updated together with others."""
        return self.fits_kernel and self.size <= _SMALL


# A weight with its learning rate and weight decay.
_Rated = Tuple[_Sgd, float, float]


def prepare(inner: mx.optimizer.Optimizer, weights: Sequence[Weight]) -> Optional[List[_Sgd]]:
    """Return weights of a CPU for `update_sgd`, None unless it is MXNet's SGD with momentum and all are dense."""
    if type(inner) is not mx.optimizer.SGD or not inner.momentum > 0 or inner.aggregate_num <= 0:
        return None
    found = []
    for each in weights:
        state = each.state
        momentum = state.inner if isinstance(state, MasterState) else state
        if not each.is_dense or not isinstance(momentum, mx.nd.NDArray):
            return None
        dtype, size = each.weight.dtype, each.weight.size
        has_kernel = dtype == np.float32 or (dtype == np.float16 and state.master is not None)
        found.append(_Sgd(each, momentum, dtype, size, bool(has_kernel and each.grad.dtype == dtype)))
    return found


def update_sgd(optimizer: MultiPrecision, weights: Sequence[_Sgd]) -> None:
    """Update weights as ``mx.optimizer.Updater`` does."""
    sgd = optimizer.inner
    options = {"momentum": sgd.momentum, "rescale_grad": sgd.rescale_grad}
    if sgd.clip_gradient:
        options["clip_gradient"] = sgd.clip_gradient
    groups: Dict[Any, List[_Rated]] = {}
    for rated in _with_rates(sgd, weights):
        each = rated[0]
        if each.goes_with_others:
            groups.setdefault((each.given.weight.ctx, each.dtype), []).append(rated)
        else:
            _update_one(optimizer, *rated, options)
    for group in groups.values():
        group.sort(key=lambda rated: rated[0].size)
        for part in chunks(group, MOST_ARRAYS):
            _update_many(optimizer, part, options)


def _with_rates(sgd: mx.optimizer.SGD, weights: Sequence[_Sgd]) -> Iterator[_Rated]:
    """Yield weights with their options, counted by dtype and as many at once as MXNet's ``Updater`` does.

    A schedule goes by the count of the weight that was updated most often so far.
    """
    groups: Dict[Any, List[_Sgd]] = {}
    for each in weights:
        groups.setdefault(each.dtype, []).append(each)
    for group in groups.values():
        for part in chunks(group, sgd.aggregate_num):
            indices = [each.given.index for each in part]
            optimizers.update_count(sgd, indices)
            yield from zip(part, optimizers.learning_rates(sgd, indices), optimizers.weight_decays(sgd, indices))


def _update_many(optimizer: MultiPrecision, rated: Sequence[_Rated], options: Dict[str, Any]) -> None:
    """Update small weights of one dtype by one operator."""
    weights, rates, decays = zip(*rated)
    given = [each.given for each in weights]
    out = [each.weight for each in given]
    options = {**options, "lrs": rates, "wds": decays, "num_weights": len(weights), "out": out}
    if not isinstance(given[0].state, MasterState):
        inputs = [array for each in weights for array in (each.given.weight, each.given.grad, each.momentum)]
        mx.nd.multi_sgd_mom_update(*inputs, **options)
        return
    masters = [optimizer.wide(each.index, each.weight, each.state) for each in given]
    groups = [(each.weight, each.grad, each.state.inner, master) for each, master in zip(given, masters)]
    mx.nd.multi_mp_sgd_mom_update(*[array for group in groups for array in group], **options)
    for each, master in zip(given, masters):
        each.state.last_rounded.set(master, each.weight)


def _update_one(optimizer: MultiPrecision, sgd: _Sgd, rate: float, decay: float, options: Dict[str, Any]) -> None:
    """Update one weight; piece by piece if MXNet has no operator for it, so that casts work in the cache."""
    options = {**options, "lr": _exactly(rate), "wd": _exactly(decay)}
    index, weight, grad, state = sgd.given
    if not isinstance(state, MasterState):
        mx.nd.sgd_mom_update(weight, grad, sgd.momentum, out=weight, **options)
        return
    wide = optimizer.wide(index, weight, state)
    if sgd.fits_kernel:
        mx.nd.mp_sgd_mom_update(weight, grad, sgd.momentum, wide, out=weight, **options)
    else:
        for low, master, slope, momentum in zip(*map(pieces, (weight, wide, grad, sgd.momentum))):
            if is_low_precision(slope):
                slope = mx.nd.amp_cast(slope, dtype="float32", out=scratch(slope)[0])
            mx.nd.sgd_mom_update(master, slope, momentum, out=master, **options)
            round_into(master, low)
    if state.master is not None:
        state.last_rounded.set(wide, weight)


def _exactly(number: float) -> str:
    """Return a number that MXNet reads as the float32 next to it, as it does in a list of numbers.

    One that stands alone it reads with an error in the last bit where it is written with an exponent or many digits.
    """
    return f"{float(np.float32(number)):.60f}"
