"""A learner that is quick: a perceptron with batch normalization and dropout, on numbers."""

from __future__ import annotations

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

import mxmp
from examples.common.loop import Data, Learner
from examples.common.options import Options
from examples.common.parts import gluon_part

INPUTS = 6


def options(output, **changes):
    values = {
        "policy": mxmp.Policy.parse("O2"),
        "loss_scale": mxmp.loss_scale.DynamicLossScale(init_scale=2.0**10, growth_interval=3),
        "ctx": (mx.cpu(),),
        "epochs": 2,
        "batches": None,
        "batch_size": 4,
        "seed": 0,
        "resume": False,
        "force": False,
        "output": output,
    }
    return Options(**{**values, **changes})


def float32(output, **changes):
    return options(output, policy=mxmp.Policy.parse("O0"), loss_scale=mxmp.loss_scale.parse(None), **changes)


class Numbers(Data):
    """Five batches of four random numbers in each epoch, and two held out."""

    count = 20

    def train(self, batch_size, epoch, seed):
        rng = np.random.RandomState([seed, epoch])
        return (mx.nd.array(rng.randn(batch_size, INPUTS)) for _ in range(5))

    def test(self, batch_size):
        rng = np.random.RandomState(99)
        return (mx.nd.array(rng.randn(batch_size, INPUTS)) for _ in range(2))


def make_net():
    net = gluon.nn.HybridSequential(prefix="small_")
    with net.name_scope():
        net.add(gluon.nn.Dense(8, in_units=INPUTS), gluon.nn.BatchNorm(in_channels=8), gluon.nn.Dropout(0.5))
        net.add(gluon.nn.Dense(1, in_units=8))
    return net


class Small(Learner):
    """Learns the sum of its inputs. ``on_step`` is called in every step, with its number from 1."""

    def __init__(self, options, on_step=lambda number: None):
        mx.random.seed(options.seed)
        net = make_net()
        net.initialize()
        symbol = net(mx.sym.Variable("data"))
        self.net = mxmp.gluon.convert(net, options.policy)
        self.scaler = self.trainer = mxmp.gluon.Trainer(
            net.collect_params(), "adam", {"learning_rate": 0.01}, loss_scale=options.loss_scale
        )
        self.parts = {"small": gluon_part(net, self.trainer, symbol)}
        self.on_step, self.number = on_step, 0

    def step(self, batch):
        self.number += 1
        self.on_step(self.number)
        with autograd.record():
            loss = (self.net(batch)[:, 0] - batch.sum(axis=1)) ** 2
            with self.trainer.scale_loss(loss) as scaled:
                scaled.backward()
        self.trainer.step(len(batch))
        return {"loss": float(loss.mean().asscalar())}

    def evaluate(self, batches):
        errors = [float(((self.net(batch)[:, 0] - batch.sum(axis=1)) ** 2).mean().asscalar()) for batch in batches]
        return {"loss": float(np.mean(errors))}


def params_of(learner):
    return {name: param._reduce().asnumpy() for name, param in learner.net.collect_params().items()}
