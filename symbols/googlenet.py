"""GoogLeNet (Inception v1), as in the paper or with batch normalization.

References:
    Szegedy et al., "Going Deeper with Convolutions", 2014, https://arxiv.org/abs/1409.4842, table 1.
    Ioffe and Szegedy, "Batch Normalization", 2015, https://arxiv.org/abs/1502.03167.
Deviations: the two auxiliary classifiers, which only train, are left out. Response normalization
has the constants of BVLC's Caffe model, since the paper gives none. With ``batch_norm``, the
network is torchvision's and GluonCV's: no response normalization, 3x3 in place of 5x5
convolutions, and 2x2 windows in the last max pooling.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Dict, Tuple

import mxnet as mx

from .blocks import classifier, conv_bn_relu, conv_relu, global_pool, pool

# Channels of 1x1, of 3x3 and the 1x1 before it, of 5x5 and the 1x1 before it, and after the pooling.
_UNITS: Dict[str, Tuple[int, int, int, int, int, int]] = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}
_BN_EPS = 1e-3  # as TensorFlow's slim, torchvision and GluonCV have it

NETWORKS = {"googlenet_bn": {"batch_norm": True}}


def get_symbol(num_classes: int = 1000, batch_norm: bool = False, dropout: float = 0.4) -> Any:
    """Return GoogLeNet for images (N, 3, 224, 224), or of any size from 32 on.

    Args:
        num_classes: Number of classes.
        batch_norm: Whether a batch normalization follows each convolution.
        dropout: Fraction of the last features dropped in training.

    Raises:
        ValueError: If ``num_classes`` is not a positive integer.
    """
    conv = partial(conv_bn_relu, eps=_BN_EPS) if batch_norm else conv_relu
    data = conv(mx.sym.Variable("data"), "conv1", 64, kernel=7, stride=2)
    data = _normalized(_halved(data, "pool1"), "norm1", batch_norm)
    data = conv(conv(data, "conv2_reduce", 64, kernel=1), "conv2", 192)
    data = _halved(_normalized(data, "norm2", batch_norm), "pool2")
    for name, channels in _UNITS.items():
        if name == "4a":
            data = _halved(data, "pool3")
        if name == "5a":
            data = _halved(data, "pool4", kernel=2 if batch_norm else 3)
        data = _unit(data, f"inception_{name}", conv, channels, wide=3 if batch_norm else 5)
    data = mx.sym.Dropout(global_pool(data), p=dropout, name="dropout")
    return classifier(data, num_classes)


def _unit(data: Any, name: str, conv: Callable[..., Any], channels: Tuple[int, ...], wide: int) -> Any:
    """Return four branches side by side; the third has the ``wide`` kernel."""
    one, reduce2, three, reduce3, five, projected = channels
    branches = [
        conv(data, f"{name}_branch1", one, kernel=1),
        conv(conv(data, f"{name}_branch2_reduce", reduce2, kernel=1), f"{name}_branch2", three),
        conv(conv(data, f"{name}_branch3_reduce", reduce3, kernel=1), f"{name}_branch3", five, kernel=wide),
        conv(pool(data, f"{name}_branch4_pool", stride=1, pad=1), f"{name}_branch4", projected, kernel=1),
    ]
    return mx.sym.Concat(*branches, dim=1, name=f"{name}_concat")


def _halved(data: Any, name: str, kernel: int = 3) -> Any:
    return pool(data, name, kernel, pooling_convention="full")  # rounds up: 112 pixels become 56


def _normalized(data: Any, name: str, batch_norm: bool) -> Any:
    return data if batch_norm else mx.sym.LRN(data, nsize=5, alpha=1e-4, beta=0.75, knorm=1, name=name)
