"""Find which operators of a trained classifier have to stay in float32 in a float16 deployment, on a CPU.

The network scores handwritten digits by the energy of filters over pixels from 0 to 255, as an image file has them:
their squares leave float16's range, so that the usual policy gives NaN. The search says which operators to keep.

References:
    UCI "Optical Recognition of Handwritten Digits" (1797 images of 8x8, shipped by scikit-learn).
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a script it finds the repository

import click
import mxmp
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn
from sklearn.datasets import load_digits

TRAINED_ON = 1350  # of the images; the others are judged by


class EnergyNet(gluon.HybridBlock):
    """A classifier whose first layer gives the root of the energy of its filters."""

    def __init__(self, **kwargs: object) -> None:
        super().__init__(**kwargs)
        with self.name_scope():
            self.filters = nn.Conv2D(12, 3, in_channels=1)
            self.body = nn.HybridSequential()
            for _ in range(2):
                self.body.add(nn.Conv2D(12, 3, in_channels=12), nn.BatchNorm(in_channels=12), nn.Activation("relu"))
            self.hidden = nn.Dense(32, in_units=12 * 4, activation="relu")
            self.scores = nn.Dense(10, in_units=32)

    def hybrid_forward(self, F: object, x: object) -> object:
        """Return the scores (N, 10) of images (N, 1, 8, 8)."""
        filtered = self.filters(x)
        return self.scores(self.hidden(self.body(F.sqrt(filtered * filtered + 1.0))))


def read_digits() -> tuple[np.ndarray, np.ndarray]:
    """Return images (N, 1, 8, 8), float32 from 0 to 255, and labels (N,)."""
    digits = load_digits()
    return (digits.images[:, None] * (255 / 16)).astype("float32"), digits.target.astype("float32")


def train(net: gluon.Block, images: np.ndarray, labels: np.ndarray, steps: int) -> None:
    """Train a net in float32."""
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01})
    loss, draw = gluon.loss.SoftmaxCrossEntropyLoss(), np.random.RandomState(0)
    for _ in range(steps):
        chosen = draw.choice(len(images), 64)
        with autograd.record():
            value = loss(net(mx.nd.array(images[chosen])), mx.nd.array(labels[chosen]))
        value.backward()
        trainer.step(64)


def accuracy(net: gluon.Block, images: np.ndarray, labels: np.ndarray) -> float:
    """Return the share of images, 0 to 1, whose label has the highest score; NaN scores are never right."""
    scores = net(mx.nd.array(images)).asnumpy()
    return float(((scores.argmax(axis=1) == labels) & np.isfinite(scores).all(axis=1)).mean())


@click.command()
@click.option("--steps", default=120, show_default=True, help="Steps of training in float32.")
@click.option("--policy", default="O2", show_default=True, help="The policy to begin with.")
@click.option("--tolerance", default=0.005, show_default=True, help="How much accuracy may be lost.")
@click.option("--export", type=click.Path(path_type=Path), help="Prefix of the float16 model to write.")
def main(steps: int, policy: str, tolerance: float, export: Path | None) -> None:
    """Train the classifier, search, and print what was found."""
    np.random.seed(1)
    mx.random.seed(1)
    images, labels = read_digits()
    net = EnergyNet(prefix="digits_")
    net.initialize(mx.init.Uniform(0.3))
    train(net, images[:TRAINED_ON], labels[:TRAINED_ON], steps)
    found = mxmp.tune.search(
        net, lambda net: accuracy(net, images[TRAINED_ON:], labels[TRAINED_ON:]), tolerance, policy
    )
    click.echo(found)
    if export is not None:
        mxmp.gluon.convert(net, found.policy)
        net(mx.nd.array(images[:1]))
        click.echo(f"Written: {', '.join(mxmp.gluon.export(net, str(export)))}")


if __name__ == "__main__":
    main()
