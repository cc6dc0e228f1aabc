"""ImageRecord files, as MXNet's ``im2rec`` writes them, through ``ImageRecordIter``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Iterator, NamedTuple, Optional

import click
import mxnet as mx

from examples.common.records import find_record_file, read_labels
from examples.image_classification.arrays import Batch, Images
from examples.image_classification.folders import HELD_OUT, SIZE


class RecordImages(Images):
    """Images in ``train.rec`` and ``test.rec`` or ``val.rec``.

    For training a random square is cut out and mirrored half of the time, else the middle one.

    Args:
        folder: Where the files are.
        size: Height and width of what the network gets.
    """

    def __init__(self, folder: Path, size: Optional[int] = None) -> None:
        size = size or SIZE
        self._training = find_record_file(folder, ("train",))
        self._held_out = find_record_file(folder, HELD_OUT)
        self.shape = (3, size, size)
        found = {path: scan(path) for path in (self._training, self._held_out)}
        self._counts = {path: each.count for path, each in found.items()}
        self.count = self._counts[self._training]
        self.classes = max(each.classes for each in found.values())

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
    """Return what a record file holds, from the heads of its records."""
    count, largest = 0, -1.0
    for label in read_labels(path):
        if len(label) != 1:
            raise click.ClickException(f"{path}: record {count} has {len(label)} labels; expected one number.")
        value = float(label[0])
        if value < 0 or value != int(value):
            raise click.ClickException(f"{path}: record {count} has the label {value:g}; expected 0, 1, 2, ...")
        count, largest = count + 1, max(largest, value)
    return Scanned(count, int(largest) + 1)
