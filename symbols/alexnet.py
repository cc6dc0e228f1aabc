"""AlexNet, in one column (2014) or two (2012).

References:
    Krizhevsky, "One weird trick for parallelizing convolutional neural networks", 2014,
    https://arxiv.org/abs/1404.5997: one column, no response normalization; the default.
    Krizhevsky, Sutskever and Hinton, "ImageNet Classification with Deep Convolutional Neural
    Networks", 2012: two columns, one per GPU, here as two groups of channels, and local response
    normalization.
Deviations: the first convolution is padded by 2, so that images of 224 pixels give the 55 x 55 that
follow in 2012's figure (which says 224, but counts as for 227). The fourth layer of the one column
has 256 filters, as in Gluon and torchvision; the paper has 384.
"""

from __future__ import annotations

from typing import Any

import mxnet as mx

from .blocks import choose, classifier, conv_relu, pool, relu

NETWORKS = {"alexnet_2012": {"columns": 2}}

_FILTERS = {1: (64, 192, 384, 256, 256), 2: (96, 256, 384, 384, 256)}


def get_symbol(num_classes: int = 1000, columns: int = 1) -> Any:
    """Return AlexNet for images (N, 3, 224, 224); those of 227 pixels fit its weights too.

    Args:
        num_classes: Number of classes.
        columns: 1 for the network of 2014, 2 for that of 2012.

    Raises:
        ValueError: If ``columns`` is neither, or ``num_classes`` is not a positive integer.
    """
    filters = choose("columns", columns, _FILTERS)
    data = conv_relu(mx.sym.Variable("data"), "conv1", filters[0], kernel=11, stride=4, pad=2)
    data = _reduce(data, "1", columns)
    data = conv_relu(data, "conv2", filters[1], kernel=5, num_group=columns)
    data = _reduce(data, "2", columns)
    data = conv_relu(data, "conv3", filters[2])  # the layer that sees both columns
    data = conv_relu(data, "conv4", filters[3], num_group=columns)
    data = conv_relu(data, "conv5", filters[4], num_group=columns)
    data = pool(data, "pool5")
    for name in ("fc6", "fc7"):
        data = relu(mx.sym.FullyConnected(data, num_hidden=4096, name=name), f"{name}_relu")
        data = mx.sym.Dropout(data, p=0.5, name=f"{name}_dropout")
    return classifier(data, num_classes, "fc8")


def _reduce(data: Any, number: str, columns: int) -> Any:
    if columns == 2:  # 2012, section 3.3: k = 2, n = 5, alpha = 1e-4, beta = 0.75
        # The paper sums alpha * a**2, MXNet alpha / n * a**2 (src/operator/nn/lrn-inl.h).
        data = mx.sym.LRN(data, knorm=2, nsize=5, alpha=5e-4, beta=0.75, name=f"norm{number}")
    return pool(data, f"pool{number}")
