"""Handwritten digits on photographs: scenes whose boxes are exact, made on the fly."""

from __future__ import annotations

from typing import Iterator, List, NamedTuple, Sequence, Tuple

import numpy as np
from PIL import Image

from examples.common.batches import in_order
from examples.ssd.batches import Batch, Scenes, make_batch, to_input

TRAINING, TEST = 2048, 512  # scenes in an epoch, and held out
MOST = 4  # digits in a scene
EDGES = 0.16, 0.4  # of a digit, in parts of the image's
_ATTEMPTS = 20  # to find a digit a free place
_INK = 64  # of 255, from where on a pixel belongs to the digit
_LEAST_CONTRAST = 80  # of 255, between a digit and what is behind it


class Material(NamedTuple):
    """What scenes are made of: digits (N, 8, 8), uint8, their labels (N,), and photographs (H, W, 3), uint8."""

    digits: np.ndarray
    labels: np.ndarray
    photographs: Sequence[np.ndarray]


class DigitScenes(Scenes):
    """scikit-learn's 1797 digits on its two photographs.

    Scenes for training and those held out share no digit and no part of a photograph: 1200 digits and the left
    three fifths are for training.

    Args:
        size: Height and width of a scene in pixels.
    """

    names = tuple("0123456789")
    count = TRAINING

    def __init__(self, size: int) -> None:
        self.size = size
        self._training, self._held_out = _load()

    def train(self, batch_size: int, epoch: int, seed: int) -> Iterator[Batch]:
        """Yield the batches of an epoch; no two epochs have a scene in common."""
        for number in range(self.steps(batch_size)):
            rng = np.random.RandomState([seed, epoch, number])
            yield self._batch(self._training, [rng] * batch_size)

    def test(self, batch_size: int) -> Iterator[Batch]:
        """Yield the scenes held out, the same ones every time."""
        for numbers in in_order(TEST, batch_size):
            yield self._batch(self._held_out, [np.random.RandomState([0, number]) for number in numbers])

    def _batch(self, material: Material, generators: Sequence[np.random.RandomState]) -> Batch:
        images, objects = zip(*(make_scene(material, self.size, rng) for rng in generators))
        return make_batch([to_input(image) for image in images], objects)


def make_scene(material: Material, size: int, rng: np.random.RandomState) -> Tuple[np.ndarray, np.ndarray]:
    """Return an image (size, size, 3), uint8, and its objects (m, 5): left, top, right, bottom, class.

    A box ends where the digit's ink does: right and bottom are one past the last pixel. Boxes do not overlap.
    """
    scene = _background(material.photographs, size, rng)
    objects: List[Tuple[int, ...]] = []
    for _ in range(rng.randint(1, MOST + 1)):
        number = rng.randint(len(material.digits))
        ink = _draw(material.digits[number], size, rng)
        height, width = ink.shape
        for _ in range(_ATTEMPTS):
            left, top = rng.randint(size - width + 1), rng.randint(size - height + 1)
            box = (left, top, left + width, top + height)
            if all(_apart(box, other) for other in objects):
                _paint(scene[top : top + height, left : left + width], ink, rng)
                objects.append((*box, int(material.labels[number])))
                break
    return scene, np.array(objects, dtype=np.float32)


def _load() -> Tuple[Material, Material]:
    """Return what to train with and what is held out."""
    from sklearn.datasets import load_digits, load_sample_images
    from sklearn.model_selection import train_test_split

    found = load_digits()
    digits = np.round(found.images * (255 / 16)).astype(np.uint8)
    parts = train_test_split(digits, found.target, test_size=597, stratify=found.target, random_state=0)
    photographs = [each[::2, ::2] for each in load_sample_images().images]  # there are more pixels than a scene shows
    cuts = [each.shape[1] * 3 // 5 for each in photographs]
    return (
        Material(parts[0], parts[2], [each[:, :cut] for each, cut in zip(photographs, cuts)]),
        Material(parts[1], parts[3], [each[:, cut:] for each, cut in zip(photographs, cuts)]),
    )


def _background(photographs: Sequence[np.ndarray], size: int, rng: np.random.RandomState) -> np.ndarray:
    """Return a random square of a photograph, scaled, mirrored half of the time."""
    photograph = photographs[rng.randint(len(photographs))]
    height, width = photograph.shape[:2]
    edge = rng.randint(min(height, width) // 3, min(height, width) + 1)
    top, left = rng.randint(height - edge + 1), rng.randint(width - edge + 1)
    square = photograph[top : top + edge, left : left + edge]
    pixels = np.array(Image.fromarray(square).resize((size, size), Image.BILINEAR))
    return pixels[:, ::-1].copy() if rng.rand() < 0.5 else pixels


def _draw(digit: np.ndarray, size: int, rng: np.random.RandomState) -> np.ndarray:
    """Return a digit scaled to a random size, cut to its ink: (h, w), from 0 to 255."""
    edge = int(round(size * rng.uniform(*EDGES)))
    width = int(round(edge * rng.uniform(0.8, 1.2)))
    ink = np.array(Image.fromarray(digit).resize((width, edge), Image.BICUBIC))
    rows, columns = (np.flatnonzero((ink >= _INK).any(axis=axis)) for axis in (1, 0))
    return ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def _paint(place: np.ndarray, ink: np.ndarray, rng: np.random.RandomState) -> None:
    """Paint a digit in one color over a place of the scene that it stands out from."""
    behind = place.mean(axis=(0, 1))
    color = rng.randint(0, 256, size=3)
    while abs(color.mean() - behind.mean()) < _LEAST_CONTRAST:
        color = rng.randint(0, 256, size=3)
    share = ink[..., None].astype(np.float32) / 255
    place[...] = np.round(place * (1 - share) + color * share).astype(np.uint8)


def _apart(box: Tuple[int, ...], other: Tuple[int, ...]) -> bool:
    return box[0] >= other[2] or other[0] >= box[2] or box[1] >= other[3] or other[1] >= box[3]
