"""ResNet v1, v1b and v2 with 18 to 152 layers.

References:
    v1: He et al., "Deep Residual Learning for Image Recognition", 2015,
    https://arxiv.org/abs/1512.03385, with projections where shapes change (option B).
    v1b: the same, but a bottleneck's stride is in its 3x3 convolution, as in
    https://github.com/facebookarchive/fb.resnet.torch and torchvision.
    v2: He et al., "Identity Mappings in Deep Residual Networks", 2016,
    https://arxiv.org/abs/1603.05027; its stride is in the 3x3 convolution too.
Deviations: in v2 the images pass a batch normalization without a gamma first, as in MXNet's
example and Gluon. Convolutions have no bias; Gluon gives one to the 1x1 convolutions of v1.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple

import mxnet as mx

from .blocks import batch_norm, choose, classifier, conv, conv_bn, conv_bn_relu, global_pool, pool, relu

Unit = Callable[[Any, str, int, int, bool], Any]

_DEPTHS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
_BOTTLENECK_FROM = 50  # layers; table 1 of the paper of 2015
_FILTERS = (64, 128, 256, 512)

NETWORKS = {
    f"resnet{num_layers}_{version}": {"num_layers": num_layers, "version": version}
    for version in ("v1", "v1b", "v2")
    for num_layers in _DEPTHS
}


def get_symbol(num_classes: int = 1000, num_layers: int = 50, version: str = "v1b") -> Any:
    """Return ResNet for images (N, 3, 224, 224), or of any size from 32 on.

    Args:
        num_classes: Number of classes.
        num_layers: 18, 34, 50, 101 or 152: layers with weights.
        version: ``v1``, ``v1b`` or ``v2``; below 50 layers v1 and v1b are the same.

    Raises:
        ValueError: If there is no such depth or version, or ``num_classes`` is not a positive integer.
    """
    _, data = get_features(mx.sym.Variable("data"), num_layers, version)
    if choose("version", version, _VERSIONS).preactivated:
        data = relu(batch_norm(data, "final_bn"), "final_relu")
    return classifier(global_pool(data), num_classes)


def get_features(data: Any, num_layers: int = 50, version: str = "v1") -> Tuple[Any, Any]:
    """Return the last two stages, as detectors read them: 1/16 and 1/32 of the size of the image.

    Args:
        data: Images (N, 3, H, W), float32.
        num_layers: As in ``get_symbol``.
        version: As in ``get_symbol``; stages of v2 still lack their normalization and ReLU.

    Raises:
        ValueError: If there is no such depth or version.
    """
    units = choose("num_layers", num_layers, _DEPTHS)
    basic, bottleneck, preactivated = choose("version", version, _VERSIONS)
    if preactivated:
        data = batch_norm(data, "data_bn", fix_gamma=True)
    data = pool(conv_bn_relu(data, "conv0", 64, kernel=7, stride=2), "pool0", pad=1)
    deep = num_layers >= _BOTTLENECK_FROM
    filters = [4 * width if deep else width for width in _FILTERS]
    stages = make_stages(data, bottleneck if deep else basic, units, filters, in_filter=64)
    return stages[-2], stages[-1]


def make_stages(data: Any, unit: Unit, units: Sequence[int], filters: Sequence[int], in_filter: int) -> List[Any]:
    """Return the output of each stage; all stages but the first halve the size.

    Args:
        data: Symbol of shape (N, in_filter, H, W).
        unit: Makes a residual unit from data, name, output channels, stride and whether it projects.
        units: Number of units in each stage.
        filters: Output channels of each stage.
        in_filter: Channels of the data.
    """
    stages = []
    for stage, (count, num_filter) in enumerate(zip(units, filters), 1):
        for number in range(1, count + 1):
            stride = 2 if number == 1 and stage > 1 else 1
            data = unit(data, f"stage{stage}_unit{number}", num_filter, stride, num_filter != in_filter)
            in_filter = num_filter
        stages.append(data)
    return stages


def basic_v1(data: Any, name: str, num_filter: int, stride: int, project: bool) -> Any:
    """Return the unit of shallow v1 and v1b: two 3x3 convolutions beside a shortcut."""
    body = conv_bn_relu(data, f"{name}_conv1", num_filter, stride=stride)
    return _join_v1(data, conv_bn(body, f"{name}_conv2", num_filter), name, num_filter, stride, project)


def bottleneck_v1(
    data: Any,
    name: str,
    num_filter: int,
    stride: int,
    project: bool,
    stride_first: bool = False,
    width: int = 0,
    num_group: int = 1,
) -> Any:
    """Return the unit of deep v1, v1b and ResNeXt: 1x1, 3x3 and 1x1 convolutions beside a shortcut.

    Args:
        data: Symbol of shape (N, C, H, W).
        name: Prefix of the unit's nodes.
        num_filter: Output channels.
        stride: Stride of the unit.
        project: Whether the shortcut is a 1x1 convolution rather than the data itself.
        stride_first: Whether the stride is in the first convolution (v1), not the second (v1b).
        width: Channels of the 3x3 convolution; 0 for a quarter of ``num_filter``.
        num_group: Groups of the 3x3 convolution.
    """
    first, second = (stride, 1) if stride_first else (1, stride)
    width = width or num_filter // 4
    body = conv_bn_relu(data, f"{name}_conv1", width, kernel=1, stride=first)
    body = conv_bn_relu(body, f"{name}_conv2", width, stride=second, num_group=num_group)
    body = conv_bn(body, f"{name}_conv3", num_filter, kernel=1)
    return _join_v1(data, body, name, num_filter, stride, project)


def basic_v2(data: Any, name: str, num_filter: int, stride: int, project: bool, activated: bool = False) -> Any:
    """Return the unit of shallow v2: normalization and ReLU come before each convolution.

    Args:
        data: Symbol of shape (N, C, H, W).
        name: Prefix of the unit's nodes.
        num_filter: Output channels.
        stride: Stride of the unit.
        project: Whether the shortcut is a 1x1 convolution rather than the data itself.
        activated: Whether the data have passed normalization and ReLU, so that the unit starts with
            its convolution.
    """
    active, shortcut = _split_v2(data, name, num_filter, stride, project, activated)
    body = conv_bn_relu(active, f"{name}_conv1", num_filter, stride=stride)
    body = conv(body, f"{name}_conv2", num_filter, no_bias=True)
    return mx.sym.elemwise_add(body, shortcut, name=f"{name}_plus")


def bottleneck_v2(data: Any, name: str, num_filter: int, stride: int, project: bool) -> Any:
    """Return the unit of deep v2: normalization and ReLU come before each convolution."""
    active, shortcut = _split_v2(data, name, num_filter, stride, project)
    body = conv_bn_relu(active, f"{name}_conv1", num_filter // 4, kernel=1)
    body = conv_bn_relu(body, f"{name}_conv2", num_filter // 4, stride=stride)
    body = conv(body, f"{name}_conv3", num_filter, kernel=1, no_bias=True)
    return mx.sym.elemwise_add(body, shortcut, name=f"{name}_plus")


def _join_v1(data: Any, body: Any, name: str, num_filter: int, stride: int, project: bool) -> Any:
    shortcut = conv_bn(data, f"{name}_sc", num_filter, kernel=1, stride=stride) if project else data
    return relu(mx.sym.elemwise_add(body, shortcut, name=f"{name}_plus"), f"{name}_relu")


def _split_v2(
    data: Any, name: str, num_filter: int, stride: int, project: bool, activated: bool = False
) -> Tuple[Any, Any]:
    """Return what the convolutions of a v2 unit read, and its shortcut."""
    active = data if activated else relu(batch_norm(data, f"{name}_bn"), f"{name}_relu")
    if not project:
        return active, data
    return active, conv(active, f"{name}_sc", num_filter, kernel=1, stride=stride, no_bias=True)


class _Version(NamedTuple):
    """A version's units for shallow and for deep networks, and whether they normalize first."""

    basic: Unit
    bottleneck: Unit
    preactivated: bool


_VERSIONS: Dict[str, _Version] = {
    "v1": _Version(basic_v1, partial(bottleneck_v1, stride_first=True), False),
    "v1b": _Version(basic_v1, bottleneck_v1, False),
    "v2": _Version(basic_v2, bottleneck_v2, True),
}
