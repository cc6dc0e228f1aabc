"""MobileNet v1.

Reference: Howard et al., "MobileNets: Efficient Convolutional Neural Networks for Mobile Vision
Applications", 2017, https://arxiv.org/abs/1704.04861, table 1.
Deviation: the last depthwise convolution has stride 1, as every implementation has; the table says
2, but keeps the size.
"""

from __future__ import annotations

from typing import Any, Tuple

import mxnet as mx

from .blocks import choose, classifier, conv_bn_relu, global_pool

# Output channels and stride of each pair of a depthwise and a 1x1 convolution.
_PAIRS = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *5 * ((512, 1),), (1024, 2), (1024, 1))
_NAMES = {1.0: "mobilenet1.0", 0.75: "mobilenet0.75", 0.5: "mobilenet0.5", 0.25: "mobilenet0.25"}

NETWORKS = {name: {"multiplier": multiplier} for multiplier, name in _NAMES.items()}


def get_symbol(num_classes: int = 1000, multiplier: float = 1.0) -> Any:
    """Return MobileNet for images (N, 3, 224, 224), or of any size from 32 on.

    Args:
        num_classes: Number of classes.
        multiplier: Factor on all channels: 1.0, 0.75, 0.5 or 0.25 (the paper's alpha).

    Raises:
        ValueError: If there is no such multiplier, or ``num_classes`` is not a positive integer.
    """
    _, data = get_features(mx.sym.Variable("data"), multiplier)
    return classifier(global_pool(data), num_classes)


def get_features(data: Any, multiplier: float = 1.0) -> Tuple[Any, Any]:
    """Return the outputs of the last two sizes, as detectors read them: 1/16 and 1/32 of the size of the image.

    Args:
        data: Images (N, 3, H, W), float32.
        multiplier: As in ``get_symbol``.

    Raises:
        ValueError: If there is no such multiplier.
    """
    choose("multiplier", multiplier, _NAMES)
    in_filter, sizes = int(32 * multiplier), []
    data = conv_bn_relu(data, "conv0", in_filter, stride=2)
    for number, (channels, stride) in enumerate(_PAIRS, 1):
        if stride > 1:
            sizes.append(data)
        data = conv_bn_relu(data, f"conv{number}_dw", in_filter, stride=stride, num_group=in_filter)
        in_filter = int(channels * multiplier)
        data = conv_bn_relu(data, f"conv{number}_pw", in_filter, kernel=1)
    return sizes[-1], data
