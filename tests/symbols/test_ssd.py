"""SSD: default boxes and parameters against the literature, predictions against GluonCV, training with Module."""

from __future__ import annotations

import ast
import functools

import mxnet as mx
import numpy as np
import pytest
from gluoncv.model_zoo import get_model
from mxnet import autograd

from mxmp import Policy
from mxmp.symbol import convert_graph
from symbols import NETWORKS, get_symbol, ssd
from tests.symbols.networks import count, nodes_of, shapes_of

GLUONCV = {
    "ssd300_vgg16": "ssd_300_vgg16_atrous_voc",
    "ssd512_vgg16": "ssd_512_vgg16_atrous_voc",
    "ssd512_resnet50": "ssd_512_resnet50_v1_voc",
    "ssd512_mobilenet1.0": "ssd_512_mobilenet1.0_voc",
}
# The paper, section 3.1 and 3.3; GluonCV's ResNet and MobileNet have maps of 32, 16, 8, 4, 2 and 1.
BOXES = {"ssd300_vgg16": 8732, "ssd512_vgg16": 24564, "ssd512_resnet50": 6132, "ssd512_mobilenet1.0": 6132}
HEADS = ["cls_preds_output", "loc_preds_output", "anchors_output"]
# Forty convolutions on either side add in the same order; a hundred roundings of random sign.
TOLERANCE = 100 * np.finfo(np.float32).eps


def size_of(name):
    return NETWORKS[name].fixed["data_shape"]


def heads_of(name, **kwargs):
    internals = get_symbol(name, train=False, **kwargs).get_internals()
    return mx.sym.Group([internals[head] for head in HEADS])


@functools.lru_cache(maxsize=None)
def counterpart(name):
    """Return GluonCV's network of a name with its symbol up to the heads."""
    net = get_model(GLUONCV[name], pretrained=False, pretrained_base=False)
    with autograd.train_mode():  # else it decodes the boxes
        return net, mx.sym.Group(net(mx.sym.Variable("data")))


def learned(net, symbol, size):
    """Return the shapes of GluonCV's parameters, without constants and biases that a BatchNorm takes back."""
    arguments, aux = shapes_of(symbol, data=(1, 3, size, size))
    constant = {p.name for p in net.collect_params().values() if isinstance(p, mx.gluon.Constant)}
    idle = {n for n in arguments if "resnet" in n and "conv" in n and n.endswith("_bias")}
    return {n: s for n, s in arguments.items() if n not in constant | idle}, aux


@pytest.mark.parametrize("name", GLUONCV)
def test_network_has_the_papers_boxes(name):
    size = size_of(name)
    boxes, found = BOXES[name], get_symbol(name).infer_shape(data=(2, 3, size, size), label=(2, 7, 5))[1]
    assert found == [(2, 21, boxes), (2, 4 * boxes), (2, boxes), (2, boxes, 6)]  # cls_prob, loc_loss, cls_label, boxes


@pytest.mark.parametrize(
    "classes, expected",
    [
        (20, 26285486),  # ssd.pytorch, github.com/amdegroot/ssd.pytorch, VOC
        (90, 35641826),  # torchvision's ssd300_vgg16, COCO: "num_params" of its weights
    ],
)
def test_ssd300_has_as_many_parameters_as_elsewhere(classes, expected):
    symbol = get_symbol("ssd300_vgg16", num_classes=classes)
    assert count(shapes_of(symbol, data=(1, 3, 300, 300), label=(1, 1, 5))[0]) == expected


@pytest.mark.parametrize("name", GLUONCV)
def test_parameters_are_gluoncvs(name):
    size = size_of(name)
    theirs, their_aux = learned(*counterpart(name), size)
    ours, our_aux = shapes_of(heads_of(name), data=(1, 3, size, size))
    assert list(ours.values()) == list(theirs.values())
    assert list(our_aux.values()) == list(their_aux.values())


@pytest.mark.parametrize("name", GLUONCV)
def test_default_boxes_are_gluoncvs(name):
    size, internals = size_of(name), get_symbol(name, train=False).get_internals()
    outputs = dict(zip(internals.list_outputs(), internals.infer_shape(data=(1, 3, size, size))[1]))
    nodes = nodes_of(internals)
    priors = [node for node in nodes if node["op"] == "_contrib_MultiBoxPrior"]
    generators = counterpart(name)[0].anchor_generators
    assert len(priors) == len(generators)
    for prior, generator in zip(priors, generators):
        source = nodes[prior["inputs"][0][0]]["name"]
        feature = mx.nd.zeros(outputs[f"{source}_output"])
        options = {key: ast.literal_eval(value) for key, value in prior["attrs"].items()}
        found = mx.nd.contrib.MultiBoxPrior(feature, **options).asnumpy()[0]
        generator.initialize()
        center, edge = np.split(generator(feature).asnumpy()[0] / size, 2, axis=1)
        np.testing.assert_allclose(found, np.hstack([center - edge / 2, center + edge / 2]), atol=1e-6)


