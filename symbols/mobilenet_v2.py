"""MobileNet v2.

Reference: Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks", 2018,
https://arxiv.org/abs/1801.04381, table 2.
Deviation: the classifier is a fully connected layer with a bias, which is the paper's 1x1
convolution on 1x1 pixels. Channels are rounded to multiples of 8 as in the authors' code
(TensorFlow's slim), where Gluon cuts off: the two differ unless the multiplier is 1.
"""

from __future__ import annotations

from typing import Any

import mxnet as mx

from .blocks import choose, classifier, conv_bn, global_pool

# Expansion, output channels, repetitions and stride of the first, per row of the paper's table 2.
_ROWS = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
_NAMES = {multiplier: f"mobilenet_v2_{multiplier}" for multiplier in (1.4, 1.3, 1.0, 0.75, 0.5, 0.35)}

NETWORKS = {name: {"multiplier": multiplier} for multiplier, name in _NAMES.items()}


def get_symbol(num_classes: int = 1000, multiplier: float = 1.0) -> Any:
    """Return MobileNet v2 for images (N, 3, 224, 224), or of any size from 32 on.

    Args:
        num_classes: Number of classes.
        multiplier: Factor on all channels: 1.4, 1.3, 1.0, 0.75, 0.5 or 0.35.

    Raises:
        ValueError: If there is no such multiplier, or ``num_classes`` is not a positive integer.
    """
    choose("multiplier", multiplier, _NAMES)
    in_filter = _scaled(32, multiplier)
    data = _conv(mx.sym.Variable("data"), "conv0", in_filter, stride=2)
    for stage, (expansion, channels, repetitions, first_stride) in enumerate(_ROWS, 1):
        num_filter = _scaled(channels, multiplier)
        for number in range(1, repetitions + 1):
            stride = first_stride if number == 1 else 1
            data = _unit(data, f"stage{stage}_unit{number}", in_filter, num_filter, stride, expansion)
            in_filter = num_filter
    data = _conv(data, "conv_last", _scaled(1280, max(1.0, multiplier)), kernel=1)
    return classifier(global_pool(data), num_classes)


def _unit(data: Any, name: str, in_filter: int, num_filter: int, stride: int, expansion: int) -> Any:
    """Return an inverted residual: expand, filter per channel, reduce without an activation."""
    body = data
    if expansion > 1:
        body = _conv(body, f"{name}_expand", expansion * in_filter, kernel=1)
    body = _conv(body, f"{name}_dw", expansion * in_filter, stride=stride, num_group=expansion * in_filter)
    body = conv_bn(body, f"{name}_project", num_filter, kernel=1)
    if stride == 1 and num_filter == in_filter:
        return mx.sym.elemwise_add(body, data, name=f"{name}_plus")
    return body


def _conv(data: Any, name: str, num_filter: int, **kwargs: Any) -> Any:
    return mx.sym.clip(conv_bn(data, name, num_filter, **kwargs), a_min=0, a_max=6, name=f"{name}_relu6")


def _scaled(channels: int, multiplier: float) -> int:
    """Return a multiple of 8 near the product, but never less than 90% of it."""
    product = channels * multiplier
    nearest = max(8, int(product + 4) // 8 * 8)
    return nearest + 8 if nearest < 0.9 * product else nearest
