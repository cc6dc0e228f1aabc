"""Nets of MXNet's numpy interface, ``mx.np``: trained and evaluated, in any order."""

import copy

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

from mxmp.gluon import Trainer, convert, export


@pytest.fixture(autouse=True)
def as_numpy():
    """MXNet's numpy interface, as ``npx.set_np`` sets it."""
    with mx.util.np_shape(True), mx.util.np_array(True):
        yield


class Numpy(gluon.HybridBlock):
    """Layers between operators of ``mx.np``."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.first, self.norm, self.last = nn.Dense(8, in_units=6), nn.BatchNorm(in_channels=8), nn.Dense(3)

    def hybrid_forward(self, F, x):
        y = F.np.tanh(self.norm(self.first(x)))
        return F.np.concatenate([self.last(y), F.np.exp(-y)], axis=1)


def dense(**kwargs):
    return nn.Dense(3, in_units=6, **kwargs)


def stack(**kwargs):
    net = nn.HybridSequential(**kwargs)
    with net.name_scope():
        net.add(nn.Dense(8, activation="relu"), nn.BatchNorm(), nn.Dropout(0.0), nn.Dense(3))
    return net


def made(make):
    mx.random.seed(1)
    net = make(prefix="net_")
    net.initialize(mx.init.Xavier())
    net.hybridize()
    return net


X = np.random.RandomState(0).uniform(-1, 1, (4, 6)).astype("float32")


def trained(net, steps=2):
    trainer = Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, loss_scale=8)
    for _ in range(steps):
        with autograd.record(), trainer.scale_loss((net(mx.np.array(X)) ** 2).sum()) as scaled:
            scaled.backward()
        trainer.step(4)
    return evaluated(net)


def evaluated(net, rows=4):
    return net(mx.np.array(X[:rows])).asnumpy()


NETS = pytest.mark.parametrize("make", [Numpy, dense, stack])


@NETS
def test_trained_and_then_evaluated(make):
    expected = trained(made(make))
    np.testing.assert_allclose(trained(convert(made(make), "O1")), expected, rtol=1e-2, atol=1e-2)


@NETS
def test_evaluated_between_steps(make):
    def values(net):
        return [call(net) for call in (evaluated, trained, evaluated, trained, lambda net: evaluated(net, 2))]

    expected = values(made(make))
    for found, exact in zip(values(convert(made(make), "O1")), expected):
        np.testing.assert_allclose(found, exact, rtol=1e-2, atol=1e-2)


def test_a_copy_made_after_training_is_evaluated():
    net = convert(made(Numpy), "O1")
    expected = trained(net)
    np.testing.assert_array_equal(evaluated(copy.deepcopy(net)), expected)


def test_exported_after_training(tmp_path):
    net = convert(made(stack), "O1")
    expected = trained(net)
    files = export(net, str(tmp_path / "net"))
    imported = convert(gluon.SymbolBlock.imports(files[0], "data", files[1]), "O1")
    np.testing.assert_array_equal(evaluated(imported), expected)
