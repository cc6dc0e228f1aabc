"""What both training scripts share: data by name, and the optimizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

import click

from examples.common.loop import Learner, run
from examples.common.options import Options, add_options, parsed_option
from examples.ssd.batches import Scenes
from examples.ssd.datasets import read_records, read_voc
from examples.ssd.digits import DigitScenes
from examples.ssd.networks import image_size

_READERS: Dict[str, Callable[[Path, int, Sequence[str]], Scenes]] = {"voc": read_voc, "records": read_records}

OPTIMIZER = "adam"
"""A network learns from nothing here, where Adam is quicker than the SGD of the paper, which begins with weights."""
_NAMES_HELP = "a,b,c.  [default: VOC's, or numbers]"


def read_names(text: str) -> Tuple[str, ...]:
    """Return names that have commas between and differ."""
    names = tuple(name.strip() for name in text.split(",")) if text else ()
    if len(set(names)) < len(names) or "" in names:
        raise ValueError(f"{text!r}: expected different names with commas between.")
    return names


def data_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say what to read: ``data``, ``data_dir``, ``size`` and ``class_names``."""
    options = (
        click.option("--data", type=click.Choice(["digits", *_READERS]), default="digits", show_default=True),
        click.option("--data-dir", type=click.Path(path_type=Path), help="Where the data is, for all but digits."),
        click.option("--image-size", "size", type=click.IntRange(min=64), help="Pixels.  [default: the network's]"),
        parsed_option(read_names, "--class-names", default="", show_default=False, metavar="NAMES", help=_NAMES_HELP),
    )
    return add_options(function, options)


def load(data: str, data_dir: Optional[Path], size: int, class_names: Sequence[str]) -> Scenes:
    """Return images with boxes to train and to test on.

    Args:
        data: ``digits`` (scikit-learn's, on its photographs), ``voc`` (folders) or ``records`` (ImageDetRecord files).
        data_dir: Where they are; digits need none.
        size: Pixels that images are scaled to, each way.
        class_names: Of the classes; those of the data unless given.
    """
    if data == "digits":
        if data_dir is not None or class_names:
            raise click.UsageError("--data-dir, --class-names: digits have their own; name other data with --data.")
        return DigitScenes(size)
    if data_dir is None:
        raise click.UsageError(f"--data {data} needs --data-dir, the folder with its files.")
    return _READERS[data](data_dir, size, class_names)


def train(
    api: str,
    learner: Callable[[str, Scenes, Options, float], Learner],
    options: Options,
    network: str,
    data: str,
    size: Optional[int],
    learning_rate: float,
    **source: Any,
) -> None:
    """Train a detector, as `examples.common.loop.run` does."""
    scenes = load(data, size=size or image_size(network), **source)
    settings = {
        "script": f"ssd/train_{api}",
        "network": network,
        "data": data,
        "image size": scenes.size,
        "classes": list(scenes.names),
        "learning rate": learning_rate,
    }
    made = learner(network, scenes, options, learning_rate)
    run(made, scenes, options, settings, f"{network} on {data}, {api.capitalize()}")
