"""Numbers that low precision would spoil: constants near 1 and beyond its range, and sums over many rows."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon import nn

from mxmp.gluon import convert, report
from tests.gluon.nets import Function, initialized, operator_precisions, sequence

X = np.float32([-20, -3, -1, -0.5, 0, 0.5, 0.75, 1, 3, 20]).reshape(-1, 1)

STEEP = {
    "arccos": lambda F, z: F.arccos(F.clip(z, -1 + 1e-4, 1 - 1e-4)),
    "arctanh": lambda F, z: F.arctanh(F.minimum(F.maximum(z, -0.5), 1 - 1e-6)),
    "erfinv": lambda F, z: F.erfinv(F.clip(z, -1 + 1e-5, 1 - 1e-5)),
    "log": lambda F, z: F.log(1 - F.clip(F.sigmoid(z), 1e-4, 1 - 1e-4)),
    "log behind a product": lambda F, z: F.log(1 - F.sigmoid(z) * 0.9999),
    "log behind a reshaped bound": lambda F, z: F.log(1 - F.reshape(F.clip(F.sigmoid(z), 1e-4, 0.9999), (-1,))),
}


def made(function, policy=None):
    """Return a function behind a dense layer that is the identity, converted under a policy."""
    dense = nn.Dense(1, in_units=1, use_bias=False, weight_initializer="ones")
    net = initialized(Function(lambda net, F, x: function(F, net.dense(x)), dense=dense))
    return net if policy is None else convert(net, policy)


def results(net):
    """Return the output of a net, and the gradient of its weight for each row of the input."""
    output, gradients = net(mx.nd.array(X)).asnumpy(), []
    for row in X:
        with autograd.record():
            y = net(mx.nd.array(row.reshape(1, 1)))
        y.backward()
        gradients.append(net.dense.weight.grad().asscalar())
    return output.astype("float32"), np.float32(gradients)


@pytest.mark.parametrize("policy", ["O1", "O2"])
@pytest.mark.parametrize("name", STEEP)
def test_a_steep_function_behind_a_bound_near_1_is_finite_and_so_is_its_gradient(name, policy):
    (exact, exact_gradients), (output, gradients) = (results(made(STEEP[name], p)) for p in (None, policy))
    assert np.isfinite(exact).all() and np.isfinite(exact_gradients).all()
    # the sigmoid is rounded to float16, 2 ** -12 off near 1, where the logarithm's slope is up to 1e4 in a few rows
    np.testing.assert_allclose(output, exact, rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(gradients, exact_gradients, rtol=4e-3, atol=4e-3)


MASKS = {
    "plus": lambda F, z: z + (F.ones_like(z) * -1e18),
    "minus": lambda F, z: z - 1e18,
    "where": lambda F, z: F.where(F.zeros_like(z), z, F.ones_like(z) * -1e18),
    "maximum": lambda F, z: F.maximum(F.minimum(z, -1e18), -1e30),
    "float16's rounding": lambda F, z: z * 0 + -65520.0,
}


@pytest.mark.parametrize("policy", ["O3", "float16"])
@pytest.mark.parametrize("name", MASKS)
def test_a_fully_masked_row_is_no_nan_under_a_pure_policy(name, policy):
    net = made(lambda F, z: F.softmax(F.reshape(MASKS[name](F, z), (1, -1))), policy)
    x = mx.nd.ones((4, 1))
    with autograd.record():
        y = net(x)
    y.backward()
    np.testing.assert_array_equal(y.asnumpy().astype("float32"), [[0.25] * 4])
    assert np.isfinite(net.dense.weight.grad().asnumpy()).all()


def test_the_report_lists_what_was_clamped():
    net = made(lambda F, z: F.softmax(z - 1e18), "O3")
    net(mx.nd.array(X))
    reasons = {row.op: row.reason for row in report(net).rows}
    assert reasons["_minus_scalar"] == "pure policy, scalar=1e+18 clamped to 65504"
    assert f"computes with another constant ({reasons['_minus_scalar']})" in str(report(net))


def biased(net, F, x, bias):
    """A layer whose bias is added by broadcasting."""
    return net.last(F.broadcast_add(net.dense(x), bias))


@pytest.mark.parametrize("rows, precision", [(256, "float16"), (32768, "float32")])
def test_a_bias_over_many_rows_has_its_gradient(rows, precision):
    dense, last = (nn.Dense(4, in_units=4, use_bias=False) for _ in range(2))
    net = convert(initialized(Function(biased, {"bias": (1, 4)}, dense=dense, last=last), mx.init.One()), "O1")
    with autograd.record():
        loss = net(mx.nd.ones((rows, 4))) * 8
    loss.backward()
    assert operator_precisions(net) == {"broadcast_add": precision, "FullyConnected": "float16"}
    assert net.bias.grad().asnumpy().tolist() == [[rows * 32] * 4]  # 2**20 of the most rows, beyond float16


# ---------------------------------------------------------------------- bfloat16


def hardswish():
    """As in GluonCV's MobileNetV3."""
    return nn.HybridLambda(lambda F, x: x * F.clip(x + 3, 0, 6) / 6, prefix="hardswish_")


@pytest.mark.bfloat16
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_twelve_hardswish_blocks_are_off_by_a_percent(seed):
    """Errors of bfloat16 do not add up over layers: what would truncate stays in float32."""
    layers = [(nn.Conv2D(16, 3, padding=1, use_bias=False), nn.BatchNorm(), hardswish()) for _ in range(12)]
    net = initialized(sequence(*sum(layers, ())), mx.init.Xavier(), seed=seed)
    x = mx.nd.random.normal(shape=(4, 8, 16, 16))
    expected = net(x).asnumpy()
    error = convert(net, "mixed_bfloat16")(x).asnumpy() - expected
    assert 0 < np.sqrt((error**2).mean() / (expected**2).mean()) <= 0.012


def residual():
    """A convolution with a way around it."""
    conv = nn.Conv2D(16, 3, padding=1, in_channels=16)
    return Function(lambda net, F, x: x + F.Activation(net.conv(x), act_type="relu"), conv=conv)


@pytest.mark.bfloat16
def test_residual_sums_stay_in_bfloat16():
    first, last = nn.Conv2D(16, 3, padding=1, in_channels=3), nn.Conv2D(3, 3, in_channels=16)
    net = initialized(sequence(first, *(residual() for _ in range(4)), last))
    convert(net, "mixed_bfloat16")(mx.nd.ones((1, 3, 8, 8)))
    found = report(net)
    assert found.count == {"bfloat16": 14}
    assert found.activation_casts == 2  # the input and the output


@pytest.mark.bfloat16
def test_only_narrow_data_needs_float32():
    """OneDNN's bfloat16 kernel leaves weight gradients of convolutions on data of a pixel's width unwritten."""
    net = convert(initialized(nn.Conv2D(8, 3, strides=2, padding=1, in_channels=8)), "mixed_bfloat16")
    for size, expected in ((1, "float32"), (8, "bfloat16"), (1, "float32")):
        net(mx.nd.ones((1, 8, size, size)))
        assert report(net).count == {expected: 1}
