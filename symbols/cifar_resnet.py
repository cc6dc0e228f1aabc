"""ResNet v1 and v2 for CIFAR, with 6n + 2 layers.

References:
    v1: He et al., "Deep Residual Learning for Image Recognition", 2015, section 4.2,
    https://arxiv.org/abs/1512.03385.
    v2: He et al., "Identity Mappings in Deep Residual Networks", 2016,
    https://arxiv.org/abs/1603.05027.
Deviations: shortcuts project by a 1x1 convolution where shapes change (option B); the paper's
CIFAR networks pad with zeros (option A). v2 normalizes the images first, as ``resnet`` does.
"""

from __future__ import annotations

from typing import Any

import mxnet as mx

from .blocks import batch_norm, choose, classifier, conv_bn_relu, global_pool, relu
from .resnet import basic_v1, basic_v2, make_stages


def _basic_v2(data: Any, name: str, num_filter: int, stride: int, project: bool) -> Any:
    # The first unit shares the activation of the first convolution (appendix of the paper of 2016).
    return basic_v2(data, name, num_filter, stride, project, activated=name == "stage1_unit1")


_UNITS = {"v1": basic_v1, "v2": _basic_v2}
_FILTERS = (16, 32, 64)

NETWORKS = {
    f"cifar_resnet{num_layers}_{version}": {"num_layers": num_layers, "version": version}
    for version in _UNITS
    for num_layers in (20, 32, 44, 56, 110)  # the depths of the paper's table 6
}


def get_symbol(num_classes: int = 10, num_layers: int = 20, version: str = "v1") -> Any:
    """Return ResNet for images (N, 3, 32, 32).

    Args:
        num_classes: Number of classes.
        num_layers: 6n + 2 for any positive n: 8, 14, 20, ...
        version: ``v1`` or ``v2``.

    Raises:
        ValueError: If there is no such depth or version, or ``num_classes`` is not a positive integer.
    """
    unit = choose("version", version, _UNITS)
    if not isinstance(num_layers, int) or num_layers < 8 or num_layers % 6 != 2:
        raise ValueError(f"num_layers={num_layers!r}: expected 6n + 2, such as 20, 32, 44, 56 or 110.")
    data = mx.sym.Variable("data")
    if version == "v2":
        data = batch_norm(data, "data_bn", fix_gamma=True)
    data = conv_bn_relu(data, "conv0", _FILTERS[0])
    *_, data = make_stages(data, unit, 3 * ((num_layers - 2) // 6,), _FILTERS, in_filter=_FILTERS[0])
    if version == "v2":
        data = relu(batch_norm(data, "final_bn"), "final_relu")
    return classifier(global_pool(data), num_classes)
