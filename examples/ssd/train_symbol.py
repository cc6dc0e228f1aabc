"""Train an SSD detector with the Symbolic API, in float32 or in mixed precision.

It runs as it is, on handwritten digits on photographs; --data and --network name others. Targets, losses and
detections are nodes of one graph, MXNet's MultiBox operators, which stay in float32. On a CPU float16 is emulated:
its mean average precision is real, its speed is not.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Dict

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run as a script it finds the repository

import click
import mxmp
import mxnet as mx
import numpy as np

import symbols
from examples.common.batches import fill
from examples.common.command import Command
from examples.common.loop import falling_rate
from examples.common.options import Options, learning_rate_option, training_options
from examples.common.parts import module_part
from examples.ssd.batches import ABSENT, Batch, Scenes
from examples.ssd.networks import SMALL_SYMBOL, require_symbol
from examples.ssd.score import Detections, Detector
from examples.ssd.settings import OPTIMIZER, data_options, train

OBJECTS = 8
"""Labels are padded to a multiple of so many objects, for a module is bound to their number."""


class SymbolLearner(Detector):
    """A module of a detector.

    Attributes:
        module: The module, of the network for training.
    """

    def __init__(self, network: str, scenes: Scenes, options: Options, learning_rate: float) -> None:
        mx.random.seed(options.seed)
        self.scenes, self._contexts = scenes, len(options.ctx)
        training, inference = (
            symbols.get_symbol(network, num_classes=len(scenes.names), train=train) for train in (True, False)
        )
        precision = {"policy": options.policy, "loss_scale": options.loss_scale}
        module = mxmp.module.Module(training, label_names=("label",), context=list(options.ctx), **precision)
        images = ("data", (options.batch_size, 3, scenes.size, scenes.size))
        module.bind([images], [("label", (options.batch_size, OBJECTS, 5))])
        module.init_params(mx.init.Xavier())
        params = falling_rate(scenes, options, learning_rate)
        # Each context divides its loss by the objects that it sees.
        module.init_optimizer(optimizer=OPTIMIZER, optimizer_params={**params, "rescale_grad": 1 / len(options.ctx)})
        self.scaler = self.module = module
        self._most = OBJECTS
        self.parts = {"net": module_part(module, inference)}

    def step(self, batch: Batch) -> Dict[str, float]:
        """Train on a batch."""
        self.module.forward_backward(self._data_batch(batch))
        self.module.update()
        outputs = (each.astype("float32", copy=False) for each in self.module.get_outputs())  # numpy has no bfloat16
        class_probs, box_losses, class_targets, _ = (each.asnumpy() for each in outputs)
        return losses(class_probs, class_targets, box_losses)

    def detect(self, batch: Batch) -> Detections:
        """Return what is found on the images of a batch."""
        self.module.forward(self._data_batch(fill(batch, self._contexts)), is_train=False)
        # (N, A, 6): class, score, corners in parts of the image
        found = self.module.get_outputs()[-1][: len(batch.images)].astype("float32", copy=False)
        return Detections(found[..., 0], found[..., 1], found[..., 2:] * self.scenes.size)

    def _data_batch(self, batch: Batch) -> mx.io.DataBatch:
        """Return a batch whose labels are padded to the most objects that an image had so far."""
        inputs = to_inputs(batch, self.scenes.size)
        images, label = inputs["data"], inputs["label"]
        self._most = max(self._most, -(-label.shape[1] // OBJECTS) * OBJECTS)
        rows = mx.nd.full((len(images), self._most - label.shape[1], label.shape[2]), ABSENT)
        label = mx.nd.concat(label, rows, dim=1) if rows.shape[1] else label
        if self.module.label_shapes[0].shape != label.shape:
            self.module.reshape([("data", images.shape)], [("label", label.shape)])
        return mx.io.DataBatch([images], [label])


def to_inputs(batch: Batch, size: int) -> Dict[str, mx.nd.NDArray]:
    """Return a batch as the network takes it: images, and labels (N, M, 5), class and corners in parts of the image."""
    corners = mx.nd.where(batch.boxes >= 0, batch.boxes / size, batch.boxes)
    return {"data": batch.images, "label": mx.nd.concat(batch.classes.expand_dims(2), corners, dim=2)}


def losses(class_probs: np.ndarray, class_targets: np.ndarray, box_losses: np.ndarray) -> Dict[str, float]:
    """Return the two losses, each by the number of matched boxes, as in the paper.

    Args:
        class_probs: (N, C + 1, A).
        class_targets: (N, A): 0 for background, -1 for boxes that take no part.
        box_losses: (N, 4A).
    """
    matched = max(1, int((class_targets > 0).sum()))
    wanted = np.take_along_axis(class_probs, class_targets.clip(0).astype(int)[:, None], axis=1)[:, 0]
    entropy = -np.log(np.maximum(wanted[class_targets >= 0], np.finfo(np.float32).tiny))
    return {"loss/class": float(entropy.sum()) / matched, "loss/box": float(box_losses.sum()) / matched}


@click.command(cls=Command)
@click.option("--network", default=SMALL_SYMBOL, show_default=True, help="An SSD of symbols/.")
@data_options
@learning_rate_option(0.004)
@training_options("ssd_symbol", batch_size=32, epochs=16)
def main(options: Options, network: str, **values: Any) -> None:
    """Train an SSD detector with the Symbolic API, in float32 or in mixed precision."""
    require_symbol(network)
    train("symbol", SymbolLearner, options, network, **values)


if __name__ == "__main__":
    main()
