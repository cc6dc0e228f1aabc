"""SSD: default boxes and parameters against the literature, predictions against GluonCV, losses in numpy."""

import ast
import functools

import mxnet as mx
import numpy as np
import pytest
from gluoncv.model_zoo import get_model
from mxnet import autograd

from symbols import NETWORKS, get_symbol, ssd
from tests.symbols.networks import draw, nodes_of, shapes_of

GLUONCV = {
    "ssd300_vgg16": "ssd_300_vgg16_atrous_voc",
    "ssd512_vgg16": "ssd_512_vgg16_atrous_voc",
    "ssd512_resnet50": "ssd_512_resnet50_v1_voc",
    "ssd512_mobilenet1.0": "ssd_512_mobilenet1.0_voc",
}
# The paper, section 3.1 and 3.3; GluonCV's ResNet and MobileNet have maps of 32, 16, 8, 4, 2 and 1.
BOXES = {"ssd300_vgg16": 8732, "ssd512_vgg16": 24564, "ssd512_resnet50": 6132, "ssd512_mobilenet1.0": 6132}
HEADS = ["cls_preds_output", "loc_preds_output", "anchors_output"]


def heads_of(name):
    internals = get_symbol(name, train=False).get_internals()
    return mx.sym.Group([internals[head] for head in HEADS])


@functools.lru_cache(maxsize=None)
def counterpart(name):
    """Return GluonCV's network of a name, and its shapes without constants and biases that a BatchNorm takes back."""
    net, size = get_model(GLUONCV[name], pretrained=False, pretrained_base=False), NETWORKS[name].fixed["data_shape"]
    with autograd.train_mode():  # else it decodes the boxes
        arguments, aux = shapes_of(mx.sym.Group(net(mx.sym.Variable("data"))), data=(1, 3, size, size))
    idle = {p.name for p in net.collect_params().values() if isinstance(p, mx.gluon.Constant)}
    idle |= {n for n in arguments if "resnet" in n and "conv" in n and n.endswith("_bias")}
    return net, {n: s for n, s in arguments.items() if n not in idle}, aux, (1, 3, size, size)


@pytest.mark.parametrize("name", GLUONCV)
def test_parameters_and_outputs_and_default_boxes_are_the_published(name):
    net, *theirs, shape = counterpart(name)
    assert [list(s.values()) for s in shapes_of(heads_of(name), data=shape)] == [list(s.values()) for s in theirs]
    boxes, outputs = BOXES[name], get_symbol(name).infer_shape(data=shape, label=(1, 7, 5))[1]
    assert outputs == [(1, 21, boxes), (1, 4 * boxes), (1, boxes), (1, boxes, 6)]  # cls_prob, loc_loss, cls_label, boxes
    internals = get_symbol(name, train=False).get_internals()
    shapes = dict(zip(internals.list_outputs(), internals.infer_shape(data=shape)[1]))
    nodes = nodes_of(internals)
    priors = [node for node in nodes if node["op"] == "_contrib_MultiBoxPrior"]
    assert len(priors) == len(net.anchor_generators)
    for prior, generator in zip(priors, net.anchor_generators):
        feature = mx.nd.zeros(shapes[nodes[prior["inputs"][0][0]]["name"] + "_output"])
        options = {key: ast.literal_eval(value) for key, value in prior["attrs"].items()}
        generator.initialize(force_reinit=True)  # what runs before this may have done it
        center, edge = np.split(generator(feature).asnumpy()[0] / shape[-1], 2, axis=1)
        found = mx.nd.contrib.MultiBoxPrior(feature, **options).asnumpy()[0]
        np.testing.assert_allclose(found, np.hstack([center - edge / 2, center + edge / 2]), atol=1e-6)


@pytest.mark.parametrize(
    "name, size",
    [("ssd300_vgg16", 300), ("ssd512_resnet50", 128)],  # which runs at any size
    ids=["vgg16", "resnet50"],
)
@pytest.mark.slow
def test_predictions_are_gluoncvs(name, size):
    net, *shapes, _ = counterpart(name)
    net.initialize(force_reinit=True)
    executor = heads_of(name).simple_bind(mx.cpu(), grad_req="null", data=(1, 3, size, size))
    ours = [array for n, array in executor.arg_dict.items() if n != "data"] + executor.aux_arrays
    theirs = net.collect_params()
    for array, (n, value) in zip(ours, draw({**shapes[0], **shapes[1]}, np.random.default_rng(0)).items()):
        value = np.ones_like(value) if "expand" in n and n.endswith("gamma") else value  # which they fix
        array[:] = value
        theirs[n].set_data(mx.nd.array(value))
        if "expand" in n and n.endswith("var"):
            array[:] += 1e-3 - 1e-5  # their epsilon less ours
    x = mx.nd.array(np.random.RandomState(0).randn(1, 3, size, size))
    scale = [p.data() for n, p in theirs.items() if n.endswith("init_scale")]  # of GluonCV's VGG
    scores, boxes, _ = executor.forward(is_train=False, data=mx.nd.broadcast_mul(x, *scale) if scale else x)
    features = net.features(x)
    for predictors, found in ((net.class_predictors, scores.transpose((0, 2, 1))), (net.box_predictors, boxes)):
        predicted = [p(feature).transpose((0, 2, 3, 1)).flatten() for feature, p in zip(features, predictors)]
        expected = mx.nd.concat(*predicted, dim=1).asnumpy()
        assert expected.std() > 0
        # Forty convolutions on either side add in the same order; a hundred roundings of random sign.
        atol = 100 * np.finfo(np.float32).eps * np.abs(expected).max()
        np.testing.assert_allclose(found.flatten().asnumpy(), expected, atol=atol, rtol=0)


