"""Casts are placed where they move the fewest bytes: random networks against every way to run their free operators.

Only public calls: each way is forced by name, and measured by MXNet's own inference.
"""

import itertools

import mxnet as mx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mxmp import Policy
from tests.symbol.measure import measure
from tests.symbol.small import convert, dense

ROWS, WIDTH = 4, 6
SHAPES = {"x": (ROWS, WIDTH)}


# From a tensor and another of the same number of rows, with their widths: an operator's output and its width.
PRODUCTS = {
    "dense": lambda name, x, y: (dense(x[0], name, hidden=WIDTH), WIDTH),
    "wide dense": lambda name, x, y: (dense(x[0], name, hidden=4 * WIDTH), 4 * WIDTH),
}
PINNED = {"softmax": lambda name, x, y: (mx.sym.softmax(x[0], name=name), x[1])}
FREE = {
    "relu": lambda name, x, y: (mx.sym.relu(x[0], name=name), x[1]),
    "abs": lambda name, x, y: (mx.sym.abs(x[0], name=name), x[1]),
    "slice": lambda name, x, y: (mx.sym.slice_axis(x[0], axis=1, begin=0, end=max(1, x[1] // 2), name=name), x[1] // 2),
    "join": lambda name, x, y: (mx.sym.Concat(x[0], y[0], dim=1, name=name), x[1] + y[1]),
    "repeat": lambda name, x, y: (mx.sym.tile(x[0], reps=(1, 2), name=name), 2 * x[1]),
}
OPERATORS = {**PRODUCTS, **PINNED, **FREE}
STEP = st.tuples(st.sampled_from([*PRODUCTS, *OPERATORS, *FREE]), st.integers(0, 5), st.integers(0, 5))


@st.composite
def networks(draw):
    """Return a symbol and the names of its free operators, at most four of them, all behind a first product.

    Operators of an input's own values are not free: those are not rounded.
    """
    tensors, free = [(dense(mx.sym.var("x"), "first"), WIDTH)], []
    for number, (kind, first, second) in enumerate(draw(st.lists(STEP, min_size=4, max_size=9))):
        x, y = (tensors[-1 - place % len(tensors)] for place in (first % 3, second))
        if kind in FREE and len(free) == 4 or x[1] < 2 or x[1] + y[1] > 100:
            kind = "dense"
        if kind == "join" and x is y:  # a tensor that one operator reads twice is moved once
            kind = "relu"
        tensors.append(OPERATORS[kind](f"n{number}", x, y))
        free += [f"n{number}"] * (kind in FREE)
    heads = [tensors[-1], tensors[-1 - draw(st.integers(1, len(tensors) - 2))]]
    net = mx.sym.Group([symbol for symbol, _ in heads])
    operators = {output.rpartition("_")[0] for output in net.get_internals().list_outputs()}
    return net, [name for name in free if name in operators]


def price(net, policy):
    return measure(convert(net, policy, SHAPES).symbol, SHAPES, dict.fromkeys(net.list_inputs(), "float32"))


@pytest.mark.behaviour(14)
@settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(networks())
def test_no_way_to_run_the_free_operators_moves_fewer_bytes_or_as_many_with_fewer_casts(network):
    net, free = network
    ways = itertools.product(("float16", "float32"), repeat=len(free))
    assert price(net, "O1") == min(price(net, Policy.parse("O1", names=dict(zip(free, way)))) for way in ways)
