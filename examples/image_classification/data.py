"""What to train on, by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Dict, Optional, Tuple

import click
import numpy as np

from examples.common.options import add_options
from examples.image_classification.arrays import ArrayImages, Images, Split
from examples.image_classification.folders import FolderImages
from examples.image_classification.readers import read_cifar10_split, read_idx_split
from examples.image_classification.records import RecordImages

FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
"""Where Debian's package dataset-fashion-mnist puts its files."""


def data_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say what to read: ``data``, ``data_dir`` and ``image_size``."""
    options = (
        click.option("--data", type=click.Choice(list(_READERS)), default="digits", show_default=True),
        click.option("--data-dir", type=click.Path(path_type=Path), help="Where the data is, for all but digits."),
        click.option("--image-size", type=click.IntRange(min=4), help="Scale images to so many pixels each way."),
    )
    return add_options(function, options)


def load(data: str, data_dir: Optional[Path] = None, image_size: Optional[int] = None) -> Images:
    """Return images to train and to test on.

    Args:
        data: ``digits`` (of scikit-learn), ``fashion-mnist``, ``mnist``, ``cifar10``, ``records``
            (ImageRecord files) or ``folder`` (of images).
        data_dir: Where they are; digits need none, and Fashion-MNIST has a usual place.
        image_size: Pixels that images are scaled to; as they are unless given, or 224.
    """
    if data == "digits" and data_dir is not None:
        raise click.UsageError("--data-dir: the digits come with scikit-learn; name other data with --data.")
    if data == "fashion-mnist":
        data_dir = data_dir or FASHION_MNIST
    if data != "digits" and data_dir is None:
        raise click.UsageError(f"--data {data} needs --data-dir, the folder with its files.")
    return _READERS[data](data_dir, image_size)


def _digits(folder: Optional[Path], size: Optional[int]) -> Images:
    """Return the digits in a fixed split, 1200 to train and 597 to test, every pixel doubled."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    images = np.round(digits.images * (255 / 16)).astype(np.uint8)[:, None].repeat(2, axis=2).repeat(2, axis=3)
    parts = train_test_split(images, digits.target, test_size=597, stratify=digits.target, random_state=0)
    return ArrayImages(Split(parts[0], parts[2]), Split(parts[1], parts[3]), 10, shift=1, flip=False, size=size)


def _idx(hint: str, flip: bool) -> Callable[[Path, Optional[int]], Images]:
    def read(folder: Path, size: Optional[int]) -> Images:
        training, held_out = (read_idx_split(folder, kind, hint) for kind in ("train", "t10k"))
        return ArrayImages(training, held_out, 10, shift=2, flip=flip, size=size)

    return read


def _cifar10(folder: Path, size: Optional[int]) -> Images:
    hint = "Get cifar-10-binary.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html and unpack it there."
    names: Tuple[str, ...] = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
    training, held_out = (read_cifar10_split(folder, each, hint) for each in (names, ("test_batch.bin",)))
    return ArrayImages(training, held_out, 10, shift=4, flip=True, size=size)


_READERS: Dict[str, Callable[[Any, Optional[int]], Images]] = {
    "digits": _digits,
    "fashion-mnist": _idx(
        "Install Debian's package dataset-fashion-mnist, or give the folder of the four files of "
        "https://github.com/zalandoresearch/fashion-mnist with --data-dir.",
        flip=True,
    ),
    "mnist": _idx("Get the four files of MNIST, train-images-idx3-ubyte.gz and so on.", flip=False),
    "cifar10": _cifar10,
    "records": RecordImages,
    "folder": FolderImages,
}
