"""Names and attributes of any characters, through MXNet's own JSON."""

from __future__ import annotations

import mxnet as mx
import pytest
from hypothesis import given, settings

from mxmp.errors import GraphError
from mxmp.graph import check_json, from_json, to_json
from tests.names import ANY, EACH, ODD


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


def test_names_in_bodies_of_loops_come_back_unharmed():
    for name in ODD.values():
        body = lambda x, s, name=name: (mx.sym.relu(x + s, name=name), s)  # noqa: E731
        text = mx.sym.contrib.foreach(body, mx.sym.var("x"), mx.sym.var("s"), name=f"loop{name}")[0].tojson()
        assert mx.sym.load_json(to_json(from_json(text))).tojson() == text


def test_a_zero_byte_is_refused():
    text = symbol_of("fc", "x").tojson().replace('"fc"', '"f\0c"')
    with pytest.raises(GraphError, match="zero byte"):
        check_json(text, ["FullyConnected"])
