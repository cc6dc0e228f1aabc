"""A net is put back as it was found: conversion, arrays, values, gradients; also after an exception."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

import mxmp
from mxmp.diagnose.kept import kept
from mxmp.gluon.storage import LowPrecisionParameter

DATA = mx.nd.array(np.random.RandomState(0).randn(4, 3))


def make(policy=None, hybridized=False, steps=2):
    """Return a net that was trained for some steps, and its trainer."""
    mx.random.seed(0)
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(5, in_units=3), nn.BatchNorm(in_channels=5), nn.Dense(2, in_units=5))
    net.initialize(mx.init.Normal(1))
    if hybridized:
        net.hybridize()
    if policy:
        mxmp.gluon.convert(net, policy)
    trainer = mxmp.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9}, loss_scale=128)
    for _ in range(steps):
        train(net, trainer)
    return net, trainer


def train(net, trainer):
    with autograd.record():
        loss = (net(DATA) ** 2).sum()
        with trainer.scale_loss(loss) as scaled:
            scaled.backward()
    trainer.step(4)


def state(net):
    """Return what can be seen of a net's parameters, the identity of arrays included."""
    found = {}
    for name, param in net.collect_params().items():
        arrays = [*param.list_data(), *(param.list_grad() if param.grad_req != "null" else ())]
        found[name] = type(param), str(param.dtype), [id(a) for a in arrays], [a.asnumpy().tobytes() for a in arrays]
    return found


CASES = [None, "O1", "O2", "O3", "float32"]


@pytest.mark.parametrize("hybridized", [False, True])
@pytest.mark.parametrize("policy", CASES)
def test_everything_is_as_it_was_after_the_net_was_converted_and_trained(policy, hybridized):
    net, trainer = make(policy, hybridized)
    output, before, text = net(DATA).asnumpy(), state(net), repr(net)
    with kept(net):
        assert "converted" not in repr(net)
        mxmp.gluon.convert(net, "O2")
        other = mxmp.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1.0}, loss_scale=None)
        for param in net.collect_params().values():
            param._trainer = None
        for _ in range(2):
            train(net, other)
        assert not np.array_equal(net(DATA).asnumpy(), output)
    assert state(net) == before and repr(net) == text
    assert np.array_equal(net(DATA).asnumpy(), output)


@pytest.mark.parametrize("policy", [None, "O1", "O2"])
def test_training_goes_on_as_if_nothing_had_been(policy):
    results = []
    for interrupted in (False, True):
        net, trainer = make(policy)
        if interrupted:
            with kept(net):
                mxmp.gluon.convert(net, "O3")
                net(DATA)
        for _ in range(3):
            train(net, trainer)
        results.append(net(DATA).asnumpy())
    assert np.array_equal(*results)


def test_it_is_as_it_was_after_an_exception():
    net, _ = make("O2")
    before = state(net)
    with pytest.raises(ZeroDivisionError), kept(net):
        mxmp.gluon.convert(net, "O1")
        net(DATA)
        net.collect_params().zero_grad()
        raise ZeroDivisionError
    assert state(net) == before and "param=float16" in repr(net)


def test_within_it_the_values_are_the_masters():
    net, _ = make("O2")
    masters = {name: param._reduce().asnumpy() for name, param in net.collect_params().items()}
    with kept(net):
        for name, param in net.collect_params().items():
            assert not isinstance(param, LowPrecisionParameter)
            assert np.array_equal(param.data().asnumpy(), masters[name])


def test_blocks_that_share_parameters_and_were_converted_one_by_one_are_so_again():
    class Pair(gluon.Block):
        def __init__(self):
            super().__init__(prefix="pair_")
            with self.name_scope():
                self.a = nn.Dense(3, in_units=3)
                self.b = nn.Dense(3, in_units=3, params=self.a.params)

        def forward(self, x):
            return self.b(self.a(x))

    net = Pair()
    net.initialize(mx.init.Normal(1))
    mxmp.gluon.convert(net.a, "O1")
    output = net(DATA).asnumpy()
    with kept(net):
        mxmp.gluon.convert(net, "O2")
        net(DATA)
    assert "converted" in repr(net.a) and "converted" not in repr(net.b)
    assert np.array_equal(net(DATA).asnumpy(), output)


def test_parameters_without_values_have_none_afterwards():
    net = nn.Dense(2)
    net.initialize()
    with kept(net):
        net(DATA)
    with pytest.raises(gluon.parameter.DeferredInitializationError):
        net.weight.data()
