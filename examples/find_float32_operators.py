"""Which operators have to stay in float32
=======================================

A trained classifier shall be deployed in float16. Some of its operators have to stay in float32, and ``search`` finds
them on a CPU. The network squares the outputs of filters over pixels from 0 to 255. The squares leave float16's range,
and the usual policy gives NaN.

Run ``python find_float32_operators.py``::

    metric                0.919463, 0.919463 in float32, 0.52349 under the policy given; higher is better
    kept in float32       3 operators by 3 names, each of them is needed
    operators in float32  3 of 13, under the policy given 0
    written: digits-symbol.json, digits-0000.params
"""

import argparse

import mxmp  # before mxnet
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn
from sklearn.datasets import load_digits

from plots import bars  # next to this file

parser = argparse.ArgumentParser(description="Find operators to keep in float32.")
parser.add_argument("--steps", type=int, default=120, help="of training in float32")
parser.add_argument("--policy", default="O2", help="to begin with")
parser.add_argument("--tolerance", type=float, default=0.005, help="how much accuracy may be lost")
args = parser.parse_args()
np.random.seed(1)
mx.random.seed(1)


class EnergyNet(gluon.HybridBlock):
    """A classifier whose first layer gives the root of the energy of its filters."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.filters = nn.Conv2D(12, 3, in_channels=1)
            self.body = nn.HybridSequential()
            for _ in range(2):
                self.body.add(nn.Conv2D(12, 3, in_channels=12), nn.BatchNorm(in_channels=12), nn.Activation("relu"))
            self.hidden = nn.Dense(32, in_units=12 * 4, activation="relu")
            self.scores = nn.Dense(10, in_units=32)

    def hybrid_forward(self, F, x):
        """Return the scores (N, 10) of images (N, 1, 8, 8)."""
        filtered = self.filters(x)
        return self.scores(self.hidden(self.body(F.sqrt(filtered * filtered + 1.0))))


digits = load_digits()
images = (digits.images[:, None] * (255 / 16)).astype("float32")  # as an image file has them
labels = digits.target.astype("float32")
net = EnergyNet(prefix="digits_")
net.initialize(mx.init.Uniform(0.3))
trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01})
draw = np.random.RandomState(0)
for _ in range(args.steps):  # in float32
    chosen = draw.choice(1350, 64)
    with autograd.record():
        loss = gluon.loss.SoftmaxCrossEntropyLoss()(net(mx.nd.array(images[chosen])), mx.nd.array(labels[chosen]))
    loss.backward()
    trainer.step(64)


def accuracy(net):
    """Return the share of images held out, 0 to 1, that are right; NaN scores never are."""
    scores = net(mx.nd.array(images[1350:])).asnumpy()
    return float(((scores.argmax(axis=1) == labels[1350:]) & np.isfinite(scores).all(axis=1)).mean())


result = mxmp.tune.search(net, accuracy, args.tolerance, args.policy)
print(result)
mxmp.gluon.convert(net, result.policy)  # the policy as text goes into any other program: print(result.policy)
net(mx.nd.array(images[:1]))
print(f"written: {', '.join(mxmp.gluon.export(net, 'digits'))}")
errors = {row.name: min(row.local_error, 1.0) for row in result.rows}  # inf is drawn as 1
kept = {row.name for row in result.rows if row.kept == "yes"}
bars("find_float32_operators.png", "local error; orange stays float32", errors, kept, "log")
