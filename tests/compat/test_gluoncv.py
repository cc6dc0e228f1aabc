"""GluonCV where its numpy lacks what it reads: names, and an array with one value as a number."""

from __future__ import annotations

import random

import gluoncv
import mxnet as mx
import numpy as np
import pytest
from gluoncv.data.transforms.presets import center_net
from gluoncv.model_zoo.rcnn.rpn.anchor import RPNAnchorGenerator

BOXES = np.array([[10, 20, 80, 90, 1], [30, 10, 150, 100, 2]], "float32")


def test_a_target_of_center_net_takes_the_class_ids_as_they_come():
    """They are arrays (1,), of which numpy 2.4 makes no integer, and 1.25 one with a warning."""
    mx.random.seed(0)
    random.seed(0)
    np.random.seed(0)
    image = mx.nd.random.uniform(0, 255, (120, 160, 3)).astype("uint8")
    heatmap = center_net.CenterNetDefaultTrainTransform(64, 64, num_class=3)(image, BOXES)[1]
    assert heatmap.shape == (3, 16, 16)
    assert (heatmap.asnumpy().max(axis=(1, 2)) == [0, 1, 1]).all()  # a peak for each class that has a box


@pytest.mark.filterwarnings("ignore:`np.float` is a deprecated alias:DeprecationWarning")  # numpy 1.23
def test_the_anchors_of_faster_rcnn_are_built():
    """With np.float: around the middle of 16 pixels, 2 sizes of 2 shapes."""
    anchors = RPNAnchorGenerator(stride=16, base_size=16, ratios=(0.5, 2), scales=(1, 2), alloc_size=(2, 2))
    anchors.initialize()
    first = anchors(mx.nd.zeros((1, 3, 2, 2))).asnumpy()[0, :4]
    sizes = first[:, 2:] - first[:, :2] + 1
    np.testing.assert_allclose((first[:, 2:] + first[:, :2]) / 2, 7.5)
    np.testing.assert_allclose(sizes[:, 1] / sizes[:, 0], [0.5, 0.5, 2, 2], rtol=0.1)  # whole pixels
    np.testing.assert_allclose(sizes.prod(1), [256, 1024, 256, 1024], rtol=0.1)


@pytest.mark.filterwarnings("ignore:`np.int` is a deprecated alias:DeprecationWarning")  # numpy 1.23
def test_hrnet_is_built_and_runs():
    """With np.int, of a sum."""
    net = gluoncv.model_zoo.get_model("hrnet_w18_small_v1_c", pretrained=False, pretrained_base=False)
    net.initialize(mx.init.Xavier())
    output = net(mx.nd.random.uniform(shape=(1, 3, 64, 64)))
    assert output.shape == (1, 1000) and np.isfinite(output.asnumpy()).all()
