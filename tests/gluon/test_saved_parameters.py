"""Parameters are float32 to whoever saves, loads or sets them, whatever they are stored in."""

from __future__ import annotations

import copy
import pickle

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn, rnn

from mxmp.dtypes import canonical
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


def train(net, steps=3, lr=1e-3):
    trainer = Trainer(net.collect_params(), "adam", {"learning_rate": lr}, loss_scale=1024)
    for _ in range(steps):
        step(net, trainer)
    return trainer


def step(net, trainer):
    contexts = net[2].weight.list_ctx()
    with autograd.record():
        losses = [mx.nd.square(net(IMAGES.as_in_context(ctx)) - 1).mean() for ctx in contexts]
        with trainer.scale_loss(losses) as scaled:
            autograd.backward(scaled)
    assert trainer.step(1)


def assert_equal(arrays, expected):
    assert {name: array.dtype for name, array in arrays.items()} == dict.fromkeys(expected, np.float32)
    for name, value in expected.items():
        np.testing.assert_array_equal(arrays[name], value, err_msg=name)


@pytest.mark.behaviour("saved parameters")
@pytest.mark.parametrize("policy", LEVELS)
def test_a_net_that_was_never_trained_is_saved_as_it_was(policy, tmp_path):
    make(policy).save_parameters(str(tmp_path / "net"))
    saved = mx.nd.load(str(tmp_path / "net"))
    assert_equal({name: array.asnumpy() for name, array in saved.items()}, values(make()))


def reset(net):
    expected = values(net)
    net.collect_params().reset_ctx(mx.cpu(1))
    assert net[2].weight.data().dtype == np.float16
    assert_equal(values(net), expected)


def convert_anew(net):
    restore(net)
    net[2].weight.initialize(mx.init.Xavier(), force_reinit=True)
    convert(net, "O2")


@pytest.mark.behaviour("saved parameters")
@pytest.mark.parametrize(
    "policy, contexts, change",
    [
        ("O2", 1, None),
        pytest.param("param=bfloat16,compute=bfloat16", 1, None, marks=pytest.mark.bfloat16),
        ("O2", 3, None),
        ("O2", 1, reset),
        ("O2", 1, convert_anew),
    ],
)
def test_what_is_saved_are_the_masters_whatever_came_between(policy, contexts, change, tmp_path):
    net = make(policy, [mx.cpu(index) for index in range(contexts)])
    trainer = train(net)
    if change:
        change(net)
        step(net, trainer)
    net.collect_params().save(str(tmp_path / "net"))
    states, saved = trainer._updaters[0].states, mx.nd.load(str(tmp_path / "net"))
    masters = {trainer._params[i].name: s.master.asnumpy() for i, s in states.items() if hasattr(s, "master")}
    assert masters.keys() > {"net_conv0_weight", "net_dense0_weight"}
    for name, master in masters.items():
        assert (master != master.astype("float16")).any()
        np.testing.assert_array_equal(saved[name].asnumpy(), master, err_msg=name)


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
    np.testing.assert_array_equal(net(IMAGES).asnumpy(), convert(plain, policy)(IMAGES).asnumpy())


@pytest.mark.parametrize("steps", [0, 2], ids=["before training", "in mid-training"])
@pytest.mark.parametrize("policy", STORED_LOW)
def test_masters_follow_what_is_loaded(policy, steps, tmp_path):
    other, net = make(), make(policy)
    train(other)
    other.save_parameters(str(tmp_path / "net"))
    trainer = train(net, steps, lr=0.0)
    net.load_parameters(str(tmp_path / "net"))
    step(net, trainer)
    for name in ("0.weight", "2.weight"):
        np.testing.assert_array_equal(values(net)[name], values(other)[name])


@pytest.mark.parametrize("dtype, half_ulp", [("float16", 2.0**-11), ("bfloat16", 2.0**-8)])
def test_values_are_rounded_to_nearest_even_and_gradients_have_their_dtype(dtype, half_ulp):
    net = make(f"param={dtype},compute={dtype}")
    weight = net[2].weight
    weight.set_data(mx.nd.full((5, 48), 1 + 3 * half_ulp))  # half way, to the even neighbour above
    with autograd.record():
        stored = mx.nd.amp_cast(weight.data(), dtype="float32")
        (3 * stored).backward()
    assert (stored.asnumpy() == 1 + 4 * half_ulp).all()
    assert (mx.nd.amp_cast(weight.grad(), dtype="float32").asnumpy() == 3).all()
    assert {canonical(each.dtype) for each in (weight, weight.data(), weight.grad())} == {dtype}
    assert all(master.grad is None for master in weight._mxmp_masters.values())  # no memory for it


