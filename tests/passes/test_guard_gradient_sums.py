"""Sums of many bfloat16 gradients, which MXNet would truncate on CPU."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

from mxmp.gluon import convert
from mxmp.passes import GuardGradientSums
from tests.graph.text import from_text, to_text

ENTRIES = frozenset([("a", 0)])


def text(readers, heads="y"):
    lines = [f"r{i} = relu(a)" for i in range(readers)]
    names = ", ".join(f"r{i}" for i in range(readers))
    return "\n".join(
        ["x = null()", "a = relu(x)", *lines, f"y = add_n({names}) {{num_args: {readers}}}", f"return {heads}"]
    )


def readers_of(graph):
    """Return how many inputs and heads read each entry."""
    found = {graph.nodes[node].name: len(ports) for (node, _), ports in graph.consumers().items()}
    for head in graph.heads:
        found[graph.nodes[head.node].name] = found.get(graph.nodes[head.node].name, 0) + 1
    return found


@pytest.mark.parametrize(
    "readers, heads, copies", [(7, "y", 0), (8, "y", 2), (7, "y, a", 1), (49, "y", 7), (50, "y", 10)]
)
def test_each_seven_readers_read_an_identity(readers, heads, copies):
    after = GuardGradientSums(ENTRIES)(from_text(text(readers, heads))).graph
    assert sum(node.op == "_copy" for node in after.nodes) == copies
    counts = readers_of(after)
    assert counts["a"] <= 7 and all(count <= 7 for count in counts.values())
    assert [after.nodes[head.node].name for head in after.heads] == heads.split(", ")


def test_outputs_that_are_one_entry_eight_times_end_the_splitting():
    after = GuardGradientSums(ENTRIES)(from_text(text(1, ", ".join(["a"] * 8)))).graph
    assert after == from_text(text(1, ", ".join(["a"] * 8)))


def test_both_reads_of_one_operator_count():
    graph = from_text(
        "x = null()\na = relu(x)\n" + "\n".join(f"p{i} = dot(a, a)" for i in range(4)) + "\nreturn p0, p1, p2, p3"
    )
    found = to_text(GuardGradientSums(ENTRIES)(graph).graph)
    assert "p2 = dot(a_share, a_share)" in found
    assert "p3 = dot(a_share, a_share1)" in found


def relative_bias(found, expected):
    """Return by how much magnitudes are off on average: rounding errors cancel, truncation does not."""
    return (np.sign(expected) * (found - expected)).sum() / np.abs(expected).sum()


class Unrolled(gluon.HybridBlock):
    """An LSTM, each of whose weights as many FullyConnected read as there are steps."""

    def __init__(self, steps):
        super().__init__()
        self.steps = steps
        with self.name_scope():
            self.cell = gluon.rnn.LSTMCell(32, input_size=32)

    def hybrid_forward(self, F, x):
        return self.cell.unroll(self.steps, x, merge_outputs=True)[0]


def net_gradients(net, x):
    with autograd.record():
        net(x).square().mean().backward()
    return {name: param.grad().asnumpy().copy() for name, param in net.collect_params().items()}


@pytest.mark.bfloat16
@pytest.mark.parametrize("static", [False, True])
def test_gradients_of_an_unrolled_lstm_are_not_truncated(static):
    mx.random.seed(0)
    net, x = Unrolled(24), mx.nd.random.normal(shape=(8, 24, 32))
    net.initialize(mx.init.Xavier())
    expected = net_gradients(net, x)
    convert(net, "mixed_bfloat16").hybridize(static_alloc=static, static_shape=static)
    for name, found in net_gradients(net, x).items():
        assert abs(relative_bias(found, expected[name])) < 0.003, name
        assert np.sqrt(((found - expected[name]) ** 2).mean() / (expected[name] ** 2).mean()) < 0.01, name
