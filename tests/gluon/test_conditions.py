"""Gradients of what stands in front of ``cond``, whose branches read inputs of their own."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon import HybridBlock, nn

from mxmp.gluon import convert


class Branches(HybridBlock):
    """Two layers, one for each branch, behind a layer that both and the condition read."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.first, self.yes, self.no = (nn.Dense(4, in_units=4) for _ in range(3))

    def hybrid_forward(self, F, x, limit):
        x = self.first(x)
        return F.contrib.cond(F.sum(x) > limit, lambda: self.yes(x), lambda: F.tanh(self.no(x)))


@pytest.mark.parametrize("limit", [-100, 100], ids=["then", "else"])
@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_each_parameter_gets_the_gradient_of_the_branch_that_ran(policy, limit):
    def gradients(net):
        junk = [mx.nd.full((4, 4), np.nan) for _ in range(64)]  # what unwritten memory holds next
        mx.nd.waitall()
        del junk
        with autograd.record():
            loss = net(mx.nd.array(np.random.RandomState(0).rand(3, 4)), mx.nd.array([limit])).sum()
        loss.backward()
        return [param.grad().astype("float32").asnumpy() for param in net.collect_params().values()]

    mx.random.seed(0)
    net = Branches()
    net.initialize(mx.init.Normal(0.5))
    expected = gradients(net)
    convert(net, policy)
    for found in (gradients(net), gradients(net)):
        for each, wanted in zip(found, expected):
            assert np.abs(each - wanted).max() <= 0.02 * np.abs(wanted).max()
