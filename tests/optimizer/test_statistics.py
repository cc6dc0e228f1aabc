"""Running statistics that a forward pass destroyed are put back."""

from __future__ import annotations

import logging

import mxnet as mx
import numpy as np
import pytest

from mxmp.errors import NonFiniteLossError
from mxmp.optimizer.statistics import Statistics

CONTEXTS = [mx.cpu(0), mx.cpu(1)]


def named(mean=1.0, var=2.0):
    return [(n, mx.nd.full((3,), v, ctx=ctx)) for ctx in CONTEXTS for n, v in (("mean", mean), ("var", var))]


def values(arrays):
    return [array.asnumpy().tolist() for _, array in arrays]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_put_back(bad, caplog):
    statistics, arrays = Statistics(), named()
    statistics.keep(arrays)
    for _, array in arrays:
        array += 1
    statistics.keep(arrays)
    expected = values(arrays)
    arrays[3][1][1] = bad
    with caplog.at_level(logging.WARNING):
        statistics.mend(arrays)
    assert values(arrays) == expected and "'var' are not finite after a skipped step" in caplog.text


def test_what_is_finite_stays():
    statistics, arrays = Statistics(), named()
    statistics.keep(arrays)
    arrays[0][1][:] = 5
    expected = values(arrays)
    statistics.mend(arrays)
    assert values(arrays) == expected


def test_without_a_copy_it_is_an_error():
    with pytest.raises(NonFiniteLossError, match="'mean' are not finite: the forward pass overflowed before the first"):
        Statistics().mend(named(mean=np.nan))


def test_nothing_to_do():
    Statistics().mend([])
