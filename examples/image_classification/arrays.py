"""Images that fit into memory, in shuffled and shifted batches."""

from __future__ import annotations

from typing import Iterator, NamedTuple, Optional, Tuple

import mxnet as mx
import numpy as np

from examples.common.batches import in_order, shuffled
from examples.common.loop import Data


class Batch(NamedTuple):
    """Images (N, C, H, W), float32 from -1 to 1, and their labels (N,), both on the CPU."""

    images: mx.nd.NDArray
    labels: mx.nd.NDArray


class Images(Data):
    """Labelled images, in batches of them.

    Attributes:
        shape: Of each, (C, H, W).
        classes: Number of classes; labels count from 0.
    """

    shape: Tuple[int, int, int]
    classes: int


class Share(Images):
    """A worker's part of each batch to train on; what is held out is whole.

    Every worker reads and varies whole batches, so that their parts are those of a run without others.

    Args:
        images: Whole batches.
        rank: The number of this worker, from 0.
        size: How many there are.
    """

    def __init__(self, images: Images, rank: int, size: int) -> None:
        self._images, self._rank, self._size = images, rank, size
        self.shape, self.classes, self.count = images.shape, images.classes, images.count

    def train(self, batch_size: int, epoch: int, seed: int) -> Iterator[Batch]:
        """Yield this worker's examples of each batch of an epoch; the batch size is that of all workers."""
        count = batch_size // self._size
        part = slice(self._rank * count, (self._rank + 1) * count)
        batches = self._images.train(batch_size, epoch, seed)
        # Copies: oneDNN's convolutions fail on a view of a larger array ("Check failed: !is_view").
        return (Batch(*(each[part].copy() for each in batch)) for batch in batches)

    def test(self, batch_size: int) -> Iterator[Batch]:
        """Yield the batches held out, in order; the last one may be smaller."""
        return self._images.test(batch_size)


class Split(NamedTuple):
    """Images (N, C, H, W), uint8, and their labels (N,)."""

    images: np.ndarray
    labels: np.ndarray


class ArrayImages(Images):
    """Images in memory.

    Args:
        training: To train on.
        held_out: To test on.
        classes: Number of classes.
        shift: Pixels that an image is shifted by at most, each way; zeros come in.
        flip: Whether half of the images are mirrored.
        size: Height and width that images are scaled to; None leaves them.
    """

    def __init__(
        self, training: Split, held_out: Split, classes: int, shift: int, flip: bool, size: Optional[int] = None
    ) -> None:
        self._training, self._held_out = training, held_out
        self._shift, self._flip, self._size = shift, flip, size
        channels, height, width = training.images.shape[1:]
        self.shape = (channels, size or height, size or width)
        self.classes, self.count = classes, len(training.images)

    def train(self, batch_size: int, epoch: int, seed: int) -> Iterator[Batch]:
        """Yield the whole batches of an epoch, shuffled and varied as epoch and seed decide."""
        rng = np.random.RandomState([seed, epoch])
        for chosen in shuffled(self.count, batch_size, rng):
            images = vary(self._training.images[chosen], self._shift, self._flip, rng)
            yield self._batch(images, self._training.labels[chosen])

    def test(self, batch_size: int) -> Iterator[Batch]:
        """Yield the batches held out, in order; the last one may be smaller."""
        for part in in_order(len(self._held_out.images), batch_size):
            yield self._batch(self._held_out.images[part], self._held_out.labels[part])

    def _batch(self, images: np.ndarray, labels: np.ndarray) -> Batch:
        pixels = to_pixels(images)
        if pixels.shape[1:] != self.shape:
            pixels = mx.nd.contrib.BilinearResize2D(pixels, height=self._size, width=self._size)
        return Batch(pixels, mx.nd.array(labels))


def to_pixels(images: np.ndarray) -> mx.nd.NDArray:
    """Return images of 0 to 255 as float32 from -1 to 1."""
    return mx.nd.array(images.astype(np.float32) / 127.5 - 1.0)


def vary(images: np.ndarray, shift: int, flip: bool, rng: np.random.RandomState) -> np.ndarray:
    """Return images (N, C, H, W), each shifted by up to ``shift`` pixels each way, half of them mirrored."""
    count, _, height, width = images.shape
    padded = np.pad(images, ((0, 0), (0, 0), (shift, shift), (shift, shift)))
    corners = rng.randint(0, 2 * shift + 1, size=(count, 2))
    result = np.stack([padded[i, :, y : y + height, x : x + width] for i, (y, x) in enumerate(corners)])
    if flip:
        mirrored = rng.rand(count) < 0.5
        result[mirrored] = result[mirrored, :, :, ::-1]
    return result
