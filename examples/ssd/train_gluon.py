"""Train an SSD detector with Gluon, in float32 or in mixed precision.

It runs as it is, on handwritten digits on photographs; --data and --network name others. One network trains,
decodes boxes and suppresses double ones; boxes are computed in float32 whatever the policy. On a CPU float16 is
emulated: its mean average precision is real, its speed is not.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, List, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run as a script it finds the repository

import click
import mxmp
import mxnet as mx
from mxnet import autograd, gluon

from examples.common.command import Command
from examples.common.loop import falling_rate
from examples.common.options import Options, learning_rate_option, training_options
from examples.common.parts import gluon_part
from examples.ssd.batches import Batch, Scenes
from examples.ssd.networks import SMALL, get_detector, require_detector
from examples.ssd.score import Detections, Detector
from examples.ssd.settings import OPTIMIZER, data_options, train


class GluonLearner(Detector):
    """A converted detector and its trainer."""

    def __init__(self, network: str, scenes: Scenes, options: Options, learning_rate: float) -> None:
        from gluoncv.loss import SSDMultiBoxLoss
        from gluoncv.model_zoo.ssd.target import SSDTargetGenerator

        mx.random.seed(options.seed)
        self._ctx, self.scenes = list(options.ctx), scenes
        self._loss = SSDMultiBoxLoss()
        self._targets = SSDTargetGenerator(negative_mining_ratio=-1)  # the loss mines them
        net = get_detector(network, scenes.names)
        net.initialize(mx.init.Xavier(), ctx=self._ctx)
        net(mx.nd.zeros((1, 3, scenes.size, scenes.size), ctx=self._ctx[0]))  # completes the shapes
        net.hybridize(static_alloc=True)
        symbol = mx.sym.Group(net(mx.sym.Variable("data")))
        self._net = mxmp.gluon.convert(net, options.policy)
        params = falling_rate(scenes, options, learning_rate)
        self.scaler = self._trainer = mxmp.gluon.Trainer(
            net.collect_params(), OPTIMIZER, params, loss_scale=options.loss_scale
        )
        self.parts = {"net": gluon_part(net, self._trainer, symbol)}

    def step(self, batch: Batch) -> Dict[str, float]:
        """Train on a batch."""
        images, boxes, classes, _ = (gluon.utils.split_and_load(each, self._ctx, even_split=False) for each in batch)
        with autograd.record():
            class_preds, box_preds, anchors = zip(*(self._predict(part) for part in images))
            with autograd.pause():
                targets = [self._targets(*each) for each in zip(anchors, class_preds, boxes, _columns(classes))]
            class_targets, box_targets, _ = zip(*targets)
            losses = self._loss(class_preds, box_preds, class_targets, box_targets)
            with self._trainer.scale_loss(losses[0]) as scaled:
                autograd.backward(scaled)
        self._trainer.step(1)  # the loss is divided by the number of objects already
        return {"loss/class": _sum(losses[1]), "loss/box": _sum(losses[2])}

    @contextlib.contextmanager
    def inference(self) -> Iterator[None]:
        """Let the network give detections: hybridized, a Gluon network keeps the graph of its first call."""
        self._net.hybridize(static_alloc=True)
        try:
            yield
        finally:
            self._net.hybridize(static_alloc=True)

    def _predict(self, images: mx.nd.NDArray) -> List[mx.nd.NDArray]:
        """Return logits (N, A, C + 1), encoded boxes (N, A, 4) and default boxes (1, A, 4), float32."""
        return [each.astype("float32", copy=False) for each in self._net(images)]

    def detect(self, batch: Batch) -> Detections:
        """Return what is found on the images of a batch."""
        classes, scores, boxes = self._predict(batch.images.as_in_context(self._ctx[0]))
        return Detections(classes[..., 0], scores[..., 0], boxes)


def _columns(classes: Sequence[mx.nd.NDArray]) -> List[mx.nd.NDArray]:
    return [each.expand_dims(2) for each in classes]


def _sum(losses: Sequence[mx.nd.NDArray]) -> float:
    return sum(float(each.sum().asscalar()) for each in losses)


@click.command(cls=Command)
@click.option("--network", default=SMALL, show_default=True, help="An SSD of GluonCV, such as ssd_512_resnet50_v1.")
@data_options
@learning_rate_option(0.004)
@training_options("ssd_gluon", batch_size=32, epochs=16)
def main(options: Options, network: str, **values: Any) -> None:
    """Train an SSD detector with Gluon, in float32 or in mixed precision."""
    require_detector(network)
    train("gluon", GluonLearner, options, network, **values)


if __name__ == "__main__":
    main()
