"""Graph, Node, Entry and the builder."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mxmp.graph import (
    Entry,
    GraphBuilder,
    Node,
    from_text,
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
        builder.copy(position, node._replace(inputs=inputs))
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
    read = replace(GRAPH, nodes=(*GRAPH.nodes[:1], GRAPH.nodes[1]._replace(inputs=(Entry(0, 0, 4),)), GRAPH.nodes[2]))
    assert read != GRAPH and without_versions(read) == GRAPH
