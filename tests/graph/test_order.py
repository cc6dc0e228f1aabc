"""What entries are computed from, and the order in which MXNet writes nodes."""

from __future__ import annotations

from dataclasses import replace

import mxnet as mx

from mxmp.graph import Entry, Graph, Node, ancestors, from_json, in_written_order, to_json
from tests.graph.text import from_text

SHUFFLED = from_text(
    "w = null()\nx = null()\nleft_out = relu(x)\nb = relu(w)\na = relu(x)\ns = elemwise_add(a, b)\n"
    "t = elemwise_mul(s, a)\nreturn t, b"
)


def test_the_written_order_is_mxnets():
    ordered = in_written_order(SHUFFLED)
    assert [node.name for node in ordered.nodes] == ["x", "a", "w", "b", "s", "t"]
    written = mx.sym.load_json(to_json(replace(SHUFFLED, metadata='{"mxnet_version": ["int", 10901]}'))).tojson()
    assert ordered.nodes == from_json(written).nodes and ordered.heads == from_json(written).heads


def test_the_written_order_has_control_dependencies_behind_inputs():
    x, first, second = Node("null", "x"), Node("relu", "first", inputs=(Entry(0),)), Node("relu", "second")
    graph = Graph((x, first, second._replace(inputs=(Entry(0),), control_deps=(1,))), (Entry(2), Entry(0)))
    assert in_written_order(graph) == graph
    late = Graph((x, x._replace(name="y"), first, second._replace(inputs=(Entry(1),), control_deps=(2,))), (Entry(3),))
    found = in_written_order(late)
    assert [node.name for node in found.nodes] == ["y", "x", "first", "second"]
    assert found.nodes[3].control_deps == (2,) and found.nodes[3].inputs == (Entry(0),)


def test_a_graph_in_the_written_order_stays_as_it_is():
    ordered = in_written_order(SHUFFLED)
    assert in_written_order(ordered) is ordered


def names_of_ancestors(entries, given=frozenset()):
    return [SHUFFLED.nodes[position].name for position in sorted(ancestors(SHUFFLED, entries, given))]


def test_ancestors_are_what_an_entry_is_computed_from():
    assert names_of_ancestors([Entry(5)]) == ["w", "x", "b", "a", "s"]
    assert names_of_ancestors([Entry(3), Entry(2)]) == ["w", "x", "left_out", "b"]


def test_ancestors_end_where_an_entry_is_given():
    assert names_of_ancestors([Entry(6)], {(5, 0)}) == ["x", "a", "t"]
    assert names_of_ancestors([Entry(5)], {(5, 0)}) == []


def test_ancestors_have_control_dependencies():
    x, first, second = Node("null", "x"), Node("relu", "first", inputs=(Entry(0),)), Node("relu", "second")
    graph = Graph((x, first, second._replace(inputs=(Entry(0),), control_deps=(1,))), (Entry(2),))
    assert ancestors(graph, [Entry(2)]) == {0, 1, 2}
