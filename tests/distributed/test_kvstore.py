"""Sums over workers, without a network: dtypes, contexts, overflow, and bad arguments."""

from __future__ import annotations

import gc
import sys
import threading
import time
import weakref

import mxnet as mx
import numpy as np
import pytest

import mxmp.distributed
from mxmp.arrays import round_into, to_float32
from mxmp.distributed import KVStore, distributed
from mxmp.dtypes import to_numpy
from mxmp.errors import DependencyError, TrainerError
from tests.distributed.engines import Second, Twins

DTYPES = ["float32", "float16", pytest.param("bfloat16", marks=pytest.mark.bfloat16)]
TRANSPORTS = ["float32", "float16"]


def array(values, dtype="float32", ctx=None):
    wide = mx.nd.array(values, dtype="float32", ctx=ctx)
    if dtype == "float32":
        return wide
    low = mx.nd.empty(wide.shape, dtype=to_numpy(dtype), ctx=ctx)
    round_into(wide, low)
    return low


def numbers(a):
    return to_float32(a).asnumpy()


def store(size=2, transport="float32", shape=(2, 3), key="w"):
    made = KVStore(Twins(size), transport)
    made.init(key, mx.nd.zeros(shape))
    return made


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_pushpull_sums_over_workers(dtype, transport):
    values = np.arange(6, dtype=np.float32).reshape(2, 3) * 0.25
    grad = array(values, dtype)
    store(4, transport).pushpull("w", grad)
    np.testing.assert_array_equal(numbers(grad), 4 * values)
    assert np.dtype(grad.dtype) == np.dtype(to_numpy(dtype))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_pushpull_sums_beyond_float16(transport):
    out = mx.nd.empty((2, 3))
    store(2, transport).pushpull("w", array(np.full((2, 3), 40000), "float16"), out=out)
    np.testing.assert_array_equal(out.asnumpy(), np.full((2, 3), 80000))


def test_a_sum_in_float16_would_overflow():
    both = array([40000], "float16")
    assert np.isinf((both + both).asscalar())


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_pushpull_hides_nothing(bad, transport):
    grad = array([[1, bad, 0], [0, 0, 0]])
    store(2, transport).pushpull("w", grad)
    assert np.isfinite(grad.asnumpy()).tolist() == [[True, False, True], [True, True, True]]


def test_float32_transport_loses_nothing():
    values = np.float32([[1 + 2.0**-23, 1e-30, 3e38], [1, 2, 3]])
    grad = array(values)
    store(1).pushpull("w", grad)
    np.testing.assert_array_equal(grad.asnumpy(), values)


def test_float16_transport_rounds_the_share_of_each_worker():
    values = np.float32([[1 + 2.0**-11, 3e-8, 0.1], [60000, 1e-9, 3]])
    grad = array(values)
    store(2, "float16").pushpull("w", grad)
    np.testing.assert_array_equal(grad.asnumpy(), 4 * np.float16(values / 2).astype(np.float32))


def test_pushpull_adds_the_contexts_of_a_worker_first():
    grads = [array([[1, 2, 3]] * 2, ctx=mx.cpu(0)), array([[10, 20, 30]] * 2, ctx=mx.cpu(1))]
    store(2).pushpull("w", grads)
    for i, grad in enumerate(grads):
        assert grad.context == mx.cpu(i)
        np.testing.assert_array_equal(grad.asnumpy(), [[22, 44, 66]] * 2)


def test_pushpull_leaves_values_alone_where_out_is_given():
    grad, out = array([[1, 2, 3]] * 2), mx.nd.empty((2, 3))
    store(2).pushpull("w", grad, out=[out])
    assert (grad.asnumpy() == [[1, 2, 3]] * 2).all() and (out.asnumpy() == [[2, 4, 6]] * 2).all()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_float64_travels_as_float64(transport):
    made = KVStore(Twins(2), transport)
    grad = mx.nd.array([1 + 2.0**-50], dtype="float64")
    made.init(0, grad)
    made.pushpull(0, grad)
    assert grad.asscalar() == 2 + 2.0**-49


def test_numpy_arrays_and_scalars():
    made = KVStore(Twins(2))
    with mx.util.np_shape(True), mx.util.np_array(True):
        grad = mx.np.array(3.0)
        made.init(0, grad)
        made.pushpull(0, grad)
        assert grad.shape == () and float(grad) == 6


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_broadcast_gives_every_context_what_worker_0_has(dtype, transport):
    outs = [array(np.zeros((2, 2)), dtype, mx.cpu(i)) for i in range(2)]
    KVStore(Second(), transport).broadcast("w", outs[0], outs)
    assert all((numbers(out) == 5).all() for out in outs)


def test_broadcast_keeps_float32_where_gradients_travel_as_float16():
    value = mx.nd.array([1 + 2.0**-23])
    KVStore(Twins(), "float16").init("w", value)
    assert value.asscalar() == 1 + 2.0**-23


def test_a_key_may_be_initialized_again():
    """As by a module whose optimizer is set up anew."""
    made = store()
    made.init("w", mx.nd.zeros(7))
    grad = mx.nd.ones(7)
    made.pushpull("w", grad)
    assert (grad.asnumpy() == 2).all()


