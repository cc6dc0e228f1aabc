"""Nets of MXNet's numpy interface, ``mx.np``: trained and evaluated, in any order."""

import copy

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

from mxmp.gluon import Trainer, convert, export
from tests.gluon.nets import Function, initialized, sequence


@pytest.fixture(autouse=True)
def as_numpy():
    """MXNet's numpy interface, as ``npx.set_np`` sets it."""
    with mx.util.np_shape(True), mx.util.np_array(True):
        yield


def numpy(net, F, x):
    """Operators of ``mx.np`` between layers."""
    y = F.np.tanh(net.norm(net.first(x)))
    return F.np.concatenate([net.last(y), F.np.exp(-y)], axis=1)


X = np.random.RandomState(0).uniform(-1, 1, (4, 6)).astype("float32")
NETS = {
    "numpy": lambda: Function(
        numpy, first=nn.Dense(8, in_units=6), norm=nn.BatchNorm(in_channels=8), last=nn.Dense(3, in_units=8)
    ),
    "dense": lambda: nn.Dense(3, in_units=6),
    "stack": lambda: sequence(nn.Dense(8, activation="relu"), nn.BatchNorm(), nn.Dropout(0.0), nn.Dense(3)),
}


def made(name):
    net = initialized(NETS[name](), mx.init.Xavier(), seed=1)
    net.hybridize()
    return net


def trained(net):
    trainer = Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, loss_scale=8)
    for _ in range(2):
        with autograd.record(), trainer.scale_loss((net(mx.np.array(X)) ** 2).sum()) as scaled:
            scaled.backward()
        trainer.step(4)
    return evaluated(net)


def evaluated(net, rows=4):
    return net(mx.np.array(X[:rows])).asnumpy()


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("first", [trained, evaluated])
def test_evaluated_between_steps(first, name):
    def values(net):
        return [call(net) for call in (first, trained, evaluated, trained, lambda net: evaluated(net, 2))]

    for found, exact in zip(values(convert(made(name), "O1")), values(made(name))):
        np.testing.assert_allclose(found, exact, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("name", NETS)
def test_copied_and_exported_after_training(name, tmp_path):
    net = convert(made(name), "O1")
    expected = trained(net)
    np.testing.assert_array_equal(evaluated(copy.deepcopy(net)), expected)
    files = export(net, str(tmp_path / "net"))
    imported = convert(gluon.SymbolBlock.imports(files[0], "data", files[1]), "O1")
    np.testing.assert_array_equal(evaluated(imported), expected)
