"""DenseNet-BC with 121 to 201 layers.

Reference: Huang, Liu, van der Maaten and Weinberger, "Densely Connected Convolutional Networks",
2016, https://arxiv.org/abs/1608.06993, table 1; DenseNet-161 (growth rate 48) is in figure 3.
Deviation: none known.
"""

from __future__ import annotations

from typing import Any

import mxnet as mx

from .blocks import batch_norm, choose, classifier, conv, conv_bn_relu, global_pool, pool, relu

# First channels, growth rate, layers of each block.
_DEPTHS = {
    121: (64, 32, (6, 12, 24, 16)),
    161: (96, 48, (6, 12, 36, 24)),
    169: (64, 32, (6, 12, 32, 32)),
    201: (64, 32, (6, 12, 48, 32)),
}
_BOTTLENECK = 4  # channels between a layer's two convolutions, in growth rates

NETWORKS = {f"densenet{num_layers}": {"num_layers": num_layers} for num_layers in _DEPTHS}


def get_symbol(num_classes: int = 1000, num_layers: int = 121) -> Any:
    """Return DenseNet for images (N, 3, 224, 224), or of any size from 32 on.

    Args:
        num_classes: Number of classes.
        num_layers: 121, 161, 169 or 201: layers with weights.

    Raises:
        ValueError: If there is no such depth, or ``num_classes`` is not a positive integer.
    """
    channels, growth, blocks = choose("num_layers", num_layers, _DEPTHS)
    data = conv_bn_relu(mx.sym.Variable("data"), "conv0", channels, kernel=7, stride=2)
    data = pool(data, "pool0", pad=1)
    for block, layers in enumerate(blocks, 1):
        for layer in range(1, layers + 1):
            data = _layer(data, f"block{block}_layer{layer}", growth)
        channels += layers * growth
        if block < len(blocks):
            channels //= 2
            data = _activated(data, f"transition{block}")
            data = conv(data, f"transition{block}_conv", channels, kernel=1, no_bias=True)
            data = pool(data, f"transition{block}_pool", kernel=2, kind="avg")
    return classifier(global_pool(_activated(data, "final")), num_classes)


def _layer(data: Any, name: str, growth: int) -> Any:
    """Return the data with ``growth`` more channels."""
    new = conv_bn_relu(_activated(data, name), f"{name}_conv1", _BOTTLENECK * growth, kernel=1)
    new = conv(new, f"{name}_conv2", growth, no_bias=True)
    return mx.sym.Concat(data, new, dim=1, name=f"{name}_concat")


def _activated(data: Any, name: str) -> Any:
    return relu(batch_norm(data, f"{name}_bn"), f"{name}_relu")
