"""Calls of one converted net from several threads."""

from __future__ import annotations

import functools
import threading
import time

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

from mxmp.gluon import convert, precision

THREADS = 6


class Net(gluon.HybridBlock):
    """Slow enough to trace for others to come in between; no BatchNorm, which would move."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.body = nn.HybridSequential()
            for _ in range(8):
                self.body.add(nn.Dense(8, in_units=8, activation="tanh"))

    def hybrid_forward(self, F, x):
        return F.dot(self.body(x), F.ones((8, 4)))


def make(policy="O1"):
    mx.random.seed(0)
    net = Net(prefix="net_")
    net.initialize(mx.init.Xavier())
    return convert(net, policy)


def batch(rows):
    return mx.nd.array(np.random.RandomState(rows).randn(rows, 8))


def run(*functions):
    """Run functions at once, each in a thread; return what they give, or raise what they raise."""
    barrier, found, errors = threading.Barrier(len(functions)), [None] * len(functions), []

    def work(number):
        barrier.wait()
        try:
            found[number] = functions[number]()
        except Exception as e:
            errors.append(e)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return found


def infer(net, x):
    return net(x).asnumpy()


def record(net, x):
    with autograd.record():
        return net(x).asnumpy()


def record_float32(net, x):
    with precision("float32"):
        return record(net, x)


@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_the_first_calls_may_come_from_several_threads(policy):
    expected = [infer(make(policy), batch(2 + number)) for number in range(THREADS)]
    for _ in range(3):
        net = make(policy)
        ways = [infer, record] * (THREADS // 2)
        calls = [functools.partial(way, net, batch(2 + number)) for number, way in enumerate(ways)]
        found = run(*calls)
        assert all(np.array_equal(*pair) for pair in zip(found, expected))
        assert len({id(each.op) for each in net._mxmp_conversion._calls.values()}) == 1


def test_calls_beside_a_recorded_float32_region_run_converted():
    """That region runs the net operator by operator, as it was written, whoever else calls it meanwhile."""
    inside, x = threading.Event(), batch(4)

    class Slow(Net):
        def hybrid_forward(self, F, x):
            if F is mx.nd:
                inside.set()
                time.sleep(0.3)
            return super().hybrid_forward(F, x)

    def beside():
        assert inside.wait(10)
        return infer(net, x)

    mx.random.seed(0)
    net = Slow(prefix="net_")
    net.initialize(mx.init.Xavier())
    plain = infer(net, x)
    expected = infer(convert(net, "O1"), x)
    inside.clear()
    exact, found = run(lambda: record_float32(net, x), beside)
    assert np.array_equal(exact, plain) and np.array_equal(found, expected) and not np.array_equal(plain, expected)


def test_parts_that_share_a_weight_may_start_at_once():
    first = nn.HybridSequential()
    first.add(nn.Dense(8, in_units=8))
    second = nn.HybridSequential()
    second.add(nn.Dense(8, in_units=8, params=first[0].params), nn.Activation("tanh"))
    net = nn.Sequential()
    net.add(first, second)
    net.initialize()
    convert(net, "O2")
    run(*[lambda part=part: infer(part, batch(3)) for part in (first, second) * 3])
    assert first[0].weight.dtype == np.float16


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
    convert(net, "O1")
    net(x, 2)
    other = threading.Thread(target=net, args=(x, 5))
    other.start()
    outputs = [net(x, 2).asnumpy().item()]
    while other.is_alive():
        outputs.append(net(x, 2).asnumpy().item())
    assert set(outputs) == {2} and net(x, 5).asnumpy().item() == 5
