"""Which operators of a bfloat16 net stay in float32 on a CPU, and what this does to its errors."""

import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon import nn

from mxmp.gluon import convert, report
from tests.gluon.nets import Function, initialized, sequence


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
