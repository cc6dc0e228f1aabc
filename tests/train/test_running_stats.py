"""Running statistics that a forward pass destroyed are put back."""

import logging

import mxnet as mx
import numpy as np
import pytest

from mxmp.errors import NonFiniteLossError
from mxmp.train import running_stats
from mxmp.train.running_stats import RunningStats

CONTEXTS = [mx.cpu(0), mx.cpu(1)]
ONE = mx.nd.ones((1,))


def named(mean=1.0, var=2.0, dtype="float32"):
    values = ("mean", mean), ("var", var)
    return [(name, mx.nd.full((3,), value, ctx=ctx, dtype=dtype)) for ctx in CONTEXTS for name, value in values]


@pytest.fixture(params=["cpu", "gpu"], autouse=True)
def device(request, monkeypatch):
    """Keep statistics on the CPU as they are kept on a device."""
    monkeypatch.setattr(running_stats, "on_gpu", lambda _: request.param == "gpu")
    return request.param


def values(arrays):
    return [array.asnumpy().tolist() for _, array in arrays]


def is_finite(statistics, arrays):
    return statistics.check(arrays, ONE).asscalar() == 1


@pytest.mark.parametrize("dtype, bad", [("float32", np.nan), ("float64", np.inf)])
def test_what_is_not_finite_is_put_back_array_by_array(bad, dtype, caplog):
    """To what it was after the last pass that left it finite, of several in a step too."""
    statistics, arrays = RunningStats(), named(dtype=dtype)
    for _ in range(2):
        statistics.keep(arrays)
        assert is_finite(statistics, arrays)
        for _, array in arrays:
            array += 1  # a forward pass
    statistics.keep(arrays)
    arrays[3][1][:] = [4, bad, 5]  # another one, which destroys a number
    statistics.keep(arrays)
    assert not is_finite(statistics, arrays)
    with caplog.at_level(logging.WARNING):
        statistics.restore(arrays)
    assert values(arrays) == [[3] * 3, [4] * 3, [3] * 3, [4, 4, 5]]
    assert caplog.messages == ["'var' not finite after a forward pass on NaN or inf, and put back; such passes so far: 1"]
    statistics.keep(arrays)
    assert is_finite(statistics, arrays)


def test_one_line_names_all_and_later_ones_are_rare(caplog):
    statistics, arrays = RunningStats(), named()
    for _ in range(60):
        statistics.keep(arrays)
        arrays[0][1][:] = arrays[3][1][0] = np.nan
        statistics.restore(arrays)
    assert [message.split(" ", 2)[:2] for message in caplog.messages] == [["'mean',", "'var'"]] * 3
    assert [message.split("; ")[1] for message in caplog.messages] == [f"such passes so far: {n}" for n in (1, 10, 50)]


def test_an_inf_that_was_always_there_is_left_alone():
    statistics, arrays = RunningStats(), [("mask", mx.nd.array([0, -np.inf])), *named()]
    assert is_finite(RunningStats(), arrays)  # also where nothing was kept
    assert RunningStats().check([], ONE) is None
    statistics.keep(arrays)
    assert is_finite(statistics, arrays)
    arrays[1][1][:] = np.nan
    assert not is_finite(statistics, arrays) and not is_finite(RunningStats(), arrays)
    statistics.restore(arrays)
    assert values(arrays)[:2] == [[0, -np.inf], [1, 1, 1]]


def test_a_nan_from_the_beginning_is_an_error_until_it_is_made_finite():
    statistics, arrays = RunningStats(), named(mean=np.nan)
    for _ in range(2):
        statistics.keep(arrays)
        assert not is_finite(statistics, arrays)
        with pytest.raises(NonFiniteLossError, match="'mean' are NaN: a forward pass met NaN or inf before the first step"):
            statistics.restore(arrays)
    for _, array in arrays:
        array[:] = 5
    statistics.keep(arrays)
    assert is_finite(statistics, arrays)
    arrays[0][1][:] = np.inf
    for _ in range(3):  # and is never kept, once destroyed
        statistics.keep(arrays)
        assert not is_finite(statistics, arrays)
    statistics.restore(arrays)
    assert values(arrays)[0] == [5, 5, 5]


def test_on_a_gpu_statistics_are_read_on_the_host_once_and_kept_in_few_operators(monkeypatch):
    monkeypatch.setattr(running_stats, "on_gpu", lambda _: True)
    arrays, statistics = [(f"mean{i}", mx.nd.full((3,), i)) for i in range(130)], RunningStats()
    reads, asnumpy, copies, copy = [], mx.nd.NDArray.asnumpy, [], mx.nd.multi_sgd_update
    monkeypatch.setattr(mx.nd.NDArray, "asnumpy", lambda array: reads.append(array.size) or asnumpy(array))
    statistics.keep(arrays)
    monkeypatch.setattr(mx.nd, "multi_sgd_update", lambda *a, **kw: copies.append(len(a)) or copy(*a, **kw))
    monkeypatch.setattr(mx.nd, "concat", None)
    for _ in range(2):
        statistics.keep(arrays)
        flag = statistics.check(arrays, ONE)
    assert copies == [120, 120, 20] * 2 and reads == [1]
    assert flag.asscalar() == 1
