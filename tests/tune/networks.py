"""Small networks: some fail in float16, each for one reason, with functions that judge them."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple

import mxnet as mx
import numpy as np
from mxnet import gluon
from mxnet.gluon import nn


class Task(NamedTuple):
    """A net, and a function that judges the same net under any policy: higher is better."""

    net: gluon.Block
    evaluate: Callable[[Any], float]


class Energy(gluon.HybridBlock):
    """Scores of the energy of features: their squares leave float16's range, and so do sums of these."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.features = nn.Dense(12, in_units=8, use_bias=False)
            self.sums = nn.Dense(5, in_units=12, use_bias=False)
            self.scores = nn.Dense(3, in_units=5)

    def hybrid_forward(self, F, x):
        features = self.features(x)
        return self.scores(F.tanh(self.sums(features * features) * 1e-6))


class LongSum(gluon.HybridBlock):
    """Scores of the means of many values: their sums leave float16's range, the values and the means do not."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.sums = nn.Dense(4, in_units=2048, use_bias=False)
            self.scores = nn.Dense(3, in_units=4)

    def hybrid_forward(self, F, x):
        return self.scores(F.relu(self.sums(F.relu(x)) * (1 / 2048)))


class Normalised(gluon.HybridBlock):
    """Scores of features that are normalised by hand: squares of small deviations vanish in float16."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.features = nn.Dense(8, in_units=8, use_bias=False)
            self.scores = nn.Dense(3, in_units=8)

    def hybrid_forward(self, F, x):
        features = self.features(x)
        deviations = F.broadcast_sub(features, F.mean(features, axis=1, keepdims=True))
        variance = F.mean(deviations * deviations, axis=1, keepdims=True)
        return self.scores(F.broadcast_div(deviations, F.sqrt(variance + 1e-7) + 1e-4))


def energy() -> Task:
    """Return a net with random weights."""
    return _like_float32(_filled(Energy(prefix="energy_"), 1.0), np.random.RandomState(0).randn(64, 8) * 100)


def long_sum() -> Task:
    """Return a net with random weights, but for the sum's, which are positive."""
    net = _filled(LongSum(prefix="longsum_"), 0.5)
    net.sums.weight.set_data(mx.nd.random.uniform(0.5, 1.5, (4, 2048)))
    return _like_float32(net, np.random.RandomState(0).rand(16, 2048) * 100)


def normalised() -> Task:
    """Return a net with random weights."""
    return _like_float32(_filled(Normalised(prefix="normalised_"), 0.5), np.random.RandomState(0).randn(64, 8) * 1e-4)


FAILING = {make.__name__: make for make in (energy, long_sum, normalised)}


def _filled(net: gluon.Block, spread: float) -> gluon.Block:
    np.random.seed(1)
    mx.random.seed(1)
    net.initialize(mx.init.Uniform(spread))
    return net


def _like_float32(net: gluon.Block, data: np.ndarray) -> Task:
    """Return a net judged by how near its outputs are to those of float32; the highest is 0."""
    inputs = mx.nd.array(data)
    expected = net(inputs).asnumpy()

    def evaluate(candidate):
        return -float(np.abs(candidate(inputs).asnumpy() - expected).mean() / np.abs(expected).mean())

    return Task(net, evaluate)


def dense(prefix="net_", units=3, **flags):
    """Return two dense layers for rows of 4 numbers; ``flags`` hybridize them."""
    net = nn.HybridSequential(prefix=prefix)
    with net.name_scope():
        net.add(nn.Dense(units, in_units=4, activation="relu"), nn.Dense(2, in_units=units))
    net.initialize()
    net.hybridize(bool(flags), **flags)
    return net


def convnet(prefix="net_", channels=4):
    """Return a classifier of images of 3 colours."""
    net = nn.HybridSequential(prefix=prefix)
    with net.name_scope():
        net.add(nn.Conv2D(channels, 3, in_channels=3), nn.BatchNorm(in_channels=channels), nn.Activation("relu"))
        net.add(nn.Dense(5))
    net.initialize(mx.init.Xavier())
    return net


class TwoGraphs(gluon.Block):
    """A plain block around two HybridBlocks."""

    def __init__(self):
        super().__init__(prefix="two_")
        with self.name_scope():
            self.first, self.second = convnet(), nn.Dense(2, in_units=5, prefix="second_")
        self.second.initialize()

    def forward(self, data):
        return self.second(self.first(data) * 2)


class WithMask(gluon.HybridBlock):
    """A net with an input that may be left out."""

    def hybrid_forward(self, F, data, mask=None):
        return data * 1 if mask is None else data * mask


class Unnamed(gluon.HybridBlock):
    """A net that calls an operator without a scope of its own."""

    def hybrid_forward(self, F, data):
        return F.relu(data)


def imported():
    """Return a net that was a symbol."""
    block = gluon.SymbolBlock(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2, name="fc"), mx.sym.var("data"))
    block.initialize()
    return block


def classifier(loss=True):
    """Return the symbol of a classifier of images, or of its scores."""
    data = mx.sym.Convolution(mx.sym.var("data"), num_filter=4, kernel=(3, 3), name="conv")
    data = mx.sym.Activation(mx.sym.BatchNorm(data, name="norm"), act_type="relu", name="act")
    data = mx.sym.FullyConnected(data, num_hidden=5, name="fc")
    return mx.sym.SoftmaxOutput(data, name="softmax") if loss else data


def make_module(symbol=None, trains=True, **options):
    """Return a module that is bound for images (2, 3, 8, 8), and has parameters."""
    symbol = classifier() if symbol is None else symbol
    labels = [name for name in symbol.list_arguments() if name.endswith("label")]
    module = mx.mod.Module(symbol, label_names=labels, **options)
    module.bind([("data", (2, 3, 8, 8))], [(name, (2,)) for name in labels] or None, for_training=trains)
    module.init_params(mx.init.Xavier())
    return module
