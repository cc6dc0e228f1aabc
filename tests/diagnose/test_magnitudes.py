"""Histograms of magnitudes, against numpy's rounding."""

import numpy as np
import pytest

from mxmp.diagnose import Magnitudes

VALUES = np.float32(2.0) ** np.random.RandomState(0).uniform(-60, 14, 10_000).astype(np.float32)


def counted(*arrays):
    found = Magnitudes()
    for array in arrays:
        found.add(np.asarray(array))
    return found


@pytest.mark.parametrize("shape", [(-1,), (10, -1)])
def test_an_exponent_has_the_values_up_to_its_power_of_two(shape):
    rng = np.random.RandomState(1)
    values = (rng.randn(3000) * 2.0 ** rng.uniform(-149, 127, 3000)).astype(np.float32)
    edges = [0, -0.0, np.inf, -np.inf, np.nan, 2.0**-126, 2.0**-149, 1, -2, np.finfo(np.float32).max, 0.5, -0.75, 1.5]
    values = np.concatenate([values[: -len(edges)], np.float32(edges)])
    exact = np.abs(values[np.isfinite(values)].astype(np.float64))
    exponents, counts = np.unique(np.ceil(np.log2(exact[exact > 0])), return_counts=True)
    found = counted(values.reshape(shape))
    assert found.counts == {int(exponent): count for exponent, count in zip(exponents, counts)}
    assert (found.total, found.zeros, found.nonfinite, found.largest) == ((exact > 0).sum(), (exact == 0).sum(), 3, exact.max())


@pytest.mark.parametrize("scale", [1.0, 2.0**-3, 8.0, 2.0**15, 2.0**30])
def test_the_share_lost_is_what_float16_rounds_to_zero(scale):
    edges = np.float32(2.0) ** np.arange(-30, -20, dtype=np.float32)
    values = np.concatenate([VALUES, edges, edges * np.float32(1 + 2**-20), np.zeros(7, np.float32)])
    with np.errstate(over="ignore"):
        low = (values * np.float32(scale)).astype(np.float16)
    expected = ((low == 0) & (values != 0)).sum() / (values != 0).sum()
    assert counted(values).share_lost(scale) == pytest.approx(expected, abs=1e-12)
    assert (0.1 < expected < 0.9) == (scale < 2.0**30)  # so that a count that is off by one binade is seen


def test_bfloat16_loses_next_to_nothing_and_no_values_lose_nothing():
    assert counted(VALUES).share_lost(dtype="bfloat16") == 0.0 == Magnitudes().share_lost()
    assert counted(np.float32([2.0**-140, 1.0])).share_lost(dtype="bfloat16") == 0.5


def test_the_largest_scale_leaves_all_values_finite():
    values = np.float32([0.1, 3.7, 0.002])
    scale = counted(values).largest_scale()
    with np.errstate(over="ignore"):
        once, twice = ((values * np.float32(factor * scale)).astype(np.float16) for factor in (1, 2))
    assert np.isfinite(once).all() and not np.isfinite(twice).all()
    assert counted(np.zeros(3)).largest_scale() == 1.0


def test_shares_are_of_the_values_that_are_not_0_by_growing_exponent():
    found = counted(np.float32([0.0, 0.0, 3.0, 4.0, 0.25, 5.0, np.inf]))
    assert list(found.shares.items()) == [(-2, 0.25), (2, 0.5), (3, 0.25)]


def test_two_counts_become_the_count_of_both():
    one, two = counted(VALUES[:10], [0.0, np.inf]), counted(VALUES[5:])
    one.merge(two)
    assert vars(one) == vars(counted(VALUES[:10], [0.0, np.inf], VALUES[5:]))
