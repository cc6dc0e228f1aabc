"""An optimizer of MXNet in `MultiPrecision`, used by itself."""

import copy
import pickle

import mxnet as mx
import numpy as np
import pytest

from mxmp.errors import TrainerError
from mxmp.gluon import exact_value
from mxmp.optimizer import MultiPrecision
from tests.freeze import freeze
from tests.gluon.trainer_tools import TWO, param
from tests.values import DTYPES, as_float32, in_dtype

LOW = ["float16", "bfloat16"]
OPTIMIZERS = sorted(mx.optimizer.Optimizer.opt_registry)

# What an optimizer needs to make more than the plainest of updates. Not dcasgd: with momentum
# MXNet 1.9.1 itself fails on any weight of more than one element (`if mom:`, optimizer.py).
OPTIONS = {
    "sgd": {"momentum": 0.9},
    "ccsgd": {"momentum": 0.9},
    "nag": {"momentum": 0.9},
    "lars": {"momentum": 0.9},
    "lbsgd": {"momentum": 0.9, "warmup_strategy": "lars"},
    "rmsprop": {"centered": True},
    "ftrl": {"lamda1": 0.0},  # else weights become zeros, whose sign is another in an update of many on a GPU
}


def low(values, dtype):
    return in_dtype(mx.nd.array(values, dtype="float32"), DTYPES[dtype])


def make(name, **options):
    if name != "groupadagrad":  # it asserts wd == 0
        options.setdefault("wd", 0.01)
    return mx.optimizer.create(name, **{**OPTIONS.get(name, {}), **options})


def updater_of(*args, **options):
    return mx.optimizer.get_updater(MultiPrecision(*args, **options))


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_without_masters_each_update_starts_from_the_weight(name, dtype):
    weight, expected = low([[1.0, 2.0]], dtype), mx.nd.array([[1.0, 2.0]])
    updater, plain = updater_of(make(name), masters=False), mx.optimizer.get_updater(make(name))
    for _ in range(3):
        grad = low([[0.1, -0.3]], dtype)
        updater(0, grad, weight)
        plain(0, mx.nd.array(as_float32(grad)), expected)
        expected = mx.nd.array(as_float32(low(expected.asnumpy(), dtype)))
    np.testing.assert_array_equal(as_float32(weight), expected.asnumpy())
    assert not isinstance(updater.states[0], tuple) or name == "adam"


@pytest.mark.parametrize("how", ["a float32 gradient", "rescale_grad"])
def test_an_update_too_small_for_float16_is_made_in_float32(how):
    small, weight = 2.0**-30, low([0.0], "float16")
    rescale = {"rescale_grad": small} if how == "rescale_grad" else {}
    updater = updater_of(mx.optimizer.SGD(learning_rate=1.0, **rescale))
    updater(0, low([1.0], "float16") if rescale else mx.nd.array([small]), weight)
    assert updater.states[0][1].asscalar() == -small


def test_what_trainers_and_updaters_read_and_set_is_the_inner_optimizers():
    inner = mx.optimizer.SGD(momentum=0.9, learning_rate=0.5, wd=0.1)
    outer = MultiPrecision(inner)
    assert (outer.inner.momentum, outer.lr, outer.wd, outer.learning_rate) == (0.9, 0.5, 0.1, 0.5)
    outer.rescale_grad, outer.wd, outer.num_update = 0.25, 0.2, 7
    outer.set_learning_rate(0.75)
    outer.set_lr_mult({"a": 2.0})
    outer.set_wd_mult({"a": 3.0})
    outer._set_current_context(3)
    assert (inner.rescale_grad, inner.wd, inner.lr, inner.num_update) == (0.25, 0.2, 0.75, 7)
    assert (inner.lr_mult, inner.wd_mult) == ({"a": 2.0}, {"a": 3.0})
    assert inner._all_index_update_counts == {0: {}, 3: {}}
    assert outer.aggregate_num == inner.aggregate_num > 0 and "rescale_grad" not in vars(outer)
    assert "multiprecision" not in mx.optimizer.Optimizer.opt_registry


@pytest.mark.parametrize("options", [{"kvstore": None}, {}], ids=["on each context", "on the kvstore"])
def test_a_trainer_of_mxnet_updates_masters_which_parameters_keep(options):
    w = param([1.0, 2.0], "float16", ctx=TWO)
    trainer = mx.gluon.Trainer([w], MultiPrecision(mx.optimizer.SGD(learning_rate=2.0**-13)), **options)
    for _ in range(3):
        with mx.autograd.record():
            losses = [w.data(ctx).sum() / (1 if options else 2) for ctx in TWO]
        mx.autograd.backward(losses)
        trainer.step(1)
    for ctx in TWO:
        assert w.data(ctx).asnumpy().tolist() == [1 - 2.0**-11, 2]
        assert exact_value(w, ctx).asnumpy().tolist() == [1 - 3 * 2.0**-13, 2 - 3 * 2.0**-13]


