"""How many graphs a converted net makes and keeps."""

from __future__ import annotations

import os
import sys

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

import mxmp
from mxmp.gluon import conversion, convert, export, report
from mxmp.symbol import rewrite


class Centered(gluon.HybridBlock):
    """A layer whose mean over the batch may be in float16 for up to 1024 rows."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.dense = nn.Dense(4, in_units=3)

    def hybrid_forward(self, F, x):
        y = self.dense(x)
        return F.relu(F.mean(y, axis=0, keepdims=True) * 2)


def make(policy="O1"):
    net = Centered()
    net.initialize()
    return convert(net, policy)


class Count:
    """Counts the calls of a function."""

    def __init__(self, monkeypatch, owner, name):
        self.number = 0
        original = getattr(owner, name)

        def counted(*args, **kwargs):
            self.number += 1
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, counted)


@pytest.fixture
def conversions(monkeypatch):
    return Count(monkeypatch, conversion, "convert_graph")


@pytest.fixture
def cached_ops(monkeypatch):
    return Count(monkeypatch, mx.nd, "CachedOp")


@pytest.fixture
def inferences(monkeypatch):
    return Count(monkeypatch, rewrite, "infer_facts")


def operators(net):
    """The cached operators that a net has."""
    return {id(runner.op) for runner in net._mxmp_conversion._calls.values()}


def mean_precision(net):
    return {row.op: row.precision for row in report(net).rows}["mean"]


def test_600_batch_sizes_have_one_graph(conversions, cached_ops, inferences):
    net = make()
    net(mx.nd.ones((1, 3)))
    made = conversions.number, cached_ops.number
    for size in range(1, 601):
        net(mx.nd.ones((size, 3)))
    assert (conversions.number, cached_ops.number) == made
    assert inferences.number == 600


def test_a_shape_that_was_seen_is_looked_up(conversions, inferences):
    net = make()
    for _ in range(3):
        for size in (5, 2000, 7):
            net(mx.nd.ones((size, 3)))
    assert inferences.number == 3
    assert conversions.number == 3  # before the first call, for long sums and for short ones


def test_shapes_with_other_verdicts_have_another_graph(cached_ops):
    net = make()
    found = []
    for size in (8, 1024, 1025, 4000, 9):
        net(mx.nd.ones((size, 3)))
        found.append(mean_precision(net))
    assert found == ["float16", "float16", "float32", "float32", "float16"]
    assert cached_ops.number == 2


def test_training_and_inference_share_graphs_by_their_verdicts(cached_ops):
    net = make()
    for size in (8, 2000):
        x = mx.nd.ones((size, 3))
        net(x)
        with autograd.record():
            net(x)
    runners = net._mxmp_conversion._calls.values()
    assert len({runner.graph for runner in runners}) == 2 and cached_ops.number == len(operators(net)) == 2


class Thresholds(gluon.HybridBlock):
    """Sums over the batch that leave float16 one after the other as it grows."""

    def hybrid_forward(self, F, x):
        return [F.sum(F.dot(F.tile(x, reps=(n, 1)), F.ones((3, 2))), axis=0) for n in range(1, 9)]


def test_graphs_are_bounded(monkeypatch, conversions):
    monkeypatch.setattr(conversion, "MAX_GRAPHS", 3)
    net = convert(Thresholds(), "O1")
    sizes = [1025, *(1024 // n for n in range(1, 8))]  # each with another number of sums in float16
    for size in sizes:
        net(mx.nd.ones((size, 3)))
    held = net._mxmp_conversion
    assert len({runner.graph for runner in held._calls.values()}) == len(operators(net)) == 3
    assert {signature.shapes[0][0] for signature in held._calls} == set(sizes[-3:])
    before = conversions.number
    for size in sizes[-3:]:
        net(mx.nd.ones((size, 3)))
    assert conversions.number == before
    net(mx.nd.ones((sizes[0], 3)))
    assert conversions.number == before + 1


def test_remembered_shapes_are_bounded(monkeypatch, conversions, inferences):
    monkeypatch.setattr(conversion, "MAX_CALLS", 4)
    net = make()
    for size in range(1, 11):
        net(mx.nd.ones((size, 3)))
    assert len(net._mxmp_conversion._calls) == 4 and len(operators(net)) == 1
    seen = inferences.number, conversions.number
    net(mx.nd.ones((10, 3)))
    assert (inferences.number, conversions.number) == seen
    net(mx.nd.ones((1, 3)))  # forgotten: inferred again, and not converted again
    assert (inferences.number, conversions.number) == (seen[0] + 1, seen[1])


def test_results_do_not_depend_on_the_shapes_before():
    net, x = make(), mx.nd.array(np.random.RandomState(0).randn(6, 3))
    expected = net(x).asnumpy()
    for size in (2, 2000, 30):
        net(mx.nd.ones((size, 3)))
    assert np.array_equal(net(x).asnumpy(), expected)


class Product(gluon.HybridBlock):
    def hybrid_forward(self, F, x, w):
        return F.dot(x, w)


@pytest.mark.parametrize("order", [("float32", "float64"), ("float64", "float32")])
def test_a_graph_is_for_inputs_of_its_dtypes(order):
    """A float64 product is left alone, whatever was called before."""
    net = convert(Product(), "O1")
    for dtype in order:
        x = mx.nd.array([[4097.0, 1.0]], dtype=dtype)
        found = net(x, mx.nd.ones((2, 1), dtype=dtype))
        assert found.dtype == np.dtype(dtype)
        assert found.asscalar() == (4098 if dtype == "float64" else 4096)


class Loop(gluon.HybridBlock):
    """Sums over the batch within a loop."""

    def hybrid_forward(self, F, x):
        def step(row, state):
            total = F.sum(F.dot(row, F.ones((2, 2))), axis=0)
            return total, [state[0] + total]

        return F.contrib.foreach(step, x, [F.zeros((2,))])[0]


def test_verdicts_in_a_loop_follow_the_shapes(conversions):
    net = convert(Loop(), "O1")
    found = []
    for size in (4, 2000, 8, 3000):
        net(mx.nd.ones((3, size, 2)))
        found.append({row.op: row.precision for row in report(net).rows}["sum"])
    assert found == ["float16", "float32", "float16", "float32"]
    assert len(operators(net)) == 2


def test_stored_parameters_survive_new_shapes(tmp_path):
    net = make("O2")
    for size in (8, 2000, 8):
        found = net(mx.nd.ones((size, 3)))
        export(net, str(tmp_path / "net"))
        block = gluon.SymbolBlock.imports(str(tmp_path / "net-symbol.json"), ["data"])
        assert "float16" in block._cached_graph[1].tojson(remove_amp_cast=False)
        assert found.shape == (1, 4)
    assert net.dense.weight.dtype == np.float16


def test_a_later_call_is_a_lookup_and_an_operator():
    """At most 40 of our functions are called, of a net of a convolution, BatchNorm, relu, pooling and a dense layer."""
    net = nn.HybridSequential()
    net.add(nn.Conv2D(8, 3), nn.BatchNorm(), nn.Activation("relu"), nn.MaxPool2D(), nn.Dense(4))
    net.initialize()
    convert(net, "O2").hybridize()
    x, called = mx.nd.ones((2, 3, 16, 16)), []
    net(x)
    folder = os.path.dirname(mxmp.__file__)

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(folder):
            called.append(frame.f_code.co_name)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        net(x)
    finally:
        sys.setprofile(before)
    assert 0 < len(called) <= 40, called
