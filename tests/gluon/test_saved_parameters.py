"""Parameters are float32 to whoever saves, loads or sets them, whatever they are stored in."""

from __future__ import annotations

import copy
import pickle

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

from mxmp.gluon import Trainer, convert, restore

STORED_LOW = ["O2", pytest.param("param=bfloat16,compute=bfloat16", marks=pytest.mark.bfloat16)]
LEVELS = ["O0", "O1", *STORED_LOW, "O3"]
IMAGES = mx.nd.array(np.random.RandomState(0).rand(4, 2, 6, 6))


def make(policy=None, contexts=None):
    """Return a net with the same names and the same values every time."""
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Conv2D(3, 3, in_channels=2), nn.BatchNorm(in_channels=3), nn.Dense(5, in_units=48))
    mx.random.seed(1)
    net.initialize(mx.init.Xavier(), ctx=contexts)
    if policy is not None:
        convert(net, policy)
    return net


def values(net):
    return {name: param._reduce().asnumpy() for name, param in net._collect_params_with_prefix().items()}


def train(net, steps=3, lr=1e-3, contexts=(None,), **options):
    trainer = Trainer(net.collect_params(), "adam", {"learning_rate": lr}, loss_scale=1024, **options)
    for _ in range(steps):
        with autograd.record():
            losses = [mx.nd.square(net(IMAGES.as_in_context(ctx or mx.cpu())) - 1).mean() for ctx in contexts]
            with trainer.scale_loss(losses) as scaled:
                autograd.backward(scaled)
        assert trainer.step(1)
    return trainer


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == np.float32
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.behaviour("saved parameters")
@pytest.mark.parametrize("policy", LEVELS)
def test_a_net_that_was_never_trained_is_saved_as_it_was(policy, tmp_path):
    expected = values(make())
    net = make(policy)
    net.save_parameters(str(tmp_path / "net"))
    assert_equal({name: array.asnumpy() for name, array in mx.nd.load(str(tmp_path / "net")).items()}, expected)


@pytest.mark.behaviour("saved parameters")
@pytest.mark.parametrize("policy", STORED_LOW)
def test_what_is_saved_are_the_masters(policy, tmp_path):
    net = make(policy)
    trainer = train(net)
    masters = {
        trainer._params[index].name: state.master.asnumpy()
        for index, state in trainer._updaters[0].states.items()
        if hasattr(state, "master")
    }
    assert masters
    net.collect_params().save(str(tmp_path / "net"))
    saved = mx.nd.load(str(tmp_path / "net"))
    for name, master in masters.items():
        assert (master != master.astype("float16")).any()
        np.testing.assert_array_equal(saved[name].asnumpy(), master)


@pytest.mark.parametrize("before", [True, False], ids=["before conversion", "after conversion"])
@pytest.mark.parametrize("policy", LEVELS)
def test_a_float32_checkpoint_loads_at_any_level(policy, before, tmp_path):
    plain = make()
    train(plain)
    plain.save_parameters(str(tmp_path / "net"))
    net = make(None if before else policy)
    net.load_parameters(str(tmp_path / "net"))
    convert(net, policy)
    assert_equal(values(net), values(plain))
    twin = convert(plain, policy)
    np.testing.assert_array_equal(net(IMAGES).asnumpy(), twin(IMAGES).asnumpy())


@pytest.mark.parametrize("before", [True, False], ids=["before training", "in mid-training"])
@pytest.mark.parametrize("policy", STORED_LOW)
def test_masters_follow_what_is_loaded(policy, before, tmp_path):
    other = make()
    train(other)
    other.save_parameters(str(tmp_path / "net"))
    net = make(policy)
    trainer = train(net, steps=0 if before else 2, lr=0.0)
    net.load_parameters(str(tmp_path / "net"))
    trainer.set_learning_rate(0.0)
    with autograd.record(), trainer.scale_loss(net(IMAGES).sum()) as scaled:
        scaled.backward()
    trainer.step(1)
    expected, found = values(other), values(net)
    for name in ("0.weight", "2.weight"):
        np.testing.assert_array_equal(found[name], expected[name])


@pytest.mark.parametrize("dtype", ["float16", "float64", "int32", "numpy"])
@pytest.mark.parametrize("policy", STORED_LOW)
def test_values_of_any_dtype_can_be_set(policy, dtype):
    net = make(policy)
    weight = net[2].weight
    value = np.random.RandomState(2).randint(-300, 300, weight.shape).astype("float32")
    weight.set_data(value if dtype == "numpy" else mx.nd.array(value, dtype=dtype))
    np.testing.assert_array_equal(weight._reduce().asnumpy(), value)


def test_a_bfloat16_value_is_rounded_to_nearest_even():
    net = make("param=bfloat16,compute=bfloat16")
    value = np.full((5, 48), 1 + 3 * 2.0**-8, np.float32)  # half way, to the even neighbour above
    net[2].weight.set_data(mx.nd.array(value))
    stored = mx.nd.amp_cast(net[2].weight.data(), dtype="float32").asnumpy()
    assert (stored == 1 + 2.0**-6).all()


@pytest.mark.parametrize("policy", STORED_LOW)
def test_restore_gives_the_masters(policy):
    net = make(policy)
    train(net)
    expected = values(net)
    restore(net)
    assert_equal(values(net), expected)
    assert type(net[2].weight) is gluon.Parameter and not net[2].weight._mxmp_masters
    assert net[2].weight.data().dtype == np.float32


@pytest.mark.behaviour("saved parameters")
def test_training_goes_on_from_what_was_saved_bit_for_bit(tmp_path):
    stopped, straight = make("O2"), make("O2")
    train(straight, steps=2)
    train(straight, steps=2)  # a new trainer: Adam starts anew, the masters go on
    train(stopped, steps=2)
    stopped.save_parameters(str(tmp_path / "net"))
    resumed = make("O2")
    resumed.load_parameters(str(tmp_path / "net"))
    train(resumed, steps=2)
    assert_equal(values(resumed), values(straight))


