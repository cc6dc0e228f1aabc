"""Inception v3.

Reference: Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", 2015,
https://arxiv.org/abs/1512.00567, with the channels of TensorFlow's slim, which the paper leaves out.
Deviations: average pooling counts the padding, as in Gluon and torchvision, where TensorFlow does
not. The auxiliary classifier, which only trains, is left out.
"""

from __future__ import annotations

from functools import partial
from typing import Any, List, Sequence, Tuple

import mxnet as mx

from .blocks import Size, classifier, conv_bn_relu, global_pool, pool

# Name, channels and kernel of a convolution; its size is kept.
Layer = Tuple[str, int, Size]

_conv = partial(conv_bn_relu, eps=1e-3)  # slim's
_TALL, _FLAT = (7, 1), (1, 7)


def get_symbol(num_classes: int = 1000, dropout: float = 0.5) -> Any:
    """Return Inception v3 for images (N, 3, 299, 299), or of any size from 75 on.

    Args:
        num_classes: Number of classes.
        dropout: Fraction of the last features dropped in training; 0.5 as in Gluon.

    Raises:
        ValueError: If ``num_classes`` is not a positive integer.
    """
    data = _conv(mx.sym.Variable("data"), "conv1", 32, stride=2, pad=0)
    data = _conv(_conv(data, "conv2", 32, pad=0), "conv3", 64)
    data = _conv(pool(data, "pool1"), "conv4", 80, kernel=1)
    data = pool(_conv(data, "conv5", 192, pad=0), "pool2")
    for number, projected in enumerate((32, 64, 64), 1):
        data = _unit_35(data, f"mixed_35_{number}", projected)
    data = _reduction_17(data, "mixed_17_0")
    for number, width in enumerate((128, 160, 160, 192), 1):
        data = _unit_17(data, f"mixed_17_{number}", width)
    data = _reduction_8(data, "mixed_8_0")
    for number in (1, 2):
        data = _unit_8(data, f"mixed_8_{number}")
    data = mx.sym.Dropout(global_pool(data), p=dropout, name="dropout")
    return classifier(data, num_classes)


def _unit_35(data: Any, name: str, projected: int) -> Any:
    return _concat(
        name,
        _branch(data, name, [("1x1", 64, 1)]),
        _branch(data, name, [("5x5_reduce", 48, 1), ("5x5", 64, 5)]),
        _branch(data, name, [("double_3x3_reduce", 64, 1), ("double_3x3_1", 96, 3), ("double_3x3_2", 96, 3)]),
        _pooled(data, name, projected),
    )


def _reduction_17(data: Any, name: str) -> Any:
    double = _branch(data, name, [("double_3x3_reduce", 64, 1), ("double_3x3_1", 96, 3)])
    return _concat(
        name,
        _conv(data, f"{name}_3x3", 384, stride=2, pad=0),
        _conv(double, f"{name}_double_3x3_2", 96, stride=2, pad=0),
        pool(data, f"{name}_pool"),
    )


def _unit_17(data: Any, name: str, width: int) -> Any:
    double: List[Layer] = [("double_7x7_reduce", width, 1)]
    double += [(f"double_7x7_{i}", width, kernel) for i, kernel in enumerate((_TALL, _FLAT, _TALL), 1)]
    return _concat(
        name,
        _branch(data, name, [("1x1", 192, 1)]),
        _branch(data, name, [("7x7_reduce", width, 1), ("7x7_1", width, _FLAT), ("7x7_2", 192, _TALL)]),
        _branch(data, name, [*double, ("double_7x7_4", 192, _FLAT)]),
        _pooled(data, name, 192),
    )


def _reduction_8(data: Any, name: str) -> Any:
    three = _branch(data, name, [("3x3_reduce", 192, 1)])
    seven = _branch(data, name, [("7x7_reduce", 192, 1), ("7x7_1", 192, _FLAT), ("7x7_2", 192, _TALL)])
    return _concat(
        name,
        _conv(three, f"{name}_3x3", 320, stride=2, pad=0),
        _conv(seven, f"{name}_7x7_3x3", 192, stride=2, pad=0),
        pool(data, f"{name}_pool"),
    )


def _unit_8(data: Any, name: str) -> Any:
    three = _branch(data, name, [("3x3_reduce", 384, 1)])
    double = _branch(data, name, [("double_3x3_reduce", 448, 1), ("double_3x3", 384, 3)])
    return _concat(
        name,
        _branch(data, name, [("1x1", 320, 1)]),
        _conv(three, f"{name}_3x3_flat", 384, kernel=(1, 3)),
        _conv(three, f"{name}_3x3_tall", 384, kernel=(3, 1)),
        _conv(double, f"{name}_double_3x3_flat", 384, kernel=(1, 3)),
        _conv(double, f"{name}_double_3x3_tall", 384, kernel=(3, 1)),
        _pooled(data, name, 192),
    )


def _branch(data: Any, name: str, layers: Sequence[Layer]) -> Any:
    for layer, num_filter, kernel in layers:
        data = _conv(data, f"{name}_{layer}", num_filter, kernel=kernel)
    return data


def _pooled(data: Any, name: str, num_filter: int) -> Any:
    data = pool(data, f"{name}_pool", stride=1, pad=1, kind="avg")
    return _conv(data, f"{name}_pool_proj", num_filter, kernel=1)


def _concat(name: str, *branches: Any) -> Any:
    return mx.sym.Concat(*branches, dim=1, name=f"{name}_concat")
