"""Names and attributes of any characters, through MXNet's own JSON."""

from __future__ import annotations

import mxnet as mx
from hypothesis import given, settings

from mxmp.graph import check_json, from_json, to_json
from tests.names import ANY, EACH


def symbol_of(name, value):
    data = mx.sym.var(f"data{name}", attr={"__café层\x01__": value})  # MXNet writes quotes in keys as they are
    return mx.sym.FullyConnected(data, num_hidden=2, name=name, attr={"__note__": value})


@EACH
def test_a_graph_of_mxnet_comes_back_to_mxnet_unharmed(name):
    text = symbol_of(name, name).tojson()
    graph = from_json(text)
    assert [node.name for node in graph.nodes] == [f"data{name}", f"{name}_weight", f"{name}_bias", name]
    assert dict(graph.nodes[0].attrs)["__café层\x01__"] == name
    assert mx.sym.load_json(to_json(graph)).tojson() == text


@settings(max_examples=200, deadline=None)
@given(ANY, ANY)
def test_any_name_and_value_comes_back_to_mxnet_unharmed(name, value):
    text = symbol_of(name, value).tojson()
    check_json(text, ["FullyConnected"])
    assert mx.sym.load_json(to_json(from_json(text))).tojson() == text
