"""Conversion changes nothing else of a seeded run: random numbers, and the values that parameters begin with."""

import random
import subprocess
import sys

import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon import nn

from mxmp.gluon import convert
from tests.gluon.nets import X, exact, sequence, started

PROGRAM = """
import random
random.seed(7)
import mxmp, mxnet as mx
import mxmp.tune
net = mx.gluon.nn.Dense(3, in_units=4)
net.initialize()
mxmp.gluon.convert(net, "O1")
trainer = mxmp.gluon.Trainer(net.collect_params(), "sgd")
with mx.autograd.record():
    loss = net(mx.nd.ones((2, 4))).sum()
with trainer.scale_loss(loss) as scaled:
    scaled.backward()
trainer.step(2)
print(mxmp.gluon.report(net))
print(random.random())
"""


def test_python_random_numbers_are_left_alone():
    """In a process of its own: an import may draw one."""
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == str(random.Random(7).random())


class Crossed(nn.HybridSequential):
    """Layers that are used in another order than they were made in, two of them side by side."""

    def hybrid_forward(self, F, x):
        last, second, norm, first, side = self
        x = F.relu(first(x))
        return last(norm(second(x)) + side(x))


def make():
    crossed = sequence(nn.Dense(2), nn.Dense(4), nn.BatchNorm(), nn.Dense(4), nn.Dense(4), kind=Crossed)
    return sequence(nn.Conv2D(3, 3), nn.Activation("relu"), crossed, nn.Dense(2))


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
