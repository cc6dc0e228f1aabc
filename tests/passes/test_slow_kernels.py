"""Clips that run in float32, where MXNet's bfloat16 kernel of them is slow."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon import nn

from mxmp.gluon import convert
from mxmp.symbol import to_graph
from tests.passes.graphs import converted

SHAPES = {"data": (2, 3, 8, 8)}


def network():
    """Return a symbol with a relu6 behind each of two convolutions, of which the second is an output."""
    data = mx.sym.var("data")
    for name in ("first", "second"):
        data = mx.sym.Convolution(data, num_filter=16, kernel=(3, 3), pad=(1, 1), name=name)
        data = mx.sym.clip(data, 0, 6, name=f"{name}_clip")
    return data


def around_clips(symbol):
    """Return by clip the dtypes of the casts that it reads and of those that read it."""
    nodes = to_graph(symbol).nodes
    found = {}
    for position, node in enumerate(nodes):
        if node.op == "clip":
            near = [nodes[node.inputs[0].node], *(n for n in nodes if position in [e.node for e in n.inputs])]
            found[node.name] = [each.get("dtype") for each in near if each.op == "amp_cast"]
    return found


@pytest.mark.parametrize("trains", [False, True], ids=["infers", "trains"])
def test_a_bfloat16_clip_runs_in_float32(trains):
    model = converted(network(), SHAPES, "mixed_bfloat16")
    assert around_clips(model.symbol)["first_clip"] == []  # it is in bfloat16, between two convolutions
    assert around_clips(model.on_cpu(trains))["first_clip"] == ["float32", "bfloat16"]


def test_a_clip_that_mxnet_fuses_stays():
    model = converted(network(), SHAPES, "mixed_bfloat16")
    assert around_clips(model.on_cpu(fused=True)) == around_clips(model.symbol)


@pytest.mark.parametrize("policy", ["O0", "O1"])
def test_clips_of_other_dtypes_stay(policy):
    model = converted(network(), SHAPES, policy)
    assert all("bfloat16" not in casts for casts in around_clips(model.on_cpu(trains=True)).values())


def test_an_output_keeps_its_clip_and_its_name():
    model = converted(network(), SHAPES, "mixed_bfloat16,output=bfloat16")
    symbol = model.on_cpu(trains=True)
    assert symbol.list_outputs() == model.symbol.list_outputs()


@pytest.mark.bfloat16
def test_outputs_and_gradients_are_those_of_the_bfloat16_kernel(monkeypatch):
    found = []
    for guarded in (True, False):
        mx.random.seed(0)
        net = nn.HybridSequential()
        net.add(nn.Conv2D(16, 3), nn.HybridLambda(lambda F, x: F.clip(x, 0, 6)), nn.Conv2D(16, 3))
        net.initialize(mx.init.Normal(0.5))
        x = mx.nd.random.normal(shape=SHAPES["data"])
        if not guarded:
            monkeypatch.setattr("mxmp.passes.slow_kernels.WidenSlowKernels.run", lambda self, graph: graph)
        convert(net, "mixed_bfloat16")
        x.attach_grad()
        with autograd.record():
            y = net(x)
        y.backward()
        found.append((y.asnumpy(), x.grad.asnumpy()))
    for with_guard, without in zip(*found):
        np.testing.assert_array_equal(with_guard, without)
