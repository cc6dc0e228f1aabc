"""ResNeXt with 50 and 101 layers.

Reference: Xie et al., "Aggregated Residual Transformations for Deep Neural Networks", 2016,
https://arxiv.org/abs/1611.05431, in the form of its figure 3(c), grouped convolutions.
Deviation: none known.
"""

from __future__ import annotations

from typing import Any

import mxnet as mx

from .blocks import choose, classifier, conv_bn_relu, global_pool, pool
from .resnet import bottleneck_v1, make_stages

_DEPTHS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}
_FILTERS = (256, 512, 1024, 2048)

NETWORKS = {
    f"resnext{num_layers}_{cardinality}x{width}d": {
        "num_layers": num_layers,
        "cardinality": cardinality,
        "bottleneck_width": width,
    }
    for num_layers, cardinality, width in ((50, 32, 4), (101, 32, 4), (101, 64, 4))  # tables 3 and 4
}


def get_symbol(num_classes: int = 1000, num_layers: int = 50, cardinality: int = 32, bottleneck_width: int = 4) -> Any:
    """Return ResNeXt for images (N, 3, 224, 224), or of any size from 32 on.

    Args:
        num_classes: Number of classes.
        num_layers: 50 or 101: layers with weights.
        cardinality: Groups of the 3x3 convolutions.
        bottleneck_width: Channels of each group in the first stage.

    Raises:
        ValueError: If there is no such depth, or ``num_classes`` is not a positive integer.
    """
    units = choose("num_layers", num_layers, _DEPTHS)

    def unit(data: Any, name: str, num_filter: int, stride: int, project: bool) -> Any:
        width = cardinality * bottleneck_width * num_filter // _FILTERS[0]
        return bottleneck_v1(data, name, num_filter, stride, project, width=width, num_group=cardinality)

    data = conv_bn_relu(mx.sym.Variable("data"), "conv0", 64, kernel=7, stride=2)
    *_, data = make_stages(pool(data, "pool0", pad=1), unit, units, _FILTERS, in_filter=64)
    return classifier(global_pool(data), num_classes)