def test_a_schedule_of_the_inner_optimizer_counts():
    scheduled = MultiPrecision(mx.optimizer.SGD(lr_scheduler=mx.lr_scheduler.FactorScheduler(1, 0.5, base_lr=1.0)))
    scheduled.num_update = 3
    assert scheduled.learning_rate == 0.25


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_a_copy_and_the_states_of_an_updater_go_on(name):
    outer = MultiPrecision(mx.optimizer.Adam(beta1=0.5), masters=False)
    for other in (copy.deepcopy(outer), pickle.loads(pickle.dumps(outer))):
        other.inner.beta1 = 0.25
        assert (other.masters, other.inner.beta1, outer.inner.beta1) == (False, 0.25, 0.5)
    updater, restored = updater_of(make(name)), updater_of(make(name))
    weight, grad = low([1.0, 2.0], "float16"), low([1e-3, 1e-3], "float16")
    updater(0, grad, weight)
    restored.set_states(updater.get_states(dump_optimizer=True))
    copied = weight.copy()
    for each, array in ((updater, weight), (restored, copied)):
        each(0, grad, array)
    assert freeze([copied, restored.states[0]]) == freeze([weight, updater.states[0]])


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_states_of_a_plain_updater_with_multi_precision_go_on(name):
    """A pair of state and master is the one that MXNet makes."""
    plain, updater = mx.optimizer.get_updater(make(name, multi_precision=True)), updater_of(make(name))
    weight, grad = low([1.0, 2.0], "float16"), low([1e-3, 1e-3], "float16")
    plain(0, grad, weight)
    updater.set_states(plain.get_states())
    updater.optimizer.inner._update_count(0)  # which states by themselves do not hold
    copied = weight.copy()
    for each, array in ((updater, copied), (plain, weight)):
        each(0, grad, array)
    assert freeze([copied, updater.states[0]]) == freeze([weight, plain.states[0]])


@pytest.mark.parametrize("name", ["sgd", "adam"], ids=["in a list", "by itself"])
@pytest.mark.parametrize("first, second", [("float16", "float32"), ("float32", "float16")])
def test_a_cast_after_the_first_update_is_an_error(first, second, name):
    updater = updater_of(make(name))
    updater(0, low([1.0], first), low([1.0], first))
    with pytest.raises(TrainerError, match="parameter 0 changed its dtype after its optimizer state"):
        updater(0, low([1.0], second), low([1.0], second))


@pytest.mark.parametrize("steps", [1, 9, 10])
def test_an_updater_sees_a_write_to_a_parameter_within_ten_updates_and_undoes_it_later(steps):
    w = param([1.0] * 3, "float16")
    updater = updater_of(mx.optimizer.SGD(learning_rate=0, param_dict={0: w}))
    for _ in range(steps):
        updater(0, mx.nd.ones(3), w.data())
    w.data()[:] = 3
    if steps < 10:
        with pytest.raises(TrainerError, match="parameter 'w' .* written to past its float32 master"):
            updater(0, mx.nd.ones(3), w.data())
    else:
        updater(0, mx.nd.ones(3), w.data())
        assert w.data().asnumpy().tolist() == [1, 1, 1]


@pytest.mark.parametrize("steps", [1, 11])
@pytest.mark.parametrize("dtype", LOW)
def test_an_updater_takes_over_what_is_written_to_an_array(dtype, steps):
    """Which has no set_data to say so; elements that were not written to keep their exact values."""
    weight, updater = low([1.0, 2.0], dtype), updater_of(mx.optimizer.SGD(learning_rate=2.0**-20))
    for _ in range(steps):
        updater(0, low([1.0, 1.0], dtype), weight)
    weight[0] = 3
    with mx.autograd.record():
        updater(0, low([0.0, 0.0], dtype), weight)
    assert updater.states[0][1].asnumpy().tolist() == [3, 2 - steps * 2.0**-20]


def test_an_optimizer_of_float32_weights_is_the_inner_one():
    grad, weights = mx.nd.array([1.0, -2.0]), [mx.nd.array([1.0, 2.0]) for _ in range(2)]
    for optimizer, weight in zip((MultiPrecision(mx.optimizer.Adam()), mx.optimizer.Adam()), weights):
        optimizer.update(0, weight, grad, optimizer.create_state(0, weight))
    assert freeze(weights[0]) == freeze(weights[1]) != freeze(mx.nd.array([1.0, 2.0]))
