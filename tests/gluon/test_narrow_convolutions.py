"""Weight gradients of convolutions on data of a pixel's width, which oneDNN's bfloat16 kernel leaves unwritten."""

from __future__ import annotations

import mxnet as mx
import pytest
from mxnet.gluon import nn

from mxmp.gluon import convert, report


@pytest.mark.bfloat16
def test_only_narrow_data_needs_float32():
    net = nn.Conv2D(8, 3, strides=2, padding=1, in_channels=8)
    net.initialize()
    convert(net, "mixed_bfloat16")
    for size, expected in ((1, "float32"), (8, "bfloat16"), (1, "float32")):
        net(mx.nd.ones((1, 8, size, size)))
        assert report(net).count == {expected: 1}
