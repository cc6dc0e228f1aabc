"""Converted nets: positions and integers that are exact, and the gradient of a long sum."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon import nn

from mxmp.gluon import convert
from tests.gluon.nets import Function, initialized, precisions

ODD = 4097  # neither float16 nor bfloat16 has it
POLICIES = ["O1", "O2", "O3", "float16", pytest.param("mixed_bfloat16", marks=pytest.mark.bfloat16)]


def found(net, F, x):
    """Where the largest score is, as a position, as an integer, and the value there."""
    best = F.argmax(x * 1, axis=1)
    return best, F.cast(best + 1, dtype="int32"), F.pick(F.zeros_like(x) + 2, best)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("hybridized", [False, True])
def test_positions_and_integers_of_a_net_are_exact(policy, hybridized):
    net = Function(found)
    net.hybridize(hybridized)
    convert(net, policy)
    scores = mx.nd.one_hot(mx.nd.array([ODD, ODD]), ODD + 3)
    best, after, value = net(scores)
    assert best.dtype == np.float32 and best.asnumpy().tolist() == [ODD, ODD]
    assert after.dtype == np.int32 and after.asnumpy().tolist() == [ODD + 1, ODD + 1]
    assert value.asnumpy().tolist() == [2, 2]


def biased(net, F, x, bias):
    """A layer whose bias is added by broadcasting."""
    return net.last(F.broadcast_add(net.dense(x), bias))


@pytest.mark.parametrize("rows, precision", [(256, "float16"), (32768, "float32")])
def test_a_bias_over_many_rows_has_its_gradient(rows, precision):
    dense, last = (nn.Dense(4, in_units=4, use_bias=False) for _ in range(2))
    net = convert(initialized(Function(biased, {"bias": (1, 4)}, dense=dense, last=last), mx.init.One()), "O1")
    with autograd.record():
        loss = net(mx.nd.ones((rows, 4))) * 8
    loss.backward()
    assert precisions(net) == {"broadcast_add": precision, "FullyConnected": "float16"}
    assert net.bias.grad().asnumpy().tolist() == [[rows * 32] * 4]  # 2**20 of the most rows, beyond float16
