"""Nets whose float32 weights oneDNN has given a layout of its own, by running them in float32 before."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

from mxmp.gluon import Trainer, cast, convert, precision, restore
from mxmp.symbol import convert_model

pytestmark = pytest.mark.bfloat16

CONVERSIONS = {"cast": lambda net: cast(net, "bfloat16"), "convert": lambda net: convert(net, "mixed_bfloat16")}
BOUND = 0.03  # of the root mean square: two roundings of 2**-9 in each of a few layers


def make(params=None):
    """Return a net with depthwise and grouped convolutions, two of them transposed, that has run in float32."""
    mx.random.seed(0)
    net = nn.HybridSequential(prefix="net_", params=params)
    with net.name_scope():
        net.add(nn.Conv2D(32, 3, padding=1, groups=32, in_channels=32, use_bias=False))
        net.add(nn.BatchNorm(), nn.Activation("relu"))
        net.add(nn.Conv2D(64, 3, strides=2, groups=4, in_channels=32, use_bias=False))
        net.add(nn.BatchNorm(), nn.Activation("relu"))
        net.add(nn.Conv2DTranspose(64, 4, strides=2, groups=64, in_channels=64), nn.Conv2D(16, 1), nn.Dense(5))
    if params is None:
        net.initialize(mx.init.Xavier())
    net.hybridize()
    run(net)
    return net


def run(net):
    """Infer twice: the first call leaves the weights in oneDNN's layouts, which the second one finds."""
    net(images()).wait_to_read()
    return net(images()).asnumpy()


def images():
    return mx.nd.array(np.random.RandomState(0).randn(2, 32, 9, 9))


def loss_and_gradients(net):
    with autograd.record(train_mode=False):  # BatchNorm's statistics stay
        loss = (net(images()) ** 2).mean()
    loss.backward()
    grads = (param.grad() for param in net.collect_params().values() if param.grad_req != "null")
    return loss.asscalar(), [mx.nd.amp_cast(grad, dtype="float32").asnumpy() for grad in grads]


def error(found, expected):
    return np.linalg.norm(found - expected) / np.linalg.norm(expected)


@pytest.mark.parametrize("conversion", CONVERSIONS.values(), ids=CONVERSIONS)
def test_a_net_that_has_run_in_float32_runs_and_trains(conversion):
    net = make()
    expected, (_, gradients) = run(net), loss_and_gradients(net)
    run(net)
    conversion(net)
    for _ in range(2):
        assert 0 < error(run(net), expected) < BOUND
        for found, wanted in zip(loss_and_gradients(net)[1], gradients):
            assert error(found, wanted) < 2 * BOUND


@pytest.mark.parametrize("conversion", CONVERSIONS.values(), ids=CONVERSIONS)
def test_calls_in_float32_and_in_low_precision_alternate(conversion):
    net = make()
    expected, gradients = run(net), loss_and_gradients(net)[1]
    conversion(net)
    for _ in range(2):
        with precision("float32"):
            exact = run(net)
        assert error(exact, expected) < BOUND
        assert 0 < error(run(net), expected) < BOUND
        for found, wanted in zip(loss_and_gradients(net)[1], gradients):
            assert error(found, wanted) < 2 * BOUND


@pytest.mark.parametrize("conversion", CONVERSIONS.values(), ids=CONVERSIONS)
def test_restore_gives_the_weights_back_bit_for_bit(conversion):
    net = make()
    expected = run(net)
    before = {name: param.data().asnumpy() for name, param in net.collect_params().items()}
    for _ in range(2):
        conversion(net)
        run(net)
        restore(net)
        for name, param in net.collect_params().items():
            np.testing.assert_array_equal(param.data().asnumpy(), before[name])
        np.testing.assert_array_equal(run(net), expected)


@pytest.mark.parametrize("conversion", CONVERSIONS.values(), ids=CONVERSIONS)
def test_a_step_behind_inference_is_that_of_the_masters(conversion):
    net, reference = make(), make()
    conversion(net)
    run(net)
    for each in (net, reference):
        trainer = Trainer(each.collect_params(), "sgd", {"learning_rate": 0.5}, loss_scale=None)
        for _ in range(2):
            loss_and_gradients(each)
            trainer.step(1)
            run(each)
    assert 0 < error(run(net), run(reference)) < BOUND
    restore(net)
    for param, wanted in zip(net.collect_params().values(), reference.collect_params().values()):
        expected = wanted.data().asnumpy()
        np.testing.assert_allclose(param.data().asnumpy(), expected, atol=BOUND * max(np.abs(expected).max(), 0.1))


@pytest.mark.parametrize("conversion", CONVERSIONS.values(), ids=CONVERSIONS)
def test_parameters_are_saved_and_loaded_behind_inference(conversion, tmp_path):
    net = make()
    before = {name: param.data().asnumpy() for name, param in net.collect_params().items()}
    conversion(net)
    expected = run(net)
    net.save_parameters(str(tmp_path / "net.params"))
    net.load_parameters(str(tmp_path / "net.params"))
    np.testing.assert_array_equal(run(net), expected)
    restore(net)
    for name, param in net.collect_params().items():
        np.testing.assert_array_equal(param.data().asnumpy(), before[name])


def test_a_float32_net_shares_the_weights():
    net = make()
    expected = run(net)
    float32 = make(net.collect_params())
    convert(net, "mixed_bfloat16")
    for _ in range(2):
        np.testing.assert_array_equal(run(float32), expected)
        assert 0 < error(run(net), expected) < BOUND


@pytest.mark.parametrize("param_dtype", ["float32", "bfloat16"])
def test_a_model_of_weights_that_have_run_in_float32_runs_in_plain_mxnet(param_dtype):
    net = make()
    expected = run(net)
    arrays = {name: param.data() for name, param in net.collect_params().items()}
    symbol = net(mx.sym.var("data"))
    args, aux = ({name: arrays[name] for name in names if name in arrays}
                 for names in (symbol.list_arguments(), symbol.list_auxiliary_states()))  # fmt: skip
    shapes = {"data": images().shape}
    for _ in range(2):
        model = convert_model(symbol, args, aux, "mixed_bfloat16", shapes=shapes, param_dtype=param_dtype)
        executor = model.symbol.bind(mx.cpu(), {**model.arg_params, "data": images()}, aux_states=model.aux_params)
        assert 0 < error(executor.forward()[0].asnumpy(), expected) < BOUND
        np.testing.assert_array_equal(run(net), expected)
        assert 0 < error(executor.forward()[0].asnumpy(), expected) < BOUND


@pytest.mark.parametrize("conversion", CONVERSIONS.values(), ids=CONVERSIONS)
def test_an_exported_net_runs_in_plain_mxnet(conversion, tmp_path):
    net = make()
    conversion(net)
    expected = run(net)
    net.export(str(tmp_path / "net"))
    files = str(tmp_path / "net-symbol.json"), ["data"], str(tmp_path / "net-0000.params")
    plain = gluon.SymbolBlock.imports(*files)
    np.testing.assert_array_equal(run(plain), expected)
