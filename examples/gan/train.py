"""Train a DCGAN with Gluon, in float32 or in mixed precision.

Two networks with a trainer each have three losses and one loss scale, which falls back if either of the
trainers has to skip. It runs as it is, on scikit-learn's handwritten digits. On a CPU float16 is
emulated: its images are real, its speed is not.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Dict, Iterable, List, Sequence, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run as a script it finds the repository

import click
import mxmp
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

from examples.common.command import Command
from examples.common.loop import Learner, run, total_steps
from examples.common.options import Options, learning_rate_option, training_options
from examples.common.parts import gluon_part
from examples.gan.data import Digits
from examples.gan.figures import frechet_distance, save_grid
from examples.gan.networks import NOISE, initializer, make_discriminator, make_generator

SIZES = {"16": 16, "32": 32}
PICTURE = "samples.png"


class GanLearner(Learner):
    """A generator and a discriminator, converted, with a trainer each and one loss scale.

    Args:
        size: Height and width of an image, in pixels.
        channels: Width of the networks.
        options: The options of the script.
        learning_rate: Of Adam, for both.
    """

    def __init__(self, size: int, channels: int, options: Options, learning_rate: float) -> None:
        mx.random.seed(options.seed)
        self._ctx = list(options.ctx)
        self._loss = gluon.loss.SigmoidBinaryCrossEntropyLoss()
        self._shared = mxmp.gluon.SharedLossScale(options.loss_scale)
        self._generator, self._discriminator = make_generator(size, channels), make_discriminator(size, channels)
        self._trainers = {}
        self.parts = {}
        for net in (self._generator, self._discriminator):
            name = net.prefix.rstrip("_")
            net.initialize(initializer(), ctx=self._ctx)
            net.hybridize(static_alloc=True)
            symbol = net(mx.sym.Variable("data"))
            mxmp.gluon.convert(net, options.policy)
            params = {"learning_rate": learning_rate, "beta1": 0.5}  # the paper's beta1
            self._trainers[name] = mxmp.gluon.Trainer(net.collect_params(), "adam", params, loss_scale=self._shared)
            self.parts[name] = gluon_part(net, self._trainers[name], symbol)

    @property
    def loss_scale(self) -> float:
        """The present loss scale."""
        return self._shared.loss_scale.value

    @property
    def skipped_steps(self) -> int:
        """Steps skipped so far by the trainer that skipped most."""
        return max(trainer.skipped_steps for trainer in self._trainers.values())

    @property
    def last_step_skipped(self) -> bool:
        """Whether either trainer skipped the last step."""
        return any(trainer.last_step_skipped for trainer in self._trainers.values())

    def step(self, batch: mx.nd.NDArray) -> Dict[str, float]:
        """Train the discriminator on real and drawn images, then the generator on what the discriminator says."""
        images = gluon.utils.split_and_load(batch, self._ctx, even_split=False)
        with autograd.record():
            drawn = [self._generator(draw_noise(len(part), part.context)) for part in images]
            judged_real = [self._judge(part) for part in images]
            judged_fake = [self._judge(part.detach()) for part in drawn]
            real = [self._loss(each, mx.nd.ones_like(each)) for each in judged_real]
            fake = [self._loss(each, mx.nd.zeros_like(each)) for each in judged_fake]
            self._backward("discriminator", [real, fake])
        self._trainers["discriminator"].step(len(batch))
        with autograd.record():
            judged = [self._judge(part) for part in drawn]
            wanted = [self._loss(each, mx.nd.ones_like(each)) for each in judged]
            self._backward("generator", [wanted])
        self._trainers["generator"].step(len(batch))
        self._shared.update()
        right = [each > 0 for each in judged_real] + [each < 0 for each in judged_fake]
        return {
            "loss/real": _mean(real),
            "loss/fake": _mean(fake),
            "loss/generator": _mean(wanted),
            "accuracy": _mean(right),
        }

    def evaluate(self, batches: Iterable[mx.nd.NDArray]) -> Dict[str, float]:
        """Return the distance of as many drawn images from those of batches."""
        images = np.concatenate([batch.asnumpy() for batch in batches])
        return {"distance": frechet_distance(self.draw(len(images)), images)}

    def finish(self, folder: Path) -> Sequence[Tuple[str, Path]]:
        """Write a picture of what the generator draws now."""
        save_grid(self.draw(64), folder / PICTURE)
        return [("drawn images", folder / PICTURE)]

    def draw(self, count: int) -> np.ndarray:
        """Return images (count, 1, size, size), float32, the same for the same parameters."""
        noise = np.random.RandomState(0).randn(count, NOISE)
        return self._generator(mx.nd.array(noise, ctx=self._ctx[0])).astype("float32", copy=False).asnumpy()

    def _judge(self, images: mx.nd.NDArray) -> mx.nd.NDArray:
        return self._discriminator(images).astype("float32", copy=False)

    def _backward(self, name: str, losses: List[List[mx.nd.NDArray]]) -> None:
        with self._trainers[name].scale_loss(losses) as scaled:
            autograd.backward([each for one in scaled for each in one])


def draw_noise(count: int, ctx: mx.Context) -> mx.nd.NDArray:
    """Return noise (count, `NOISE`), float32."""
    return mx.nd.random.normal(shape=(count, NOISE), ctx=ctx)


def _mean(arrays: List[mx.nd.NDArray]) -> float:
    return float(np.concatenate([array.asnumpy().ravel() for array in arrays]).mean())


@click.command(cls=Command)
@click.option("--image-size", type=click.Choice(list(SIZES)), default="16", show_default=True, help="Pixels each way.")
@click.option("--channels", type=click.IntRange(min=4), default=32, show_default=True, help="Width of the networks.")
@learning_rate_option(0.0005)
@training_options("gan", epochs=30)
def main(options: Options, image_size: str, channels: int, learning_rate: float) -> None:
    """Train a DCGAN with Gluon, in float32 or in mixed precision."""
    size = SIZES[image_size]
    data = Digits(size)
    total_steps(data, options)  # refuses a batch that is too large before it makes networks
    learner = GanLearner(size, channels, options, learning_rate)
    settings = {"script": "gan", "image size": size, "channels": channels, "learning rate": learning_rate}
    run(learner, data, options, settings, "DCGAN on digits, Gluon")


if __name__ == "__main__":
    main()
