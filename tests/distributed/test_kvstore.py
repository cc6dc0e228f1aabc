"""Sums over workers, without a network: dtypes, contexts, overflow, and bad arguments."""

import gc
import time
from concurrent.futures import ThreadPoolExecutor

import mxnet as mx
import numpy as np
import pytest

from mxmp.distributed import KVStore, distributed
from tests.alone import alone
from tests.distributed.engines import Second, Twins
from tests.values import DTYPES, as_float32, in_dtype, name_of

NAMES = ["float32", "float16", "float64", pytest.param("bfloat16", marks=pytest.mark.bfloat16)]
TRANSPORTS = ["float32", "float16"]


def array(values, dtype="float32", ctx=None):
    low = dtype if dtype == "bfloat16" else "float32"
    return in_dtype(mx.nd.array(values, dtype="float32" if dtype == low else dtype, ctx=ctx), DTYPES[low])


def store(size=2, transport="float32", shape=(2, 3), key="w"):
    made = KVStore(Twins(size), transport)
    made.init(key, mx.nd.zeros(shape))
    return made


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("dtype", NAMES)
def test_pushpull_sums_over_workers(dtype, transport):
    values = np.arange(6).reshape(2, 3) * 0.25
    grad, out, made = array(values, dtype), mx.nd.empty((2, 3), dtype=np.float64), KVStore(Twins(4), transport)
    made.init("w", grad.copy())
    made.pushpull("w", grad, out=[out])
    np.testing.assert_array_equal(as_float32(grad), values)
    np.testing.assert_array_equal(out.asnumpy(), 4 * values)
    made.pushpull("w", grad)
    np.testing.assert_array_equal(as_float32(grad), 4 * values)
    assert name_of(grad.dtype) == dtype
    if dtype == "float64":  # which travels as float64
        made.pushpull("w", grad[:] + 2.0**-50, out=[out])
        np.testing.assert_array_equal(out.asnumpy(), 4 * (4 * values + 2.0**-50))


# Values, and their sums over two workers.
SHARES = np.float32([1 + 2.0**-11, 3e-8, 0.1, 60000, 1e-9, 3])
SUMS = {
    "beyond float16": ("float32", [40000, 1], [80000, 2]),
    "beyond float16 as float16": ("float16", [40000, 1], [80000, 2]),
    "infinite": ("float32", [1, np.inf, -np.inf, np.nan], [2, np.inf, -np.inf, np.nan]),
    "infinite as float16": ("float16", [1, np.inf, -np.inf, np.nan], [2, np.inf, -np.inf, np.nan]),
    "all of float32": ("float32", [1 + 2.0**-23, 1e-30, 1.5e38], np.float32([2 + 2.0**-22, 2e-30, 3e38])),
    "the share of each worker rounded": ("float16", SHARES, 4 * np.float16(SHARES / 2).astype(np.float32)),
}


@pytest.mark.parametrize("transport, values, sums", SUMS.values(), ids=SUMS)
def test_sums_of_two_workers(transport, values, sums):
    grad = array(values)
    store(2, transport, grad.shape).pushpull("w", grad)
    np.testing.assert_array_equal(grad.asnumpy(), sums)


def test_pushpull_adds_the_contexts_of_a_worker_first():
    grads = [array([[1, 2, 3]] * 2, ctx=mx.cpu(0)), array([[10, 20, 30]] * 2, ctx=mx.cpu(1))]
    store(2).pushpull("w", grads)
    for i, grad in enumerate(grads):
        assert grad.context == mx.cpu(i)
        np.testing.assert_array_equal(grad.asnumpy(), [[22, 44, 66]] * 2)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("dtype", NAMES)
def test_broadcast_gives_every_context_what_worker_0_has(dtype, transport):
    outs = [array(np.zeros((2, 2)), dtype, mx.cpu(i)) for i in range(2)]
    KVStore(Second(), transport).broadcast("w", outs[0], outs)
    assert all((as_float32(out) == 5).all() for out in outs)
    value = mx.nd.array([1 + 2.0**-23])
    KVStore(Twins(), transport).init("w", value)
    assert value.asscalar() == 1 + 2.0**-23  # in float32, also where gradients travel as float16


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
    second = first.with_own_keys()
    second.init(0, mx.nd.zeros(4))
    grads = mx.nd.ones(2), mx.nd.ones(4)
    first.pushpull(0, grads[0])
    second.pushpull(0, grads[1])
    assert [grad.asnumpy().tolist() for grad in grads] == [[3] * 2, [3] * 4]
    asked = second.type, second.rank, second.num_workers, second.is_capable("optimizer")
    assert asked == ("dist_sync", 0, 3, False)  # by MXNet
    with mx.util.np_shape(True), mx.util.np_array(True):
        grad = mx.np.array(3.0)
        second.init("scalar", grad)
        second.pushpull("scalar", grad)
        assert grad.shape == () and float(grad) == 9


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_agree_is_the_least_of_all_flags(transport):
    class Other(Twins):
        bad = 0

        def sum(self, key, array, priority):
            array += self.bad

    engine = Other()
    made = KVStore(engine, transport)
    for engine.bad, flag, expected in [(0, 1, 1), (1, 1, 0), (0, 0, 0), (1, 0, 0), (0, None, 1), (1, None, 0)]:
        assert made.all_workers(None if flag is None else mx.nd.array([flag])).asscalar() == expected


@pytest.mark.parametrize(
    "make, expected",
    [
        *((lambda name=name: name, True) for name in ("dist_sync", "dist", "Horovod")),
        *((lambda name=name: name, False) for name in ("dist_async", "device", None)),
        (lambda: KVStore(Twins()), True),
        (lambda: mx.kv.create("local"), False),
    ],
)
def test_names_and_stores_that_are_distributed(make, expected):
    assert distributed(make()) is expected


class Joined(mx.kv.KVStore):
    """A store of MXNet that has joined a job; a worker tells its servers once."""

    type, told = "dist_sync", 0

    def _send_command_to_servers(self, head, body):
        time.sleep(0.05)  # lets other threads come
        self.told += 1


def join_from_threads():
    store = mx.kv.create("local")
    store.__class__ = Joined
    assert distributed(store)
    with ThreadPoolExecutor(4) as pool:
        engines = {each._engine for each in pool.map(KVStore, [store] * 4)}
    assert len(engines) == store.told == 1
    gc.collect()
    assert KVStore("dist_device_sync")._engine in engines  # a name means the job, though its first users are gone


@pytest.mark.slow
def test_a_job_is_joined_once_by_whatever_thread_and_name():
    """MXNet waits for ever in a second mx.kv.create('dist_sync')."""
    alone(join_from_threads)


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