def draw_parameter(name, shape, draw):
    """Return values under which activations neither die nor explode."""
    if len(shape) == 4 and shape[0] > 1:
        return mx.nd.array(draw.standard_normal(shape, np.float32) * np.float32(np.sqrt(2 / np.prod(shape[1:]))))
    if "gamma" in name:  # below 1: residual branches add up
        return mx.nd.array(draw.uniform(0.2, 0.6, shape))
    if name.endswith(("var", "scale")):
        return mx.nd.array(draw.uniform(0.5, 1.5, shape))
    return mx.nd.array(0.1 * draw.standard_normal(shape, np.float32))


def with_the_same_weights(net, symbol, name, size):
    """Return an executor of our heads with random weights, which GluonCV's network gets too."""
    net.initialize(force_reinit=True)
    executor = heads_of(name).simple_bind(mx.cpu(), grad_req="null", data=(1, 3, size, size))
    ours = [array for n, array in executor.arg_dict.items() if n != "data"] + executor.aux_arrays
    arguments, aux = learned(net, symbol, size)
    theirs, draw = net.collect_params(), np.random.default_rng(0)
    for array, (their_name, shape) in zip(ours, {**arguments, **aux}.items()):
        array[:] = draw_parameter(their_name, shape, draw)
        if "expand" in their_name and their_name.endswith("gamma"):
            array[:] = 1  # which they fix
        theirs[their_name].set_data(array.copy())
        if "expand" in their_name and their_name.endswith("var"):
            array[:] += 1e-3 - 1e-5  # their epsilon less ours
    return executor


@pytest.mark.parametrize(
    "name, size",
    [("ssd300_vgg16", 300), ("ssd512_resnet50", 128)],  # which runs at any size
    ids=["vgg16", "resnet50"],
)
def test_predictions_are_gluoncvs(name, size):
    net, symbol = counterpart(name)
    executor = with_the_same_weights(net, symbol, name, size)
    x = mx.nd.array(np.random.RandomState(0).randn(1, 3, size, size))
    scale = [p.data() for n, p in net.collect_params().items() if n.endswith("init_scale")]  # of GluonCV's VGG
    found = executor.forward(is_train=False, data=mx.nd.broadcast_mul(x, *scale) if scale else x)
    features = net.features(x)
    for predictors, ours in ((net.class_predictors, found[0].transpose((0, 2, 1))), (net.box_predictors, found[1])):
        predicted = [p(feature).transpose((0, 2, 3, 1)).flatten() for feature, p in zip(features, predictors)]
        expected = mx.nd.concat(*predicted, dim=1).asnumpy()
        assert expected.std() > 0
        np.testing.assert_allclose(ours.flatten().asnumpy(), expected, atol=TOLERANCE * np.abs(expected).max(), rtol=0)


# What is behind the heads is the same for all: on the smallest ResNet.

SIZE = 96


def bind(symbol, batch=2, **inputs):
    """Return an executor of a symbol with random weights, gradients for weights alone."""
    shapes = {"data": (batch, 3, SIZE, SIZE), **{n: v.shape for n, v in inputs.items()}}
    requests = {n: "null" if n in ("data", "label") else "write" for n in symbol.list_arguments()}
    executor = symbol.simple_bind(mx.cpu(), grad_req=requests, **shapes)
    draw = np.random.default_rng(1)
    for name, array in {**executor.arg_dict, **executor.aux_dict}.items():
        array[:] = draw_parameter(name, array.shape, draw)
    executor.arg_dict["data"][:] = mx.nd.array(draw.standard_normal(shapes["data"]))
    return executor


def test_detections_are_the_decoded_and_suppressed_predictions():
    internals = ssd.get_symbol(3, "resnet8", SIZE, train=False, nms_topk=40).get_internals()
    symbol = mx.sym.Group([internals[o] for o in ["cls_prob_output", *HEADS[1:], "detection_output"]])
    executor = bind(symbol)
    cls_prob, loc_preds, anchors, detections = (o.asnumpy() for o in executor.forward(is_train=False))
    for image in range(2):
        expected = detect(cls_prob[image], loc_preds[image].reshape(-1, 4), anchors[0], topk=40, overlap=0.45)
        found = detections[image][detections[image][:, 0] >= 0]
        assert 3 < len(expected) < 40  # suppression had something to do, and left something
        np.testing.assert_allclose(found, expected, atol=1e-5)


