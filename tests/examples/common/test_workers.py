"""Sums over workers, and who can be one."""

from __future__ import annotations

import sys

import click
import pytest

from examples.common.workers import LOCAL, Workers
from examples.image_classification.settings import join, require_share
from mxmp.distributed import KVStore
from mxmp.errors import DependencyError, TrainerError
from tests.distributed.engines import Second, Twins


def test_one_alone_sums_nothing_up():
    workers = Workers()
    assert (workers.rank, workers.size, workers.kvstore) == (0, 1, LOCAL)
    assert workers.sum([True, 0.1]) == [1, 0.1]


def test_sums_are_those_of_all_workers_and_exact():
    kvstore = KVStore(Twins(3))
    workers = Workers(kvstore)
    assert (workers.rank, workers.size, workers.kvstore) == (0, 3, kvstore)
    for values in ([0.1, 1 / 3], [2.0, 1e300], [7.0]):
        assert workers.sum(values) == pytest.approx([3 * value for value in values], rel=1e-15)


def test_a_workers_number_is_the_kvstores():
    assert Workers(KVStore(Second())).rank == 1


def test_a_script_that_was_not_launched_is_told_how(monkeypatch):
    monkeypatch.delenv("DMLC_PS_ROOT_URI", raising=False)
    with pytest.raises(TrainerError, match="mxmp launch -n 2 python SCRIPT"):
        join("dist_sync", 8, 1)


def test_horovod_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "horovod.mxnet", None)
    with pytest.raises(DependencyError, match="needs Horovod, built for MXNet"):
        join("horovod", 8, 1)


@pytest.mark.parametrize(
    ("batch_size", "workers", "contexts", "message"),
    [
        (9, 2, 1, "9 for 2 workers; give a multiple of 2, 2 or more"),
        (2, 4, 1, "2 for 4 workers; give a multiple of 4, 4 or more"),
        (4, 2, 3, "4 for 2 workers of 3 contexts each; give a multiple of 2, 6 or more"),
    ],
)
def test_a_batch_that_cannot_be_shared_is_refused(batch_size, workers, contexts, message):
    with pytest.raises(click.BadParameter, match=message):
        require_share(batch_size, workers, contexts)


@pytest.mark.parametrize(("batch_size", "workers", "contexts"), [(8, 2, 4), (6, 3, 1), (1, 1, 1)])
def test_a_batch_that_can_be_shared_is_not(batch_size, workers, contexts):
    require_share(batch_size, workers, contexts)
