"""Inception with batch normalization (BN-Inception, Inception v2).

Reference: Ioffe and Szegedy, "Batch Normalization: Accelerating Deep Network Training by Reducing
Internal Covariate Shift", 2015, https://arxiv.org/abs/1502.03167, figure 5.
Deviations: the pooled branches of 4c and 4d have 128 channels where the figure has 96, as in
MXNet's example and the Caffe model behind the other published weights. The first convolution is an
ordinary one, not separable. The auxiliary classifiers, which only train, are left out.
"""

from __future__ import annotations

from typing import Any, Dict, NamedTuple

import mxnet as mx

from .blocks import classifier, conv_bn_relu, global_pool, pool


class _Unit(NamedTuple):
    """Channels of a unit's branches; a unit without ``one`` has stride 2 and passes its pooling on."""

    one: int
    reduce3: int
    three: int
    reduce_double: int
    double: int
    pooling: str
    projected: int


_UNITS: Dict[str, _Unit] = {
    "3a": _Unit(64, 64, 64, 64, 96, "avg", 32),
    "3b": _Unit(64, 64, 96, 64, 96, "avg", 64),
    "3c": _Unit(0, 128, 160, 64, 96, "max", 0),
    "4a": _Unit(224, 64, 96, 96, 128, "avg", 128),
    "4b": _Unit(192, 96, 128, 96, 128, "avg", 128),
    "4c": _Unit(160, 128, 160, 128, 160, "avg", 128),
    "4d": _Unit(96, 128, 192, 160, 192, "avg", 128),
    "4e": _Unit(0, 128, 192, 192, 256, "max", 0),
    "5a": _Unit(352, 192, 320, 160, 224, "avg", 128),
    "5b": _Unit(352, 192, 320, 192, 224, "max", 128),
}


def get_symbol(num_classes: int = 1000) -> Any:
    """Return BN-Inception for images (N, 3, 224, 224), or of any size from 32 on.

    Raises:
        ValueError: If ``num_classes`` is not a positive integer.
    """
    data = conv_bn_relu(mx.sym.Variable("data"), "conv1", 64, kernel=7, stride=2)
    data = pool(data, "pool1", pooling_convention="full")  # rounds up: 112 pixels become 56
    data = conv_bn_relu(conv_bn_relu(data, "conv2_reduce", 64, kernel=1), "conv2", 192)
    data = pool(data, "pool2", pooling_convention="full")
    for name, unit in _UNITS.items():
        data = _inception(data, f"inception_{name}", unit)
    return classifier(global_pool(data), num_classes)


def _inception(data: Any, name: str, unit: _Unit) -> Any:
    """Return the branches of a unit side by side: 1x1, 3x3, twice 3x3, pooled."""
    stride = 1 if unit.one else 2
    three = conv_bn_relu(data, f"{name}_3x3_reduce", unit.reduce3, kernel=1)
    three = conv_bn_relu(three, f"{name}_3x3", unit.three, stride=stride)
    double = conv_bn_relu(data, f"{name}_double_3x3_reduce", unit.reduce_double, kernel=1)
    double = conv_bn_relu(double, f"{name}_double_3x3_1", unit.double)
    double = conv_bn_relu(double, f"{name}_double_3x3_2", unit.double, stride=stride)
    pooled = pool(data, f"{name}_pool", stride=stride, pad=1, kind=unit.pooling)
    branches = [three, double, pooled]
    if unit.one:
        one = conv_bn_relu(data, f"{name}_1x1", unit.one, kernel=1)
        branches = [one, three, double, conv_bn_relu(pooled, f"{name}_pool_proj", unit.projected, kernel=1)]
    return mx.sym.Concat(*branches, dim=1, name=f"{name}_concat")
