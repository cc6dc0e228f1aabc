"""One image with NaN pixels among 1797: the verdict on the step that it spoils names the input and the row.

Its step is skipped, as one that overflows is, and no loss is NaN: MXNet's ReLU takes NaN for 0. A `Watch` tells the two
apart. The image is left out, and the epoch goes on.

References:
    UCI "Optical Recognition of Handwritten Digits" (1797 images of 8x8, shipped by scikit-learn).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Optional, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run as a script it finds the repository

import click
import mxmp
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn
from sklearn.datasets import load_digits

from examples.common.command import Command
from examples.diagnose.run_folder import keep, logged, run_option

BATCH = 32
CORRUPT = 737  # the number of the image


def read_digits() -> Tuple[np.ndarray, np.ndarray]:
    """Return images (N, 1, 8, 8), float32 from 0 to 1, one of them corrupt, and labels (N,)."""
    digits = load_digits()
    images = (digits.images[:, None] / 16).astype("float32")
    images[CORRUPT, 0, 3, 2:5] = np.nan
    return images, digits.target.astype("float32")


def make_net() -> nn.HybridSequential:
    """Return a small convolutional network, converted to O1."""
    mx.random.seed(0)
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Conv2D(16, 3, in_channels=1), nn.BatchNorm(in_channels=16), nn.Activation("relu"))
        net.add(nn.Conv2D(16, 3, in_channels=16, activation="relu"), nn.Dense(10, in_units=16 * 4 * 4))
    net.initialize(mx.init.Xavier())
    return mxmp.gluon.convert(net, "O1")


def step(net: gluon.Block, trainer: mxmp.gluon.Trainer, loss: Any, images: np.ndarray, labels: np.ndarray) -> Any:
    """Make a training step, and return the loss of each image."""
    with autograd.record():
        value = loss(net(mx.nd.array(images)), mx.nd.array(labels))
        with trainer.scale_loss(value) as scaled:
            scaled.backward()
    trainer.step(len(images))
    return value


@click.command(cls=Command)
@run_option
def main(folder: Optional[Path]) -> None:
    """Train an epoch of digits with a corrupt image, which the verdict on the skipped step names."""
    images, labels = read_digits()
    net, loss = make_net(), gluon.loss.SoftmaxCrossEntropyLoss()
    trainer = mxmp.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    order, corrupt = np.random.RandomState(0).permutation(len(images)), None
    with logged(folder, trainer) as log, mxmp.diagnose.Watch(loss).attach(trainer) as watch:
        for number, start in enumerate(range(0, len(order), BATCH), 1):
            chosen = order[start : start + BATCH]
            value = step(net, trainer, loss, images[chosen], labels[chosen])
            if log is not None:
                log.log(loss=value)
            if trainer.last_step_skipped:
                verdict = watch.verdict()
                click.echo(f"step {number} was skipped: {verdict.kind}")
                if verdict.kind == "data":
                    corrupt, bad = verdict, list(verdict.node.rows)
                    click.echo(f"left out: image {', '.join(map(str, chosen[bad]))}")
                    chosen = np.delete(chosen, bad)
                    value = step(net, trainer, loss, images[chosen], labels[chosen])
    click.echo(f"{number} batches, {trainer.skipped_steps} steps skipped, last loss {value.mean().asscalar():.3f}")
    keep(folder, mxmp.gluon.report(net))
    click.echo(corrupt or "There is no corrupt image.")


if __name__ == "__main__":
    main()
