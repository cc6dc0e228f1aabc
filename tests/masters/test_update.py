"""All weights of a context updated together, as on a GPU; the oracle is the update of one after the other."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

from mxmp.arrays import casts_together
from mxmp.masters.optimizer import MultiPrecision
from mxmp.masters.update import Update, masters_follow, update_together
from mxmp.masters.update import update as update_contexts
from mxmp.mxnet_private import optimizers
from tests.freeze import freeze
from tests.masters.test_optimizer import OPTIMIZERS, low, make

SHAPES = [(3, 4), (5, 2), (2, 2), (4, 4)]
DTYPES = ["float16", "float32", "float16", "float16"]
DENSE = ["default"] * 4


def weights_of(seed=0, dtypes=DTYPES):
    draw = np.random.RandomState(seed)
    values = [draw.randn(*shape).astype(np.float32) for shape in SHAPES]
    return [mx.nd.array(each) if kind == "float32" else low(each, kind) for each, kind in zip(values, dtypes)]


def updates_of(weights, seed, dtypes=None, stypes=DENSE):
    grads = weights_of(seed, dtypes or [str(np.dtype(weight.dtype)) for weight in weights])
    return [Update(k, grad.tostype(stypes[k]), weight) for k, (grad, weight) in enumerate(zip(grads, weights))]


def train(update, optimizer, steps=3, **kwargs):
    """Return the weights and all states after some updates, and the updater."""
    mx.random.seed(11)  # SGLD draws noise
    weights, updater = weights_of(), mx.optimizer.get_updater(optimizer)
    for step in range(steps):
        optimizer.rescale_grad = 1 / (step + 3)
        update(updater, updates_of(weights, step + 1, **kwargs))
    return [freeze(weights), freeze([updater.states[k] for k in range(len(weights))])], updater


def one_by_one(updater, updates):
    for each in updates:
        updater(*[[part] for part in each])


def together(updater, updates):
    update_together(updater, updates, False)


@pytest.mark.parametrize("masters", [True, False])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_together_is_one_after_the_other_bit_for_bit(name, masters):
    expected, _ = train(one_by_one, MultiPrecision(make(name), masters))
    found, _ = train(together, MultiPrecision(make(name), masters))
    assert found == expected


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}, {"momentum": 0.9, "clip_gradient": 0.1}])
@pytest.mark.parametrize("grads", ["float16", "float32"])
def test_sgd_with_gradients_of_either_dtype(options, grads):
    dtypes = [grads, "float32", grads, grads]
    expected, _ = train(one_by_one, MultiPrecision(mx.optimizer.SGD(wd=0.1, **options)), dtypes=dtypes)
    found, _ = train(together, MultiPrecision(mx.optimizer.SGD(wd=0.1, **options)), dtypes=dtypes)
    assert found == expected


@pytest.mark.parametrize("name", ["sgd", "adam", "ftrl"])
def test_sparse_gradients_go_by_themselves(name):
    kwargs = {"stypes": ["row_sparse", "row_sparse", "default", "default"]}
    expected, _ = train(one_by_one, MultiPrecision(make(name)), **kwargs)
    found, _ = train(together, MultiPrecision(make(name)), **kwargs)
    assert found == expected


def test_counts_of_updates_are_those_of_the_wrapped_optimizer():
    optimizer = MultiPrecision(make("adam"))
    train(together, optimizer, steps=4)
    assert optimizer.num_update == 4
    assert optimizers.update_counts(optimizer.inner) == {0: 4, 1: 4, 2: 4, 3: 4}


def test_more_weights_than_a_launch_takes():
    made = []
    for update in (one_by_one, together):
        weights = [low(np.full((2,), k / 7), "float16") for k in range(130)]
        updater = mx.optimizer.get_updater(MultiPrecision(mx.optimizer.SGD(momentum=0.9, learning_rate=0.1)))
        for _ in range(2):
            update(updater, [Update(k, weight * 0 + 1, weight) for k, weight in enumerate(weights)])
        made.append(freeze([weights, [updater.states[k] for k in range(130)]]))
    assert made[0] == made[1]


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_a_weight_that_was_changed_wins_over_its_master(name):
    made = []
    for update in (one_by_one, together):
        optimizer = MultiPrecision(make(name))
        weights, updater = weights_of(), mx.optimizer.get_updater(optimizer)
        update(updater, updates_of(weights, 1))
        weights[0][1:2] = 0.5
        weights[3][:] = 65504
        update(updater, updates_of(weights, 2))
        made.append(freeze([weights, updater.states]))
    assert made[0] == made[1]


def test_masters_that_are_known_to_follow_are_not_looked_at():
    optimizer = MultiPrecision(mx.optimizer.SGD(learning_rate=0))
    weights, updater = weights_of(), mx.optimizer.get_updater(optimizer)
    together(updater, updates_of(weights, 1))
    before = weights[0].asnumpy()
    weights[0][:] = 3
    update_together(updater, updates_of(weights, 2), True)
    np.testing.assert_array_equal(weights[0].asnumpy(), before)


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_each_context_has_its_own_weights_updated(name, monkeypatch):
    """As with the group2ctxs of a Module: an updater's weights need not lie on one context."""
    monkeypatch.setattr("mxmp.masters.update.on_gpu", lambda array: True)
    made = []
    for several in (False, True):
        optimizer = MultiPrecision(make(name))
        updater, weights = mx.optimizer.get_updater(optimizer), weights_of()
        for k in (1, 2) if several else ():
            weights[k] = weights[k].as_in_context(mx.cpu(1))
        for step in range(2):
            changed = updates_of(weights, step + 1)
            update_contexts(updater, [each._replace(grad=each.grad.as_in_context(each.weight.ctx)) for each in changed])
        states = [updater.states[k] for k in range(len(weights))]
        assert masters_follow(updater, changed).asscalar() == 1
        assert {each.weight.ctx for each in changed} == ({mx.cpu(0), mx.cpu(1)} if several else {mx.cpu(0)})
        assert states[2].master.ctx == weights[2].ctx
        made.append(freeze([weights, states]))
    assert made[0] == made[1]


