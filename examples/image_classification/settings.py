"""What both training scripts share beside data and networks."""

from __future__ import annotations

from typing import Any, Callable

import click
import mxmp

from examples.common.loop import Learner, run
from examples.common.options import Options
from examples.common.workers import LOCAL, Workers
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
    learning_rate: float,
    kvstore: str,
    **source: Any,
) -> None:
    """Train a classifier, as `examples.common.loop.run` does."""
    workers = join(kvstore, options.batch_size, len(options.ctx))
    images = Share(load(data, **source), workers.rank, workers.size)
    settings = {
        "script": script,
        "network": network,
        "data": data,
        "image shape": list(images.shape),
        "classes": images.classes,
        "learning rate": learning_rate,
    }
    made = learner(network, images, options, learning_rate, workers)
    run(made, images, options, settings, f"{network} on {data}, {script.rpartition('_')[2].capitalize()}", workers)


def join(kvstore: str, batch_size: int, contexts: int) -> Workers:
    """Return the workers of a kvstore, once all are there.

    Args:
        kvstore: `LOCAL`, 'dist_sync' or 'horovod'.
        batch_size: Examples per step, of all workers together.
        contexts: Of each worker.

    Raises:
        MxmpError: If this process was started alone, or Horovod is not installed.
        click.BadParameter: If the batch cannot be shared.
    """
    workers = Workers() if kvstore == LOCAL else Workers(mxmp.distributed.KVStore(kvstore))
    require_share(batch_size, workers.size, contexts)
    return workers


def require_share(batch_size: int, workers: int, contexts: int) -> None:
    """Raise a click.BadParameter unless a batch splits evenly, with an example for each context of each worker."""
    if batch_size % workers or batch_size // workers < contexts:
        several = f" of {contexts} contexts each" if contexts > 1 else ""
        raise click.BadParameter(
            f"{batch_size} for {workers} workers{several}; give a multiple of {workers}, {workers * contexts} or more.",
            param_hint="--batch-size",
        )
