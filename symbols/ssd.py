"""SSD: single-shot detection on feature maps of several sizes.

Reference: Liu et al., "SSD: Single Shot MultiBox Detector", 2016, https://arxiv.org/abs/1512.02325. The 300 and 512
pixel versions on the reduced VGG-16 follow the paper; the box sizes are those for PASCAL VOC. ResNet-50 at 512 pixels
and MobileNet at 512 have the layouts of GluonCV's ssd_512_resnet50_v1_voc and ssd_512_mobilenet1.0_voc: six maps, and
batch normalization in the extra layers, of which gamma is learned and epsilon 1e-5 (GluonCV: fixed, 1e-3).
The ResNet of eight layers at 96 pixels is of no paper: three maps from 1/8 of the image's size on, to train on a CPU.

Deviation: both losses are divided by the number of terms that take part (four coordinates per matched box; matched
boxes and three times as many mined negatives), the paper divides by the matched boxes. That is the same factor of 4 on
both, hence the paper's balance (alpha = 1). Both are normalized already: train with ``rescale_grad=1`` per device.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx

from . import mobilenet, resnet, vgg16_reduced
from .blocks import choose, conv, conv_bn_relu, conv_relu, pool

VARIANCES = (0.1, 0.1, 0.2, 0.2)  # of the encoded box centers and sizes, as in the paper's code
_FEW, _MANY = (1.0, 2.0, 1 / 2), (1.0, 2.0, 1 / 2, 3.0, 1 / 3)  # aspect ratios


class _Extra(NamedTuple):
    """A feature map on top of the last one: a 1x1 convolution to ``reduced`` channels, then one to ``channels``."""

    reduced: int
    channels: int
    kernel: int = 3
    stride: int = 2
    pad: int = 1


class _Layout(NamedTuple):
    """The feature maps of one version and the default boxes of their cells.

    Attributes:
        sizes: Edges of the square boxes, in pixels; one more than there are maps.
        ratios: Aspect ratios per map.
        extras: The maps that come after the two of the base network.
        steps: Pixels between cells, per map; None divides the image evenly.
        batch_norm: Whether the extra layers are normalized.
    """

    sizes: Sequence[float]
    ratios: Sequence[Sequence[float]]
    extras: Sequence[_Extra]
    steps: Optional[Sequence[int]] = None
    batch_norm: bool = False


NETWORKS = {
    "ssd300_vgg16": {"network": "vgg16_reduced", "data_shape": 300},
    "ssd512_vgg16": {"network": "vgg16_reduced", "data_shape": 512},
    "ssd512_resnet50": {"network": "resnet50", "data_shape": 512},
    "ssd512_mobilenet1.0": {"network": "mobilenet1.0", "data_shape": 512},
    "ssd96_resnet8": {"network": "resnet8", "data_shape": 96},
}


def _resnet8(data: Any) -> Tuple[Any, Any]:
    """Return the last two of three stages with one unit each: 1/8 and 1/16 of the size of the image."""
    data = pool(conv_bn_relu(data, "conv0", 16, stride=2), "pool0", pad=1)
    stages = resnet.make_stages(data, resnet.basic_v1, (1, 1, 1), (32, 64, 128), in_filter=16)
    return stages[-2], stages[-1]


# What makes the two maps of the base network, and their names.
_BASES: Dict[str, Tuple[Callable[[Any], Sequence[Any]], Tuple[str, str]]] = {
    "vgg16_reduced": (vgg16_reduced.get_features, ("conv4_3", "fc7")),
    "resnet50": (partial(resnet.get_features, num_layers=50, version="v1"), ("stage3", "stage4")),
    "mobilenet1.0": (mobilenet.get_features, ("conv11", "conv13")),
    "resnet8": (_resnet8, ("stage2", "stage3")),
}

# GluonCV's boxes for six maps at 512 pixels.
_SIX_MAPS = _Layout(
    sizes=(51.2, 102.4, 189.4, 276.4, 363.52, 450.6, 492),
    ratios=(_FEW, *3 * (_MANY,), *2 * (_FEW,)),
    extras=(*2 * (_Extra(512, 512),), *2 * (_Extra(256, 256),)),
    batch_norm=True,
)

_LAYOUTS: Dict[Tuple[str, int], _Layout] = {
    ("vgg16_reduced", 300): _Layout(
        sizes=(30, 60, 111, 162, 213, 264, 315),
        ratios=(_FEW, *3 * (_MANY,), *2 * (_FEW,)),
        extras=(_Extra(256, 512), _Extra(128, 256), *2 * (_Extra(128, 256, stride=1, pad=0),)),
        steps=(8, 16, 32, 64, 100, 300),
    ),
    ("vgg16_reduced", 512): _Layout(
        sizes=(51.2, 76.8, 153.6, 230.4, 307.2, 384.0, 460.8, 537.6),
        ratios=(_FEW, *4 * (_MANY,), *2 * (_FEW,)),
        extras=(_Extra(256, 512), *3 * (_Extra(128, 256),), _Extra(128, 256, kernel=4, stride=1)),
    ),
    ("resnet50", 512): _SIX_MAPS,
    ("mobilenet1.0", 512): _SIX_MAPS,
    ("resnet8", 96): _Layout(sizes=(15, 24, 40, 64), ratios=3 * (_MANY,), extras=(_Extra(64, 128),), batch_norm=True),
}


def get_symbol(
    num_classes: int = 20,
    network: str = "vgg16_reduced",
    data_shape: int = 300,
    train: bool = True,
    nms_threshold: float = 0.45,
    nms_topk: int = 400,
    force_suppress: bool = False,
) -> Any:
    """Return SSD for training or for inference.

    The nodes ``cls_preds`` (N, num_classes + 1, A), ``loc_preds`` (N, 4A) and ``anchors`` (1, A, 4) are in both; A is
    the number of default boxes. Class 0 of the predictions is background.

    Args:
        num_classes: Classes of objects, without background.
        network: ``vgg16_reduced``, ``resnet50``, ``mobilenet1.0`` or ``resnet8``.
        data_shape: S, the edge of the images in pixels: 300 or 512 with VGG, 96 with the small ResNet, 512 with the
            others. All but VGG run on other sizes too, their boxes being fractions of the image.
        train: Whether to return the training symbol.
        nms_threshold: Overlap (intersection over union) above which the weaker of two detections is dropped.
        nms_topk: Detections per image that enter suppression.
        force_suppress: Whether detections suppress those of other classes too.

    Returns:
        For inference one output, ``detection``, (N, A, 6): class (-1: none), score, and the box's corners as fractions
        of the image. For training the group of ``cls_prob`` (N, num_classes + 1, A) and ``loc_loss`` (N, 4A), both loss
        heads, ``cls_label`` (N, A; -1 takes no part) and ``det_out`` (the detections). The inputs are ``data``
        (N, 3, S, S) and, for training, ``label`` (N, M, 5): class and corners per object, rows of -1 as padding; an
        image without objects adds nothing to the losses.

    Raises:
        ValueError: If there is no such version.
    """
    layout = choose("(network, data_shape)", (network, data_shape), _LAYOUTS)
    cls_preds, loc_preds, anchors = _predict(_feature_maps(network, layout), layout, data_shape, num_classes)
    suppression = {"nms_threshold": nms_threshold, "nms_topk": nms_topk, "force_suppress": force_suppress}
    if not train:
        cls_prob = mx.sym.softmax(cls_preds, axis=1, name="cls_prob")
        return _detect(cls_prob, loc_preds, anchors, suppression)
    cls_prob, loc_loss, cls_target = _losses(cls_preds, loc_preds, anchors)
    detection = _detect(cls_prob, loc_preds, anchors, suppression)
    monitored = (mx.sym.BlockGrad(cls_target, name="cls_label"), mx.sym.BlockGrad(detection, name="det_out"))
    return mx.sym.Group([cls_prob, loc_loss, *monitored])


def get_feature_maps(network: str = "vgg16_reduced", data_shape: int = 300) -> Any:
    """Return the group of maps that boxes are predicted from, largest first, for predictors of one's own.

    Args:
        network: As in ``get_symbol``.
        data_shape: As in ``get_symbol``.

    Raises:
        ValueError: If there is no such version.
    """
    layout = choose("(network, data_shape)", (network, data_shape), _LAYOUTS)
    return mx.sym.Group([feature for _, feature in _feature_maps(network, layout)])


def _feature_maps(network: str, layout: _Layout) -> List[Tuple[str, Any]]:
    """Return the maps that are predicted from, largest first, each with its name."""
    get_features, names = _BASES[network]
    maps = list(zip(names, get_features(mx.sym.Variable("data"))))
    layer = conv_bn_relu if layout.batch_norm else conv_relu
    for number, extra in enumerate(layout.extras, 1):
        name, below = f"extra{number}", maps[-1][1]
        reduced = layer(below, f"{name}_reduce", extra.reduced, kernel=1)
        maps.append((name, layer(reduced, name, extra.channels, extra.kernel, extra.stride, pad=extra.pad)))
    return maps


def _predict(
    maps: Sequence[Tuple[str, Any]], layout: _Layout, data_shape: int, num_classes: int
) -> Tuple[Any, Any, Any]:
    """Return class scores (N, C + 1, A), encoded boxes (N, 4A) and default boxes (1, A, 4) of all the maps."""
    classes, boxes, anchors = [], [], []
    for index, ((name, feature), ratios) in enumerate(zip(maps, layout.ratios)):
        # A square of this map's size, one halfway to the next map's, and one box for each other ratio.
        edges = (layout.sizes[index], math.sqrt(layout.sizes[index] * layout.sizes[index + 1]))
        step = layout.steps[index] / data_shape if layout.steps else -1.0  # -1: one over the cells
        per_cell = len(edges) + len(ratios) - 1
        classes.append(_head(feature, f"{name}_cls", per_cell * (num_classes + 1)))
        boxes.append(_head(feature, f"{name}_loc", per_cell * 4))
        shapes = {"sizes": tuple(edge / data_shape for edge in edges), "ratios": tuple(ratios)}
        anchors.append(mx.sym.contrib.MultiBoxPrior(feature, steps=(step, step), name=f"{name}_anchors", **shapes))
    cls_preds = mx.sym.Concat(*classes, dim=1, name="cls_concat")
    cls_preds = mx.sym.Reshape(cls_preds, shape=(0, -1, num_classes + 1), name="cls_reshape")
    return (
        mx.sym.transpose(cls_preds, axes=(0, 2, 1), name="cls_preds"),
        mx.sym.Concat(*boxes, dim=1, name="loc_preds"),
        mx.sym.Concat(*anchors, dim=1, name="anchors"),
    )


def _head(feature: Any, name: str, filters: int) -> Any:
    """Return predictions of one map, (N, cells * filters): cell by cell, as the default boxes are ordered."""
    pred = mx.sym.transpose(conv(feature, name, filters), axes=(0, 2, 3, 1), name=f"{name}_transpose")
    return mx.sym.Flatten(pred, name=f"{name}_flatten")


def _losses(cls_preds: Any, loc_preds: Any, anchors: Any) -> Tuple[Any, Any, Any]:
    """Return the two loss heads and the class that each default box is to predict."""
    loc_target, loc_mask, cls_target = mx.sym.contrib.MultiBoxTarget(
        anchors,
        mx.sym.Variable("label"),
        cls_preds,
        overlap_threshold=0.5,
        negative_mining_ratio=3,
        negative_mining_thresh=0.5,
        ignore_label=-1,
        variances=VARIANCES,
        name="target",
    )
    cls_prob = mx.sym.SoftmaxOutput(
        cls_preds,
        cls_target,
        multi_output=True,
        use_ignore=True,
        ignore_label=-1,
        normalization="valid",
        name="cls_prob",
    )
    error = mx.sym.elemwise_sub(loc_preds, loc_target, name="loc_error")
    error = mx.sym.elemwise_mul(error, loc_mask, name="loc_masked")
    loss = mx.sym.smooth_l1(error, scalar=1.0, name="loc_smooth_l1")
    return cls_prob, mx.sym.MakeLoss(loss, normalization="valid", name="loc_loss"), cls_target


def _detect(cls_prob: Any, loc_preds: Any, anchors: Any, suppression: Dict[str, Any]) -> Any:
    return mx.sym.contrib.MultiBoxDetection(
        cls_prob, loc_preds, anchors, threshold=0.01, variances=VARIANCES, name="detection", **suppression
    )
