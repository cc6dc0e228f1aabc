"""Networks with two operators of one name, as a Gluon block gives that is called twice."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon import nn

from mxmp import Policy
from mxmp.symbol import convert_graph, convert_symbol, on_cpu, to_graph

SHAPES = {"data": (2, 3, 8, 8)}
POLICY = "mixed_bfloat16"


class Shared(nn.HybridBlock):
    """A block whose first call is in bfloat16, between two convolutions, and whose second is in float32."""

    def __init__(self, block):
        super().__init__()
        with self.name_scope():
            self.first, self.second, self.third = (nn.Conv2D(16, 3, padding=1, use_bias=False) for _ in range(3))
            self.shared = block

    def hybrid_forward(self, F, x):
        low = self.second(self.shared(self.first(x)))
        return self.third(self.shared(F.exp(F.softmax(low, axis=1))) * F.softmax(low, axis=1))


def traced(block):
    return Shared(block)(mx.sym.var("data"))


def running(symbol, shapes=SHAPES):
    """Return what runs on a CPU of a symbol's conversion."""
    return on_cpu(convert_symbol(symbol, POLICY, shapes=shapes))


def relu():
    return nn.HybridLambda(lambda F, x: F.relu(x))


def test_two_operators_of_one_name_keep_their_own_dtypes():
    symbol = traced(relu())
    assert len(set(symbol.get_internals().list_outputs())) < len(symbol.get_internals().list_outputs())
    found = running(symbol)
    nodes = to_graph(found).nodes
    relus = [node for node in nodes if node.op == "relu"]
    assert len({node.name for node in relus}) == 1
    casts = [node for node in nodes if node.op == "amp_cast" and nodes[node.inputs[0].node] in relus]
    assert [cast.get("dtype") for cast in casts] == ["bfloat16"]  # behind the first alone
    assert [np.dtype(dtype) for dtype in found.infer_type(data="float32")[1]] == [np.dtype("float32")]


@pytest.mark.parametrize("order", [1, -1], ids=["image first", "image last"])
def test_two_batch_norms_of_one_name_are_looked_at_one_by_one(order):
    """oneDNN has a fast bfloat16 kernel for the one of images, MXNet's own for the other is slow."""
    statistics = [mx.sym.var(f"bn_{name}") for name in ("gamma", "beta", "mean", "var")]

    def shared(data):
        return mx.sym.BatchNorm(mx.sym.Activation(data, act_type="relu", name="act"), *statistics, name="bn")

    def image(data):
        data = shared(mx.sym.Convolution(data, num_filter=64, kernel=(3, 3), no_bias=True, name="conv"))
        return mx.sym.Convolution(data, num_filter=16, kernel=(1, 1), no_bias=True, name="image")

    def row(data):
        data = shared(mx.sym.FullyConnected(data, num_hidden=64, name="fc"))
        return mx.sym.FullyConnected(data, num_hidden=16, name="row")

    net = mx.sym.Group([image(mx.sym.var("data")), row(mx.sym.var("rows"))][::order])
    shapes = {"data": (2, 32, 8, 8), "rows": (2, 32)}
    found = convert_graph(net, Policy.parse(POLICY), shapes).on_cpu(trains=True)
    nodes = to_graph(found).nodes
    wide = [node for node in nodes if node.op == "BatchNorm" and "_wide_float32" in nodes[node.inputs[0].node].name]
    assert len(wide) == 1
    (reader,) = [n for n in nodes if n.op == "amp_cast" and nodes[n.inputs[0].node] is wide[0]]
    assert [n.op for n in nodes if n.inputs and nodes[n.inputs[0].node] is reader] == ["FullyConnected"]
