"""Nets whose float32 weights oneDNN has given a layout of its own, by running them in float32 before."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

from mxmp.gluon import Trainer, cast, convert, precision, restore
from tests.gluon.nets import initialized
from tests.values import as_float32

pytestmark = pytest.mark.bfloat16

CONVERSIONS = {"cast": lambda net: cast(net, "bfloat16"), "convert": lambda net: convert(net, "mixed_bfloat16")}
BOUND = 0.03  # of the root mean square: two roundings of 2**-9 in each of a few layers


def make(params=None):
    """Return a net with depthwise and grouped convolutions, two of them transposed, that has run in float32."""
    net = nn.HybridSequential(prefix="net_", params=params)
    with net.name_scope():
        net.add(nn.Conv2D(32, 3, padding=1, groups=32, in_channels=32, use_bias=False))
        net.add(nn.BatchNorm(), nn.Activation("relu"))
        net.add(nn.Conv2D(64, 3, strides=2, groups=4, in_channels=32, use_bias=False))
        net.add(nn.BatchNorm(), nn.Activation("relu"))
        net.add(nn.Conv2DTranspose(64, 4, strides=2, groups=64, in_channels=64), nn.Conv2D(16, 1), nn.Dense(5))
    if params is None:
        initialized(net, mx.init.Xavier())
    net.hybridize()
    run(net)
    return net


def run(net):
    """Infer twice: the first call leaves the weights in oneDNN's layouts, which the second one finds."""
    net(images()).wait_to_read()
    return net(images()).asnumpy()


def images():
    return mx.nd.array(np.random.RandomState(0).randn(2, 32, 9, 9))


def gradients(net):
    with autograd.record(train_mode=False):  # BatchNorm's statistics stay
        loss = (net(images()) ** 2).mean()
    loss.backward()
    return [as_float32(param.grad()) for param in net.collect_params().values() if param.grad_req != "null"]


def values(net):
    mx.nd.waitall()  # a call may still move weights into a layout of oneDNN's, while they are read
    return {name: param.data().asnumpy() for name, param in net.collect_params().items()}


def error(found, expected):
    return np.linalg.norm(found - expected) / np.linalg.norm(expected)


@pytest.mark.parametrize("conversion", CONVERSIONS.values(), ids=CONVERSIONS)
def test_a_net_that_has_run_in_float32_runs_and_trains_in_low_precision_and_in_float32_in_turns(conversion):
    net = make()
    expected, wanted = run(net), gradients(net)
    run(net)
    conversion(net)
    for _ in range(2):
        assert 0 < error(run(net), expected) < BOUND
        assert max(map(error, gradients(net), wanted)) < 2 * BOUND
        with precision("float32"):
            assert error(run(net), expected) < BOUND


@pytest.mark.parametrize("conversion", CONVERSIONS.values(), ids=CONVERSIONS)
def test_behind_inference_a_net_is_saved_exported_and_restored_bit_for_bit(conversion, tmp_path):
    net = make()
    exact, before = run(net), values(net)
    for _ in range(2):
        conversion(net)
        expected = run(net)
        net.save_parameters(str(tmp_path / "net.params"))
        net.load_parameters(str(tmp_path / "net.params"))
        np.testing.assert_array_equal(run(net), expected)
        net.export(str(tmp_path / "net"))
        files = str(tmp_path / "net-symbol.json"), ["data"], str(tmp_path / "net-0000.params")
        np.testing.assert_array_equal(run(gluon.SymbolBlock.imports(*files)), expected)  # in plain MXNet
        restore(net)
        np.testing.assert_equal(values(net), before)
        np.testing.assert_array_equal(run(net), exact)


@pytest.mark.parametrize("conversion", CONVERSIONS.values(), ids=CONVERSIONS)
def test_a_step_behind_inference_is_that_of_the_masters(conversion):
    net, reference = make(), make()
    conversion(net)
    run(net)
    for each in (net, reference):
        trainer = Trainer(each.collect_params(), "sgd", {"learning_rate": 0.5}, loss_scale=None)
        for _ in range(2):
            gradients(each)
            trainer.step(1)
            run(each)
    assert 0 < error(run(net), run(reference)) < BOUND
    restore(net)
    for value, expected in zip(values(net).values(), values(reference).values()):
        np.testing.assert_allclose(value, expected, atol=BOUND * max(np.abs(expected).max(), 0.1))


def in_default_layout(array):
    try:
        array._sync_copyfrom(array.asnumpy())  # which MXNet has for no other layout
    except mx.MXNetError as e:
        assert "MKLDNN" in str(e)
        return False
    return True


def test_convert_moves_weights_to_the_default_layout_in_which_training_is_faster():
    """In place: an array that the user holds is the parameter's still."""
    net = make()
    arrays = [param.data() for param in net.collect_params().values()]
    if all(map(in_default_layout, arrays)):
        pytest.skip("oneDNN leaves weights as they are on this processor")
    expected = [array.asnumpy() for array in arrays]
    convert(net, "mixed_bfloat16")
    assert all(map(in_default_layout, arrays))
    assert all(map(np.array_equal, expected, [array.asnumpy() for array in arrays]))
    assert all(array is param.data() for array, param in zip(arrays, net.collect_params().values()))


def test_a_float32_net_shares_the_weights():
    net = make()
    expected = run(net)
    float32 = make(net.collect_params())
    convert(net, "mixed_bfloat16")
    for _ in range(2):
        np.testing.assert_array_equal(run(float32), expected)
        assert 0 < error(run(net), expected) < BOUND
