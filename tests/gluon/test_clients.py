"""Nets as other libraries write them: inputs without a use, weights that are computed, numbers as inputs, parts."""

from __future__ import annotations

import copy

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

from mxmp.gluon import convert, report

EPS = np.finfo(np.float16).eps
POLICIES = ["O1", "O2", "O3"]
X = mx.nd.array(np.linspace(-1, 1, 12).reshape(4, 3))
MASK = mx.nd.ones((4, 7))


def started(net):
    mx.random.seed(0)
    net.initialize(mx.init.Normal(1))
    return net


def difference(a, b):
    return abs(a - b).max().asscalar()


# ---------------------------------------------------------------------- inputs without a use

# MXNet says so of each hybridized net.
UNUSED = pytest.mark.filterwarnings("ignore:The .* input to HybridBlock is not used by any computation")


class Masked(gluon.HybridBlock):
    """A layer that is given a mask, and a label in training."""

    def __init__(self, units=3, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.dense = nn.Dense(2, in_units=units)

    def hybrid_forward(self, F, x, mask, label=None):
        y = self.dense(x)
        return y if label is None or not autograd.is_training() else y - label


@UNUSED
@pytest.mark.parametrize("for_inference", [False, True])
@pytest.mark.parametrize("policy", POLICIES)
def test_an_input_that_is_not_used(policy, for_inference):
    net, label = started(Masked()), mx.nd.zeros((4, 2))
    expected = net(X, MASK)
    convert(net, policy, for_inference=for_inference)
    for given in ((MASK,), (MASK.astype("int32"), None), (MASK, label)):
        assert 0 < difference(net(X, *given), expected) < 8 * EPS
    assert report(net).casts > 0


@UNUSED
@pytest.mark.parametrize("policy", POLICIES)
def test_a_label_that_is_used_in_training_alone(policy):
    net, label = started(Masked()), mx.nd.ones((4, 2))
    expected = net(X, MASK)
    convert(net, policy)
    with autograd.record():
        y = net(X, MASK, label)
    y.backward()
    assert difference(y, expected - 1) < 8 * EPS
    assert difference(net(X, MASK, label), expected) < 8 * EPS
    np.testing.assert_allclose(net.dense.weight.grad().asnumpy(), np.tile(X.asnumpy().sum(0), (2, 1)), atol=8 * EPS)


@UNUSED
@pytest.mark.parametrize("policy", POLICIES)
def test_an_input_that_is_not_used_while_shapes_are_unknown(policy):
    """Where MXNet can initialize a net that is not hybridized."""
    net = started(Masked(units=0))
    twin = copy.deepcopy(net)
    convert(net, policy)
    found = net(X, MASK)
    twin(X, MASK)
    twin.dense.weight.set_data(net.dense.weight.data().astype("float32"))
    assert difference(found, twin(X, MASK)) < 8 * EPS


@UNUSED
def test_an_input_that_is_not_used_by_a_converted_net_within_another():
    class Outer(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            with self.name_scope():
                self.inner = Masked()

        def hybrid_forward(self, F, x, mask):
            return self.inner(x, mask)

    net = started(Outer())
    expected = net(X, MASK)
    convert(net.inner, "O1")
    net.hybridize()
    assert 0 < difference(net(X, MASK), expected) < 8 * EPS
