"""Train an image classifier with the Symbolic API, in float32 or in mixed precision.

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

from examples.common.batches import fill
from examples.common.command import Command
from examples.common.loop import Learner, falling_rate
from examples.common.options import Options, learning_rate_option, training_options
from examples.common.parts import module_part
from examples.common.tally import Tally
from examples.common.workers import Workers
from examples.image_classification.arrays import Batch, Images
from examples.image_classification.data import data_options
from examples.image_classification.networks import get_symbol, network_option
from examples.image_classification.settings import MOMENTUM, kvstore_option, train


class ModuleLearner(Learner):
    """A module in mixed precision."""

    def __init__(self, network: str, images: Images, options: Options, learning_rate: float, workers: Workers) -> None:
        mx.random.seed(options.seed)
        self._contexts = len(options.ctx)
        symbol = get_symbol(network, images.classes, images.shape)
        module = mxmp.module.Module(
            symbol, context=list(options.ctx), policy=options.policy, loss_scale=options.loss_scale
        )
        count = options.batch_size // workers.size
        module.bind([("data", (count, *images.shape))], [("softmax_label", (count,))])
        module.init_params(mx.init.Xavier())
        params = {**falling_rate(images, options, learning_rate), **MOMENTUM}
        module.init_optimizer(workers.kvstore, "sgd", optimizer_params=params)
        self.scaler = self._module = module
        self.parts = {"net": module_part(module)}

    def step(self, batch: Batch) -> Dict[str, float]:
        """Train on a batch."""
        self._module.forward_backward(mx.io.DataBatch([batch.images], [batch.labels]))
        self._module.update()
        tally = Tally(logits=False)
        tally.add(self._module.get_outputs()[0], batch.labels)
        return tally.figures()

    def evaluate(self, batches: Iterable[Batch]) -> Dict[str, float]:
        """Return loss and accuracy on batches."""
        tally = Tally(logits=False)
        for batch in batches:
            images, labels = fill(batch, self._contexts)
            self._module.forward(mx.io.DataBatch([images], [labels]), is_train=False)
            tally.add(self._module.get_outputs()[0][: len(batch.labels)], batch.labels)
        return tally.figures()


@click.command(cls=Command)
@network_option
@data_options
@learning_rate_option(0.1)
@kvstore_option
@training_options("train_module")
def main(options: Options, **values: Any) -> None:
    """Train an image classifier with the Symbolic API, in float32 or in mixed precision."""
    train("train_module", ModuleLearner, options, **values)


if __name__ == "__main__":
    main()
