"""Small networks: some fail in float16, each for one reason, with functions that judge them."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple

import mxnet as mx
import numpy as np
from mxnet import gluon
from mxnet.gluon import nn

from tests.cli.checkpoints import network, params


class Task(NamedTuple):
    """A net, and a function that judges the same net under any policy: higher is better."""

    net: gluon.Block
    evaluate: Callable[[Any], float]


def chain(prefix, layers, init=None, kind=nn.HybridSequential, seed=0):
    """Return a net of the layers that a function makes within its scope."""
    net = kind(prefix=prefix)
    with net.name_scope():
        net.add(*layers())
    mx.random.seed(seed)
    net.initialize(init or mx.init.Uniform(), force_reinit=True)
    return net


def function(call):
    """Return a layer that is a function of F and the data, whose operators are named after the net around it."""
    return nn.HybridLambda(call, prefix="")


def error_of(net, *inputs, by=np.max):
    """Return a function that says how far a net is from what it is now."""
    expected = net(*inputs).asnumpy()
    return lambda net: float(by(np.abs(net(*inputs).asnumpy() - expected)) / by(np.abs(expected)))


def like_float32(net, data):
    """Return a net judged by how near its outputs are to those of float32; the highest is 0."""
    error = error_of(net, mx.nd.array(data), by=np.mean)
    return Task(net, lambda net: -error(net))


def energy() -> Task:
    """Return scores of the energy of features: their squares leave float16's range, and so do sums of these."""
    net = chain("energy_", lambda: [
        nn.Dense(12, in_units=8, use_bias=False), function(lambda F, x: x * x),
        nn.Dense(5, in_units=12, use_bias=False), function(lambda F, x: F.tanh(x * 1e-6)), nn.Dense(3, in_units=5),
    ], mx.init.Uniform(1.0), seed=1)  # fmt: skip
    return like_float32(net, np.random.RandomState(0).randn(64, 8) * 100)


def long_sum() -> Task:
    """Return scores of the means of many values: their sums leave float16's range, the values and the means do not."""
    net = chain("longsum_", lambda: [
        function(lambda F, x: F.relu(x)), nn.Dense(4, in_units=2048, use_bias=False),
        function(lambda F, x: F.relu(x * (1 / 2048))), nn.Dense(3, in_units=4),
    ], mx.init.Uniform(0.5), seed=1)  # fmt: skip
    net[1].weight.set_data(mx.nd.random.uniform(0.5, 1.5, (4, 2048)))
    return like_float32(net, np.random.RandomState(0).rand(16, 2048) * 100)


def normalised() -> Task:
    """Return scores of features that are normalised by hand: squares of small deviations vanish in float16."""

    def normalise(F, features):
        deviations = F.broadcast_sub(features, F.mean(features, axis=1, keepdims=True))
        variance = F.mean(deviations * deviations, axis=1, keepdims=True)
        return F.broadcast_div(deviations, F.sqrt(variance + 1e-7) + 1e-4)

    net = chain("normalised_", lambda: [
        nn.Dense(8, in_units=8, use_bias=False), function(normalise), nn.Dense(3, in_units=8),
    ], mx.init.Uniform(0.5), seed=1)  # fmt: skip
    return like_float32(net, np.random.RandomState(0).randn(64, 8) * 1e-4)


FAILING = {make.__name__: make for make in (energy, long_sum, normalised)}


def dense(prefix="net_", units=3, **flags):
    """Return two dense layers for rows of 4 numbers; ``flags`` hybridize them."""
    net = chain(prefix, lambda: [nn.Dense(units, in_units=4, activation="relu"), nn.Dense(2, in_units=units)])
    net.hybridize(bool(flags), **flags)
    return net


def convnet(prefix="net_", channels=4):
    """Return a classifier of images of 3 colours."""
    return chain(prefix, lambda: [
        nn.Conv2D(channels, 3, in_channels=3), nn.BatchNorm(in_channels=channels), nn.Activation("relu"), nn.Dense(5),
    ], mx.init.Xavier())  # fmt: skip


def two_graphs():
    """Return a plain block around two HybridBlocks."""
    return chain("two_", lambda: [convnet(), nn.Dense(2, in_units=5, prefix="second_")], kind=nn.Sequential)


class WithMask(gluon.HybridBlock):
    """A net with an input that may be left out."""

    def hybrid_forward(self, F, data, mask=None):
        return data * 1 if mask is None else data * mask


def imported():
    """Return a net that was a symbol."""
    block = gluon.SymbolBlock(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2, name="fc"), mx.sym.var("data"))
    block.initialize()
    return block


def make_module(symbol=None, trains=True, data=(2, 3, 8, 8), kind=mx.mod.Module, init=None, params=(), **options):
    """Return a module that is bound, and has parameters, random ones if none are given."""
    symbol = network() if symbol is None else symbol
    labels = [name for name in symbol.list_arguments() if name.endswith("label")]
    module = kind(symbol, label_names=labels, **options)
    module.bind([("data", data)], [(name, data[:1]) for name in labels] or None, for_training=trains)
    mx.random.seed(0)
    module.init_params(init or mx.init.Xavier(), *params)
    return module


def model():
    """Return the command line's small network with its parameters."""
    return (network(), *params(network()))
