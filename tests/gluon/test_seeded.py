"""Conversion changes nothing else of a seeded run: random numbers, and the values that parameters begin with."""

from __future__ import annotations

import random
import subprocess
import sys

import mxnet as mx
import pytest
from mxnet.gluon import HybridBlock, nn

from mxmp.gluon import convert

PROGRAM = """
import random
random.seed(7)
import mxmp, mxnet as mx
import mxmp.{part}
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


@pytest.mark.parametrize("part", ["gluon", "tune"])
def test_python_random_numbers_are_left_alone(part):
    """In a process of its own: an import may draw one."""
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM.format(part=part)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == str(random.Random(7).random())


class Crossed(HybridBlock):
    """Layers that are used in another order than they were made in, two of them side by side."""

    def __init__(self):
        super().__init__(prefix="net_")
        with self.name_scope():
            self.last, self.second = nn.Dense(2), nn.Dense(4)
            self.norm, self.first, self.side = nn.BatchNorm(), nn.Dense(4), nn.Dense(4)

    def hybrid_forward(self, F, x):
        x = F.relu(self.first(x))
        return self.last(self.norm(self.second(x)) + self.side(x))


def nested():
    net = nn.HybridSequential(prefix="outer_")
    with net.name_scope():
        net.add(nn.Conv2D(3, 3), nn.Activation("relu"), Crossed(), nn.Dense(2))
    return net


@pytest.mark.parametrize("policy", ["O1", "O2"])
@pytest.mark.parametrize("late", [False, True], ids=["converted first", "initialized first"])
@pytest.mark.parametrize("make", [Crossed, nested])
def test_parameters_of_unknown_shape_get_the_values_that_mxnet_gives_them(make, late, policy, tmp_path):
    def values(convert_net):
        mx.random.seed(3)
        net = make()
        if not late:
            convert_net(net)
        net.initialize(mx.init.Xavier())
        net.hybridize()
        if late:
            convert_net(net)
        net(mx.nd.ones((2, 3, 8, 8)))
        drawn = mx.nd.random.uniform().asscalar()
        net.save_parameters(str(tmp_path / "values"))  # the exact ones, in float32
        saved = mx.nd.load(str(tmp_path / "values"))
        return drawn, {name: array.asnumpy().tolist() for name, array in saved.items()}

    assert values(lambda net: convert(net, policy)) == values(lambda net: None)
