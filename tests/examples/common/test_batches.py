"""Batches that are smaller than the others."""

from __future__ import annotations

from typing import NamedTuple

import mxnet as mx
import numpy as np

from examples.common.batches import fill


class Pair(NamedTuple):
    left: mx.nd.NDArray
    right: mx.nd.NDArray


def test_the_last_example_is_repeated():
    filled = fill(Pair(mx.nd.array([[1, 2], [3, 4]]), mx.nd.array([5, 6])), 4)
    assert isinstance(filled, Pair)
    np.testing.assert_array_equal(filled.left.asnumpy(), [[1, 2], [3, 4], [3, 4], [3, 4]])
    np.testing.assert_array_equal(filled.right.asnumpy(), [5, 6, 6, 6])


def test_a_batch_that_is_large_enough_stays_as_it_is():
    batch = Pair(mx.nd.ones((2, 1)), mx.nd.ones(2))
    assert fill(batch, 2) is batch
