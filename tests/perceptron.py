"""A small net of dense layers, data for it, its values, and the policy of any net."""

import mxnet as mx
import numpy as np
from mxnet.gluon import nn

import mxmp
from mxmp.errors import ConvertError
from tests.values import as_float32

X = mx.nd.array(np.random.RandomState(0).randn(4, 5))


def make(seed=0, flatten=True, layers=2):
    mx.random.seed(seed)
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(6, in_units=5, activation="relu"), nn.Dense(3, in_units=6, flatten=flatten))
        net.add(*(nn.Dense(3, in_units=3) for _ in range(layers - 2)))
    net.initialize(mx.init.Normal(0.5))
    return net


def values(net):
    return {name: as_float32(param.data()) for name, param in net.collect_params().items()}


def policy_of(net):
    """Return the policy in the report of a net that was called; None of one that runs as MXNet's own."""
    try:
        return mxmp.Policy.parse(mxmp.gluon.report(net).policy)
    except ConvertError as e:
        assert "is not converted" in str(e) or "is float32" in str(e)
        return None
