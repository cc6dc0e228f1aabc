"""Parameters are float32 to whoever saves, loads or sets them, whatever they are stored in."""

import copy
import pickle

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from mxnet.gluon import nn, rnn

from mxmp.gluon import Trainer, convert, restore
from tests.gluon.nets import X, cnn, exact, recorded, started, step, train
from tests.values import name_of

STORED_LOW = ["O2", pytest.param("param=bfloat16,compute=bfloat16", marks=pytest.mark.bfloat16)]
LEVELS = ["O0", "O1", *STORED_LOW, "O3"]


def assert_equal(arrays, expected):
    assert {name: array.dtype for name, array in arrays.items()} == dict.fromkeys(expected, np.float32)
    for name, value in expected.items():
        np.testing.assert_array_equal(arrays[name], value, err_msg=name)


@pytest.mark.behaviour("saved parameters")
@pytest.mark.parametrize("policy", LEVELS)
def test_a_net_that_was_never_trained_is_saved_as_it_was(policy, tmp_path):
    cnn(policy).save_parameters(str(tmp_path / "net"))
    saved = mx.nd.load(str(tmp_path / "net"))
    assert_equal({name: array.asnumpy() for name, array in saved.items()}, exact(cnn()))


def reset(net):
    expected = exact(net)
    net.collect_params().reset_ctx(mx.cpu(1))
    assert net[3].weight.data().dtype == np.float16
    assert_equal(exact(net), expected)


def convert_anew(net):
    restore(net)
    net[3].weight.initialize(mx.init.Xavier(), force_reinit=True)
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
    net = cnn(policy, ctx=[mx.cpu(index) for index in range(contexts)])
    trainer = train(net)
    if change:
        change(net)
        step(net, trainer)
    net.collect_params().save(str(tmp_path / "net"))
    arrays, saved = trainer._training_step.masters[0].arrays, mx.nd.load(str(tmp_path / "net"))
    masters = {trainer._params[index].name: master.asnumpy() for index, master in arrays.items()}
    assert masters.keys() > {"net_conv0_weight", "net_dense0_weight"}
    for name, master in masters.items():
        assert (master != master.astype("float16")).any()
        np.testing.assert_array_equal(saved[name].asnumpy(), master, err_msg=name)


@pytest.mark.parametrize("before", [True, False], ids=["before conversion", "after conversion"])
@pytest.mark.parametrize("policy", LEVELS)
def test_a_float32_checkpoint_loads_at_any_level(policy, before, tmp_path):
    plain = cnn()
    train(plain)
    plain.save_parameters(str(tmp_path / "net"))
    net = cnn(None if before else policy)
    net.load_parameters(str(tmp_path / "net"))
    convert(net, policy)
    assert_equal(exact(net), exact(plain))
    np.testing.assert_array_equal(net(X).asnumpy(), convert(plain, policy)(X).asnumpy())


@pytest.mark.parametrize("steps", [0, 2], ids=["before training", "in mid-training"])
@pytest.mark.parametrize("policy", STORED_LOW)
def test_masters_follow_what_is_loaded(policy, steps, tmp_path):
    other, net = cnn(), cnn(policy)
    train(other)
    other.save_parameters(str(tmp_path / "net"))
    trainer = train(net, steps, rate=0.0)
    net.load_parameters(str(tmp_path / "net"))
    step(net, trainer)
    for name in ("0.weight", "3.weight"):
        np.testing.assert_array_equal(exact(net)[name], exact(other)[name])


HALF_ULPS = [("float16", 2.0**-11), pytest.param("bfloat16", 2.0**-8, marks=pytest.mark.bfloat16)]


