"""Counts of writes, against what is done to arrays."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

from mxmp import write_counts
from mxmp.write_counts import UnwrittenArrays, write_count

WRITES = {
    "all": lambda array: array.__setitem__(slice(None), 2),
    "part": lambda array: array.__setitem__(1, 2),
    "from numpy": lambda array: array.__setitem__(slice(None), np.ones((3, 4), "float32")),
    "view": lambda array: array[1:3].__setitem__(slice(None), 2),
    "reshaped": lambda array: array.reshape((4, 3)).__iadd__(1),
    "detached": lambda array: array.detach().__iadd__(1),
    "in place": lambda array: array.__iadd__(1),
    "out": lambda array: mx.nd.ones((3, 4), out=array),
    "copied": lambda array: mx.nd.ones((3, 4)).copyto(array),
    "optimizer": lambda array: mx.nd.sgd_update(array, mx.nd.ones((3, 4)), lr=0.1, wd=0, out=array),
    "several": lambda array: mx.nd.multi_sgd_update(array, mx.nd.ones((3, 4)), lrs=[1], wds=[0], out=[array]),
    "random": lambda array: mx.nd.random.uniform(shape=(3, 4), out=array),
}

READS = {
    "numpy": lambda array: array.asnumpy(),
    "operator": lambda array: (array + 1).wait_to_read(),
    "copy": lambda array: array.copy().wait_to_read(),
    "view": lambda array: array[1].asnumpy(),
    "shape": lambda array: (array.shape, array.dtype, array.context),
    "dlpack": lambda array: mx.nd.from_dlpack(array.to_dlpack_for_read()).asnumpy(),
}


@pytest.fixture
def array():
    return mx.nd.zeros((3, 4))


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_each_write_is_counted(write, array):
    count = write_count(array)
    before = count()
    for number in range(1, 4):
        write(array)
        assert count() >= before + number


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_no_read_is_counted(read, array):
    count = write_count(array)
    before = count()
    for _ in range(3):
        read(array)
    assert count() == before


def test_a_write_that_is_pending_is_waited_for():
    array, source = mx.nd.zeros((1500, 1500)), mx.nd.ones((1500, 1500))
    count = write_count(array)
    before = count()
    mx.nd.dot(source, source, out=array)  # takes a while
    assert count() == before + 1 and array[0, 0].asscalar() == 1500


def test_writes_within_a_bulk_are_counted(array):
    count = write_count(array)
    before = count()
    with mx.engine.bulk(10):
        array += 1
        assert count() == before + 1


def test_a_step_of_a_trainer_is_counted():
    param = gluon.Parameter("weight", shape=(3, 4))
    param.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
    counts = [write_count(array) for array in param.list_data()]
    before = [count() for count in counts]
    with autograd.record():
        losses = [(array * array).sum() for array in param.list_data()]
    autograd.backward(losses)
    assert [count() for count in counts] == before
    gluon.Trainer([param], "sgd").step(1)
    assert all(count() > old for count, old in zip(counts, before))


def test_set_data_and_loading_are_counted(tmp_path):
    net = gluon.nn.Dense(3, in_units=4)
    net.initialize()
    count = write_count(net.weight.data())
    seen = [count()]
    net.save_parameters(str(tmp_path / "net.params"))
    assert count() == seen[-1]
    net.weight.set_data(mx.nd.ones((3, 4)))
    seen.append(count())
    net.load_parameters(str(tmp_path / "net.params"))
    seen.append(count())
    assert seen[0] < seen[1] < seen[2]


def test_other_memory_under_the_same_array_is_noticed(array):
    count = write_count(array)
    array.__setstate__(mx.nd.ones((3, 4)).__getstate__())
    assert count() is None and write_count(array)() is not None


def test_arrays_are_watched_together(array):
    arrays = [array, mx.nd.zeros((2,)), mx.nd.zeros((5,))]
    for each in arrays:
        watched = UnwrittenArrays([write_count(one) for one in arrays])
        assert watched.are_unwritten()
        each += 1
        assert not watched.are_unwritten()
    watched = UnwrittenArrays([write_count(one) for one in arrays])
    arrays[1].__setstate__(mx.nd.ones((2,)).__getstate__())
    assert not watched.are_unwritten()


def test_a_write_that_is_pending_among_others_is_waited_for():
    array, source = mx.nd.zeros((1500, 1500)), mx.nd.ones((1500, 1500))
    watched = UnwrittenArrays([write_count(each) for each in (mx.nd.zeros((2,)), array)])
    mx.nd.dot(source, source, out=array)  # takes a while
    assert not watched.are_unwritten() and array[0, 0].asscalar() == 1500


def test_what_the_engine_reports_is_raised(array):
    watched = UnwrittenArrays([write_count(array)])
    mx.nd.random.normal(0, -1, shape=(3, 4), out=array)  # no such distribution: it fails when it runs
    with pytest.raises(mx.MXNetError):
        watched.are_unwritten()


def test_arrays_that_others_write_have_no_count():
    shared = mx.nd.zeros((3, 4), ctx=mx.Context("cpu_shared", 0))
    assert write_count(shared) is None
    assert write_count(mx.nd.zeros((3, 4)).tostype("row_sparse")) is None


def test_nothing_is_counted_where_memory_cannot_be_read(monkeypatch, array):
    monkeypatch.setattr(write_counts.os, "open", lambda *args: (_ for _ in ()).throw(OSError()))
    write_counts._offset.cache_clear()
    try:
        assert write_count(array) is None
    finally:
        monkeypatch.undo()
        write_counts._offset.cache_clear()


def test_nothing_is_counted_where_no_word_fits(monkeypatch, array):
    """As in a build of MXNet whose arrays are laid out otherwise: what is read makes no sense, but does no harm."""
    true = write_counts._read
    monkeypatch.setattr(write_counts, "_read", lambda memory, address, words: true(memory, address + 1, words))
    write_counts._offset.cache_clear()
    try:
        assert write_count(array) is None
    finally:
        monkeypatch.undo()
        write_counts._offset.cache_clear()
