"""What both training scripts share beside data and networks."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Dict, Optional

import click
import mxnet as mx

from examples.common.loop import Learner, run
from examples.common.options import Options
from examples.common.workers import LOCAL, Workers, join
from examples.image_classification.arrays import Images, Share
from examples.image_classification.data import load

learning_rate_option = click.option(
    "--learning-rate", type=click.FloatRange(min=0, min_open=True), default=0.1, show_default=True, help="The largest."
)


kvstore_option = click.option(
    "--kvstore",
    type=click.Choice([LOCAL, "dist_sync", "horovod"]),
    default=LOCAL,
    show_default=True,
    help="Sums gradients; the last two over several processes, which examples/distributed/train.py starts.",
)


def optimizer_params(steps: int, learning_rate: float) -> Dict[str, Any]:
    """Return the parameters of SGD: a rate that warms up over a tenth of the steps and falls like a cosine to 0.

    Args:
        steps: Of the whole run; skipped ones do not count as any.
        learning_rate: The largest.
    """
    return {
        "learning_rate": learning_rate,
        "momentum": 0.9,  # and the weight decay: He et al., 2015, section 4.2
        "wd": 1e-4,
        "lr_scheduler": mx.lr_scheduler.CosineScheduler(steps, base_lr=learning_rate, warmup_steps=steps // 10),
    }


def settings_of(script: str, network: str, data: str, images: Images, learning_rate: float) -> Dict[str, Any]:
    """Return what decides on a run's course, beside the options that every script has."""
    return {
        "script": script,
        "network": network,
        "data": data,
        "image shape": list(images.shape),
        "classes": images.classes,
        "learning rate": learning_rate,
    }


def train(
    script: str,
    learner: Callable[[str, Images, Options, float, Workers], Learner],
    options: Options,
    network: str,
    data: str,
    data_dir: Optional[Path],
    image_size: Optional[int],
    learning_rate: float,
    kvstore: str,
) -> None:
    """Train a classifier, as `examples.common.loop.run` does.

    Args:
        script: Its name.
        learner: What makes the network and its trainer.
        options: The options that every script has.
        network: Name of the network.
        data: As for `load`, and so are the next two.
        data_dir: As above.
        image_size: As above.
        learning_rate: The largest learning rate.
        kvstore: As for `join`.

    Raises:
        click.ClickException: If data, network or batch cannot be used.
    """
    workers = join(kvstore, options.batch_size, len(options.ctx))
    images = Share(load(data, data_dir, image_size), workers.rank, workers.size)
    made = learner(network, images, options, learning_rate, workers)
    settings = settings_of(script, network, data, images, learning_rate)
    run(made, images, options, settings, f"{network} on {data}, {script.rpartition('_')[2].capitalize()}", workers)
