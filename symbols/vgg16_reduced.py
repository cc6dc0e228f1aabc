"""The reduced VGG-16 under SSD: its two classifier layers are convolutions with a subsample of the weights.

References:
    Liu et al., "SSD: Single Shot MultiBox Detector", 2016, section 3.1, https://arxiv.org/abs/1512.02325.
    Simonyan and Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition", 2014,
    configuration D, https://arxiv.org/abs/1409.1556.
    Liu et al., "ParseNet", 2015, https://arxiv.org/abs/1506.04579: features scaled to a learned norm.
No deviation. Weights have the names of the Caffe model, as in MXNet's own SSD example.
"""

from __future__ import annotations

from typing import Any, Tuple

import mxnet as mx

from .blocks import conv_relu, pool

_BLOCKS = ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512))  # convolutions, filters
_INITIAL_NORM = 20  # SSD, section 3.1: the scale of conv4_3 differs from that of the maps above it


def get_features(data: Any) -> Tuple[Any, Any]:
    """Return what SSD reads: normalized conv4_3 and fc7.

    Args:
        data: Images (N, 3, H, W), float32, their mean subtracted.

    Returns:
        Symbols of shape (N, 512, H/8, W/8) and (N, 1024, H/16, W/16), rounded up.
    """
    for block, (layers, num_filter) in enumerate(_BLOCKS, 1):
        for layer in range(1, layers + 1):
            data = conv_relu(data, f"conv{block}_{layer}", num_filter)
        if block == 4:
            conv4_3 = _normalize(data, num_filter)
        # 'full' keeps the last window, as Caffe does: 75 pixels become 38.
        size, stride, pad = (3, 1, 1) if block == 5 else (2, 2, 0)
        data = pool(data, f"pool{block}", size, stride, pad=pad, pooling_convention="full")
    data = mx.sym.Convolution(data, num_filter=1024, kernel=(3, 3), pad=(6, 6), dilate=(6, 6), name="fc6")
    data = mx.sym.Activation(data, act_type="relu", name="fc6_relu")
    return conv4_3, conv_relu(data, "fc7", 1024, kernel=1)


def _normalize(data: Any, channels: int) -> Any:
    """Return the data with unit norm over channels, times one learned scale per channel."""
    initial = mx.init.Constant(_INITIAL_NORM)
    scale = mx.sym.Variable("conv4_3_scale", shape=(1, channels, 1, 1), init=initial)
    unit = mx.sym.L2Normalization(data, mode="channel", name="conv4_3_norm")
    return mx.sym.broadcast_mul(unit, scale, name="conv4_3_scaled")