# What is behind the heads is the same for all: on the smallest ResNet.

SIZE = 96


def bind(symbol, **inputs):
    """Return an executor of a symbol with random weights, gradients for weights alone."""
    shapes = {"data": (2, 3, SIZE, SIZE), **{n: v.shape for n, v in inputs.items()}}
    requests = {n: "null" if n in shapes else "write" for n in symbol.list_arguments()}
    executor, rng = symbol.simple_bind(mx.cpu(), grad_req=requests, **shapes), np.random.default_rng(1)
    arrays = {**executor.arg_dict, **executor.aux_dict}
    for name, value in draw({n: a.shape for n, a in arrays.items()}, rng).items():
        arrays[name][:] = value / 2 if name.endswith("gamma") else value  # residual branches add up
    return executor


def test_detections_are_the_decoded_and_suppressed_predictions():
    internals = ssd.get_symbol(3, "resnet8", SIZE, train=False, nms_topk=40).get_internals()
    symbol = mx.sym.Group([internals[o] for o in ["cls_prob_output", *HEADS[1:], "detection_output"]])
    cls_prob, loc_preds, anchors, detections = (o.asnumpy() for o in bind(symbol).forward(is_train=False))
    # The paper, sections 2.2 and 3.1: rows of class, score and corners, best first.
    center, edge = (anchors[0, :, :2] + anchors[0, :, 2:]) / 2, anchors[0, :, 2:] - anchors[0, :, :2]
    for scores, boxes, found in zip(cls_prob, loc_preds.reshape(2, -1, 4), detections):
        middle, half = center + 0.1 * boxes[:, :2] * edge, edge * np.exp(0.2 * boxes[:, 2:]) / 2
        corners = np.clip(np.hstack([middle - half, middle + half]), 0, 1)
        rows = np.column_stack([scores[1:].argmax(0), scores[1:].max(0), corners])
        rows = rows[np.argsort(-rows[:, 1], kind="stable")][:40]
        overlaps = mx.nd.contrib.box_iou(mx.nd.array(rows[:, 2:]), mx.nd.array(rows[:, 2:])).asnumpy()
        kept = []
        for row, (kind, *_) in enumerate(rows):
            if not any(kind == rows[other, 0] and overlaps[row, other] >= 0.45 for other in kept):
                kept.append(row)
        assert 3 < len(kept) < 40  # suppression had something to do, and left something
        np.testing.assert_allclose(found[found[:, 0] >= 0], rows[kept], atol=1e-5)


# A large and a small one in the first image, one in the second.
OBJECTS = np.array([[[1, 0.1, 0.2, 0.6, 0.7], [0, 0.5, 0.5, 0.62, 0.6]], [[2, 0.0, 0.1, 0.4, 0.5], 5 * [-1]]], "f")


def test_both_losses_are_divided_by_what_takes_part():
    symbol = ssd.get_symbol(3, "resnet8", SIZE)
    error = mx.sym.BlockGrad(symbol.get_internals()["loc_masked_output"])
    executor = bind(mx.sym.Group([symbol, error]), label=OBJECTS)
    cls_prob, _, cls_label, _, error = (
        o.asnumpy() for o in executor.forward(is_train=True, label=mx.nd.array(OBJECTS))
    )
    executor.backward()
    matched, mined = (cls_label > 0).sum(), (cls_label == 0).sum()
    assert matched >= 3 and mined == 3 * matched  # three objects; three negatives to a positive
    cells = 12 * 12  # of stage 2, each with 6 boxes: the first 864
    wrong = cls_prob - (np.arange(4)[:, None] == cls_label[:, None])
    wrong = np.where(cls_label[:, None] >= 0, wrong, 0)[:, :, : 6 * cells].reshape(2, 4, cells, 6).sum((0, 2))
    found = executor.grad_dict["stage2_cls_bias"].asnumpy().reshape(6, 4)
    np.testing.assert_allclose(found, wrong.T / (matched + mined), atol=1e-6)
    pull = np.clip(error, -1, 1)[:, : 24 * cells].reshape(2, cells, 24).sum((0, 1))
    assert np.abs(pull).max() > 0
    found = executor.grad_dict["stage2_loc_bias"].asnumpy()
    np.testing.assert_allclose(found, pull / (4 * matched), atol=1e-6)
    gradients = [grad for grad in executor.grad_dict.values() if grad is not None]
    assert all(grad.asnumpy().any() for grad in gradients)
    executor.forward(is_train=True, label=mx.nd.full(OBJECTS.shape, -1))  # no objects: nothing to learn
    executor.backward()
    assert not any(grad.asnumpy().any() for grad in gradients)
