"""Casts of arrays, one by one and many together; the oracle is numpy."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

from mxmp import arrays
from mxmp.arrays import amp_cast, round_into
from mxmp.dtypes import NUMPY_BFLOAT16
from tests.values import DTYPES

LOW = pytest.mark.parametrize("dtype", ["float16", "bfloat16"])

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
        mx.nd.amp_cast(laid_out(mx.nd.array(drawn(*case)), *case), dtype=NUMPY_BFLOAT16).wait_to_read()


@pytest.mark.bfloat16
@pytest.mark.parametrize("case", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_a_weight_is_rounded_and_widened_from_any_layout(case):
    values = drawn(*case)
    weight = laid_out(mx.nd.array(values), *case)
    low = amp_cast(weight, NUMPY_BFLOAT16)
    assert low.shape == values.shape
    np.testing.assert_array_equal(amp_cast(low, "float32").asnumpy(), rounded(values))
    np.testing.assert_array_equal(weight.asnumpy(), values)
    if case[0] == (3, 3):
        np.testing.assert_array_equal(amp_cast(laid_out(low, *case), "float32").asnumpy(), rounded(values))


@pytest.mark.bfloat16
def test_what_is_written_over_loses_its_layout():
    case = CONVOLUTIONS["depthwise"]
    weight = laid_out(mx.nd.array(drawn(*case)), *case)
    other = amp_cast(mx.nd.array(drawn(*case) + 1), NUMPY_BFLOAT16)
    assert amp_cast(other, "float32", out=weight) is weight
    np.testing.assert_array_equal(weight.asnumpy(), rounded(drawn(*case) + 1))


@LOW
@pytest.mark.parametrize("shape", [(20_000,), (4, 5, 10, 100)], ids=str)
def test_one_array_is_rounded_to_nearest_even_and_widened_exactly(shape, dtype):
    draw, ulp = np.random.RandomState(3), 2.0 ** (-10 if dtype == "float16" else -7)
    values = (draw.randn(20_000) * np.exp(draw.randn(20_000) * 2)).astype(np.float32)
    values[:4] = 1 + ulp / 2, 1 + 3 * ulp / 2, 1 + 5 * ulp / 2, -1 - ulp / 2  # ties
    expected = values.astype(np.float16).astype(np.float32) if dtype == "float16" else rounded(values)
    low = mx.nd.zeros(shape, dtype=DTYPES[dtype])
    round_into(mx.nd.array(values.reshape(shape)), low)
    np.testing.assert_array_equal(arrays.to_float32(low).asnumpy(), expected.reshape(shape))


@LOW
@pytest.mark.parametrize(
    "cast",
    [lambda wide, low: round_into(wide, low), lambda wide, low: amp_cast(wide, low.dtype, low)],
    ids=["round_into", "amp_cast"],
)
def test_a_cast_is_not_recorded(cast, dtype):
    wide, low = mx.nd.ones((2, 3)), mx.nd.zeros((2, 3), dtype=DTYPES[dtype])
    wide.attach_grad()
    with autograd.record():
        cast(wide, low)
    with pytest.raises(mx.MXNetError, match="computational graph"):
        low.backward()


# Many together: more arrays than one launch takes, of other ranks and sizes.

EVERY_FLOAT16 = np.arange(2**16, dtype=np.uint16).view(np.float16)
SHAPES = [(3,), (2, 3), (4, 1, 2), (1,)] * 17


def random_arrays(dtype, seed=0):
    draw = np.random.RandomState(seed)
    return [mx.nd.array(draw.randn(*shape), dtype=dtype) for shape in SHAPES]


def test_many_arrays_are_widened_as_in_numpy_and_left_alone():
    low = [mx.nd.array(EVERY_FLOAT16, dtype="float16"), *random_arrays("float16")]
    before = [array.asnumpy() for array in low]
    for wide, array, was in zip(arrays.widen(low), low, before):
        assert wide.dtype == np.float32
        np.testing.assert_array_equal(wide.asnumpy(), was.astype(np.float32))
        np.testing.assert_array_equal(array.asnumpy(), was)


def test_many_arrays_are_rounded_to_nearest_even():
    exact = np.sort(EVERY_FLOAT16[np.isfinite(EVERY_FLOAT16)].astype(np.float32))
    between = (exact[1:] + exact[:-1]) / 2
    near = np.concatenate([exact, between, np.nextafter(between, np.float32(0)), np.float32([65519, 65520, 1e9])])
    masters = [mx.nd.array(near), *random_arrays("float32")]
    weights = [mx.nd.full(near.shape, np.inf, dtype="float16"), *random_arrays("float16", seed=1)]
    before = [master.asnumpy() for master in masters]
    arrays.round_all(masters, weights)
    for master, weight, was in zip(masters, weights, before):
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(weight.asnumpy(), was.astype(np.float16))
        np.testing.assert_array_equal(master.asnumpy(), was)


@pytest.mark.parametrize("gpu", [False, True])
def test_copies_in_float32_are_of_the_kind_of_each_array(gpu, monkeypatch):
    monkeypatch.setattr(arrays, "on_gpu", lambda array: gpu)
    low = [mx.np.array([1, 2], dtype="float16"), mx.nd.array([3], dtype="float16")]
    copies = arrays.copies_in_float32(low)
    assert [type(copy) for copy in copies] == [mx.np.ndarray, mx.nd.NDArray]
    copies[1][:] = 7
    assert low[1].asnumpy().tolist() == [3] and copies[0].asnumpy().tolist() == [1, 2]
