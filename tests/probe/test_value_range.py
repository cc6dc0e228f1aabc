"""Numbers about arrays: against numpy, of any dtype, with inf and NaN."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

from mxmp.probe.value_range import ranges_of


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_ranges_are_those_of_numpy(dtype):
    values = np.random.default_rng(0).normal(size=(7, 11)).astype(dtype)
    values[0, :3], values[1, :2], values[2, 0] = np.nan, np.inf, -np.inf
    (found,) = ranges_of({"x": mx.nd.array(values, dtype=dtype)})
    finite = values[np.isfinite(values)]
    assert (found.name, found.size, found.nans, found.infs, found.bad) == ("x", 77, 3, 3, 6)
    assert (found.smallest, found.largest) == (float(np.float32(finite.min())), float(np.float32(finite.max())))
    assert found.magnitude == max(abs(found.smallest), abs(found.largest)) and found.what == "inf and NaN"


def test_an_array_without_a_finite_value_reaches_0():
    first, second = ranges_of({"a": mx.nd.full((3,), np.nan), "b": mx.nd.full((1,), np.inf)})
    assert (first.smallest, first.largest, first.what) == (0.0, 0.0, "NaN")
    assert (second.bad, second.what) == (1, "inf")


def test_no_arrays_have_no_ranges():
    assert ranges_of({}) == []
