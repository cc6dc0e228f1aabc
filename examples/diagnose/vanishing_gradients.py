"""Gradients of an SSD detector that vanish without a loss scale: the ledger says which, and what scale keeps them.

The detector's loss is the mean over all default boxes, most of which are background, and one task of several: its
gradients are small. In float16 some of them become 0, and no error says so. A `Ledger` estimates how many, and advises
a loss scale; with that one they are there.

References:
    Liu et al., "SSD: Single Shot MultiBox Detector", 2016, https://arxiv.org/abs/1512.02325.
    Micikevicius et al., "Mixed Precision Training", 2017, https://arxiv.org/abs/1710.03740, section 3.2: the same in an
    SSD of theirs, which diverges without a loss scale.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, List, Optional

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run as a script it finds the repository

import click
import mxmp
import mxnet as mx
from mxmp.diagnose import Ledger
from mxnet import autograd, gluon

import symbols
from examples.common.command import Command
from examples.common.initializers import name_initializers
from examples.diagnose.run_folder import keep, logged, run_option
from examples.ssd.digits import DigitScenes
from examples.ssd.train_symbol import to_inputs

SIZE, BATCH = 64, 8
WEIGHT = 1 / 16  # of this task among others

classes_loss, boxes_loss = gluon.loss.SoftmaxCrossEntropyLoss(), gluon.loss.HuberLoss()


def make_net() -> gluon.HybridBlock:
    """Return a small SSD with the same weights each time, converted to O1.

    It gives class scores (N, C + 1, A), encoded boxes (N, 4A), and default boxes (1, A, 4).
    """
    mx.random.seed(0)
    inside = symbols.get_symbol("ssd96_resnet8", num_classes=10).get_internals()
    heads = mx.sym.Group([inside[f"{name}_output"] for name in ("cls_preds", "loc_preds", "anchors")])
    net = gluon.SymbolBlock(heads, mx.sym.var("data", dtype="float32"))
    name_initializers(net.collect_params())
    net.initialize(mx.init.Xavier())
    return mxmp.gluon.convert(net, "O1")


def detection_loss(net: gluon.HybridBlock, images: mx.nd.NDArray, labels: mx.nd.NDArray) -> mx.nd.NDArray:
    """Return the loss of images (N, 3, S, S), the mean over all default boxes."""
    scores, boxes, anchors = net(images)
    with autograd.pause():
        wanted_boxes, matched, wanted = mx.nd.contrib.MultiBoxTarget(
            anchors, labels, scores, negative_mining_ratio=3, negative_mining_thresh=0.5
        )
        taken = (wanted >= 0).expand_dims(2)
    of_classes = classes_loss(scores.transpose((0, 2, 1)), mx.nd.maximum(wanted, 0), taken)
    return (of_classes + boxes_loss(boxes * matched, wanted_boxes * matched)).mean() * WEIGHT


def train(net: gluon.HybridBlock, loss_scale: float, steps: int, folder: Optional[Path] = None) -> Ledger:
    """Train on scenes of digits, and return what became of the gradients."""
    trainer = mxmp.gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.004}, loss_scale=loss_scale)
    ledger = Ledger(every=3).attach(trainer)
    losses: List[Any] = []
    with logged(folder, trainer, ledger) as log:
        for _, batch in zip(range(steps), DigitScenes(SIZE).train(BATCH, epoch=0, seed=0)):
            inputs = to_inputs(batch, SIZE)
            with autograd.record():
                losses.append(detection_loss(net, inputs["data"], inputs["label"]))
                with trainer.scale_loss(losses[-1]) as scaled:
                    scaled.backward()
            trainer.step(1)
            if log is not None:
                log.log(loss=losses[-1])
    first, last = (each.asscalar() for each in (losses[0], losses[-1]))
    subnormal = ledger.shares()["subnormal_share"]
    click.echo(f"loss scale {loss_scale:g}: loss {first:.5f} to {last:.5f}, {subnormal:.0%} of the gradients subnormal")
    return ledger


@click.command(cls=Command)
@click.option("--steps", type=click.IntRange(min=1), default=12, show_default=True)
@run_option
def main(steps: int, folder: Optional[Path]) -> None:
    """Train an SSD in float16 without a loss scale, and with the one that the ledger advises."""
    net = make_net()
    ledger = train(net, 1.0, steps, folder)
    advice = ledger.advice()
    if advice.scale is not None:
        click.echo(train(make_net(), advice.scale, steps).advice())
    keep(folder, mxmp.gluon.report(net), ledger)
    click.echo(advice)


if __name__ == "__main__":
    main()
