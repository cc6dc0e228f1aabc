"""Updates that are lost in pure float16: a weight keeps 11 bits, and a small update is below half of the last one.

A classifier is trained to the end of a schedule, where the learning rate is small, with float16 weights alone and with
float32 masters of them. A `Ledger` counts the updates that change nothing.

References:
    Micikevicius et al., "Mixed Precision Training", 2017, https://arxiv.org/abs/1710.03740, section 3.1.
    UCI "Optical Recognition of Handwritten Digits" (1797 images of 8x8, shipped by scikit-learn).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Optional

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run as a script it finds the repository

import click
import mxmp
import mxnet as mx
import numpy as np
from mxmp.diagnose import Ledger
from mxnet import autograd, gluon
from mxnet.gluon import nn
from sklearn.datasets import load_digits

from examples.common.command import Command
from examples.diagnose.run_folder import keep, logged, run_option

BATCH = 64
WARM, SMALL = 0.1, 0.001  # learning rates: of the first 40 steps, and of those behind
softmax_loss = gluon.loss.SoftmaxCrossEntropyLoss()


def make_net() -> nn.HybridSequential:
    """Return a network in pure float16, with the same weights each time."""
    mx.random.seed(0)
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(256, in_units=64, activation="relu"), nn.Dense(256, in_units=256, activation="relu"))
        net.add(nn.Dense(10, in_units=256))
    net.initialize(mx.init.Xavier())
    return mxmp.gluon.convert(net, "O3")


def train(net: gluon.Block, rate: float, masters: bool, steps: int, folder: Optional[Path] = None) -> Ledger:
    """Train on random batches of digits, and return what became of gradients and updates."""
    digits, draw = load_digits(), np.random.RandomState(0)
    images, labels = (each.astype("float32") for each in (digits.data / 16, digits.target))
    optimizer = {"learning_rate": rate, "multi_precision": masters}
    trainer = mxmp.gluon.Trainer(net.collect_params(), "sgd", optimizer, loss_scale=128)
    ledger = Ledger(every=10).attach(trainer)
    with logged(folder, trainer, ledger) as log:
        for _ in range(steps):
            chosen = draw.choice(len(images), BATCH)
            with autograd.record():
                loss = softmax_loss(net(mx.nd.array(images[chosen])), mx.nd.array(labels[chosen]))
                with trainer.scale_loss(loss) as scaled:
                    scaled.backward()
            trainer.step(BATCH)
            if log is not None:
                log.log(loss=loss)
    return ledger


def score(net: gluon.Block) -> float:
    """Return the mean loss on all digits."""
    digits = load_digits()
    images, labels = (mx.nd.array(each, dtype="float32") for each in (digits.data / 16, digits.target))
    return float(softmax_loss(net(images), labels).mean().asscalar())


def weights(net: gluon.Block) -> np.ndarray:
    """Return all weights in one array."""
    return np.concatenate([param.data().asnumpy().ravel() for param in net.collect_params().values()])


@click.command(cls=Command)
@click.option("--steps", type=click.IntRange(min=1), default=60, show_default=True, help="With the small rate.")
@run_option
def main(steps: int, folder: Optional[Path]) -> None:
    """Train in float16 with and without float32 masters, at a small learning rate, and count the lost updates."""
    for masters in (True, False):
        net = make_net()
        net(mx.nd.zeros((1, 64)))
        train(net, WARM, True, 40)
        before, first = weights(net), score(net)
        ledger = train(net, SMALL, masters, steps, None if masters else folder)
        moved = (weights(net) != before).mean()
        what = "with masters" if masters else "float16 alone"
        click.echo(f"{what}: {moved:.0%} of the weights moved, loss {first:.4f} to {score(net):.4f}")
    keep(folder, mxmp.gluon.report(net), ledger)
    click.echo(ledger.advice())


if __name__ == "__main__":
    main()
