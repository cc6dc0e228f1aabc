"""What detectors learn from: images with boxes, and how both are handed on."""

from __future__ import annotations

from typing import NamedTuple, Sequence

import mxnet as mx
import numpy as np

from examples.common.loop import Data

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's pixels from 0 to 1, as GluonCV takes them
ABSENT = -1.0


class Batch(NamedTuple):
    """Images and what is on them; arrays on the CPU.

    Attributes:
        images: (N, 3, S, S), float32, less the mean and by the standard deviation.
        boxes: (N, M, 4), float32: left, top, right, bottom in pixels; M is the most that an image of the batch has,
            -1 fills up the rows.
        classes: (N, M), float32: 0, 1, ..., or -1 where there is no box.
        difficult: (N, M), float32: 1 for a box that the metric is to ignore.
    """

    images: mx.nd.NDArray
    boxes: mx.nd.NDArray
    classes: mx.nd.NDArray
    difficult: mx.nd.NDArray


class Scenes(Data):
    """Images with boxes, in batches of them.

    Attributes:
        names: Of the classes, in their order.
        size: S, height and width of the images in pixels.
    """

    names: Sequence[str]
    size: int


def make_batch(images: Sequence[np.ndarray], objects: Sequence[np.ndarray]) -> Batch:
    """Return a batch.

    Args:
        images: (3, S, S) each, as `to_input` gives them.
        objects: (m, 5) or (m, 6) for each image: left, top, right, bottom, class, and whether it is difficult.
    """
    rows = np.full((len(objects), max(1, *map(len, objects)), 6), ABSENT, dtype=np.float32)
    rows[:, :, 5] = 0
    for row, each in zip(rows, objects):
        row[: len(each), : each.shape[1]] = each[:, :6]
    parts = rows[..., :4], rows[..., 4], rows[..., 5]
    return Batch(mx.nd.array(np.stack(images)), *map(mx.nd.array, parts))


def to_input(image: np.ndarray) -> np.ndarray:
    """Return an image (S, S, 3), uint8, as (3, S, S), float32, that a network takes."""
    pixels = (image.astype(np.float32) / 255 - np.float32(MEAN)) / np.float32(STD)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def to_pixels(images: mx.nd.NDArray) -> np.ndarray:
    """Return a batch's images as (N, S, S, 3), uint8, for looking at."""
    pixels = images.asnumpy().transpose(0, 2, 3, 1) * np.float32(STD) + np.float32(MEAN)
    return np.clip(np.round(pixels * 255), 0, 255).astype(np.uint8)
