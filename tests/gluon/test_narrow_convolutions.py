"""Weight gradients of convolutions on data of a pixel's width, which oneDNN's bfloat16 kernel leaves unwritten."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon import nn

from mxmp.gluon import cast, convert, report


def fill_free_memory_with_nan():
    for size in (1 << 14, 1 << 16, 1 << 18, 1 << 20):
        held = [mx.nd.array(np.full(size, np.nan, "float32")) for _ in range(2)]
        mx.nd.waitall()
        del held


@pytest.mark.bfloat16
@pytest.mark.parametrize("prepare", [lambda net: convert(net, "mixed_bfloat16"), lambda net: cast(net, "bfloat16")])
@pytest.mark.parametrize("height, width", [(1, 1), (2, 1), (4, 1)])
def test_weight_gradients_hold_nothing_that_was_in_memory(prepare, height, width):
    net = nn.HybridSequential()
    net.add(nn.Conv2D(128, 3, strides=2, padding=1, use_bias=False, in_channels=128))
    net.initialize(mx.init.Xavier())
    prepare(net)
    for _ in range(6):
        x = mx.nd.random.normal(shape=(2, 128, height, width))
        fill_free_memory_with_nan()
        with autograd.record():
            loss = net(x).sum()
        loss.backward()
        assert np.isfinite(net[0].weight.grad().astype("float32").asnumpy()).all()


@pytest.mark.bfloat16
def test_only_narrow_data_needs_float32():
    net = nn.Conv2D(8, 3, strides=2, padding=1, in_channels=8)
    net.initialize()
    convert(net, "mixed_bfloat16")
    for size, expected in ((1, "float32"), (8, "bfloat16"), (1, "float32")):
        net(mx.nd.ones((1, 8, size, size)))
        assert report(net).count == {expected: 1}
