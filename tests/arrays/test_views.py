"""Arrays on a CPU as memory that numpy reads."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

from mxmp.arrays import address, amp_cast, view
from mxmp.dtypes import NUMPY_BFLOAT16


def test_address_is_that_of_the_memory():
    array = mx.nd.arange(8)
    assert address(array) == address(array.reshape((2, 4))) == address(array[4:8]) - 16
    assert address(array.copy()) != address(array) and address(mx.nd.sparse.zeros("row_sparse", (3, 2))) == 0


@pytest.mark.parametrize("shape", [(3, 4), (1,), (2, 3, 4, 5)], ids=str)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32"])
def test_view_is_the_memory_of_an_array_of_a_precision_and_a_copy_of_others(dtype, shape):
    expected = (9 * np.random.RandomState(0).normal(size=shape)).astype(dtype)
    array = mx.nd.array(expected, dtype=dtype)
    found = view(array)
    assert found.dtype == np.dtype(dtype) and found.shape == shape
    np.testing.assert_array_equal(found, expected)
    array[:] = 77
    array.wait_to_read()
    is_memory = dtype in ("float16", "float32")
    np.testing.assert_array_equal(found, 77 if is_memory else expected)
    assert found.flags.writeable == (not is_memory)


def test_view_keeps_the_array_alive():
    found = view(mx.nd.full((5000,), 3.0)).reshape(50, 100)[1:]
    others = [mx.nd.full((5000,), 7.0) for _ in range(10)]  # would get the memory, had it been freed
    mx.nd.waitall()
    assert len(others) == 10 and (found == 3).all()


def test_view_of_bfloat16_has_its_bits():
    array = amp_cast(mx.nd.array([[1.0, -2.0], [np.inf, 0.0]]), NUMPY_BFLOAT16)
    assert view(array).view(np.uint16).tolist() == [[0x3F80, 0xC000], [0x7F80, 0]]


def test_view_reads_what_onednn_laid_out():
    data, weight = mx.nd.random.normal(shape=(1, 16, 8, 8)), mx.nd.random.normal(shape=(16, 16, 3, 3))
    out = mx.nd.Convolution(data, weight, no_bias=True, kernel=(3, 3), num_filter=16)
    expected = out.asnumpy()
    np.testing.assert_array_equal(view(out), expected)


def test_view_of_nothing_has_no_values():
    with mx.util.np_shape(True):
        assert view(mx.nd.zeros((0, 3))).shape == (0, 3)
