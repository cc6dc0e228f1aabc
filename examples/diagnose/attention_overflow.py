"""An overflow in attention scores: no loss scale mends it, and the verdict says what does.

A small transformer reads handwritten digits pixel by pixel. Its queries and keys have grown, as they do in long runs
with a large learning rate, so that their products leave float16's range. Every step is skipped. A `Watch` says which
operator it is; with that operator in float32 the same weights train on.

References:
    Dehghani et al., "Scaling Vision Transformers to 22 Billion Parameters", 2023, https://arxiv.org/abs/2302.05442,
    section 2: attention logits that grow until training diverges.
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

UNITS, BATCH, PLACES, INTENSITIES = 32, 16, 64, 17
GROWN = 200.0  # how much larger queries and keys are than in the beginning


class Attention(gluon.HybridBlock):
    """Self-attention with one head."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        with self.name_scope():
            self.query = nn.Dense(UNITS, flatten=False, in_units=UNITS, prefix="query_")
            self.key = nn.Dense(UNITS, flatten=False, in_units=UNITS, prefix="key_")
            self.value = nn.Dense(UNITS, flatten=False, in_units=UNITS, prefix="value_")

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        """Return a mixture of values for each place, (N, T, UNITS)."""
        query = self.query(x) / UNITS**0.5
        scores = F.batch_dot(query, self.key(x), transpose_b=True, name="scores")
        return F.batch_dot(F.softmax(scores, axis=-1, name="weights"), self.value(x), name="mix")


class Transformer(gluon.HybridBlock):
    """One layer of a transformer, and a classifier on the mean of its outputs."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        with self.name_scope():
            self.pixels = nn.Embedding(INTENSITIES, UNITS)
            self.places = nn.Embedding(PLACES, UNITS)
            self.norm = nn.LayerNorm(in_channels=UNITS)
            self.attention = Attention(prefix="attention_")
            self.hidden = nn.Dense(2 * UNITS, flatten=False, in_units=UNITS, activation="relu")
            self.classes = nn.Dense(10, in_units=2 * UNITS)

    def hybrid_forward(self, F: Any, pixels: Any, places: Any) -> Any:
        """Return the scores (N, 10) of images (N, 64), whose pixels are from 0 to 16."""
        x = self.norm(F.broadcast_add(self.pixels(pixels), self.places(places)))
        return self.classes(F.mean(self.hidden(x + self.attention(x)), axis=1))


def make_net(policy: str) -> Transformer:
    """Return the network with the same grown weights each time, converted to a policy."""
    mx.random.seed(0)
    net = Transformer(prefix="net_")
    net.initialize(mx.init.Xavier())
    for layer in (net.attention.query, net.attention.key):
        layer.weight.set_data(layer.weight.data() * GROWN)
    return mxmp.gluon.convert(net, policy)


def read_digits() -> Tuple[np.ndarray, np.ndarray]:
    """Return images (N, 64), float32 from 0 to 16, and labels (N,)."""
    digits = load_digits()
    return digits.data.astype("float32"), digits.target.astype("float32")


def train(net: Transformer, trainer: mxmp.gluon.Trainer, loss: Any, steps: int, log: Any = None) -> float:
    """Train on random batches, and return the mean loss of the last one."""
    images, labels = read_digits()
    draw, places = np.random.RandomState(0), mx.nd.arange(PLACES).reshape((1, PLACES))
    for _ in range(steps):
        chosen = draw.choice(len(images), BATCH)
        with autograd.record():
            value = loss(net(mx.nd.array(images[chosen]), places), mx.nd.array(labels[chosen]))
            with trainer.scale_loss(value) as scaled:
                scaled.backward()
        trainer.step(BATCH)
        if log is not None:
            log.log(loss=value)
    return float(value.mean().asscalar())


def make_trainer(net: Transformer) -> mxmp.gluon.Trainer:
    """Return a trainer with a dynamic loss scale."""
    return mxmp.gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.003})


@click.command(cls=Command)
@click.option("--steps", type=click.IntRange(min=1), default=20, show_default=True, help="Of training, once mended.")
@run_option
def main(steps: int, folder: Optional[Path]) -> None:
    """Train a transformer whose attention scores overflow in float16, and mend it as the verdict says."""
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    net = make_net("O1")
    trainer = make_trainer(net)
    with logged(folder, trainer) as log, mxmp.diagnose.Watch(loss).attach(trainer) as watch:
        train(net, trainer, loss, 5, log)
        verdict = watch.verdict()
    click.echo(f"O1: {trainer.skipped_steps} of 5 steps skipped, loss scale {trainer.loss_scale.value:g}")
    policy = f"O1,{verdict.overrides}"
    mended = make_net(policy)
    trainer = make_trainer(mended)
    value = train(mended, trainer, loss, steps)
    click.echo(f"{policy}: {trainer.skipped_steps} of {steps} steps skipped, loss {value:.3f}")
    if folder is not None:
        batch = mx.nd.array(read_digits()[0][:BATCH]), mx.nd.arange(PLACES).reshape((1, PLACES))
        keep(folder, mxmp.gluon.report(net), comparison=mxmp.diagnose.compare(net, batch, progress=False))
    click.echo(verdict)


if __name__ == "__main__":
    main()
