"""Many arrays cast and compared together; the oracle is numpy."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

from mxmp import arrays as casts_together
from tests.values import DTYPES

EVERY_FLOAT16 = np.arange(2**16, dtype=np.uint16).view(np.float16)
FINITE = EVERY_FLOAT16[np.isfinite(EVERY_FLOAT16)]
# More than one launch takes, of other ranks and sizes.
SHAPES = [(3,), (2, 3), (4, 1, 2), (1,)] * 17


def arrays(dtype, seed=0):
    draw = np.random.RandomState(seed)
    return [mx.nd.array(draw.randn(*shape), dtype=dtype) for shape in SHAPES]


def numpy(found):
    return [array.asnumpy() for array in found]


def test_every_float16_widens_as_in_numpy():
    (wide,) = casts_together.widen([mx.nd.array(EVERY_FLOAT16, dtype="float16")])
    assert wide.dtype == np.float32
    np.testing.assert_array_equal(wide.asnumpy(), EVERY_FLOAT16.astype(np.float32))


def test_widening_many_arrays_keeps_their_shapes_and_leaves_them_alone():
    low = arrays("float16")
    before = numpy(low)
    for wide, array, was in zip(casts_together.widen(low), low, before):
        np.testing.assert_array_equal(wide.asnumpy(), was.astype(np.float32))
        np.testing.assert_array_equal(array.asnumpy(), was)


def test_rounding_is_to_nearest_even():
    exact = np.sort(FINITE.astype(np.float32))
    between = (exact[1:] + exact[:-1]) / 2
    near = np.concatenate([exact, between, np.nextafter(between, np.float32(0)), np.float32([65519, 65520, 1e9])])
    weight = mx.nd.array(np.full(near.shape, np.inf), dtype="float16")
    master = mx.nd.array(near)
    casts_together.round_all([master], [weight])
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(weight.asnumpy(), near.astype(np.float16))
    np.testing.assert_array_equal(master.asnumpy(), near)


def test_rounding_many_arrays():
    masters, weights = arrays("float32"), arrays("float16", seed=1)
    casts_together.round_all(masters, weights)
    for master, weight in zip(masters, weights):
        np.testing.assert_array_equal(weight.asnumpy(), master.asnumpy().astype(np.float16))


@pytest.mark.parametrize("gpu", [False, True])
def test_copies_in_float32_are_of_the_kind_of_each_array(gpu, monkeypatch):
    monkeypatch.setattr(casts_together, "on_gpu", lambda array: gpu)
    low = [mx.np.array([1, 2], dtype="float16"), mx.nd.array([3], dtype="float16")]
    copies = casts_together.copies_in_float32(low)
    assert [type(copy) for copy in copies] == [mx.np.ndarray, mx.nd.NDArray]
    copies[1][:] = 7
    assert low[1].asnumpy().tolist() == [3] and copies[0].asnumpy().tolist() == [1, 2]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(20_000,), (4, 5, 10, 100)], ids=str)
def test_one_array_is_rounded_to_nearest_even_and_widened_exactly(shape, dtype):
    draw, ulp = np.random.RandomState(3), 2.0 ** (-10 if dtype == "float16" else -7)
    values = (draw.randn(20_000) * np.exp(draw.randn(20_000) * 2)).astype(np.float32)
    values[:4] = 1 + ulp / 2, 1 + 3 * ulp / 2, 1 + 5 * ulp / 2, -1 - ulp / 2  # ties
    bits = values.view(np.uint32)
    expected = (((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) << 16).astype(np.uint32).view(np.float32)
    if dtype == "float16":
        expected = values.astype(np.float16).astype(np.float32)
    low = mx.nd.zeros(shape, dtype=DTYPES[dtype])
    casts_together.round_into(mx.nd.array(values.reshape(shape)), low)
    np.testing.assert_array_equal(casts_together.to_float32(low).asnumpy(), expected.reshape(shape))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rounding_is_not_recorded(dtype):
    wide, low = mx.nd.ones((2,)), mx.nd.zeros((2,), dtype=DTYPES[dtype])
    wide.attach_grad()
    with mx.autograd.record():
        casts_together.round_into(wide, low)
    with pytest.raises(mx.MXNetError, match="computational graph"):
        low.backward()
