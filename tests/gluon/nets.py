"""Nets that several tests convert and train."""

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn

from mxmp.gluon import Trainer, convert, report

X = mx.nd.array(np.random.RandomState(0).uniform(-1, 1, (4, 3, 6, 6)))


class Function(gluon.HybridBlock):
    """A function of the block, F and an input; the block has layers, and parameters by name.

    A parameter is told by its shape, by the options that it is made with, or by an array, whose values it keeps.
    """

    def __init__(self, function, params=(), **layers):
        super().__init__(prefix="net_")
        self.function = function
        for name, given in dict(params).items():
            if isinstance(given, mx.nd.NDArray):
                setattr(self, name, self.params.get_constant(name, given))
            else:
                setattr(self, name, self.params.get(name, **(given if isinstance(given, dict) else {"shape": given})))
        for name, layer in layers.items():
            setattr(self, name, layer)

    def hybrid_forward(self, F, x, *args, **params):
        return self.function(self, F, x, *args, **params)


def initialized(net, *args, seed=0, **options):
    """Return a net with values of a seed, by an initializer and on a context that ``initialize`` is given."""
    mx.random.seed(seed)
    net.initialize(*args, **options)
    return net


def started(net, ctx=None):
    """Return a net with the same values every time."""
    return initialized(net, mx.init.Xavier(), seed=2, ctx=ctx)


def sequence(*blocks, prefix="net_", kind=nn.HybridSequential):
    """Return blocks in a row."""
    net = kind(prefix=prefix)
    net.add(*blocks)
    return net


def cnn(policy=None, prefix="net_", ctx=None):
    """Return a net for `X`: a convolution with BatchNorm, and a dense layer; converted if there is a policy."""
    net = nn.HybridSequential(prefix=prefix)
    with net.name_scope():
        net.add(nn.Conv2D(4, 3, in_channels=3), nn.BatchNorm(in_channels=4), nn.Activation("relu"))
        net.add(nn.Dense(5, in_units=64))
    started(net, ctx)
    return convert(net, policy) if policy else net


def exact(net):
    """Return the float32 values of a net's parameters, by their names within the net."""
    return {name: param._reduce().asnumpy() for name, param in net._collect_params_with_prefix().items()}


def recorded(call, *args):
    """Call a net while it is recorded, and run the backward pass."""
    with autograd.record():
        outputs = call(*args)
    autograd.backward(outputs)
    return outputs


def step(net, trainer, x=X):
    """Train a net by one step on each of its contexts."""
    contexts = next(iter(net.collect_params().values())).list_ctx()
    with autograd.record():
        losses = [mx.nd.square(net(x.as_in_context(ctx)) - 1).mean() for ctx in contexts]
        with trainer.scale_loss(losses) as scaled:
            autograd.backward(scaled)
    assert trainer.step(1)


def train(net, steps=3, rate=0.01, x=X):
    """Train a net, and return its new trainer."""
    trainer = Trainer(net.collect_params(), "adam", {"learning_rate": rate}, loss_scale=128)
    for _ in range(steps):
        step(net, trainer, x)
    return trainer


def precisions(net, x=X):
    """Return the dtype that each node of a net computes in, by the names of the nodes."""
    net(x)
    return {row.name.replace("_fwd", ""): row.precision for row in report(net).rows}


def operator_precisions(net):
    """Return the precision of the last operator of each kind."""
    return {row.op: row.precision for row in report(net).rows}


def exported(net, folder):
    """Export a net by its own method, and return the paths of the files."""
    net(X)
    net.export(str(folder / "net"))
    return str(folder / "net-symbol.json"), str(folder / "net-0000.params")


def imported(files):
    return gluon.SymbolBlock.imports(files[0], ["data"], files[1], ctx=mx.cpu())
