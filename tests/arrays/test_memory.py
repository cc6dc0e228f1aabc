"""Arrays on a CPU as memory."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

from mxmp.arrays.memory import address, same_bits


@pytest.mark.parametrize("dtype", ["float16", "float32", "uint8", "float64"])
def test_same_bits_sees_each_element(dtype):
    values = np.arange(7, dtype=dtype)
    for position in range(7):
        other = values.copy()
        other[position] += 1
        assert not same_bits(mx.nd.array(values, dtype=dtype), mx.nd.array(other, dtype=dtype))
    assert same_bits(mx.nd.array(values, dtype=dtype), mx.nd.array(values, dtype=dtype))


def test_same_bits_tells_zeros_apart_and_finds_nan_the_same():
    assert not same_bits(mx.nd.array([0.0]), mx.nd.array([-0.0]))
    assert same_bits(mx.nd.array([np.nan, np.inf]), mx.nd.array([np.nan, np.inf]))


def test_same_bits_sees_what_was_written_just_before():
    first, second = mx.nd.zeros((2**20,)), mx.nd.zeros((2**20,))
    for number in range(1, 4):
        first[:] = number
        assert not same_bits(first, second)
        second[:] = first
        assert same_bits(first, second)


def test_same_bits_of_views_looks_at_their_part():
    array = mx.nd.array([1, 2, 1, 3])
    assert same_bits(array[0:1], array[2:3])
    assert not same_bits(array[0:2], array[2:4])


def test_same_bits_of_an_array_in_a_layout_of_onednn():
    weight, data = mx.nd.random.uniform(shape=(64, 64, 3, 3)), mx.nd.ones((1, 64, 8, 8))
    before = weight.copy()
    mx.nd.Convolution(data, weight, num_filter=64, kernel=(3, 3), no_bias=True).wait_to_read()
    assert same_bits(weight, before)


def test_address_is_that_of_the_memory():
    array = mx.nd.arange(8)
    assert address(array) == address(array.reshape((2, 4))) == address(array[4:8]) - 16
    assert address(array.copy()) != address(array)
    assert address(mx.nd.sparse.zeros("row_sparse", (3, 2))) == 0
