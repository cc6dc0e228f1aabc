"""Control flow between other operators in nets that are hybridized with static shapes."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon import HybridBlock, nn

from mxmp.gluon import convert

STATIC = {"static_alloc": True, "static_shape": True}


def foreach(F, x):
    return F.contrib.foreach(lambda data, states: (F.tanh(data) * 2, states), x, [])[0]


def while_loop(F, x):
    state = [F.zeros((1,)), x]
    step = F.contrib.while_loop(lambda i, _: i < 3, lambda i, y: (y * 2, [i + 1, y * 1.5]), state, max_iterations=4)
    return step[1][1]


def cond(F, x):
    return F.contrib.cond(F.ones((1,)) > 0, lambda: F.tanh(x) * 3, lambda: x - 100)


def nested(F, x):
    """The inner condition depends on the data, and each branch has one of its own."""
    inner = [lambda: F.relu(x), lambda: F.tanh(x)]
    return F.contrib.cond(F.ones((1,)) < 0, lambda: F.tanh(x), lambda: F.contrib.cond(F.sum(x) > 100, *inner))


class Between(HybridBlock):
    """Control flow between two dense layers."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        with self.name_scope():
            self.first, self.last = (nn.Dense(4, in_units=4, flatten=False) for _ in range(2))

    def hybrid_forward(self, F, x):
        return self.last(self.function(F, self.first(x)))


@pytest.fixture
def dirty():
    """Leave large numbers in the memory that MXNet hands out next."""
    junk = [mx.nd.full((3, 4), 1e30) for _ in range(64)]
    mx.nd.waitall()
    del junk


@pytest.mark.parametrize("recorded", [False, True], ids=["infers", "trains"])
@pytest.mark.parametrize("function", [foreach, while_loop, cond, nested])
def test_control_flow_gives_the_same_at_each_call(function, recorded, dirty):
    def values(net):
        with autograd.record() if recorded else autograd.pause():
            out = net(mx.nd.array(np.random.RandomState(0).rand(3, 4)))
        if recorded:
            out.backward()
        gradients = [param.grad().asnumpy() for param in net.collect_params().values()] if recorded else []
        return [out.asnumpy(), *gradients]

    mx.random.seed(0)
    net = Between(function)
    net.initialize(mx.init.Normal(0.5))
    expected = values(net)
    net.hybridize(**STATIC)
    convert(net, "O1")
    for found in (values(net), values(net)):
        for each, wanted in zip(found, expected):
            assert np.abs(each - wanted).max() <= 0.02 * np.abs(wanted).max()
