"""Train an image classifier with Gluon, in float32 or in mixed precision.

It runs as it is, on handwritten digits; --data and --network name others. On a CPU float16 is
emulated: its accuracy is real, its speed is not.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Dict, Iterable

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run as a script it finds the repository

import click
import mxmp
import mxnet as mx
from mxnet import autograd, gluon

from examples.common.command import Command
from examples.common.loop import Learner, falling_rate
from examples.common.options import Options, learning_rate_option, training_options
from examples.common.parts import gluon_part
from examples.common.tally import Tally
from examples.common.workers import Workers
from examples.image_classification.arrays import Batch, Images
from examples.image_classification.data import data_options
from examples.image_classification.networks import get_net, network_option
from examples.image_classification.settings import MOMENTUM, kvstore_option, train


class GluonLearner(Learner):
    """A converted network and its trainer."""

    def __init__(self, network: str, images: Images, options: Options, learning_rate: float, workers: Workers) -> None:
        mx.random.seed(options.seed)
        self._ctx = list(options.ctx)
        self._loss = gluon.loss.SoftmaxCrossEntropyLoss()
        net = get_net(network, images.classes, images.shape)
        net.initialize(mx.init.Xavier(), ctx=self._ctx)
        net(mx.nd.zeros((1, *images.shape), ctx=self._ctx[0]))  # completes the shapes, and with them the weights
        net.hybridize(static_alloc=True)
        symbol = net(mx.sym.Variable("data"))
        self._net = mxmp.gluon.convert(net, options.policy)
        params = {**falling_rate(images, options, learning_rate), **MOMENTUM}
        self.scaler = self._trainer = mxmp.gluon.Trainer(
            net.collect_params(), "sgd", params, kvstore=workers.kvstore, loss_scale=options.loss_scale
        )
        self._workers = workers
        self.parts = {"net": gluon_part(net, self._trainer, symbol)}

    def step(self, batch: Batch) -> Dict[str, float]:
        """Train on a batch."""
        images, labels = (gluon.utils.split_and_load(each, self._ctx, even_split=False) for each in batch)
        with autograd.record():
            outputs = [self._net(part).astype("float32", copy=False) for part in images]
            losses = [self._loss(*pair) for pair in zip(outputs, labels)]
            with self._trainer.scale_loss(losses) as scaled:
                autograd.backward(scaled)
        self._trainer.step(len(batch.images) * self._workers.size)
        tally = Tally(logits=True)
        for pair in zip(outputs, labels):
            tally.add(*pair)
        return tally.figures()

    def evaluate(self, batches: Iterable[Batch]) -> Dict[str, float]:
        """Return loss and accuracy on batches."""
        tally = Tally(logits=True)
        for batch in batches:
            tally.add(self._net(batch.images.as_in_context(self._ctx[0])), batch.labels)
        return tally.figures()


@click.command(cls=Command)
@network_option
@data_options
@learning_rate_option(0.1)
@kvstore_option
@training_options("train_gluon")
def main(options: Options, **values: Any) -> None:
    """Train an image classifier with Gluon, in float32 or in mixed precision."""
    train("train_gluon", GluonLearner, options, **values)


if __name__ == "__main__":
    main()
