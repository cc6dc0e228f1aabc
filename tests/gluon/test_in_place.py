"""Operators that MXNet runs wrongly where their output has the memory of their input."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

from mxmp.gluon import convert

STATIC = {"static_alloc": True, "static_shape": True}
BOUND = 0.05  # roundings to float16, in sums that cancel in part; in place the slope's gradient is a quarter of it


class Shared(nn.HybridBlock):
    """A loop whose body has a PReLU."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.first, self.act = nn.Dense(6, in_units=5, flatten=False), nn.PReLU(in_channels=6)

    def hybrid_forward(self, F, x):
        loop, _ = F.contrib.foreach(lambda data, states: (self.act(data * 2) * 2, states), self.first(x), [])
        return loop


def layers(channels=1):
    net = nn.HybridSequential()
    with net.name_scope():
        net.add(nn.Dense(8, in_units=5), nn.PReLU(in_channels=channels), nn.Dense(6, in_units=8), nn.PReLU())
        net.add(nn.Dense(2, in_units=6))
    return net


def wrapped():
    net = nn.HybridSequential()
    net.add(layers(), nn.Dense(2, in_units=2))
    return net


def gradients(net, infer=False):
    """Return the gradients of all parameters, by the ends of their names."""
    x = mx.nd.array(np.random.RandomState(0).randn(4, 3, 5) if isinstance(net, Shared) else np.eye(8, 5) - 0.3)
    if infer:
        net(x).wait_to_read()
    with autograd.record():
        loss = (net(x) ** 2).mean()
    loss.backward()
    prefix = len(net.prefix)
    return {name[prefix:]: param.grad().asnumpy() for name, param in net.collect_params().items()}


def initialized(make):
    mx.random.seed(0)
    net = make()
    net.initialize(mx.init.Normal(0.5))
    return net


def check(found, expected):
    assert sum("alpha" in name for name in expected) >= 1
    for wanted, grad in zip(expected.values(), found.values()):
        assert np.linalg.norm(grad - wanted) <= BOUND * np.linalg.norm(wanted)


MAKERS = {"one slope": layers, "a slope for each channel": lambda: layers(8), "in a loop": Shared}


@pytest.mark.parametrize("infer", [False, True], ids=["trained", "run before"])
@pytest.mark.parametrize("flags", [{}, STATIC], ids=["plain", "static"])
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_prelu_of_a_converted_net_gets_the_gradient_that_it_gets_operator_by_operator(make, flags, infer):
    expected = gradients(initialized(make))
    net = initialized(make)
    if make is not Shared:  # static shapes and loops are another matter
        net.hybridize(**flags)
    check(gradients(convert(net, "O1"), infer), expected)


def test_prelu_of_a_part_within_a_hybridized_net_gets_its_gradient():
    expected = gradients(initialized(wrapped))
    net = initialized(wrapped)
    convert(net[0], "O1")
    net.hybridize()
    check(gradients(net), expected)


def test_prelu_keeps_infinite_values_in_training():
    net = nn.HybridSequential()
    net.add(nn.Dense(3, in_units=3), nn.PReLU())
    net.initialize(mx.init.One())
    convert(net, "O1")
    with autograd.record():
        found = net(mx.nd.array([[np.inf, 0, 0], [-np.inf, 0, 0]]))
    assert found.asnumpy()[:, 0].tolist() == [np.inf, -np.inf]


ENDS = {"begin": {"to_begin": 0.5}, "end": {"to_end": 2.0}, "both": {"to_begin": 0.5, "to_end": 2.0}, "none": {}}


class Numpy(gluon.HybridBlock):
    def __init__(self, function):
        super().__init__()
        self.function = function
        with self.name_scope():
            self.dense = nn.Dense(6, in_units=4)

    def hybrid_forward(self, F, x):
        return self.function(F.np, self.dense(x).reshape(-1)) * 2


@mx.util.use_np
@pytest.mark.parametrize("recorded", [False, True], ids=["infers", "trains"])
@pytest.mark.parametrize("ends", ENDS.values(), ids=ENDS)
def test_ediff1d_gives_what_numpy_gives(ends, recorded):
    found, expected = numpy_values(lambda np_, x: np_.ediff1d(x, **ends), recorded)
    np.testing.assert_allclose(found, expected, rtol=0.01, atol=0.02)


@mx.util.use_np
@pytest.mark.parametrize("recorded", [False, True], ids=["infers", "trains"])
def test_ediff1d_takes_arrays_at_its_ends(recorded):
    found, expected = numpy_values(lambda np_, x: np_.ediff1d(x, to_begin=x[:1] * 3), recorded)
    np.testing.assert_allclose(found, expected, rtol=0.01, atol=0.02)


@mx.util.use_np
def test_diff_of_order_zero_is_the_identity():
    found, expected = numpy_values(lambda np_, x: np_.diff(x, n=0), True)
    np.testing.assert_allclose(found, expected, rtol=0.01, atol=0.02)


def numpy_values(function, recorded):
    """Return what a converted net and numpy give for a function of a dense layer."""
    mx.random.seed(0)
    net = Numpy(function)
    net.initialize(mx.init.Normal(1))
    x = np.random.RandomState(0).randn(2, 4).astype(np.float32)
    dense = (x @ net.dense.weight.data().asnumpy().T).reshape(-1)
    convert(net, "O1")
    with autograd.record() if recorded else autograd.pause():
        found = net(mx.np.array(x))
    return found.asnumpy(), function(np, dense) * 2
