"""A worker's part of the batches."""

from __future__ import annotations

import numpy as np
import pytest

from examples.image_classification.arrays import Share
from examples.image_classification.data import load


@pytest.fixture(scope="module")
def images():
    return load("digits")


def test_the_parts_of_all_workers_make_up_each_batch(images):
    whole = images.train(300, epoch=1, seed=2)
    parts = zip(*(Share(images, rank, 3).train(300, epoch=1, seed=2) for rank in range(3)))
    for batch, shares in zip(whole, parts):
        for number in range(2):
            joined = np.concatenate([share[number].asnumpy() for share in shares])
            np.testing.assert_array_equal(joined, batch[number].asnumpy())
            assert [len(share[number]) for share in shares] == [100] * 3


def test_a_share_has_as_many_steps_and_is_tested_on_all(images):
    share = Share(images, 1, 2)
    assert (share.steps(300), share.shape, share.classes) == (4, (1, 16, 16), 10)
    assert sum(len(batch.images) for batch in share.test(100)) == 597
