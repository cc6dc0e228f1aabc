"""Which examples make up a batch."""

from __future__ import annotations

from typing import NamedTuple

import mxnet as mx
import numpy as np

from examples.common.batches import fill, in_order, shuffled


class Pair(NamedTuple):
    left: mx.nd.NDArray
    right: mx.nd.NDArray


def test_an_epoch_has_each_example_once_but_for_a_last_batch_that_is_not_whole():
    batches = list(shuffled(10, 3, np.random.RandomState(0)))
    assert [len(batch) for batch in batches] == [3, 3, 3]
    assert len(set(np.concatenate(batches))) == 9


def test_the_order_is_the_generators_and_drawn_at_once():
    rng = np.random.RandomState(0)
    batches = shuffled(10, 5, rng)
    rng.rand()
    np.testing.assert_array_equal(np.concatenate(list(batches)), np.random.RandomState(0).permutation(10))


def test_examples_held_out_come_in_order_and_to_the_last():
    assert [list(batch) for batch in in_order(5, 3)] == [[0, 1, 2], [3, 4]]


def test_the_last_example_is_repeated():
    filled = fill(Pair(mx.nd.array([[1, 2], [3, 4]]), mx.nd.array([5, 6])), 4)
    assert isinstance(filled, Pair)
    np.testing.assert_array_equal(filled.left.asnumpy(), [[1, 2], [3, 4], [3, 4], [3, 4]])
    np.testing.assert_array_equal(filled.right.asnumpy(), [5, 6, 6, 6])


def test_a_batch_that_is_large_enough_stays_as_it_is():
    batch = Pair(mx.nd.ones((2, 1)), mx.nd.ones(2))
    assert fill(batch, 2) is batch
