"""All weights of a context updated together, as on a GPU; the oracle is the update of one after the other."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

from mxmp import arrays
from mxmp.errors import TrainerError
from mxmp.mxnet_private import optimizers
from mxmp.train.masters import MultiPrecision, Update, masters_flag, update
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


def train(way, optimizer, steps=3, **kwargs):
    """Return the weights and all states after some updates, and the updater."""
    mx.random.seed(11)  # SGLD draws noise
    weights, updater = weights_of(), mx.optimizer.get_updater(optimizer)
    for step in range(steps):
        optimizer.rescale_grad = 1 / (step + 3)
        way(updater, updates_of(weights, step + 1, **kwargs))
    return [freeze(weights), freeze([updater.states[k] for k in range(len(weights))])], updater


def one_by_one(updater, updates):
    for each in updates:
        updater(*[[part] for part in each])


@pytest.fixture(params=["cpu", "as on a GPU"])
def together(request, monkeypatch):
    """The update of all weights, on a CPU and by the kernels for a GPU's."""
    if request.param != "cpu":
        monkeypatch.setattr("mxmp.train.masters.on_gpu", lambda array: True)
    return update


@pytest.mark.parametrize("masters", [True, False])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_together_is_one_after_the_other_bit_for_bit(name, masters, together):
    expected, _ = train(one_by_one, MultiPrecision(make(name), masters))
    found, _ = train(together, MultiPrecision(make(name), masters))
    assert found == expected


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}, {"momentum": 0.9, "clip_gradient": 0.1}])
@pytest.mark.parametrize("grads", ["float16", "float32"])
def test_sgd_with_gradients_of_either_dtype(options, grads, together):
    dtypes = [grads, "float32", grads, grads]
    expected, _ = train(one_by_one, MultiPrecision(mx.optimizer.SGD(wd=0.1, **options)), dtypes=dtypes)
    found, _ = train(together, MultiPrecision(mx.optimizer.SGD(wd=0.1, **options)), dtypes=dtypes)
    assert found == expected


@pytest.mark.parametrize("name", ["sgd", "adam", "ftrl"])
def test_sparse_gradients_go_by_themselves(name, together):
    kwargs = {"stypes": ["row_sparse", "row_sparse", "default", "default"]}
    expected, _ = train(one_by_one, MultiPrecision(make(name)), **kwargs)
    found, _ = train(together, MultiPrecision(make(name)), **kwargs)
    assert found == expected


def test_counts_of_updates_are_those_of_the_wrapped_optimizer(together):
    optimizer = MultiPrecision(make("adam"))
    train(together, optimizer, steps=4)
    assert optimizer.num_update == 4
    assert optimizers.update_counts(optimizer.inner) == {0: 4, 1: 4, 2: 4, 3: 4}


def test_more_weights_than_a_launch_takes(together):
    made = []
    for way in (one_by_one, together):
        weights = [low(np.full((2,), k / 7), "float16") for k in range(130)]
        updater = mx.optimizer.get_updater(MultiPrecision(mx.optimizer.SGD(momentum=0.9, learning_rate=0.1)))
        for _ in range(2):
            way(updater, [Update(k, weight * 0 + 1, weight) for k, weight in enumerate(weights)])
        made.append(freeze([weights, [updater.states[k] for k in range(130)]]))
    assert made[0] == made[1]


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_each_context_has_its_own_weights_updated(name, monkeypatch):
    """As with the group2ctxs of a Module: an updater's weights need not lie on one context."""
    monkeypatch.setattr("mxmp.train.masters.on_gpu", lambda array: True)
    made = []
    for several in (False, True):
        optimizer = MultiPrecision(make(name))
        updater, weights = mx.optimizer.get_updater(optimizer), weights_of()
        for k in (1, 2) if several else ():
            weights[k] = weights[k].as_in_context(mx.cpu(1))
        for step in range(2):
            changed = updates_of(weights, step + 1)
            update(updater, [each._replace(grad=each.grad.as_in_context(each.weight.ctx)) for each in changed])
        states = [updater.states[k] for k in range(len(weights))]
        assert masters_flag([(updater, changed)]).asscalar() == 1
        assert {each.weight.ctx for each in changed} == ({mx.cpu(0), mx.cpu(1)} if several else {mx.cpu(0)})
        assert states[2].master.ctx == weights[2].ctx
        made.append(freeze([weights, states]))
    assert made[0] == made[1]


def test_weights_of_a_gpu_go_in_parts_of_bounded_size(monkeypatch):
    """The float32 copies of gradients are transient; a step has few at a time."""
    sizes = []
    monkeypatch.setattr("mxmp.train.masters.on_gpu", lambda array: True)
    monkeypatch.setattr("mxmp.train.masters.MOST_ELEMENTS", 20)
    widen = arrays.widen
    monkeypatch.setattr("mxmp.train.masters.widen", lambda a: sizes.append(sum(x.size for x in a)) or widen(a))
    train(update, MultiPrecision(make("adam")), steps=1)
    assert [size for size in sizes if size] == [16, 16]  # (3, 4) and (2, 2), then (4, 4)


def trained(masters=True):
    updater, weights = mx.optimizer.get_updater(MultiPrecision(make("sgd"), masters)), weights_of()
    update(updater, updates_of(weights, 1))
    return updater, weights


def test_after_an_update_weights_are_their_masters_rounded():
    updater, weights = trained()
    assert masters_flag([(updater, updates_of(weights, 2))]).asscalar() == 1


def test_a_weight_that_was_changed_is_seen():
    updater, weights = trained()
    weights[2][1, 1] = 7
    assert masters_flag([(updater, updates_of(weights, 2))]).asscalar() == 0


def test_without_masters_there_is_no_flag():
    updater, weights = trained(masters=False)
    assert masters_flag([(updater, updates_of(weights, 2))]) is None


def test_before_the_first_update_there_is_no_flag():
    updater = mx.optimizer.get_updater(MultiPrecision(make("sgd")))
    assert masters_flag([(updater, updates_of(weights_of(), 1))]) is None


@pytest.mark.parametrize("steps", [1, 10, 11])
def test_an_updater_of_mxnet_sees_a_write_within_ten_updates_and_undoes_it_later(steps):
    weights, updater = weights_of(), mx.optimizer.get_updater(MultiPrecision(mx.optimizer.SGD(learning_rate=0)))
    for step in range(steps - 1):
        one_by_one(updater, updates_of(weights, step))
    before = weights[0].asnumpy()
    one_by_one(updater, updates_of(weights, 1))
    weights[0][:] = 3
    if steps < 10:
        with pytest.raises(TrainerError, match="parameter 0 .* written to past its float32 master"):
            one_by_one(updater, updates_of(weights, 2))
    else:
        one_by_one(updater, updates_of(weights, 2))
        np.testing.assert_array_equal(weights[0].asnumpy(), before)
