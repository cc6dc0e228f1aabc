"""What both training scripts share beside data and networks."""

from __future__ import annotations

from pathlib import Path
from typing import Callable, Optional

import click

from examples.common.loop import Learner, run
from examples.common.options import Options
from examples.common.workers import LOCAL, Workers, join
from examples.image_classification.arrays import Images, Share
from examples.image_classification.data import load

MOMENTUM = {"momentum": 0.9, "wd": 1e-4}
"""Of SGD, with its weight decay: He et al., 2015, section 4.2."""

kvstore_option = click.option(
    "--kvstore",
    type=click.Choice([LOCAL, "dist_sync", "horovod"]),
    default=LOCAL,
    show_default=True,
    help="Sums gradients; the last two over several processes, which examples/distributed/train.py starts.",
)


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
    settings = {
        "script": script,
        "network": network,
        "data": data,
        "image shape": list(images.shape),
        "classes": images.classes,
        "learning rate": learning_rate,
    }
    run(made, images, options, settings, f"{network} on {data}, {script.rpartition('_')[2].capitalize()}", workers)
