"""Casts of arrays, one by one and many together, and arrays on a CPU as memory; the oracle is numpy."""

import mxnet as mx
import numpy as np
import pytest

from mxmp import arrays
from mxmp.arrays import amp_cast, round_into, view, wait_until_readable
from tests.values import BFLOAT16, DTYPES

# Kernel sizes and groups of convolutions of 32 channels.
CONVOLUTIONS = {
    "plain": ((3, 3), 1),
    "grouped": ((3, 3), 4),
    "depthwise": ((3, 3), 32),
    "pointwise": ((1, 1), 1),
    "sequences": ((3,), 4),
    "volumes": ((3, 3, 3), 4),
}


def drawn(kernel, groups):
    return np.random.RandomState(0).randn(32, 32 // groups, *kernel).astype("float32")


def laid_out(weight, kernel, groups):
    """Return a weight after inference, which leaves it in oneDNN's layout."""
    x = mx.nd.ones((2, 32, *(8 for _ in kernel)))
    x = x if weight.dtype == np.float32 else amp_cast(x, weight.dtype)
    for _ in range(2):
        mx.nd.Convolution(x, weight, num_filter=32, kernel=kernel, num_group=groups, no_bias=True).wait_to_read()
    return weight


def rounded(values):
    """Return values rounded to nearest even to bfloat16, as float32."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


@pytest.mark.bfloat16
def test_mxnet_cannot_cast_the_layout_of_a_depthwise_weight():
    """The defect that `amp_cast` is for; when this fails, MXNet is mended and the view can go."""
    case = CONVOLUTIONS["depthwise"]
    with pytest.raises(mx.MXNetError, match="reorder primitive"):
        mx.nd.amp_cast(laid_out(mx.nd.array(drawn(*case)), *case), dtype=BFLOAT16).wait_to_read()


@pytest.mark.bfloat16
@pytest.mark.parametrize("case", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_a_weight_is_rounded_and_widened_from_any_layout(case):
    values = drawn(*case)
    weight = laid_out(mx.nd.array(values), *case)
    low = amp_cast(weight, BFLOAT16)
    assert low.shape == values.shape
    np.testing.assert_array_equal(amp_cast(low, "float32").asnumpy(), rounded(values))
    np.testing.assert_array_equal(weight.asnumpy(), values)
    if case[0] == (3, 3):
        np.testing.assert_array_equal(amp_cast(laid_out(low, *case), "float32").asnumpy(), rounded(values))
    assert amp_cast(low, "float32", out=weight) is weight  # which loses its layout
    np.testing.assert_array_equal(weight.asnumpy(), rounded(values))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(20_000,), (4, 5, 10, 100)], ids=str)
def test_one_array_is_rounded_to_nearest_even_and_widened_exactly(shape, dtype):
    draw, ulp = np.random.RandomState(3), 2.0 ** (-10 if dtype == "float16" else -7)
    values = (draw.randn(20_000) * np.exp(draw.randn(20_000) * 2)).astype(np.float32)
    values[:4] = 1 + ulp / 2, 1 + 3 * ulp / 2, 1 + 5 * ulp / 2, -1 - ulp / 2  # ties
    expected = values.astype(np.float16).astype(np.float32) if dtype == "float16" else rounded(values)
    low = mx.nd.zeros(shape, dtype=DTYPES[dtype])
    round_into(mx.nd.array(values.reshape(shape)), low)
    np.testing.assert_array_equal(arrays.to_float32(low).asnumpy(), expected.reshape(shape))


# Many together: more arrays than one launch takes, of other ranks and sizes.


def random_arrays(dtype, seed=0):
    draw = np.random.RandomState(seed)
    return [mx.nd.array(draw.randn(*shape), dtype=dtype) for shape in [(3,), (2, 3), (4, 1, 2), (1,)] * 17]


def test_many_arrays_are_widened_and_rounded_as_in_numpy(device):
    every = np.arange(2**16, dtype=np.uint16).view(np.float16)
    low = [mx.nd.array(every, dtype="float16"), *random_arrays("float16")]
    for wide, array in zip(arrays.widen(low), low):
        assert wide.dtype == np.float32
        np.testing.assert_array_equal(wide.asnumpy(), array.asnumpy().astype(np.float32))
    np.testing.assert_array_equal(low[0].asnumpy(), every)

    exact = np.sort(every[np.isfinite(every)].astype(np.float32))
    between = (exact[1:] + exact[:-1]) / 2
    near = np.concatenate([exact, between, np.nextafter(between, np.float32(0)), np.float32([65519, 65520, 1e9])])
    masters = [mx.nd.array(near), *random_arrays("float32")]
    weights = [mx.nd.full(near.shape, np.inf, dtype="float16"), *random_arrays("float16", seed=1)]
    arrays.round_all(masters, weights)
    for master, weight in zip(masters, weights):
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(weight.asnumpy(), master.asnumpy().astype(np.float16))
    np.testing.assert_array_equal(masters[0].asnumpy(), near)


# As memory.


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32"])
def test_view_is_the_memory_of_an_array_of_a_precision_and_a_copy_of_others(dtype):
    expected = (9 * np.random.RandomState(0).normal(size=(2, 3, 4))).astype(dtype)
    array = mx.nd.array(expected, dtype=dtype)
    found = view(array)
    assert found.dtype == np.dtype(dtype) and found.flags.writeable == (dtype not in DTYPES)
    np.testing.assert_array_equal(found, expected)
    array[:] = 77
    array.wait_to_read()
    np.testing.assert_array_equal(found, 77 if dtype in DTYPES else expected)


def test_view_keeps_the_array_alive():
    found = view(mx.nd.full((5000,), 3.0)).reshape(50, 100)[1:]
    others = [mx.nd.full((5000,), 7.0) for _ in range(10)]  # would get the memory, had it been freed
    mx.nd.waitall()
    assert len(others) == 10 and (found == 3).all()


def test_a_weight_has_settled_though_a_call_moves_it_into_a_layout_of_onednn():
    data, values = mx.nd.ones((1, 1024, 2, 2)), mx.nd.random.normal(shape=(1024, 1024, 1, 1)).asnumpy()
    for _ in range(20):  # without a wait some were half moved
        weight = mx.nd.array(values)
        mx.nd.Convolution(data, weight, no_bias=True, kernel=(1, 1), num_filter=1024)
        found = view(wait_until_readable(weight))
        mx.nd.waitall()
        np.testing.assert_array_equal(found, values)


def test_view_of_bfloat16_of_a_layout_of_onednn_and_of_nothing():
    array = amp_cast(mx.nd.array([[1.0, -2.0], [np.inf, 0.0]]), BFLOAT16)
    assert view(array).view(np.uint16).tolist() == [[0x3F80, 0xC000], [0x7F80, 0]]
    data, weight = mx.nd.random.normal(shape=(1, 16, 8, 8)), mx.nd.random.normal(shape=(16, 16, 3, 3))
    out = mx.nd.Convolution(data, weight, no_bias=True, kernel=(3, 3), num_filter=16)
    np.testing.assert_array_equal(view(out), out.asnumpy())
    with mx.util.np_shape(True):
        assert view(mx.nd.zeros((0, 3))).shape == (0, 3)
