"""Copies of many arrays by the operator of an optimizer are exact; on CPU, where the operator exists too."""

from __future__ import annotations

import math

import mxnet as mx
import numpy as np
import pytest

from mxmp import arrays as casts
from mxmp import arrays as together
from mxmp.arrays import chunks, clip_all, copy_all, gather, scale_all, views

FLOAT32 = np.finfo(np.float32)


def bits(array):
    return array.asnumpy().view(np.uint32)


def test_chunks_have_everything_in_order():
    assert list(chunks([1, 2, 3, 4, 5], 2)) == [[1, 2], [3, 4], [5]]
    assert list(chunks([], 2)) == []


def test_views_share_the_memory_of_the_whole():
    joined = mx.nd.arange(7)
    first, second = views(joined, [mx.nd.ones((2, 2)), mx.nd.ones((3,))])
    assert first.asnumpy().tolist() == [[0, 1], [2, 3]] and second.asnumpy().tolist() == [4, 5, 6]
    first[:] = 9
    assert joined.asnumpy().tolist() == [9, 9, 9, 9, 4, 5, 6]


@pytest.mark.parametrize("count", [1, 60, 61, 130])
def test_copy_all_copies_every_bit_of_finite_values(count):
    sizes = np.random.RandomState(count).randint(1, 300, count)
    sources = [mx.nd.array(draw_any(size, seed)) for seed, size in enumerate(sizes)]
    sources[0][0] = FLOAT32.max
    joined = mx.nd.full((int(sizes.sum()),), np.nan)  # what was there does not matter
    copy_all(sources, views(joined, sources))
    assert (bits(joined) == np.concatenate([bits(source) for source in sources])).all()


def test_copy_all_makes_zeros_positive_and_what_is_not_finite_nan():
    source, target = mx.nd.array([-0.0, 1, np.inf, 2, -np.inf, np.nan, 3]), mx.nd.zeros((7,))
    copy_all([source], [target])
    np.testing.assert_array_equal(target.asnumpy(), [0, 1, np.nan, 2, np.nan, np.nan, 3])
    assert bits(target)[0] == 0


def draw_any(size, seed=0):
    """Return float32 numbers of any sign and exponent, subnormal ones among them."""
    draw = np.random.RandomState(seed)
    values = draw.randint(0, 0x7F800000, size).astype(np.uint32).view(np.float32)
    return values * draw.choice([-1, 1], size).astype(np.float32)


@pytest.mark.parametrize("factor", [2.0**-16, 2.0**-90, 2.0**24, 1 / 3, 7e-9, 7e-31, math.pi, 3.3e38, 1e-40])
def test_scale_all_rounds_once(factor, monkeypatch):
    monkeypatch.setattr(casts, "_PIECE", 100)
    arrays = [mx.nd.array(draw_any(size, size)).reshape((1, -1)) for size in (1, 100, 101, 999)]
    with np.errstate(over="ignore", under="ignore"):
        expected = [array.asnumpy() * np.float32(factor) for array in arrays]
    scale_all(arrays, factor)
    for array, values in zip(arrays, expected):
        np.testing.assert_array_equal(array.asnumpy(), values)


def test_scale_all_keeps_what_is_not_finite():
    array = mx.nd.array([np.inf, -np.inf, np.nan, 2])
    scale_all([array], 0.5)
    np.testing.assert_array_equal(array.asnumpy(), [np.inf, -np.inf, np.nan, 1])


@pytest.mark.parametrize("bound", [0.001, 0.1, 1 / 3, 65504, 1e6, math.inf])
def test_clip_all_clips_as_numpy(bound):
    values = np.concatenate([draw_any(500), [np.inf, -np.inf, np.nan, 0]]).astype(np.float32)
    arrays = [mx.nd.array(values), mx.nd.array(-values[:3])]
    clip_all(arrays, bound)
    np.testing.assert_array_equal(arrays[0].asnumpy(), values.clip(-np.float32(bound), np.float32(bound)))
    np.testing.assert_array_equal(arrays[1].asnumpy(), (-values[:3]).clip(-np.float32(bound), np.float32(bound)))


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_gather_joins_numbers_of_several_contexts(device, monkeypatch):
    monkeypatch.setattr(together, "on_gpu", lambda _: device == "gpu")
    joined = gather([mx.nd.array([1]), mx.nd.array([2], ctx=mx.cpu(1)), mx.nd.array([1e38])])
    assert joined.context == mx.cpu(0)
    np.testing.assert_array_equal(joined.asnumpy(), np.float32([1, 2, 1e38]))
