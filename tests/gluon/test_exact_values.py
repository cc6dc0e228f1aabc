"""Converted nets: lengths of sums by the shapes of a call, and positions and integers that are exact."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon import nn

from mxmp.gluon import convert, report

ODD = 4097  # neither float16 nor bfloat16 has it
POLICIES = ["O1", "O2", "O3", "float16", pytest.param("mixed_bfloat16", marks=pytest.mark.bfloat16)]


class Found(nn.HybridBlock):
    """Where the largest score is, as a position, as an integer, and the value there."""

    def hybrid_forward(self, F, x):
        best = F.argmax(x * 1, axis=1)
        return best, F.cast(best + 1, dtype="int32"), F.pick(F.zeros_like(x) + 2, best)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("hybridized", [False, True])
def test_positions_and_integers_of_a_net_are_exact(policy, hybridized):
    net = Found()
    if hybridized:
        net.hybridize()
    convert(net, policy)
    scores = np.zeros((2, ODD + 3), "float32")
    scores[:, ODD] = 1
    best, after, value = net(mx.nd.array(scores))
    assert best.dtype == np.float32 and best.asnumpy().tolist() == [ODD, ODD]
    assert after.dtype == np.int32 and after.asnumpy().tolist() == [ODD + 1, ODD + 1]
    assert value.asnumpy().tolist() == [2, 2]


class Attention(nn.HybridBlock):
    def hybrid_forward(self, F, x):
        scores = F.batch_dot(x, x, transpose_b=True, name="scores")
        return F.batch_dot(F.softmax(scores), x, name="context")


def precision_of(net, op):
    return {row.precision for row in report(net).rows if row.op == op}


def test_the_length_of_a_call_decides_how_its_products_are_taken():
    net = convert(Attention(), "O1")
    for length, precision in ((8, "float16"), (1025, "float32"), (8, "float16")):
        net(mx.nd.ones((1, length, 4)))
        assert precision_of(net, "batch_dot") == {precision}


class Biased(nn.HybridBlock):
    """A layer whose bias is added by broadcasting."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.dense = nn.Dense(4, in_units=4, use_bias=False)
            self.bias = self.params.get("bias", shape=(1, 4), init="zeros")
            self.last = nn.Dense(4, in_units=4, use_bias=False)

    def hybrid_forward(self, F, x, bias):
        return self.last(F.broadcast_add(self.dense(x), bias))


def gradient(policy, rows):
    mx.random.seed(0)
    net = Biased()
    net.initialize(mx.init.One())
    if policy:
        convert(net, policy)
    x = mx.nd.ones((rows, 4))
    with autograd.record():
        loss = net(x) * 8
    loss.backward()
    return net, net.bias.grad().asnumpy()


@pytest.mark.parametrize("rows, precision", [(256, "float16"), (32768, "float32")])
def test_a_bias_over_many_rows_has_its_gradient(rows, precision):
    net, found = gradient("O1", rows)
    assert precision_of(net, "broadcast_add") == {precision}
    assert precision_of(net, "FullyConnected") == {"float16"}
    assert np.array_equal(found, gradient(None, rows)[1])  # 32 a row: 2**20 in all, beyond float16
