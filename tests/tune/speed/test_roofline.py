"""Estimates of single operators, against multiplications and bytes that were counted by hand."""

from __future__ import annotations

import pytest

from mxmp.graph import Entry, Graph, Node
from mxmp.passes import Facts, classify
from mxmp.policy import Policy
from mxmp.rules import RULES
from mxmp.tune.speed.roofline import Speeds, cast_seconds, multiply_adds, node_seconds

SPEEDS = Speeds(bytes=1000.0, products=100.0, convolution_gain=2.0, product_gain=4.0, overhead=0.0)


def network(op, output, *inputs, **attrs):
    """Return the graph of one operator and facts on it; it is the last node."""
    variables = [Node("null", f"v{i}") for i in range(len(inputs))]
    node = Node(op, "op", tuple(sorted(attrs.items())), tuple(map(Entry, range(len(inputs)))))
    graph = Graph((*variables, node), (Entry(len(inputs)),))
    shapes = {(i, 0): shape for i, shape in enumerate((*inputs, output))}
    return graph, Facts(dict.fromkeys(shapes, "float32"), shapes)


PRODUCTS = {
    "Convolution": (2 * 8 * 5 * 5 * (3 * 3 * 3), (2, 8, 5, 5), (2, 3, 5, 5), (8, 3, 3, 3)),
    "depthwise Convolution": (2 * 8 * 5 * 5 * (3 * 3), (2, 8, 5, 5), (2, 8, 5, 5), (8, 1, 3, 3)),
    "Deconvolution": (2 * 3 * 5 * 5 * (8 * 2 * 2), (2, 8, 10, 10), (2, 3, 5, 5), (3, 8, 2, 2)),
    "FullyConnected": (4 * 7 * 9, (4, 7), (4, 9), (7, 9)),
    "dot": (4 * 7 * 9, (4, 7), (4, 9), (9, 7)),
    "batch_dot": (3 * 4 * 7 * 9, (3, 4, 7), (3, 4, 9), (3, 7, 9)),
    "RNN": (6 * 2 * 100, (6, 2, 5), (6, 2, 4), (100,)),
    "Activation": (0, (4, 7), (4, 7)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_multiplications_are_counted(name):
    expected, *shapes = PRODUCTS[name]
    graph, facts = network(name.split()[-1], *shapes)
    assert multiply_adds(graph, len(graph.nodes) - 1, facts) == pytest.approx(expected)


def test_attention_multiplies_each_query_with_each_key():
    heads, batch, length, size = 4, 2, 6, 8
    shapes = (batch * heads, length, length), (length, batch, 3 * heads * size)
    graph, facts = network("_contrib_interleaved_matmul_selfatt_qk", *shapes, heads=str(heads))
    assert multiply_adds(graph, 1, facts) == batch * heads * length * length * size


def seconds(graph, facts, passes=1):
    (*_, verdict) = classify(graph, Policy.parse("mixed_bfloat16"), facts, RULES)
    return node_seconds(graph, len(graph.nodes) - 1, facts, verdict, SPEEDS, passes)


def test_an_operator_that_moves_takes_half_in_low_precision():
    found = seconds(*network("Activation", (10, 10), (10, 10), act_type="relu"))
    assert found == pytest.approx((0.8, 0.4))  # 200 values of four bytes


def test_an_operator_that_multiplies_gains_what_the_machine_does():
    shapes = (50, 50), (50, 50), (50, 50)
    expected = 50**3 / 100
    assert seconds(*network("FullyConnected", *shapes, num_hidden="50")) == pytest.approx((expected, expected / 4))


def test_training_takes_three_times_as_long():
    graph, facts = network("Activation", (10, 10), (10, 10), act_type="relu")
    assert seconds(graph, facts, passes=3) == pytest.approx((2.4, 1.2))


def test_unknown_shapes_count_as_nothing():
    graph, facts = network("FullyConnected", (50, 50), (50, 50), (50, 50))
    assert seconds(graph, Facts(facts.dtypes)) == (0.0, 0.0)


def test_a_cast_reads_four_bytes_and_writes_two():
    assert cast_seconds(100, SPEEDS) == pytest.approx(0.6)
    assert cast_seconds(None, SPEEDS._replace(overhead=0.5)) == 0.5