@pytest.mark.parametrize("policy", STORED_LOW)
def test_restore_gives_the_masters(policy):
    net = make(policy)
    train(net)
    expected = values(net)
    restore(net)
    assert_equal(values(net), expected)
    assert type(net[2].weight) is gluon.Parameter and not net[2].weight._mxmp_masters
    assert net[2].weight.data().dtype == net[2].weight.dtype == np.float32 and net[2].weight.dtype == "float32"


@pytest.mark.parametrize("layer", [rnn.LSTM, rnn.GRU, rnn.RNN])
def test_weights_of_recurrent_layers_are_stored_low(layer):
    """The RNN operator reads them reshaped and concatenated, in low precision alone."""
    net = layer(4, num_layers=2, bidirectional=True, input_size=3)
    net.initialize()
    convert(net, "O2,op:RNN=float16")(mx.nd.ones((5, 2, 3)))
    assert {canonical(param.data().dtype) for param in net.collect_params().values()} == {"float16"}


@pytest.mark.behaviour("saved parameters")
def test_training_goes_on_from_what_was_saved_bit_for_bit(tmp_path):
    net, resumed = make("O2"), make("O2")
    train(net)
    net.save_parameters(str(tmp_path / "net"))
    resumed.load_parameters(str(tmp_path / "net"))
    for each in (net, resumed):
        train(each)  # a new trainer: Adam starts anew, the masters go on
    assert_equal(values(resumed), values(net))


def test_two_trainers_of_the_same_parameters_share_masters_after_a_resume(tmp_path):
    def begin():
        net = make("O2")
        return net, [train(net, steps=0), train(net, steps=0)]

    (net, trainers), (resumed, theirs) = begin(), begin()
    for trainer in trainers:
        step(net, trainer)
    net.save_parameters(str(tmp_path / "net"))
    resumed.load_parameters(str(tmp_path / "net"))
    for trainer, other in zip(trainers, theirs):
        trainer.save_states(str(tmp_path / "states"))
        other.load_states(str(tmp_path / "states"))
    for trainer, other in zip(trainers, theirs):
        step(net, trainer)
        step(resumed, other)
    assert_equal(values(resumed), values(net))


class Answering(gluon.Parameter):
    def answer(self):
        return 42


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda weight: pickle.loads(pickle.dumps(weight))])
def test_a_parameter_of_any_class_stays_one_and_can_be_copied_and_pickled(duplicate):
    net = make()
    net[2].weight.__class__ = Answering
    convert(net, "O2")
    before, twin = values(net)["2.weight"], duplicate(net[2].weight)
    assert isinstance(net[2].weight, Answering) and twin.answer() == 42 and twin.data().dtype == np.float16
    np.testing.assert_array_equal(twin._reduce().asnumpy(), before)
    twin.set_data(mx.nd.zeros((5, 48)))
    assert not twin._reduce().asnumpy().any()
    np.testing.assert_array_equal(values(restore(net))["2.weight"], before)
    assert type(net[2].weight) is Answering


def test_loading_a_wrong_shape_changes_nothing(tmp_path):
    net = make("O2")
    expected = values(net)
    mx.nd.save(str(tmp_path / "net"), {name: mx.nd.zeros((7, 7)) for name in expected})
    with pytest.raises(AssertionError, match="shape"):
        net.load_parameters(str(tmp_path / "net"))
    assert_equal(values(net), expected)


@pytest.mark.parametrize("policy", STORED_LOW)
def test_initializing_again_gives_float32_values(policy):
    plain, net = make(), make(policy)
    for each in (plain, net):
        mx.random.seed(7)
        each[2].weight.initialize(mx.init.Xavier(), force_reinit=True)
    assert_equal(values(net), values(plain))


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_a_cast_starts_from_the_exact_value(dtype):
    net = make("O2")
    train(net)
    expected = values(net)["2.weight"]
    net[2].weight.cast(dtype)
    assert net[2].weight.data().dtype == np.dtype(dtype)
    np.testing.assert_array_equal(net[2].weight._reduce().asnumpy(), expected)
