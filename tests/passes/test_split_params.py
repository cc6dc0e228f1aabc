"""What is computed of parameters alone, split off from a graph."""

from __future__ import annotations

import mxnet as mx
import numpy as np

from mxmp.passes.split_params import split_params
from mxmp.policy import Policy
from mxmp.symbol import convert_graph, from_graph, to_graph
from tests.graph.text import from_text, to_text

from .graphs import lines


def test_casts_of_parameters_are_split_off_with_what_moves_them():
    split = split_params(
        from_text(
            """x = null()
        w = null()
        a = transpose(w)
        b = Cast(a) {dtype: float16}
        c = Reshape(b) {shape: (4, -1)}
        d = Cast(x) {dtype: float16}
        y = FullyConnected(d, c)
        z = FullyConnected(y, c)
        return z"""
        ),
        {"w"},
    )
    assert to_text(split.prepare) == lines(
        """w = null()
        a = transpose(w)
        b = Cast(a) {dtype: float16}
        c = Reshape(b) {shape: (4, -1)}
        return c"""
    )
    assert to_text(split.main) == lines(
        """x = null()
        c_output_prepared = null()
        d = Cast(x) {dtype: float16}
        y = FullyConnected(d, c_output_prepared)
        z = FullyConnected(y, c_output_prepared)
        return z"""
    )
    assert split.names == ["c_output_prepared"]


def test_what_changes_from_call_to_call_stays():
    """Inputs, random numbers, dropout, sums of parameters, moves without a cast, and outputs of the network."""
    graph = from_text(
        """x = null()
        w = null()
        v = null()
        a = Cast(x) {dtype: float16}
        b = _shuffle(w)
        c = Cast(b) {dtype: float16}
        d = transpose(w)
        e = elemwise_add(w, v)
        f = Cast(e) {dtype: float16}
        g = Cast(v) {dtype: float16}
        h = Dropout(g)
        i = add_n(a, c, d, f, h)
        return i, g"""
    )
    split = split_params(graph, {"w", "v"})
    assert split.prepare is None and split.main is graph and split.names == []


def test_nothing_is_split_off_where_nothing_is_cast():
    graph = from_text("x = null()\nw = null()\na = transpose(w)\ny = dot(x, a)\nreturn y")
    assert split_params(graph, {"w"}).prepare is None


def test_both_parts_compute_what_the_whole_does():
    x = mx.sym.var("x")
    net = mx.sym.FullyConnected(mx.sym.relu(mx.sym.FullyConnected(x, num_hidden=4, name="a")), num_hidden=3, name="b")
    shapes = {"x": (2, 5), "a_weight": (4, 5), "a_bias": (4,), "b_weight": (3, 4), "b_bias": (3,)}
    values = {name: mx.nd.array(np.random.RandomState(0).uniform(-1, 1, shape)) for name, shape in shapes.items()}
    whole = convert_graph(net, Policy.parse("O1"), shapes, {}).on_cpu()
    split = split_params(to_graph(whole), set(shapes) - {"x"})
    assert len(split.names) == 4

    def run(symbol, values):
        outputs = mx.nd.CachedOp(symbol)(*(values[name] for name in symbol.list_inputs()))
        return outputs if isinstance(outputs, list) else [outputs]

    found = dict(zip(split.names, run(from_graph(split.prepare), values)))
    (part,) = run(from_graph(split.main), {**values, **found})
    (expected,) = run(whole, values)
    np.testing.assert_array_equal(part.asnumpy(), expected.asnumpy())
