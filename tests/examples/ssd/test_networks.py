"""SSD networks by name."""

from __future__ import annotations

import click
import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

import mxmp
import symbols
from examples.ssd.networks import SMALL, SMALL_SYMBOL, get_detector, image_size, require_symbol

NAMES = ("ant", "bee", "cow")
IMAGES = (2, 3, 96, 96)


@pytest.fixture
def small():
    mx.random.seed(0)
    net = get_detector(SMALL, NAMES)
    net.initialize(mx.init.Xavier())
    return net


def test_the_small_network_has_the_maps_and_boxes_of_the_symbol(small):
    with autograd.train_mode():
        class_preds, box_preds, anchors = small(mx.nd.zeros(IMAGES))
    internals = symbols.get_symbol(SMALL_SYMBOL, num_classes=3, train=False).get_internals()
    heads = mx.sym.Group([internals[f"{name}_output"] for name in ("cls_preds", "loc_preds", "anchors")])
    _, sizes, _ = heads.infer_shape(data=IMAGES)
    count = sizes[2][1]
    assert (class_preds.shape, sizes[0]) == ((2, count, 4), (2, 4, count))
    assert (box_preds.shape, sizes[1]) == ((2, count, 4), (2, 4 * count))
    corners = heads[2].simple_bind(mx.cpu(), grad_req="null", data=IMAGES).forward()[0].asnumpy()[0] * 96
    x, y, width, height = anchors.asnumpy()[0].T
    ours = np.stack([x - width / 2, y - height / 2, x + width / 2, y + height / 2], axis=1)
    # MXNet has the ratios of a cell in another order than GluonCV, and squeezes boxes to the image's aspect, 1 here.
    for one, other in zip(ours.reshape(-1, 6, 4), corners.reshape(-1, 6, 4)):
        np.testing.assert_allclose(one[np.lexsort(one.T.round(2))], other[np.lexsort(other.T.round(2))], atol=1e-3)


def test_normalization_starts_as_the_identity(small):
    small(mx.nd.zeros(IMAGES))
    for name, param in small.collect_params().items():
        if name.endswith("gamma"):
            assert (param.data().asnumpy() == 1).all(), name
        elif name.endswith("beta"):
            assert not param.data().asnumpy().any(), name


@pytest.mark.parametrize("name", ["ssd_512_mobilenet1.0", "ssd_300_vgg16_atrous", "ssd_512_resnet50_v1"])
def test_networks_of_gluoncv_are_made_with_classes_of_ones_own(name):
    net = get_detector(name, NAMES)
    assert (tuple(net.classes), image_size(name)) == (NAMES, int(name.split("_")[1]))


@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_boxes_are_decoded_in_float32_and_convolutions_are_not(small, policy):
    mxmp.gluon.convert(small, policy)
    small(mx.nd.zeros(IMAGES))
    verdicts = {row.op: row.precision for row in mxmp.gluon.report(small).rows}
    assert verdicts["Convolution"] == "float16"
    assert {verdicts[op] for op in ("_contrib_box_decode", "softmax", "_contrib_box_nms")} == {"float32"}


def test_names_are_the_same_in_every_network():
    assert list(get_detector(SMALL, NAMES).collect_params()) == list(get_detector(SMALL, NAMES).collect_params())


def test_unknown_names_are_refused_with_the_nearest():
    with pytest.raises(click.UsageError, match="no such SSD; the nearest are ssd_512_resnet50_v1"):
        get_detector("ssd_512_resnet50_v2", NAMES)
    with pytest.raises(click.UsageError, match=r"no such SSD in symbols/; there are ssd300_vgg16.*, ssd96_resnet8\."):
        require_symbol("resnet50_v1")
    assert image_size("ssd96_resnet8") == 96