@pytest.mark.parametrize("dtype, half_ulp", HALF_ULPS)
def test_values_are_rounded_to_nearest_even_and_gradients_have_their_dtype(dtype, half_ulp):
    net = cnn(f"param={dtype},compute={dtype}")
    net(X)
    weight = net[3].weight
    weight.set_data(mx.nd.full((5, 64), 1 + 3 * half_ulp))  # half way, to the even neighbour above
    tripled = recorded(lambda: 3 * mx.nd.amp_cast(weight.data(), dtype="float32"))
    assert (tripled.asnumpy() == 3 * (1 + 4 * half_ulp)).all()
    assert (mx.nd.amp_cast(weight.grad(), dtype="float32").asnumpy() == 3).all()
    assert {name_of(each.dtype) for each in (weight, weight.data(), weight.grad())} == {dtype}
    assert all(master.grad is None for master in weight._mxmp_masters.values())  # no memory for it


@pytest.mark.parametrize("policy", STORED_LOW)
def test_restore_gives_the_masters(policy):
    net = cnn(policy)
    train(net)
    expected = exact(net)
    restore(net)
    assert_equal(exact(net), expected)
    assert type(net[3].weight) is gluon.Parameter and not net[3].weight._mxmp_masters
    assert net[3].weight.data().dtype == net[3].weight.dtype == np.float32 and net[3].weight.dtype == "float32"


@pytest.mark.parametrize("layer", [rnn.LSTM, rnn.GRU, rnn.RNN])
def test_weights_of_recurrent_layers_are_stored_low(layer):
    """The RNN operator reads them reshaped and concatenated, in low precision alone."""
    net = started(layer(4, num_layers=2, bidirectional=True, input_size=3))
    convert(net, "O2,op:RNN=float16")(mx.nd.ones((5, 2, 3)))
    assert {name_of(param.data().dtype) for param in net.collect_params().values()} == {"float16"}


class Answering(gluon.Parameter):
    def answer(self):
        return 42


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda weight: pickle.loads(pickle.dumps(weight))])
def test_a_parameter_of_any_class_stays_one_and_can_be_copied_and_pickled(duplicate):
    net = cnn()
    net[3].weight.__class__ = Answering
    convert(net, "O2")(X)
    before, twin = exact(net)["3.weight"], duplicate(net[3].weight)
    assert net[3].weight.dtype == np.float16 and isinstance(net[3].weight, Answering)
    assert type(twin) is Answering and twin.answer() == 42 and twin.data().dtype == twin.grad().dtype == np.float32
    np.testing.assert_array_equal(twin.data().asnumpy(), before)
    twin.set_data(mx.nd.zeros((5, 64)))
    assert not twin._reduce().asnumpy().any()
    np.testing.assert_array_equal(exact(restore(net))["3.weight"], before)
    assert type(net[3].weight) is Answering


def test_loading_a_wrong_shape_changes_nothing(tmp_path):
    net = cnn("O2")
    expected = exact(net)
    mx.nd.save(str(tmp_path / "net"), {name: mx.nd.zeros((7, 7)) for name in expected})
    with pytest.raises(AssertionError, match="shape"):
        net.load_parameters(str(tmp_path / "net"))
    assert_equal(exact(net), expected)


@pytest.mark.parametrize("policy", STORED_LOW)
def test_initializing_again_gives_float32_values(policy):
    plain, net = cnn(), cnn(policy)
    for each in (plain, net):
        each(X)
        mx.random.seed(7)
        each[3].weight.initialize(mx.init.Xavier(), force_reinit=True)
    assert_equal(exact(net), exact(plain))


# ---------------------------------------------------------------------- set_data, and the masters of what it sets

RANDOM = np.random.RandomState(0)
START = RANDOM.uniform(-1, 1, (4, 8)).astype("float32") * 0.1
DATA = mx.nd.array(RANDOM.uniform(-1, 1, (16, 8)))
CLIP = 0.0625  # which float16 has


def dense(policy=None, ctx=None):
    net = started(nn.Dense(4, in_units=8, use_bias=False, prefix="net_"), ctx)
    net.weight.set_data(mx.nd.array(START))
    if policy:
        contexts = net.weight.list_ctx()
        convert(net, policy)(DATA.as_in_context(contexts[0]))
    return net


def saved_weight(net, folder):
    net.save_parameters(str(folder / "net.params"))
    return mx.nd.load(str(folder / "net.params"))["weight"].asnumpy()


def clip(weight):
    weight.set_data(weight.data().clip(-CLIP, CLIP))


