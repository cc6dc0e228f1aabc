"""Layers whose weight has a row_sparse gradient, in converted nets."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon import nn

from mxmp.gluon import Trainer, convert, report
from tests.gluon.nets import initialized, sequence


def make():
    return initialized(sequence(nn.Embedding(9, 4, sparse_grad=True), nn.Dense(2, in_units=12)), mx.init.Normal(0.5))


def step(net):
    """Train one step and return the embedding's gradient and weight."""
    trainer = Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5})
    with autograd.record(), trainer.scale_loss((net(mx.nd.array([[1, 2, 3], [3, 4, 5]])) ** 2).sum()) as scaled:
        scaled.backward()
    gradient = net[0].weight.grad() / trainer.loss_scale.value
    assert trainer.step(2)
    return gradient, net[0].weight.data().astype("float32").asnumpy()


@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_an_embedding_keeps_its_row_sparse_gradient_and_trains(policy):
    (expected, trained), net = step(make()), convert(make(), policy)
    gradient, weight = step(net)
    assert report(net).rows[0].precision == "float32"  # a cast of the weight would make its gradient dense
    assert gradient.stype == "row_sparse"
    assert sorted(gradient.indices.asnumpy().tolist()) == [1, 2, 3, 4, 5]
    np.testing.assert_allclose(gradient.asnumpy(), expected.asnumpy(), rtol=0.02, atol=0.02)
    np.testing.assert_allclose(weight, trained, rtol=0.02, atol=0.02)
