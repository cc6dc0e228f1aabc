"""Many arrays cast and compared together; the oracle is numpy."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

from mxmp.arrays import casts_together

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


@pytest.mark.parametrize("elements", [7, 2**24])
def test_weights_that_are_what_their_masters_round_to(elements, monkeypatch):
    monkeypatch.setattr(casts_together, "MOST_ELEMENTS", elements)
    masters = arrays("float32")
    before = numpy(masters)
    weights = [mx.nd.array(value.astype(np.float16), dtype="float16") for value in before]
    assert casts_together.all_rounded(masters, weights).asscalar() == 1
    for master, was, weight in zip(masters, before, weights):
        np.testing.assert_array_equal(master.asnumpy(), was)
        np.testing.assert_array_equal(weight.asnumpy(), was.astype(np.float16))


@pytest.mark.parametrize("elements", [7, 2**24])
@pytest.mark.parametrize("where", [0, 30, -1])
@pytest.mark.parametrize("change", ["next", "sign", "inf", "nan"])
def test_one_changed_element_of_many_is_seen(where, change, elements, monkeypatch):
    monkeypatch.setattr(casts_together, "MOST_ELEMENTS", elements)
    masters = arrays("float32")
    values = [master.asnumpy().astype(np.float16) for master in masters]
    last = values[where].reshape(-1)[-1:]
    last[:] = {"next": np.nextafter(last, np.float16(9)), "sign": -last, "inf": np.inf, "nan": np.nan}[change]
    assert (
        casts_together.all_rounded(masters, [mx.nd.array(value, dtype="float16") for value in values]).asscalar() == 0
    )


@pytest.mark.parametrize("elements", [14, 2**24])
def test_masters_follow_weights_that_were_changed(elements, monkeypatch):
    """Element by element: what still rounds to its weight keeps its float32 value."""
    monkeypatch.setattr(casts_together, "MOST_ELEMENTS", elements)
    masters = arrays("float32")
    before = numpy(masters)
    values = [value.astype(np.float16) for value in before]
    for k in (0, 30, -1):
        values[k].reshape(-1)[-1] = 3
    casts_together.follow(masters, [mx.nd.array(value, dtype="float16") for value in values])
    for master, was, value in zip(masters, before, values):
        kept = was.astype(np.float16) == value
        np.testing.assert_array_equal(master.asnumpy(), np.where(kept, was, value.astype(np.float32)))


def test_the_smallest_differences_are_seen():
    masters = mx.nd.array(FINITE.astype(np.float32))
    for change in (np.inf, -np.inf):
        weights = FINITE.copy()
        for at in (0, 1, 0x3FF, 0x400, 0x3C00, 0x7BFE):
            weights[at] = np.nextafter(FINITE[at], np.float16(change))
            assert casts_together.all_rounded([masters], [mx.nd.array(weights, dtype="float16")]).asscalar() == 0, at
            weights[at] = FINITE[at]


@pytest.mark.parametrize("gpu", [False, True])
def test_copies_in_float32_are_of_the_kind_of_each_array(gpu, monkeypatch):
    monkeypatch.setattr(casts_together, "on_gpu", lambda array: gpu)
    low = [mx.np.array([1, 2], dtype="float16"), mx.nd.array([3], dtype="float16")]
    copies = casts_together.copies_in_float32(low)
    assert [type(copy) for copy in copies] == [mx.np.ndarray, mx.nd.NDArray]
    copies[1][:] = 7
    assert low[1].asnumpy().tolist() == [3] and copies[0].asnumpy().tolist() == [1, 2]
