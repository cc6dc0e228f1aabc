"""Whole networks converted for inference: as exact as MXNet in float32, no worse in low precision, fused alike."""

from __future__ import annotations

from collections import Counter

import mxnet as mx
import numpy as np
import pytest

from mxmp.symbol import convert_model, to_graph
from tests.symbol.inference_networks import error, fill, run, zoo

# Name -> (size of an image, options of the zoo). All whose BatchNorm follows a convolution, in part or throughout.
SMALL = {"resnet18_v2": (32, {"thumbnail": True}), "mobilenet0.25": (32, {})}
LARGE = {
    "resnet18_v1": (32, {"thumbnail": True}),
    "mobilenetv2_0.25": (32, {}),
    "resnet50_v2": (64, {}),
    "vgg11_bn": (32, {}),
    "densenet121": (224, {}),
}
NETWORKS = [
    *(pytest.param(name, *SMALL[name], id=name) for name in SMALL),
    *(pytest.param(name, *LARGE[name], id=name, marks=pytest.mark.slow) for name in LARGE),
]


def infer(symbol, network, args, aux):
    """Return the outputs of a symbol that MXNet binds: its subgraph backend fuses what it can."""
    given = {**{name: mx.nd.array(value) for name, value in network.inputs.items()}, **args}
    executor = symbol.bind(mx.cpu(), {name: given[name] for name in symbol.list_arguments()}, aux_states=dict(aux))
    return [each.asnumpy().astype(np.float64) for each in executor.forward()]


def plain(network):
    """Return a network's exact outputs, by MXNet's kernels for float64."""
    return run(network.symbol, network.inputs, network.args, network.aux, "float64")


def convert(network, policy, for_inference=True):
    return convert_model(network.symbol, *network.params(), policy, network.shapes, for_inference=for_inference)


@pytest.mark.parametrize("name, size, options", NETWORKS)
def test_float32_is_as_exact_as_without_folding(name, size, options):
    network = zoo(name, size, **options)
    exact, found = plain(network), convert(network, "O0")
    assert found.report.count["folded"] > 0
    fused = error(infer(found.symbol, network, found.arg_params, found.aux_params), exact)
    unfused = error(run(found.symbol, network.inputs, found.arg_params, found.aux_params), exact)
    usual = error(run(network.symbol, network.inputs, network.args, network.aux), exact)
    assert usual < 2e-6
    # Errors of float32 sums in other orders: oneDNN's fused kernels take one per network, up to twice as inexact.
    assert fused < 4 * usual and unfused < 2 * usual


FUSED = ("_sg_mkldnn_conv", "_sg_mkldnn_fully_connected", "Activation", "elemwise_add", "clip", "Convolution")


def fused_operators(symbol):
    """Return how many operators of each kind MXNet's subgraph backend makes of a symbol, and what it puts in them."""
    nodes = to_graph(symbol.get_backend_symbol("MKLDNN")).nodes
    kinds = Counter(node.op for node in nodes if node.op in FUSED)
    kinds.update(key for node in nodes for key, _ in node.attrs if key.startswith("with_") and key != "with_bn")
    return kinds


@pytest.mark.parametrize("policy", ["O0", "mixed_bfloat16", "bfloat16"])
@pytest.mark.parametrize("name, size, options", [("resnet18_v1", 64, {}), ("mobilenetv2_1.0", 64, {})])
def test_the_same_is_fused_as_without_folding(name, size, options, policy):
    """Convolutions with relu, with the residual sum and the relu behind it: no cast and no identity in between."""
    network = zoo(name, size, **options)
    expected = fused_operators(convert(network, "O0", for_inference=False).symbol)
    assert expected["_sg_mkldnn_conv"] > 15 and expected["with_act"] > 5
    assert fused_operators(convert(network, policy).symbol) == expected


def conv(data, name):
    return mx.sym.Convolution(data, kernel=(3, 3), pad=(1, 1), num_filter=4, name=name)


def act(data, name="act"):
    return mx.sym.Activation(data, act_type="relu", name=name)


def shared(kind):
    """Return a network in which a sum and something that is fused with a convolution read its output."""
    data = mx.sym.var("data")
    x = conv(data, "conv")
    norm = mx.sym.BatchNorm(x, fix_gamma=False, name="bn")
    return {
        "relu": conv(act(x), "conv1") + x,
        "BatchNorm and relu": conv(act(norm), "conv1") + x,
        "relu behind BatchNorm": norm + conv(act(norm), "conv1"),
        "relu itself": act(norm) + norm,
        "leaky relu": conv(mx.sym.LeakyReLU(norm, name="act"), "conv1") + norm,
        "clip": conv(mx.sym.clip(norm, 0, 6, name="act"), "conv1") + norm,
        "two sums": (conv(norm, "conv1") + norm) * (norm + data),
        "twice the same": act(norm + norm),
        "an output": mx.sym.Group([norm, conv(act(norm), "conv1")]),
        "a convolution that is an output": mx.sym.Group([x, conv(act(x), "conv1")]),
    }[kind]


SHARED = ("relu", "BatchNorm and relu", "relu behind BatchNorm", "relu itself", "leaky relu", "clip", "two sums", "twice the same",
          "an output", "a convolution that is an output")  # fmt: skip


@pytest.mark.parametrize("kind", SHARED)
def test_sums_that_mxnet_fuses_wrongly(kind):
    network = fill(shared(kind), {"data": (2, 4, 8, 8)})
    exact, found = plain(network), convert(network, "O0")
    assert error(infer(found.symbol, network, found.arg_params, found.aux_params), exact) < 1e-6


def test_mxnet_still_fuses_such_sums_wrongly():
    """Else the guard can go."""
    network = fill(shared("relu"), {"data": (2, 4, 8, 8)})
    assert error(infer(network.symbol, network, *network.params()), plain(network)) > 0.1


def test_a_bound_convolution_without_batch_norm_keeps_its_first_weights():
    """As docs/inference says: MXNet's fused convolution looks for new weights only where it has a BatchNorm."""
    network = fill(act(mx.sym.BatchNorm(conv(mx.sym.var("data"), "conv"), name="bn")), {"data": (2, 4, 8, 8)})
    for for_inference, stale in ((False, False), (True, True)):
        model = convert(network, "O0", for_inference)
        given = {**model.arg_params, "data": mx.nd.array(network.inputs["data"])}
        executor = model.symbol.bind(mx.cpu(), given, aux_states=model.aux_params)
        before = executor.forward()[0].asnumpy()
        given["conv_weight"][:] *= 3
        assert np.allclose(executor.forward()[0].asnumpy(), before, atol=1e-3) == stale
