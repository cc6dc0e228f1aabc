"""nnvm JSON to Graph and back; of any version, with names and attributes of any characters."""

import json

import mxnet as mx
import pytest
from hypothesis import example, given, settings
from mxnet.gluon.model_zoo import vision

from mxmp.graph import check_json, from_json, to_json
from tests.names import ANY, ODD


def loop():
    return mx.sym.contrib.foreach(lambda x, s: (mx.sym.relu(x) + s, s * 2), mx.sym.var("data"), mx.sym.var("state"))[0]


def with_group():
    with mx.AttrScope(ctx_group="dev1"):
        return mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name="fc")


SYMBOLS = {
    "control flow body": loop,
    "ctx_group": with_group,
    "batch norm with hidden outputs": lambda: mx.sym.BatchNorm(mx.sym.var("data"), name="bn"),
    "several outputs": lambda: mx.sym.Group(list(mx.sym.SliceChannel(mx.sym.var("data"), num_outputs=3))),
    "declared dtype": lambda: mx.sym.var("data", dtype="float16") * 2,
    "amp_cast": lambda: mx.sym.amp_cast(mx.sym.var("data"), dtype="float16"),
    "network": lambda: vision.densenet121()(mx.sym.var("data")),
}


@pytest.mark.parametrize("make", SYMBOLS.values(), ids=SYMBOLS)
def test_a_network_comes_back_unchanged_to_mxnet_too(make):
    text = make().tojson(remove_amp_cast=False)
    check_json(text, mx.operator.get_all_registered_operators())
    written = to_json(from_json(text))
    assert json.loads(written) == json.loads(text)
    assert json.loads(mx.sym.load_json(written).tojson(remove_amp_cast=False)) == json.loads(text)


@pytest.mark.parametrize("old", ["attr", "param"])
def test_attributes_may_have_their_old_names(old):
    relu = {"op": "relu", "name": "r", "inputs": [[0, 0]], old: {"__a__": "1"}, "backward_source_id": -1}  # as 0.8 wrote
    graph = {"nodes": [{"op": "null", "name": "x", "inputs": []}, relu], "arg_nodes": [0], "heads": [[1, 0, 0]]}
    check_json(json.dumps(graph), {"relu"})


@settings(max_examples=100, deadline=None)
@given(ANY, ANY)
def test_any_name_and_value_comes_back_to_mxnet_unharmed(name, value):
    data = mx.sym.var(f"data{name}", attr={"__café层\x01__": value})  # MXNet writes quotes in keys as they are
    text = mx.sym.FullyConnected(data, num_hidden=2, name=name, attr={"__note__": value}).tojson()
    check_json(text, ["FullyConnected"])
    graph = from_json(text)
    assert [node.name for node in graph.nodes] == [f"data{name}", f"{name}_weight", f"{name}_bias", name]
    assert dict(graph.nodes[0].attrs)["__café层\x01__"] == value
    assert mx.sym.load_json(to_json(graph)).tojson() == text


for odd in ODD.values():
    example(odd, odd)(test_any_name_and_value_comes_back_to_mxnet_unharmed)
