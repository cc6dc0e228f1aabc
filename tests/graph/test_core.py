"""Graph, Node, Entry and the builder."""

from __future__ import annotations

from dataclasses import replace

import mxnet as mx
import pytest

from mxmp.graph import (
    Entry,
    Graph,
    GraphBuilder,
    Node,
    from_json,
    from_text,
    in_written_order,
    to_json,
    without_versions,
)

GRAPH = from_text("a = null()\nb = relu(a)\nc = relu(b) {k: v}\nreturn c")


def test_node_attributes():
    assert GRAPH.nodes[2].get("k") == "v"
    assert GRAPH.nodes[2].get("missing", "default") == "default"
    changed = GRAPH.nodes[2].with_attrs({"k": None, "z": "1", "a": "2"})
    assert changed.attrs == (("a", "2"), ("z", "1"))
    assert GRAPH.nodes[2].attrs == (("k", "v"),)


def test_graph_is_immutable():
    with pytest.raises(AttributeError):
        GRAPH.nodes = ()
    with pytest.raises(AttributeError):
        GRAPH.nodes[0].name = "x"


def test_consumers():
    assert GRAPH.consumers() == {(0, 0): [(1, 0)], (1, 0): [(2, 0)]}


def test_builder_copies_with_an_insertion():
    builder = GraphBuilder(GRAPH)
    for position, node in enumerate(GRAPH.nodes):
        inputs = tuple(builder.mapped(entry) for entry in node.inputs)
        builder.copy(position, replace(node, inputs=inputs))
        if node.name == "a":
            new = builder.add(Node("Cast", builder.unique("a"), inputs=(Entry(0),)))
            builder.redirect(Entry(0), Entry(new))
    graph = builder.finish([builder.mapped(GRAPH.heads[0])])
    assert [n.name for n in graph.nodes] == ["a", "a1", "b", "c"]
    assert graph.nodes[2].inputs == (Entry(1),)


def test_builder_keeps_versions():
    builder = GraphBuilder(GRAPH)
    builder.copy(0, GRAPH.nodes[0])
    assert builder.mapped(Entry(0, 0, 3)) == Entry(0, 0, 3)


def test_without_versions():
    read = replace(GRAPH, nodes=(*GRAPH.nodes[:1], replace(GRAPH.nodes[1], inputs=(Entry(0, 0, 4),)), GRAPH.nodes[2]))
    assert read != GRAPH and without_versions(read) == GRAPH


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
    graph = Graph((x, first, replace(second, inputs=(Entry(0),), control_deps=(1,))), (Entry(2), Entry(0)))
    assert in_written_order(graph) == graph
    late = Graph((x, replace(x, name="y"), first, replace(second, inputs=(Entry(1),), control_deps=(2,))), (Entry(3),))
    found = in_written_order(late)
    assert [node.name for node in found.nodes] == ["y", "x", "first", "second"]
    assert found.nodes[3].control_deps == (2,) and found.nodes[3].inputs == (Entry(0),)
