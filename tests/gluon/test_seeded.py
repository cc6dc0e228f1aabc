"""Conversion changes nothing else of a seeded run: random numbers, and the values that parameters begin with."""

import random

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon import nn

from mxmp.gluon import Trainer, convert, report
from tests.gluon.nets import Function, X, exact, sequence, started


def test_random_numbers_of_python_and_numpy_are_left_alone():
    before, drawn = random.getstate(), np.random.get_state()[1].tolist()
    net = convert(started(nn.Dense(3, in_units=4)), "O1")
    trainer = Trainer(net, "sgd")
    with autograd.record(), trainer.scale_loss(net(mx.nd.ones((2, 4))).sum()) as scaled:
        scaled.backward()
    trainer.step(2)
    assert str(report(net))
    assert random.getstate() == before
    assert np.random.get_state()[1].tolist() == drawn


def crossed(net, F, x):
    """Layers that are used in another order than they were made in, two of them side by side."""
    x = F.relu(net.first(x))
    return net.last(net.norm(net.second(x)) + net.side(x))


def make():
    layers = dict(last=nn.Dense(2), second=nn.Dense(4), norm=nn.BatchNorm(), first=nn.Dense(4), side=nn.Dense(4))
    return sequence(nn.Conv2D(3, 3), nn.Activation("relu"), Function(crossed, **layers), nn.Dense(2))


@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_parameters_of_unknown_shape_get_the_values_that_mxnet_gives_them(policy):
    def values(when):
        net = make()
        if when == "before":
            convert(net, policy)
        started(net).hybridize()
        if when == "after":
            convert(net, policy)
        net(X)
        return mx.nd.random.uniform().asscalar(), exact(net)

    for when in ("before", "after"):
        np.testing.assert_equal(values(when), values("never"))
