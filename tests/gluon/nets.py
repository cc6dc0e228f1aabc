"""What tests of nets share: a block of any function, and short ways to make a net and to read its report."""

from __future__ import annotations

import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn

from mxmp.gluon import report


class Function(gluon.HybridBlock):
    """A function of the block, F and an input; the block has layers, and parameters of the given shapes, by name."""

    def __init__(self, function, shapes=(), **layers):
        super().__init__(prefix="net_")
        self.function = function
        for name, shape in dict(shapes).items():
            setattr(self, name, self.params.get(name, shape=shape))
        for name, layer in layers.items():
            setattr(self, name, layer)

    def hybrid_forward(self, F, x, *args, **params):
        return self.function(self, F, x, *args, **params)


def initialized(net, *args, seed=0, **options):
    """Return a net with values of a seed, by an initializer and on a context that ``initialize`` is given."""
    mx.random.seed(seed)
    net.initialize(*args, **options)
    return net


def sequential(*layers, kind=nn.HybridSequential):
    """Return a net of layers, named net_, without values."""
    net = kind(prefix="net_")
    net.add(*layers)
    return net


def precisions(net):
    """Return the precision of the last operator of each kind."""
    return {row.op: row.precision for row in report(net).rows}
