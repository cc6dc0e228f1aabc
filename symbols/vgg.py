"""VGG with 11 to 19 layers, with and without batch normalization.

Reference: Simonyan and Zisserman, "Very Deep Convolutional Networks for Large-Scale Image
Recognition", 2014, https://arxiv.org/abs/1409.1556, table 1: configurations A (11 layers), B (13),
D (16, the VGG-D of the mixed precision literature) and E (19).
Deviation: batch normalization is later than the paper; where it is on, convolutions keep their
bias, as in Gluon and torchvision.
"""

from __future__ import annotations

from typing import Any

import mxnet as mx

from .blocks import choose, classifier, conv_bn_relu, conv_relu, pool, relu

_BLOCKS = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
_FILTERS = (64, 128, 256, 512, 512)

NETWORKS = {
    f"vgg{layers}{'_bn' if batch_norm else ''}": {"num_layers": layers, "batch_norm": batch_norm}
    for layers in _BLOCKS
    for batch_norm in (False, True)
}


def get_symbol(num_classes: int = 1000, num_layers: int = 16, batch_norm: bool = False) -> Any:
    """Return VGG for images (N, 3, 224, 224).

    Args:
        num_classes: Number of classes.
        num_layers: 11, 13, 16 or 19: layers with weights.
        batch_norm: Whether a batch normalization follows each convolution.

    Raises:
        ValueError: If there is no such depth, or ``num_classes`` is not a positive integer.
    """
    data = mx.sym.Variable("data")
    for block, count in enumerate(choose("num_layers", num_layers, _BLOCKS), 1):
        for layer in range(1, count + 1):
            name, num_filter = f"conv{block}_{layer}", _FILTERS[block - 1]
            if batch_norm:
                data = conv_bn_relu(data, name, num_filter, no_bias=False)
            else:
                data = conv_relu(data, name, num_filter)
        data = pool(data, f"pool{block}", kernel=2)
    for name in ("fc6", "fc7"):
        data = relu(mx.sym.FullyConnected(data, num_hidden=4096, name=name), f"{name}_relu")
        data = mx.sym.Dropout(data, p=0.5, name=f"{name}_dropout")
    return classifier(data, num_classes, "fc8")