def test_several_contexts_with_one_value_are_saved_exactly(tmp_path):
    contexts = [mx.cpu(0), mx.cpu(1), mx.cpu(2)]
    net = make("O2", contexts)
    trainer = train(net, contexts=contexts)
    (master,) = [s.master for i, s in trainer._updaters[0].states.items() if trainer._params[i] is net[2].weight]
    net.save_parameters(str(tmp_path / "net"))
    np.testing.assert_array_equal(mx.nd.load(str(tmp_path / "net"))["2.weight"].asnumpy(), master.asnumpy())


def test_reset_ctx_keeps_the_masters():
    net = make("O2")
    train(net)
    expected = values(net)
    net.collect_params().reset_ctx([mx.cpu(0), mx.cpu(1)])
    assert net[2].weight.list_data()[1].dtype == np.float16
    assert_equal(values(net), expected)


def test_a_parameter_can_be_copied():
    net = make("O2")
    twin = copy.deepcopy(net[2].weight)
    twin.set_data(mx.nd.zeros((5, 48)))
    assert (values(net)["2.weight"] != 0).any()
    assert (twin._reduce().asnumpy() == 0).all() and twin.data().dtype == np.float16


def test_a_parameter_class_of_the_user_stays_one():
    class Mine(gluon.Parameter):
        def answer(self):
            return 42

    net = make()
    net[2].weight.__class__ = Mine
    convert(net, "O2")
    assert net[2].weight.answer() == 42 and isinstance(net[2].weight, Mine)
    restore(net)
    assert type(net[2].weight) is Mine


def test_loading_a_wrong_shape_changes_nothing(tmp_path):
    net = make("O2")
    expected = values(net)
    mx.nd.save(str(tmp_path / "net"), {name: mx.nd.zeros((7, 7)) for name in expected})
    with pytest.raises(AssertionError, match="shape"):
        net.load_parameters(str(tmp_path / "net"))
    assert_equal(values(net), expected)


def masters_of(trainer):
    states = trainer._updaters[0].states
    return {trainer._params[i].name: s.master.asnumpy() for i, s in states.items() if hasattr(s, "master")}


def step(net, trainer):
    with autograd.record():
        loss = mx.nd.square(net(IMAGES.as_in_context(net[2].weight.list_ctx()[0])) - 1).mean()
        with trainer.scale_loss(loss) as scaled:
            scaled.backward()
    assert trainer.step(1)


def reset(net):
    net.collect_params().reset_ctx(mx.cpu(1))


def convert_anew(net):
    restore(net)
    net[2].weight.initialize(mx.init.Xavier(), force_reinit=True)
    convert(net, "O2")


@pytest.mark.parametrize("change", [reset, convert_anew])
def test_what_is_saved_are_the_masters_whatever_came_between(change):
    net = make("O2")
    trainer = train(net)
    change(net)
    step(net, trainer)
    for name, master in masters_of(trainer).items():
        saved = net.collect_params()[name]._reduce().asnumpy()
        np.testing.assert_array_equal(saved, master, err_msg=name)


def test_two_trainers_of_the_same_parameters_share_masters_after_a_resume(tmp_path):
    def run(resumed):
        net = make("O2")
        trainers = [Trainer(net.collect_params(), "adam", {"learning_rate": 1e-3}, loss_scale=8) for _ in range(2)]
        for number in range(4):
            if resumed and number == 2:
                net.save_parameters(str(tmp_path / "net"))
                for i, trainer in enumerate(trainers):
                    trainer.save_states(str(tmp_path / str(i)))
                net = make("O2")
                net.load_parameters(str(tmp_path / "net"))
                trainers = [Trainer(net.collect_params(), "adam", {"learning_rate": 1e-3}, loss_scale=8) for _ in "12"]
                for i, trainer in enumerate(trainers):
                    trainer.load_states(str(tmp_path / str(i)))
            step(net, trainers[number % 2])
        return values(net)

    assert_equal(run(True), run(False))


@pytest.mark.parametrize("policy", STORED_LOW)
def test_initializing_again_gives_float32_values(policy):
    plain, net = make(), make(policy)
    for each in (plain, net):
        mx.random.seed(7)
        each[2].weight.initialize(mx.init.Xavier(), force_reinit=True)
    np.testing.assert_array_equal(values(net)["2.weight"], values(plain)["2.weight"])


def test_a_parameter_that_was_frozen_later_keeps_what_is_set():
    net = make("O2")
    net[2].weight.grad_req = "null"
    value = np.random.RandomState(3).randn(5, 48).astype("float32")
    net[2].weight.set_data(mx.nd.array(value))
    np.testing.assert_array_equal(values(net)["2.weight"], value)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_a_cast_starts_from_the_exact_value(dtype):
    net = make("O2")
    train(net)
    expected = values(net)["2.weight"]
    net[2].weight.cast(dtype)
    assert net[2].weight.data().dtype == np.dtype(dtype)
    np.testing.assert_array_equal(net[2].weight._reduce().asnumpy(), expected)


class Answering(gluon.Parameter):
    def answer(self):
        return 42


def test_a_parameter_of_any_class_can_be_pickled():
    net = make()
    net[2].weight.__class__ = Answering
    convert(net, "O2")
    twin = pickle.loads(pickle.dumps(net[2].weight))
    assert twin.answer() == 42 and twin.data().dtype == np.float16
    np.testing.assert_array_equal(twin._reduce().asnumpy(), values(net)["2.weight"])
