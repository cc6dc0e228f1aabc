"""Batches of images in memory."""

from __future__ import annotations

import numpy as np
import pytest

from examples.image_classification.arrays import ArrayImages, Split, to_pixels, vary


def make(count=10, shift=0, flip=False, size=None):
    images = np.arange(count, dtype=np.uint8)[:, None, None, None] * np.ones((1, 1, 4, 4), np.uint8)
    labels = np.arange(count)
    return ArrayImages(Split(images, labels), Split(images[:5], labels[:5]), 10, shift, flip, size)


def batches(images, *args):
    return [(batch.images.asnumpy(), batch.labels.asnumpy()) for batch in images.train(*args)]


def test_an_epoch_has_each_image_once_with_its_label():
    found = batches(make(), 5, 0, 0)
    labels = np.concatenate([labels for _, labels in found])
    assert sorted(labels) == list(range(10)) != list(labels)
    for images, labels in found:
        np.testing.assert_allclose((images + 1) * 127.5, labels[:, None, None, None] * np.ones((1, 1, 4, 4)), atol=1e-4)


def test_images_are_scaled_to_the_size_that_is_asked_for():
    images = make(size=6)
    assert images.shape == (1, 6, 6)
    batch = next(images.test(5))
    assert batch.images.shape == (5, 1, 6, 6)
    np.testing.assert_allclose(batch.images[4].asnumpy(), 4 / 127.5 - 1, rtol=1e-6)


def test_pixels_go_from_minus_one_to_one():
    assert to_pixels(np.array([0, 255], np.uint8)).asnumpy().tolist() == [-1.0, 1.0]


@pytest.mark.parametrize("flip", [False, True])
def test_vary_shifts_with_zeros_and_mirrors_half(flip):
    image = np.arange(1, 17, dtype=np.uint8).reshape(1, 4, 4)
    allowed = set()
    for mirrored in (False, True)[: 1 + flip]:
        padded = np.pad(image, ((0, 0), (1, 1), (1, 1)))
        for y, x in np.ndindex(3, 3):
            cut = padded[:, y : y + 4, x : x + 4]
            allowed.add((cut[..., ::-1] if mirrored else cut).tobytes())
    found = vary(np.repeat(image[None], 400, axis=0), 1, flip, np.random.RandomState(0))
    assert {each.tobytes() for each in found} == allowed
