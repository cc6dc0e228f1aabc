"""Whole networks converted for inference: as exact as MXNet in float32, no worse in low precision, fused alike."""

import functools
from collections import Counter

import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon.model_zoo import vision

from mxmp.symbol import convert_model, to_graph
from tests.symbol.inference_networks import fill, run
from tests.symbol.small import run as bound


def zoo(name, size=32, **options):
    """Return a network of Gluon's model zoo with random parameters and statistics."""
    net = vision.DenseNet(16, 8, (2, 2)) if name == "densenet" else vision.get_model(name, classes=10, **options)
    return fill(net(mx.sym.var("data")), {"data": (2, 3, size, size)})


def error(results, exact):
    """Return the relative RMS error of results."""
    return np.sqrt(sum(np.sum((a - b) ** 2) for a, b in zip(results, exact)) / sum(np.sum(b**2) for b in exact))


def convert(network, policy, for_inference=True):
    return convert_model(network.symbol, *network.params(), policy, network.shapes, for_inference=for_inference)


THUMBNAIL = {"thumbnail": True}
NETWORKS = [  # the size of an image, options of the zoo; BatchNorm follows a convolution, in part or throughout
    ("resnet18_v1", 32, THUMBNAIL),
    ("resnet18_v2", 32, THUMBNAIL),
    ("mobilenetv2_0.25", 32, {}),
    ("densenet", 224, {}),
]


@pytest.mark.parametrize("name, size, options", NETWORKS)
def test_float32_is_as_exact_as_without_folding(name, size, options):
    """Errors of float32 sums in other orders: oneDNN's fused kernels take one per network, up to twice as inexact."""
    network = zoo(name, size, **options)
    exact, found = network.run("float64"), convert(network, "O0")
    assert found.report.count["folded"] > 0
    usual = error(network.run(), exact)
    assert usual < 2e-6
    values = {**found.arg_params, **found.aux_params, **network.inputs}
    assert error(bound(found.symbol, values), exact) < 4 * usual  # MXNet's subgraph backend fuses what it can
    assert error(run(found.symbol, network.inputs, found.arg_params, found.aux_params), exact) < 2 * usual


FUSED = ("_sg_mkldnn_conv", "_sg_mkldnn_fully_connected", "Activation", "elemwise_add", "clip", "Convolution")


def fused_operators(symbol):
    """Return how many operators of each kind MXNet's subgraph backend makes of a symbol, and what it puts in them."""
    nodes = to_graph(symbol.get_backend_symbol("MKLDNN")).operators()
    put_in = (key for node in nodes for key, _ in node.attrs if key in ("with_act", "with_sum"))
    return Counter([*(node.op for node in nodes if node.op in FUSED), *put_in])


@pytest.mark.parametrize("name", ["resnet18_v1", "mobilenetv2_1.0"])
def test_the_same_is_fused_as_without_folding(name):
    """Convolutions with relu, with the residual sum and the relu behind it: no cast and no identity in between."""
    network = zoo(name, 64)
    expected = fused_operators(convert(network, "O0", for_inference=False).symbol)
    assert expected["_sg_mkldnn_conv"] > 15 and expected["with_act"] > 5
    for policy in ("O0", "mixed_bfloat16", "bfloat16"):
        assert fused_operators(convert(network, policy).symbol) == expected


conv = functools.partial(mx.sym.Convolution, kernel=(3, 3), pad=(1, 1), num_filter=4, name="conv1")
act = functools.partial(mx.sym.Activation, act_type="relu", name="act")
DATA = mx.sym.var("data")
X = conv(DATA, name="conv")
NORM = mx.sym.BatchNorm(X, fix_gamma=False, name="bn")
SHARED = {  # a sum and something that is fused with a convolution read its output
    "relu": conv(act(X)) + X,
    "BatchNorm and relu": conv(act(NORM)) + X,
    "relu behind BatchNorm": NORM + conv(act(NORM)),
    "relu itself": act(NORM) + NORM,
    "leaky relu": conv(mx.sym.LeakyReLU(NORM, name="act")) + NORM,
    "clip": conv(mx.sym.clip(NORM, 0, 6, name="act")) + NORM,
    "two sums": (conv(NORM) + NORM) * (NORM + DATA),
    "twice the same": act(NORM + NORM),
    "an output": mx.sym.Group([NORM[0], conv(act(NORM))]),
    "a convolution that is an output": mx.sym.Group([X, conv(act(X))]),
}


@pytest.mark.parametrize("symbol", SHARED.values(), ids=SHARED.keys())
def test_sums_that_mxnet_fuses_wrongly(symbol):
    network = fill(symbol, {"data": (2, 4, 8, 8)})
    found = convert(network, "O0")
    values = {**found.arg_params, **found.aux_params, **network.inputs}
    assert error(bound(found.symbol, values), network.run("float64")) < 1e-6
