"""Calls of one converted net from several threads."""

import functools
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

from mxmp import amp
from mxmp.gluon import convert, precision
from tests.gluon.nets import sequence, started

THREADS = 6


class Net(nn.HybridSequential):
    """Slow enough to trace for others to come in between; no BatchNorm, which would move."""

    def hybrid_forward(self, F, x):
        return F.dot(super().hybrid_forward(F, x), F.ones((8, 4)))


def make(policy="float32", kind=Net):
    layers = [nn.Dense(8, in_units=8, activation="tanh") for _ in range(8)]
    net = started(sequence(*layers, kind=kind))
    if policy:
        return convert(net, policy)
    net.hybridize()
    return net


def batch(rows):
    return mx.nd.array(np.random.RandomState(rows).randn(rows, 8))


def run(*functions):
    """Run functions at once, each in a thread; return what they give, or raise what they raise."""
    barrier = threading.Barrier(len(functions))

    def work(function):
        barrier.wait()
        return function()

    with ThreadPoolExecutor(len(functions)) as pool:
        return list(pool.map(work, functions))


def infer(net, x):
    return net(x).asnumpy()


def record(net, x):
    with autograd.record():
        return net(x).asnumpy()


@pytest.fixture
def initialized():
    amp.init()
    yield
    amp.disable()


@pytest.mark.parametrize("policy", ["O1", "O2", None], ids=["O1", "O2", "amp.init"])
def test_the_first_calls_may_come_from_several_threads(policy, initialized):
    expected = [infer(make(policy), batch(2 + number)) for number in range(THREADS)]
    for _ in range(3):
        net, ways = make(policy), [infer, record] * (THREADS // 2)
        outputs = run(*(functools.partial(way, net, batch(2 + number)) for number, way in enumerate(ways)))
        assert all(np.array_equal(*pair) for pair in zip(outputs, expected))
        assert len({id(each.op) for each in net._mxmp_conversion._cache.runners.values()}) == 1


def test_calls_beside_a_recorded_float32_region_run_converted():
    """That region runs the net operator by operator, as it was written, whoever else calls it meanwhile."""
    inside, done, x = threading.Event(), threading.Event(), batch(4)

    class Slow(Net):
        def hybrid_forward(self, F, x):
            if F is mx.nd:
                inside.set()
                assert done.wait(10)
            return super().hybrid_forward(F, x)

    def within():
        with precision("float32"):
            return record(net, x)

    def beside():
        assert inside.wait(10)
        try:
            return infer(net, x)
        finally:
            done.set()

    net = make(kind=Slow)
    done.set()
    plain = infer(net, x)
    expected = infer(convert(net, "O1"), x)
    inside.clear()
    done.clear()
    exact, outputs = run(within, beside)
    assert np.array_equal(exact, plain) and np.array_equal(outputs, expected) and not np.array_equal(plain, expected)


def test_parts_that_share_a_weight_may_start_at_once():
    first = nn.Dense(8, in_units=8)
    second = sequence(nn.Dense(8, in_units=8, params=first.params), nn.Activation("tanh"))
    convert(started(sequence(first, second, kind=nn.Sequential)), "O2")
    run(*(functools.partial(infer, part, batch(3)) for part in (first, second) * 3))
    assert first.weight.dtype == np.float16


class Multiplied(nn.Dense):
    """Its second argument is a constant of its graph; slow to trace."""

    def forward(self, x, factor):
        return gluon.HybridBlock.forward(self, x, factor)

    def hybrid_forward(self, F, x, factor, weight, bias=None):
        if F is mx.sym:
            time.sleep(0.1)
        return super().hybrid_forward(F, x, weight, bias) * factor


def test_a_thread_traces_with_constants_of_its_own():
    net, x = Multiplied(1, in_units=1, use_bias=False), mx.nd.ones((1, 1))
    net.initialize(mx.init.One())
    convert(net, "O1")(x, 2)
    with ThreadPoolExecutor() as pool:
        other = pool.submit(net, x, 5)
        outputs = [net(x, 2).asnumpy().item()]
        while not other.done():
            outputs.append(net(x, 2).asnumpy().item())
    assert set(outputs) == {2} and other.result().asnumpy().item() == net(x, 5).asnumpy().item() == 5
