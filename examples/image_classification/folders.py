"""Images in folders, one for each class."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Iterator, List, NamedTuple, Optional, Tuple

import click
import mxnet as mx
import numpy as np
from PIL import Image

from examples.common.batches import in_order, shuffled
from examples.image_classification.arrays import Batch, Images, to_pixels

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
HELD_OUT = ("test", "val")
SIZE = 224  # pixels, unless another size is asked for
THREADS = 4
_MARGIN = 8 / 7  # 256 pixels for a crop of 224, as in Krizhevsky et al., 2012


class File(NamedTuple):
    """An image file and its label."""

    path: Path
    label: int


class FolderImages(Images):
    """Images in ``train/CLASS`` and ``test/CLASS``, or in ``CLASS`` alone; then every fifth is held out.

    For training a random square is cut out and mirrored half of the time, else the middle one.
    """

    def __init__(self, folder: Path, size: Optional[int] = None) -> None:
        size = size or SIZE
        self.shape = (3, size, size)
        self._training, self._held_out, self.classes = _list_files(folder)
        self.count = len(self._training)

    def train(self, batch_size: int, epoch: int, seed: int) -> Iterator[Batch]:
        """Yield the whole batches of an epoch, shuffled and varied as epoch and seed decide."""
        rng = np.random.RandomState([seed, epoch])
        for chosen in shuffled(self.count, batch_size, rng):
            yield self._batch([self._training[i] for i in chosen], rng.rand(batch_size, 3))

    def test(self, batch_size: int) -> Iterator[Batch]:
        """Yield the batches held out, in order; the last one may be smaller."""
        for chosen in in_order(len(self._held_out), batch_size):
            yield self._batch([self._held_out[i] for i in chosen], np.full((len(chosen), 3), 0.5))

    def _batch(self, files: List[File], choices: np.ndarray) -> Batch:
        with ThreadPoolExecutor(THREADS) as pool:
            images = pool.map(lambda file, choice: read(file.path, self.shape[1], choice), files, choices)
            pixels = np.stack(list(images))
        return Batch(to_pixels(pixels), mx.nd.array([file.label for file in files]))


def read(path: Path, size: int, choice: np.ndarray) -> np.ndarray:
    """Return a square of an image, (3, size, size), uint8.

    Args:
        path: The file.
        size: Pixels.
        choice: Three numbers from 0 to 1: how far down and how far right the square is, and whether it is
            mirrored: below 0.5.
    """
    try:
        with Image.open(path) as image:
            image = image.convert("RGB")
    except (OSError, SyntaxError, ValueError) as e:
        raise click.ClickException(f"{path}: no image that can be read: {e}") from e
    factor = _MARGIN * size / min(image.size)
    width, height = (max(size, round(side * factor)) for side in image.size)
    pixels = np.asarray(image.resize((width, height), Image.BILINEAR))
    top, left = (int(part * (side - size + 1)) for part, side in zip(choice, (height, width)))
    square = pixels[top : top + size, left : left + size].transpose(2, 0, 1)
    return square[:, :, ::-1] if choice[2] < 0.5 else square


def _list_files(folder: Path) -> Tuple[List[File], List[File], int]:
    """Return the files to train on, those to test on, and the number of classes."""
    hint = "Expected folders train/CLASS and test/CLASS, or CLASS alone, with images in them."
    if not folder.is_dir():
        raise click.ClickException(f"{folder}: there is no such folder. {hint}")
    held_out = next((folder / name for name in HELD_OUT if (folder / name).is_dir()), None)
    if held_out is None or not (folder / "train").is_dir():
        classes = _classes(folder, hint)
        files = _files(folder, classes)
        return [f for i, f in enumerate(files) if i % 5 != 4], files[4::5], len(classes)
    classes = _classes(folder / "train", hint)
    if _classes(held_out, hint) != classes:
        raise click.ClickException(f"{held_out}: its classes are not those of {folder / 'train'}.")
    return _files(folder / "train", classes), _files(held_out, classes), len(classes)


def _classes(folder: Path, hint: str) -> List[str]:
    names = sorted(path.name for path in folder.iterdir() if path.is_dir())
    if not names:
        raise click.ClickException(f"{folder}: there are no folders in it. {hint}")
    return names


def _files(folder: Path, classes: List[str]) -> List[File]:
    """Return the image files of all classes."""
    result: List[File] = []
    for label, name in enumerate(classes):
        found = sorted(path for path in (folder / name).iterdir() if path.suffix.lower() in ENDINGS)
        if not found:
            raise click.ClickException(f"{folder / name}: there is no image in it ({', '.join(ENDINGS)}).")
        result += [File(path, label) for path in found]
    return result
