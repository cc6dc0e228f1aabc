"""Digits on photographs."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits, load_sample_images

from examples.ssd import digits
from examples.ssd.batches import to_pixels
from examples.ssd.digits import DigitScenes, make_scene

SIZE = 64


@pytest.fixture(scope="module")
def scenes():
    return DigitScenes(SIZE)


def flat(batches):
    return [np.concatenate([part.asnumpy().ravel() for part in batch]) for batch in batches]


@pytest.mark.parametrize("seed", range(20))
def test_boxes_end_where_the_digits_do(scenes, seed):
    image, objects = make_scene(scenes._training, SIZE, np.random.RandomState(seed))
    photograph = digits._background(scenes._training.photographs, SIZE, np.random.RandomState(seed))
    changed = (image != photograph).any(axis=2)
    inside = np.zeros_like(changed)
    for left, top, right, bottom in objects[:, :4].astype(int):
        box = changed[top:bottom, left:right]
        assert all(edge.any() for edge in (box[0], box[-1], box[:, 0], box[:, -1]))
        assert not inside[top:bottom, left:right].any()  # boxes do not overlap
        inside[top:bottom, left:right] = True
    assert not changed[~inside].any()


def test_a_scene_has_one_to_four_digits_of_all_classes(scenes):
    batch = next(scenes.train(64, 0, 0))
    counts = (batch.classes.asnumpy() >= 0).sum(axis=1)
    assert (counts.min(), counts.max()) == (1, digits.MOST)
    assert set(np.unique(batch.classes.asnumpy())) == {-1, *range(10)}
    assert batch.boxes.asnumpy().max() <= SIZE
    assert not batch.difficult.asnumpy().any()


def test_images_come_back_as_they_were_drawn(scenes):
    batch = next(scenes.test(2))
    expected = [make_scene(scenes._held_out, SIZE, np.random.RandomState([0, number]))[0] for number in range(2)]
    np.testing.assert_array_equal(to_pixels(batch.images), expected)


def test_training_depends_on_seed_and_epoch_alone(scenes):
    first, again, later, other = (
        flat([next(scenes.train(4, epoch, seed))])[0] for epoch, seed in ((0, 0), (0, 0), (1, 0), (0, 1))
    )
    np.testing.assert_array_equal(first, again)
    assert not any(np.array_equal(first, each) for each in (later, other))


def test_scenes_held_out_do_not_depend_on_the_batch(scenes):
    one, two = next(scenes.test(4)), list(zip(range(2), scenes.test(2)))
    np.testing.assert_array_equal(one.images.asnumpy(), np.concatenate([batch.images.asnumpy() for _, batch in two]))


def test_digits_and_photographs_held_out_are_not_trained_on(scenes):
    training, held_out = scenes._training, scenes._held_out
    parts = np.concatenate([training.digits, held_out.digits]).reshape(-1, 64)
    whole = np.round(load_digits().images * (255 / 16)).astype(np.uint8).reshape(-1, 64)
    np.testing.assert_array_equal(parts[np.lexsort(parts.T)], whole[np.lexsort(whole.T)])
    for photograph, left, right in zip(load_sample_images().images, training.photographs, held_out.photographs):
        np.testing.assert_array_equal(np.hstack([left, right]), photograph[::2, ::2])
    for material in (training, held_out):
        assert set(material.labels) == set(range(10))
