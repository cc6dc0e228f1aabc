"""SGD with momentum on a CPU; the oracle is MXNet's own updater, with its multi_precision for float16 weights."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

from mxmp.train import masters as module
from mxmp.train.masters import MasterState, MultiPrecision, Update, update
from tests.freeze import freeze
from tests.masters.test_optimizer import low

SHAPES = [(3, 4), (70, 60), (5,), (1, 1), (4097,), (64, 2), (2,)]
OPTIONS = {
    "plain": {},
    "clipped": {"clip_gradient": 1e-3},
    "decay": {"wd": 3.3e-5},
    "small rate": {"learning_rate": 5.6048103717530566e-08, "momentum": 0.99},  # MXNet reads it with an error
    "large rate": {"learning_rate": 62.80538370118765, "wd": 1e-7},
}


def values(seed, scale=1.0):
    draw = np.random.RandomState(seed)
    return [(draw.randn(*shape) * scale * 2.0 ** draw.randint(-20, 3)).astype(np.float32) for shape in SHAPES]


def arrays(seed, dtypes, scale=1.0):
    return [mx.nd.array(each).astype(dtype) for each, dtype in zip(values(seed, scale), dtypes)]


def sgd(**options):
    return mx.optimizer.SGD(**{"momentum": 0.9, "learning_rate": 0.3, "multi_precision": True, **options})


def own(updater, grads, weights):
    update(updater, [Update(k, grad, weight) for k, (grad, weight) in enumerate(zip(grads, weights))])


def peer(updater, grads, weights):
    updater(list(range(len(weights))), list(grads), list(weights))


def train(step, optimizer, dtypes, grad_dtypes=None, steps=4):
    """Return all weights, masters and momenta after some steps, and what the optimizer counted."""
    weights, updater = arrays(0, dtypes), mx.optimizer.get_updater(optimizer)
    for number in range(steps):
        optimizer.rescale_grad = 1 / (3 * 2.0**16 + number)
        step(updater, arrays(number + 1, grad_dtypes or dtypes, 2.0**10), weights)
    states = [updater.states[k] for k in range(len(weights))]
    pairs = [
        (state.inner, state.master) if isinstance(state, MasterState) else state if isinstance(state, tuple) else [state]
        for state in states
    ]
    return freeze([weights, pairs, optimizer.num_update])


@pytest.mark.parametrize("dtypes", [["float32"] * 7, ["float16"] * 7, ["float16", "float32"] * 3 + ["float16"]])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_it_is_mxnets_own_update_bit_for_bit(dtypes, options):
    assert train(own, MultiPrecision(sgd(**options)), dtypes) == train(peer, sgd(**options), dtypes)


@pytest.mark.parametrize("masters", [True, False])
@pytest.mark.parametrize("grads", ["float16", "float32"])
def test_it_is_one_update_after_the_other_bit_for_bit(masters, grads):
    made = [train(step, MultiPrecision(sgd(wd=0.01), masters), ["float16"] * 7, [grads] * 7) for step in (own, peer)]
    assert made[0] == made[1]


@pytest.mark.bfloat16
@pytest.mark.parametrize("masters", [True, False])
def test_bfloat16_weights_are_one_update_after_the_other_bit_for_bit(masters):
    made = []
    for step in (own, peer):
        weights = [low(each, "bfloat16") for each in values(0)]
        updater = mx.optimizer.get_updater(MultiPrecision(sgd(), masters))
        for number in range(3):
            step(updater, [low(each, "bfloat16") for each in values(number + 1)], weights)
        made.append(freeze([weights, [updater.states[k] for k in range(len(weights))]]))
    assert made[0] == made[1]


def test_many_small_weights_are_more_than_one_operator_takes():
    made = []
    for step in (own, peer):
        weights = [mx.nd.full((k % 7 + 1,), k / 7) for k in range(130)]
        updater = mx.optimizer.get_updater(sgd() if step is peer else MultiPrecision(sgd()))
        for _ in range(2):
            step(updater, [weight * 0 + 1 for weight in weights], weights)
        made.append(freeze([weights, [updater.states[k] for k in range(130)]]))
    assert made[0] == made[1]


def test_counts_multipliers_and_schedule_are_those_of_mxnets_updater():
    made = []
    for step in (own, peer):
        inner = sgd(lr_scheduler=mx.lr_scheduler.FactorScheduler(2, 0.7, base_lr=0.3))
        inner.set_lr_mult({0: 0.5, 4: 2.0})
        inner.set_wd_mult({1: 3.0})
        weights = arrays(0, ["float32"] * 7)
        updater = mx.optimizer.get_updater(inner if step is peer else MultiPrecision(inner))
        for number in range(6):
            step(updater, arrays(number + 1, ["float32"] * 7), weights)
        counts = sorted(inner._index_update_count.items())
        made.append(freeze([weights, [updater.states[k] for k in range(7)], counts]))
    assert made[0] == made[1]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_mxnets_operator_for_many_is_not_called_for_large_weights(dtype, monkeypatch):
    """Else all of this is for nothing."""
    sizes = []
    for name in ("multi_sgd_mom_update", "multi_mp_sgd_mom_update"):
        call = getattr(mx.optimizer.optimizer, name)
        spy = lambda *inputs, call=call, **options: sizes.extend(x.size for x in inputs) or call(*inputs, **options)  # noqa: E731
        monkeypatch.setattr(mx.optimizer.optimizer, name, spy)
    train(own, MultiPrecision(sgd()), [dtype] * 7)
    assert sizes and max(sizes) <= module._SMALL < max(np.prod(shape) for shape in SHAPES)