def clip_by_numpy(weight):
    weight.set_data(np.clip(weight.data().asnumpy(), -CLIP, CLIP))


def nothing(weight):
    weight.set_data(weight.data())


def constrained(net, constrain, steps, rate):
    trainer = Trainer(net.collect_params(), "sgd", {"learning_rate": rate}, loss_scale=8)
    for _ in range(steps):
        step(net, trainer, DATA)
        constrain(net.weight)


@pytest.mark.parametrize("constrain", [nothing, clip, clip_by_numpy])
def test_small_steps_add_up_between_constraints(constrain, tmp_path):
    """As in a critic of a WGAN: each step is far below half a unit in the last place of float16."""
    plain, net = dense(), dense("O2")
    for each in (plain, net):
        constrained(each, constrain, steps=40, rate=1e-5)
    moved, expected = saved_weight(net, tmp_path) - START, saved_weight(plain, tmp_path) - START
    free = np.abs(START) < CLIP
    np.testing.assert_allclose(moved[free], expected[free], rtol=0.02, atol=1e-7)
    assert np.abs(expected[free]).max() > 1e-5
    for each in (plain, net):  # with large steps the constraints hold
        constrained(each, constrain, steps=10, rate=1.0)
    np.testing.assert_allclose(saved_weight(net, tmp_path), saved_weight(plain, tmp_path), atol=2e-3)
    if constrain in (clip, clip_by_numpy):
        assert np.abs(saved_weight(net, tmp_path)).max() == np.abs(saved_weight(plain, tmp_path)).max() == CLIP


@pytest.mark.parametrize("contexts", [None, [mx.cpu(0), mx.cpu(1)]], ids=["one context", "two"])
def test_elements_that_differ_become_the_master(contexts, tmp_path):
    net, expected = dense("O2", contexts), START.copy()
    value = net.weight.list_data()[0].asnumpy()
    value[1] = expected[1] = 3
    net.weight.set_data(mx.nd.array(value, dtype="float16"))
    np.testing.assert_array_equal(saved_weight(net, tmp_path), expected)
    for array in net.weight.list_data():
        np.testing.assert_array_equal(array.asnumpy(), expected.astype("float16"))


@pytest.mark.parametrize("dtype", ["float32", "float64", "list"])
def test_a_value_in_another_dtype_becomes_the_master(dtype, tmp_path):
    net = dense("O2")
    rounded = START.astype("float16").astype("float32")
    net.weight.set_data(rounded.tolist() if dtype == "list" else mx.nd.array(rounded, dtype=dtype))
    np.testing.assert_array_equal(saved_weight(net, tmp_path), rounded)
    net.weight.set_data(mx.nd.array(START))
    np.testing.assert_array_equal(saved_weight(net, tmp_path), START)


@pytest.mark.parametrize("frozen_before", [True, False])
def test_a_parameter_that_is_frozen_before_its_conversion_has_no_master(frozen_before, tmp_path):
    net = dense()
    if frozen_before:
        net.weight.grad_req = "null"
    convert(net, "O2")(DATA)
    net.weight.grad_req = "null"
    net.weight.set_data(mx.nd.array(2 * START))
    expected = START.astype("float16") * np.float16(2) if frozen_before else 2 * START
    np.testing.assert_array_equal(saved_weight(net, tmp_path), expected)


def test_what_is_set_is_what_restore_gives():
    net = dense("O2")
    clip(net.weight)
    restore(net)
    assert type(net.weight) is gluon.Parameter
    np.testing.assert_array_equal(net.weight.data().asnumpy(), np.clip(START, -CLIP, CLIP))


def test_the_mean_is_saved_where_contexts_have_different_values(tmp_path):
    net = nn.Dense(1, in_units=2)
    net.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
    convert(net, "O2")(mx.nd.ones((1, 2)))
    for number, weight in enumerate(net.weight.list_data()):
        weight[:] = number
    net.save_parameters(str(tmp_path / "net"))
    assert mx.nd.load(str(tmp_path / "net"))["weight"].asnumpy().tolist() == [[0.5, 0.5]]
