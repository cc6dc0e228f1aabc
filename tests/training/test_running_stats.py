"""Running statistics that a forward pass destroyed are put back."""

from __future__ import annotations

import logging

import mxnet as mx
import numpy as np
import pytest

from mxmp.errors import NonFiniteLossError
from mxmp.training.running_stats import RunningStats

CONTEXTS = [mx.cpu(0), mx.cpu(1)]


def named(mean=1.0, var=2.0, dtype="float32"):
    values = ("mean", mean), ("var", var)
    return [(name, mx.nd.full((3,), value, ctx=ctx, dtype=dtype)) for ctx in CONTEXTS for name, value in values]


def values(arrays):
    return [array.asnumpy().tolist() for _, array in arrays]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_put_back_array_by_array(bad, dtype, caplog):
    statistics, arrays = RunningStats(), named(dtype=dtype)
    statistics.keep(arrays)
    assert statistics.check(arrays).asscalar() == 1
    for _, array in arrays:
        array += 1
    statistics.keep(arrays)
    assert statistics.check(arrays).asscalar() == 1
    for _, array in arrays:
        array += 1  # a forward pass, which destroys one of them
    arrays[3][1][1] = bad
    statistics.keep(arrays)
    assert statistics.check(arrays).asscalar() == 0
    with caplog.at_level(logging.WARNING):
        statistics.restore(arrays)
    assert values(arrays) == [[3] * 3, [4] * 3, [3] * 3, [4, 3, 4]]
    (line,) = caplog.messages
    assert line == "'var' not finite after a forward pass that overflowed, and put back; such passes so far: 1"
    statistics.keep(arrays)
    assert statistics.check(arrays).asscalar() == 1


def test_one_line_names_all_and_later_ones_are_rare(caplog):
    statistics, arrays = RunningStats(), named()
    for _ in range(60):
        statistics.keep(arrays)
        arrays[0][1][:] = arrays[3][1][0] = np.nan
        statistics.restore(arrays)
    assert [message.split(" ", 2)[:2] for message in caplog.messages] == [["'mean',", "'var'"]] * 3
    assert [message.split("; ")[1] for message in caplog.messages] == [f"such passes so far: {n}" for n in (1, 10, 50)]


def test_what_was_destroyed_is_never_kept():
    statistics, arrays = RunningStats(), named()
    statistics.keep(arrays)
    arrays[0][1][:] = np.nan
    for _ in range(3):
        statistics.keep(arrays)
        assert statistics.check(arrays).asscalar() == 0
    statistics.restore(arrays)
    assert values(arrays)[0] == [1, 1, 1]


def test_an_inf_that_was_always_there_is_left_alone():
    statistics, arrays = RunningStats(), [("mask", mx.nd.array([0, -np.inf])), *named()]
    statistics.keep(arrays)
    assert statistics.check(arrays).asscalar() == 1
    arrays[1][1][:] = np.nan
    assert statistics.check(arrays).asscalar() == 0
    statistics.restore(arrays)
    assert values(arrays)[0] == [0, -np.inf] and values(arrays)[1] == [1, 1, 1]


def test_a_nan_from_the_beginning_is_an_error():
    statistics, arrays = RunningStats(), named(mean=np.nan)
    for _ in range(2):
        statistics.keep(arrays)
        assert statistics.check(arrays).asscalar() == 0
        with pytest.raises(NonFiniteLossError, match="'mean' are NaN: a forward pass overflowed before the first step"):
            statistics.restore(arrays)


def test_without_statistics_there_is_nothing_to_do():
    RunningStats().keep([])
    assert RunningStats().check([]) is None
    RunningStats().restore([])
