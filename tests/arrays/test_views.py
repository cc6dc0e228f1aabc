from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

from mxmp.arrays import amp_cast, view
from mxmp.dtypes import NUMPY_BFLOAT16


@pytest.mark.parametrize("shape", [(3, 4), (1,), (2, 3, 4, 5)], ids=str)
def test_view_has_the_values_and_the_shape(shape):
    expected = np.random.RandomState(0).normal(size=shape).astype(np.float32)
    found = view(mx.nd.array(expected))
    assert found.dtype == np.float32 and found.shape == shape
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_view_is_the_arrays_memory_and_cannot_be_written(dtype):
    array = mx.nd.zeros((2, 3), dtype=dtype)
    found = view(array)
    array[:] = 1
    array.wait_to_read()
    assert found.dtype == np.dtype(dtype) and (found == 1).all()
    with pytest.raises(ValueError, match="read-only"):
        found[0, 0] = 2


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


@pytest.mark.parametrize("dtype", ["float64", "int32"])
def test_view_of_another_dtype_is_a_copy(dtype):
    array = mx.nd.ones((2, 3), dtype=dtype)
    found = view(array)
    array[:] = 2
    array.wait_to_read()
    assert found.dtype == np.dtype(dtype) and (found == 1).all()


def test_view_of_nothing_has_no_values():
    with mx.util.np_shape(True):
        array = mx.nd.zeros((0, 3))
        assert view(array).shape == (0, 3)
