"""ImageRecord files, as MXNet's ``im2rec`` writes them, through ``ImageRecordIter``."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any, Iterator, NamedTuple, Optional

import click
import mxnet as mx

from examples.image_classification.arrays import Batch, Images
from examples.image_classification.folders import HELD_OUT, SIZE

_MAGIC = 0xCED7230A  # kMagic of dmlc-core's recordio.h
_LENGTH_BITS = 29
_HEADER = struct.Struct("<II")
_LABEL = struct.Struct("<If")  # how mx.recordio.IRHeader begins: number of labels, if it is an array, and label


class RecordImages(Images):
    """Images in ``train.rec`` and ``test.rec`` or ``val.rec``.

    For training a random square is cut out and mirrored half of the time, else the middle one.

    Args:
        folder: Where the files are.
        size: Height and width of what the network gets.

    Raises:
        click.ClickException: If a file is missing or damaged.
    """

    def __init__(self, folder: Path, size: Optional[int] = None) -> None:
        size = size or SIZE
        self._training = _find(folder, ("train",))
        self._held_out = _find(folder, HELD_OUT)
        self.shape = (3, size, size)
        found = {path: scan(path) for path in (self._training, self._held_out)}
        self._counts = {path: each.count for path, each in found.items()}
        self.classes = max(each.classes for each in found.values())

    def steps(self, batch_size: int) -> int:
        """Return the number of batches in an epoch."""
        return self._counts[self._training] // batch_size

    def train(self, batch_size: int, epoch: int, seed: int) -> Iterator[Batch]:
        """Yield the whole batches of an epoch, shuffled and varied as epoch and seed decide.

        MXNet shuffles within chunks of the file, so records should be written in random order.
        """
        number = (seed * 10_007 + epoch) % 2**31
        options = {"shuffle": True, "seed": number, "seed_aug": number, "rand_crop": True, "rand_mirror": True}
        return (batch for batch in self._read(self._training, batch_size, options) if len(batch.images) == batch_size)

    def test(self, batch_size: int) -> Iterator[Batch]:
        """Yield the batches held out, in order; the last one may be smaller."""
        return self._read(self._held_out, batch_size, {})

    def _read(self, path: Path, batch_size: int, options: Any) -> Iterator[Batch]:
        channels = {f"{name}_{channel}": 127.5 for name in ("mean", "std") for channel in "rgb"}
        reader = mx.io.ImageRecordIter(
            path_imgrec=str(path),
            data_shape=self.shape,
            batch_size=batch_size,
            resize=self.shape[1] * 8 // 7,
            round_batch=False,
            preprocess_threads=os.cpu_count() or 1,
            verbose=False,
            **channels,
            **options,
        )
        left = self._counts[path]
        for batch in reader:
            kept, left = min(batch_size, left), left - batch_size
            # MXNet writes the next batch into the same memory, and does not tell how much of the last one is filled.
            yield Batch(batch.data[0][:kept].copy(), batch.label[0][:kept].copy())


class Scanned(NamedTuple):
    """How many records a file has, and how many classes: one more than the largest label."""

    count: int
    classes: int


def scan(path: Path) -> Scanned:
    """Return what a record file holds, from the heads of its records.

    Raises:
        click.ClickException: If it is no record file, is truncated, or has labels that are no classes.
    """
    count, largest, position = 0, -1.0, 0
    size = path.stat().st_size
    with path.open("rb") as file:
        while position < size:
            head = file.read(_HEADER.size + _LABEL.size)
            if len(head) < _HEADER.size + _LABEL.size:
                raise click.ClickException(f"{path}: truncated after {count} records.")
            magic, word = _HEADER.unpack_from(head)
            if magic != _MAGIC:
                raise click.ClickException(f"{path}: no ImageRecord file, or damaged after {count} records.")
            if word >> _LENGTH_BITS in (0, 1):  # a whole record, or the first part of one
                several, label = _LABEL.unpack_from(head, _HEADER.size)
                if several:
                    raise click.ClickException(f"{path}: record {count} has {several} labels; expected one number.")
                if label < 0 or label != int(label):
                    raise click.ClickException(f"{path}: record {count} has the label {label:g}; expected 0, 1, 2, ...")
                count, largest = count + 1, max(largest, label)
            length = word & ((1 << _LENGTH_BITS) - 1)
            position += _HEADER.size + (length + 3) // 4 * 4
            file.seek(position)
    if not count or position > size:
        raise click.ClickException(f"{path}: {'empty' if not count else f'truncated in record {count}'}.")
    return Scanned(count, int(largest) + 1)


def _find(folder: Path, names: Any) -> Path:
    for name in names:
        path = folder / f"{name}.rec"
        if path.is_file():
            return path
    raise click.ClickException(
        f"{folder}: there is no {' or '.join(f'{name}.rec' for name in names)} in it. MXNet's tools/im2rec.py writes "
        "such files from images."
    )
