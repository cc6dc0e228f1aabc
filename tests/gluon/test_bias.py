"""Errors of bfloat16 do not add up over layers: what would truncate stays in float32."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from mxnet.gluon import nn

from mxmp.gluon import convert, report


class HardSwish(gluon.HybridBlock):
    """As in GluonCV's MobileNetV3."""

    def hybrid_forward(self, F, x):
        return x * F.clip(x + 3, 0, 6) / 6


def blocks(activation):
    net = nn.HybridSequential()
    for _ in range(12):
        net.add(nn.Conv2D(16, 3, padding=1, use_bias=False), nn.BatchNorm(), activation())
    net.initialize(mx.init.Xavier())
    return net


@pytest.mark.bfloat16
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_twelve_hardswish_blocks_are_off_by_a_percent(seed):
    mx.random.seed(seed)
    net, x = blocks(HardSwish), mx.nd.random.normal(shape=(4, 8, 16, 16))
    expected = net(x).asnumpy()
    error = convert(net, "mixed_bfloat16")(x).asnumpy() - expected
    assert 0 < np.sqrt((error**2).mean() / (expected**2).mean()) <= 0.012


class Residual(gluon.HybridBlock):
    """A convolution with a way around it."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.conv = nn.Conv2D(16, 3, padding=1, in_channels=16)

    def hybrid_forward(self, F, x):
        return x + F.Activation(self.conv(x), act_type="relu")


def test_residual_sums_stay_in_bfloat16():
    net = nn.HybridSequential()
    net.add(
        nn.Conv2D(16, 3, padding=1, in_channels=3), *(Residual() for _ in range(4)), nn.Conv2D(3, 3, in_channels=16)
    )
    net.initialize()
    found = report(convert(net, "mixed_bfloat16"))
    assert found.count == {"bfloat16": 14}
    assert found.activation_casts == 2  # the input and the output
