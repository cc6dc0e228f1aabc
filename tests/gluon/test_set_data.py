"""``set_data`` on parameters that O2 stores in float16: what becomes of their float32 masters."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

from mxmp.gluon import Trainer, convert, restore

RANDOM = np.random.RandomState(0)
START = RANDOM.uniform(-1, 1, (4, 8)).astype("float32") * 0.1
X = mx.nd.array(RANDOM.uniform(-1, 1, (16, 8)))
CLIP = 0.0625  # which float16 has


def make(policy, contexts=None):
    net = nn.Dense(4, in_units=8, use_bias=False, prefix="net_")
    net.initialize(ctx=contexts or mx.cpu())
    net.weight.set_data(mx.nd.array(START))
    return convert(net, policy) if policy else net


def exact(net, folder):
    net.save_parameters(str(folder / "net.params"))
    (value,) = mx.nd.load(str(folder / "net.params")).values()
    return value.asnumpy()


def clip(weight):
    weight.set_data(weight.data().clip(-CLIP, CLIP))


def clip_by_numpy(weight):
    weight.set_data(np.clip(weight.data().asnumpy(), -CLIP, CLIP))


def max_norm(weight):
    value = weight.data()
    norms = (value.astype("float32") ** 2).sum(axis=1, keepdims=True).sqrt()
    weight.set_data(value * mx.nd.minimum(1, 0.25 / norms).astype(value.dtype))


def nothing(weight):
    weight.set_data(weight.data())


def train(net, constrain, steps, rate):
    trainer = Trainer(net.collect_params(), "sgd", {"learning_rate": rate}, loss_scale=8)
    for _ in range(steps):
        with autograd.record(), trainer.scale_loss(mx.nd.square(net(X) - 1).mean()) as scaled:
            scaled.backward()
        trainer.step(1)
        constrain(net.weight)


@pytest.mark.parametrize("constrain", [nothing, clip, clip_by_numpy, max_norm])
def test_small_steps_add_up_between_constraints(constrain, tmp_path):
    """As in a critic of a WGAN: each step is far below half a unit in the last place of float16."""
    plain, net = make(None), make("O2")
    for each in (plain, net):
        train(each, constrain, steps=40, rate=1e-5)
    moved, expected = exact(net, tmp_path) - START, exact(plain, tmp_path) - START
    free = np.abs(START) < CLIP
    np.testing.assert_allclose(moved[free], expected[free], rtol=0.02, atol=1e-7)
    assert np.abs(expected[free]).max() > 1e-5
    for each in (plain, net):  # with large steps the constraints hold
        train(each, constrain, steps=10, rate=1.0)
    np.testing.assert_allclose(exact(net, tmp_path), exact(plain, tmp_path), atol=2e-3)
    if constrain in (clip, clip_by_numpy):
        assert np.abs(exact(net, tmp_path)).max() == np.abs(exact(plain, tmp_path)).max() == CLIP


@pytest.mark.parametrize("contexts", [None, [mx.cpu(0), mx.cpu(1)]], ids=["one context", "two"])
def test_elements_that_differ_become_the_master(contexts, tmp_path):
    net, expected = make("O2", contexts), START.copy()
    value = net.weight.list_data()[0].asnumpy()
    value[1] = expected[1] = 3
    net.weight.set_data(mx.nd.array(value, dtype="float16"))
    np.testing.assert_array_equal(exact(net, tmp_path), expected)
    for array in net.weight.list_data():
        np.testing.assert_array_equal(array.asnumpy(), expected.astype("float16"))


@pytest.mark.parametrize("dtype", ["float32", "float64", "list"])
def test_a_value_in_another_dtype_becomes_the_master(dtype, tmp_path):
    net = make("O2")
    rounded = START.astype("float16").astype("float32")
    net.weight.set_data(rounded.tolist() if dtype == "list" else mx.nd.array(rounded, dtype=dtype))
    np.testing.assert_array_equal(exact(net, tmp_path), rounded)
    net.weight.set_data(mx.nd.array(START))
    np.testing.assert_array_equal(exact(net, tmp_path), START)


@pytest.mark.parametrize("frozen_before", [True, False])
def test_a_parameter_that_is_frozen_before_its_conversion_has_no_master(frozen_before, tmp_path):
    net = make(None)
    if frozen_before:
        net.weight.grad_req = "null"
    convert(net, "O2")
    net.weight.grad_req = "null"
    net.weight.set_data(mx.nd.array(2 * START))
    expected = START.astype("float16") * np.float16(2) if frozen_before else 2 * START
    np.testing.assert_array_equal(exact(net, tmp_path), expected)


def test_what_is_set_is_what_restore_gives():
    net = make("O2")
    clip(net.weight)
    restore(net)
    assert type(net.weight) is gluon.Parameter
    np.testing.assert_array_equal(net.weight.data().asnumpy(), np.clip(START, -CLIP, CLIP))
