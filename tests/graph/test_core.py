"""Graph, Node, Entry and the builder."""

from __future__ import annotations

from dataclasses import replace

from mxmp.graph import Entry, GraphBuilder, Node, without_versions
from tests.graph.text import from_text

GRAPH = from_text("a = null()\nb = relu(a)\nc = relu(b) {k: v}\nreturn c")


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


def test_without_versions():
    read = replace(GRAPH, nodes=(*GRAPH.nodes[:1], GRAPH.nodes[1]._replace(inputs=(Entry(0, 0, 4),)), GRAPH.nodes[2]))
    assert read != GRAPH and without_versions(read) == GRAPH


def test_entry_names_are_mxnets():
    graph = from_text("data = null()\nconv = Convolution(data)\nparts = SliceChannel(conv) {num_outputs: 2} x2\nreturn parts")
    names = [graph.entry_name(Entry(*entry)) for entry in [(0, 0), (1, 0), (2, 1)]]
    assert names == ["data", "conv_output", "parts_output1"]