def detect(cls_prob, loc_preds, anchors, topk, overlap):
    """The paper, sections 2.2 and 3.1, in numpy: rows of class, score and corners, best first."""
    center, edge = (anchors[:, :2] + anchors[:, 2:]) / 2, anchors[:, 2:] - anchors[:, :2]
    center, edge = center + 0.1 * loc_preds[:, :2] * edge, edge * np.exp(0.2 * loc_preds[:, 2:])
    corners = np.clip(np.hstack([center - edge / 2, center + edge / 2]), 0, 1)
    rows = np.column_stack([cls_prob[1:].argmax(0), cls_prob[1:].max(0), corners])
    rows = rows[rows[:, 1] >= 0.01]
    kept = []
    for row in rows[np.argsort(-rows[:, 1], kind="stable")][:topk]:
        if all(row[0] != other[0] or iou(row[2:], other[2:]) < overlap for other in kept):
            kept.append(row)
    return np.array(kept)


def iou(a, b):
    inner = np.prod(np.maximum(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0))
    return inner / (np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2]) - inner)


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


def test_images_without_objects_add_nothing():
    executor = bind(ssd.get_symbol(3, "resnet8", SIZE), label=OBJECTS)
    executor.forward(is_train=True, label=mx.nd.full(OBJECTS.shape, -1))
    executor.backward()
    assert not any(grad.asnumpy().any() for grad in executor.grad_dict.values() if grad is not None)


def rectangles(batch, size, seed):
    """Return grey noise with one red, green or blue rectangle per image, and their labels."""
    draw = np.random.RandomState(seed)
    images, labels = draw.uniform(-0.2, 0.2, (batch, 3, size, size)), []
    for image in images:
        color, (left, top), (width, height) = draw.randint(3), draw.uniform(0, 0.4, 2), draw.uniform(0.3, 0.6, 2)
        box = [left, top, left + width, top + height]
        x0, y0, x1, y1 = (int(round(edge * size)) for edge in box)
        image[color, y0:y1, x0:x1] += 2
        labels.append([[color, *box]])
    return mx.nd.array(images), mx.nd.array(labels)


def losses(module, labels):
    """Return cross-entropy of what takes part and smooth L1 per coordinate of matched boxes."""
    cls_prob, loc_loss, cls_label, _ = (o.asnumpy() for o in module.get_outputs())
    picked = np.take_along_axis(cls_prob, np.maximum(cls_label, 0)[:, None].astype(int), 1)[:, 0]
    return -np.log(picked[cls_label >= 0] + 1e-9).mean(), loc_loss.sum() / (4 * (cls_label > 0).sum())


def test_module_trains_ssd():
    images, labels = rectangles(batch=4, size=64, seed=2)
    module = mx.mod.Module(get_symbol("ssd512_resnet50", num_classes=3), label_names=("label",))
    module.bind([("data", images.shape)], [("label", labels.shape)])
    mx.random.seed(2)
    module.init_params(mx.init.Xavier(rnd_type="gaussian", factor_type="in", magnitude=2))
    module.init_optimizer(optimizer="adam", optimizer_params={"learning_rate": 1e-3, "rescale_grad": 1.0})
    history = []
    for _ in range(8):
        module.forward_backward(mx.io.DataBatch([images], [labels]))
        module.update()
        history.append(losses(module, labels))
    history = np.array(history)
    assert (history[-3:].mean(0) < 0.5 * history[0]).all()


def test_float16_reaches_every_convolution_and_no_box():
    symbol = ssd.get_symbol(3, "resnet50", 512, train=False)
    internals = symbol.get_internals()
    symbol = mx.sym.Group([symbol, *(internals[head] for head in ["cls_prob_output", "anchors_output"])])
    executor = bind(symbol)
    params = frozenset(executor.arg_dict) - {"data"} | frozenset(executor.aux_dict)
    converted = convert_graph(symbol, Policy.parse("mixed_float16"), {"data": (2, 3, SIZE, SIZE)}, params=params)
    graph, facts = converted.graph, converted.facts
    read = {node.op: [facts.dtype(entry) for entry in node.inputs] for node in graph.nodes}
    convolutions = [node for node in graph.nodes if node.op == "Convolution"]
    assert {facts.dtype(entry) for node in convolutions for entry in node.inputs} == {"float16"}
    assert read["_contrib_MultiBoxDetection"] == ["float32"] * 3
    mixed = converted.on_cpu().simple_bind(mx.cpu(), grad_req="null", data=(2, 3, SIZE, SIZE))
    mixed.copy_params_from(executor.arg_dict, executor.aux_dict)
    _, expected, boxes = (o.asnumpy() for o in executor.forward(is_train=False))
    _, found, exact = (o.asnumpy() for o in mixed.forward(is_train=False))
    np.testing.assert_array_equal(exact, boxes)
    # Logits of order one behind sixty layers, two roundings each, of random sign.
    assert 0 < np.abs(found - expected).max() < 16 * 2.0**-10