def test_scoped_stores_have_keys_of_their_own():
    """Two trainers number their parameters alike."""
    first = store(3, shape=(2,), key=0)
    second = first.scoped()
    second.init(0, mx.nd.zeros(4))
    grads = mx.nd.ones(2), mx.nd.ones(4)
    first.pushpull(0, grads[0])
    second.pushpull(0, grads[1])
    assert [grad.asnumpy().tolist() for grad in grads] == [[3] * 2, [3] * 4]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_agree_is_the_least_of_all_flags(transport):
    class Other(Twins):
        bad = 0

        def sum(self, key, array, priority):
            array += self.bad

    engine = Other()
    made = KVStore(engine, transport)
    for engine.bad, flag, expected in [(0, 1, 1), (1, 1, 0), (0, 0, 0), (1, 0, 0), (0, None, 1), (1, None, 0)]:
        assert made.agree(None if flag is None else mx.nd.array([flag])).asscalar() == expected


def test_what_mxnet_asks_a_store():
    made = store(3)
    assert (made.type, made.rank, made.num_workers, made.is_capable("optimizer")) == ("dist_sync", 0, 3, False)


@pytest.mark.parametrize(
    "kind, expected",
    [("dist_sync", True), ("dist", True), ("Horovod", True), ("dist_async", False), ("device", False), (None, False)],
)
def test_distributed_names(kind, expected):
    assert distributed(kind) is expected


def test_distributed_knows_stores():
    assert distributed(KVStore(Twins()))
    assert not distributed(mx.kv.create("local"))


@pytest.mark.parametrize(
    "match, args",
    [
        ("transport='bfloat16'; expected 'float32' or 'float16'", (Twins(), "bfloat16")),
        ("engine='device'; expected 'dist_sync', 'horovod', a distributed KVStore or an Engine", ("device",)),
        ("engine='dist_async'", ("dist_async",)),
        ("engine=None", (None,)),
    ],
)
def test_bad_arguments(match, args):
    with pytest.raises(TrainerError, match=match):
        KVStore(*args)


class _Joined(Twins):
    """A parameter server that a process joins when it is made."""

    def __init__(self, store):
        super().__init__()
        self.store = store


@pytest.fixture
def joined(monkeypatch):
    """Return the list of all jobs that are joined, which is not this process's."""
    made = []
    monkeypatch.setattr(mxmp.distributed, "ParameterServer", lambda store: made.append(_Joined(store)) or made[-1])
    monkeypatch.setattr(mxmp.distributed, "_JOINED", {})
    return made


def test_a_job_is_joined_once_though_its_first_user_is_gone(joined):
    """MXNet waits for ever in a second mx.kv.create('dist_sync')."""
    first = weakref.ref(KVStore("dist_sync")._engine)
    made = joined.copy()
    joined.clear()  # or this list would hold the engine
    del made
    gc.collect()
    second = KVStore("dist_device_sync")
    assert joined == [] and second._engine is first()


def test_a_name_means_the_job_that_a_store_of_mxnet_has_joined(joined, monkeypatch):
    monkeypatch.setattr(mx.kv.KVStore, "type", "dist_sync")
    store = mx.kv.create("local")
    first, second = KVStore(store), KVStore("dist_sync")
    assert first._engine is second._engine is KVStore(store)._engine
    assert [each.store for each in joined] == [store]


def test_threads_join_a_job_once(joined, monkeypatch):
    quick = mxmp.distributed.ParameterServer
    monkeypatch.setattr(mxmp.distributed, "ParameterServer", lambda store: time.sleep(0.05) or quick(store))
    threads = [threading.Thread(target=KVStore, args=("dist_sync",)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(joined) == 1


def test_a_job_that_was_not_launched(monkeypatch):
    monkeypatch.delenv("DMLC_PS_ROOT_URI", raising=False)
    with pytest.raises(
        TrainerError, match="kvstore 'dist_sync' needs DMLC_PS_ROOT_URI.*mxmp launch -n 2 python SCRIPT"
    ):
        KVStore("dist_sync")


def test_horovod_that_is_not_there(monkeypatch):
    monkeypatch.setitem(sys.modules, "horovod.mxnet", None)
    with pytest.raises(DependencyError, match="needs Horovod, built for MXNet: HOROVOD_WITH_MXNET=1"):
        KVStore("horovod")


def test_pushpull_of_an_unknown_key():
    with pytest.raises(TrainerError, match="key 'v' is not known; broadcast it first"):
        store().pushpull("v", mx.nd.zeros(1))


def test_sparse_gradients_are_refused():
    with pytest.raises(TrainerError, match="key 'w' is row_sparse; only dense arrays"):
        store().pushpull("w", mx.nd.zeros((2, 3)).tostype("row_sparse"))


def test_weights_that_onednn_has_laid_out_are_broadcast():
    """MXNet reorders the weights of a convolution when it runs for the first time, and copies no view of them then."""
    net = mx.gluon.nn.Conv2D(16, 3, in_channels=16)
    net.initialize()
    before = net.weight.data().asnumpy()
    net(mx.nd.zeros((1, 16, 8, 8))).wait_to_read()
    made, weight = store(), net.weight.data()
    made.broadcast("w", weight, weight)
    np.testing.assert_array_equal(weight.asnumpy(), before)
    net(mx.nd.zeros((1, 16, 8, 8))).wait_to_read()
    made.pushpull("w", weight)
    np.testing.assert_array_equal(weight.asnumpy(), 2 * before)