def test_weights_go_in_parts_of_bounded_size(monkeypatch):
    """The float32 copies of gradients are transient; a step has few at a time."""
    sizes = []
    monkeypatch.setattr("mxmp.masters.update.MOST_ELEMENTS", 20)
    widen = casts_together.widen
    monkeypatch.setattr("mxmp.masters.update.widen", lambda a: sizes.append(sum(x.size for x in a)) or widen(a))
    train(together, MultiPrecision(make("adam")), steps=1)
    assert [size for size in sizes if size] == [16, 16]  # (3, 4) and (2, 2), then (4, 4)


class TestMastersFollow:
    @pytest.fixture(autouse=True)
    def as_on_a_gpu(self, monkeypatch):
        monkeypatch.setattr("mxmp.masters.update.on_gpu", lambda array: True)

    def trained(self, masters=True):
        updater, weights = mx.optimizer.get_updater(MultiPrecision(make("sgd"), masters)), weights_of()
        together(updater, updates_of(weights, 1))
        return updater, weights

    def test_after_an_update_they_do(self):
        updater, weights = self.trained()
        assert masters_follow(updater, updates_of(weights, 2)).asscalar() == 1

    def test_a_weight_that_was_changed_does_not(self):
        updater, weights = self.trained()
        weights[2][1, 1] = 7
        assert masters_follow(updater, updates_of(weights, 2)).asscalar() == 0

    def test_without_masters_there_is_no_flag(self):
        updater, weights = self.trained(masters=False)
        assert masters_follow(updater, updates_of(weights, 2)) is None

    def test_before_the_first_update_there_is_no_flag(self):
        updater = mx.optimizer.get_updater(MultiPrecision(make("sgd")))
        assert masters_follow(updater, updates_of(weights_of(), 1)) is None


def test_on_a_cpu_each_update_looks_itself():
    updater, weights = TestMastersFollow().trained()
    assert masters_follow(updater, updates_of(weights, 2)) is None
