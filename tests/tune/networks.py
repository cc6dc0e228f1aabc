"""Small networks that fail in float16, each for one reason, and functions that judge them."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn
from sklearn.datasets import load_digits


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


class Digits(gluon.HybridBlock):
    """A classifier of images by the energy of filters over the whole image, for pixels from 0 to 255 as they come."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.filters = nn.Conv2D(12, 3, in_channels=1)
            self.body = nn.HybridSequential()
            self.body.add(nn.Conv2D(12, 3, in_channels=12), nn.BatchNorm(in_channels=12), nn.Activation("relu"))
            self.body.add(nn.Conv2D(12, 3, in_channels=12), nn.BatchNorm(in_channels=12), nn.Activation("relu"))
            self.hidden = nn.Dense(32, in_units=12 * 4, activation="relu")
            self.scores = nn.Dense(10, in_units=32)

    def hybrid_forward(self, F, x):
        filtered = self.filters(x)
        energy = F.sqrt(filtered * filtered + 1.0)
        return self.scores(self.hidden(self.body(energy)))


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


def trained_digits(steps: int = 120) -> Task:
    """Return a net trained in float32 on three quarters of the handwritten digits, judged by its accuracy on the rest."""
    digits = load_digits()
    images = (digits.images[:, None] * (255 / 16)).astype("float32")  # pixels from 0 to 255, (N, 1, 8, 8)
    labels = digits.target.astype("float32")
    net = _filled(Digits(prefix="digits_"), 0.3)
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01})
    loss, order = gluon.loss.SoftmaxCrossEntropyLoss(), np.random.RandomState(0)
    for _ in range(steps):
        chosen = order.choice(1350, 64)
        with autograd.record():
            value = loss(net(mx.nd.array(images[chosen])), mx.nd.array(labels[chosen]))
        value.backward()
        trainer.step(64)

    def evaluate(candidate):
        scores = candidate(mx.nd.array(images[1350:])).asnumpy()
        return float((scores.argmax(axis=1) == labels[1350:]).mean()) if np.isfinite(scores).all() else float("nan")

    return Task(net, evaluate)
