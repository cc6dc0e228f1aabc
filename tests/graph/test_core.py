"""Graph, Node, Entry and the builder; what entries are computed from, and the order in which MXNet writes nodes."""

from dataclasses import replace

import mxnet as mx

from mxmp.graph import (
    Entry,
    Graph,
    GraphBuilder,
    Node,
    from_json,
    in_written_order,
    to_json,
    without_versions,
)
from tests.graph.text import from_text

GRAPH = from_text("a = null()\nb = relu(a)\nc = relu(b) {k: v}\nreturn c")
SHUFFLED = from_text(
    "w = null()\nx = null()\nleft_out = relu(x)\nb = relu(w)\na = relu(x)\ns = elemwise_add(a, b)\n"
    "t = elemwise_mul(s, a)\nreturn t, b"
)
X, FIRST = Node("null", "x"), Node("relu", "first", inputs=(Entry(0),))


def test_builder_copies_with_an_insertion():
    builder = GraphBuilder(GRAPH)
    for position, node in enumerate(GRAPH.nodes):
        builder.copy(position, node.rewired(builder.inputs(node)))
        if node.name == "a":
            builder.redirect(Entry(0), builder.insert("Cast", "a", Entry(0)))
    graph = builder.finish()
    assert [n.name for n in graph.nodes] == ["a", "a1", "b", "c"]
    assert graph.nodes[2].inputs == (Entry(1),)


def test_without_versions():
    read = replace(GRAPH, nodes=(*GRAPH.nodes[:1], GRAPH.nodes[1]._replace(inputs=(Entry(0, 0, 4),)), GRAPH.nodes[2]))
    assert read != GRAPH and without_versions(read) == GRAPH


def test_entry_names_are_mxnets():
    graph = from_text("data = null()\nconv = Convolution(data)\nparts = SliceChannel(conv) {num_outputs: 2} x2\nreturn parts")
    assert [*map(graph.entry_name, [Entry(0), Entry(1), Entry(2, 1)])] == ["data", "conv_output", "parts_output1"]


def test_the_written_order_is_mxnets():
    ordered = in_written_order(SHUFFLED)
    assert [node.name for node in ordered.nodes] == ["x", "a", "w", "b", "s", "t"]
    written = mx.sym.load_json(to_json(replace(SHUFFLED, metadata='{"mxnet_version": ["int", 10901]}'))).tojson()
    assert ordered.nodes == from_json(written).nodes and ordered.heads == from_json(written).heads
    assert in_written_order(ordered) is ordered


def test_control_dependencies_come_behind_inputs():
    second = Node("relu", "second", inputs=(Entry(0),), control_deps=(1,))
    graph = Graph((X, FIRST, second), (Entry(2), Entry(0)))
    assert in_written_order(graph) == graph
    late = Graph((X, X._replace(name="y"), FIRST, Node("relu", "second", (), (Entry(1),), 1, (), (2,))), (Entry(3),))
    ordered = in_written_order(late)
    assert [node.name for node in ordered.nodes] == ["y", "x", "first", "second"]
    assert ordered.nodes[3].control_deps == (2,) and ordered.nodes[3].inputs == (Entry(0),)
