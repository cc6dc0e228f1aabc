"""Graph, Node, Entry and the builder."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mxmp.errors import GraphError
from mxmp.graph import Entry, Graph, GraphBuilder, Node, verify, without_versions
from tests.graph.text import from_text

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


def test_entry_names_are_mxnets():
    graph = from_text("data = null()\nconv = Convolution(data)\nparts = SliceChannel(conv) {num_outputs: 2} x2\nreturn parts")
    names = [graph.entry_name(Entry(*entry)) for entry in [(0, 0), (1, 0), (2, 1)]]
    assert names == ["data", "conv_output", "parts_output1"]


BAD = {
    "input out of range": ("fc", [Entry(57)], r"node 'fc' \(relu\): input 0 refers to node 57, but the graph has 2 nodes"),
    "cycle": ("fc", [Entry(1)], r"input 0 refers to node 'fc' \(relu\), which comes later or is itself"),
    "no such output": ("fc", [Entry(0, 4)], r"refers to output 4 of node 'x' \(null\), which has 1"),
    "variable with inputs": ("x", [Entry(0)], r"node 'x' \(null\): a variable cannot have inputs"),
}


@pytest.mark.parametrize("name, inputs, message", BAD.values(), ids=BAD.keys())
def test_verify_names_the_first_bad_node(name, inputs, message):
    nodes = (Node("null", "x"), Node("relu", "fc", inputs=(Entry(0),)))
    changed = tuple(node._replace(inputs=tuple(inputs)) if node.name == name else node for node in nodes)
    verify(Graph(nodes, (Entry(1),)))
    with pytest.raises(GraphError, match=message):
        verify(Graph(changed, (Entry(1),)))


def test_verify_asks_for_outputs_that_are_there():
    with pytest.raises(GraphError, match="no outputs"):
        verify(replace(GRAPH, heads=()))
    with pytest.raises(GraphError, match="output 0 of the graph refers to node 9"):
        verify(replace(GRAPH, heads=(Entry(9),)))
    with pytest.raises(GraphError, match=r"node 'b' \(relu\): found 0 outputs"):
        verify(replace(GRAPH, nodes=tuple(node._replace(num_outputs=int(node.name != "b")) for node in GRAPH.nodes)))
