"""Symbols as MXNet 0.8 to 1.8 wrote them: loaded, converted, and the same as today's.

What changed between the versions is in src/nnvm/legacy_json_util.cc and nnvm's saveload_json.cc at tag
1.9.1: 0.8 kept operator parameters apart from attributes, spelled hidden attributes without underscores,
and left auxiliary states out; up to 1.0 attributes were called 'attr'; versions of entries and row
pointers came with 0.9.
"""

import json

import mxnet as mx
import numpy as np
import pytest

from mxmp.symbol import convert_checkpoint, convert_model, load_symbol, on_cpu, to_graph
from tests.symbol.small import convolutional, dtypes_of, params_of

AUX = ("bn_moving_mean", "bn_moving_var")
with mx.AttrScope(ctx_group="dev1"):
    NETWORK, SHAPES = convolutional()


def written_by(version, symbol):
    """Return a symbol's JSON in the format of an older version."""
    graph = json.loads(symbol.tojson())
    if version < 900:
        return json.dumps(_written_by_0_8(graph))
    key = "attr" if version < 10100 else "attrs"
    nodes = [{key if field == "attrs" else field: value for field, value in node.items()} for node in graph["nodes"]]
    return json.dumps({**graph, "nodes": nodes, "attrs": {"mxnet_version": ["int", version]}})


def _written_by_0_8(graph):
    kept = [i for i, node in enumerate(graph["nodes"]) if node["name"] not in AUX]
    place = {old: new for new, old in enumerate(kept)}
    nodes = []
    for node in map(graph["nodes"].__getitem__, kept):
        attrs = node.get("attrs", {})
        hidden = {key.strip("_"): value for key, value in attrs.items() if key.startswith("__")}
        old = {
            "op": node["op"],
            "param": {} if node["op"] == "null" else {k: v for k, v in attrs.items() if not k.startswith("__")},
            "name": node["name"],
            "inputs": [[place[entry[0]], entry[1]] for entry in node["inputs"] if entry[0] in place],
            "backward_source_id": -1,
        }
        nodes.append({**old, "attr": hidden} if hidden else old)
    variables = [place[i] for i in graph["arg_nodes"] if i in place]
    return {"nodes": nodes, "arg_nodes": variables, "heads": [[place[entry[0]], entry[1]] for entry in graph["heads"]]}


@pytest.mark.parametrize("version", [800, 905, 10000, 10800])
def test_an_old_checkpoint_converts_as_todays(version, tmp_path):
    args, aux = params_of(NETWORK, SHAPES)
    old, new = str(tmp_path / "old"), str(tmp_path / "new")
    mx.model.save_checkpoint(old, 3, NETWORK, args, aux)
    (tmp_path / "old-symbol.json").write_text(written_by(version, NETWORK))
    found = convert_checkpoint(old, 3, new, "O2", SHAPES)
    expected = convert_model(NETWORK, args, aux, "O2", SHAPES)
    assert found.report.rows == expected.report.rows and dtypes_of(found.arg_params) == dtypes_of(expected.arg_params)
    loaded = load_symbol(f"{old}-symbol.json")
    assert loaded.list_auxiliary_states() == list(AUX) and loaded.attr_dict()["conv"]["__ctx_group__"] == "dev1"
    symbol, args, aux = mx.model.load_checkpoint(new, 3)  # by MXNet alone
    assert to_graph(symbol) == to_graph(found.symbol) and dtypes_of(aux)["bn_moving_mean"] == "float32"
    args["x"] = mx.nd.ones(SHAPES["x"])
    results = (on_cpu(each).bind(mx.cpu(), args, aux_states=aux).forward() for each in (symbol, expected.symbol))
    np.testing.assert_array_equal(*(outputs[0].asnumpy() for outputs in results))


@pytest.mark.parametrize("version", [904, 905])
def test_the_meaning_of_old_attributes_is_upgraded(version, tmp_path):
    """Before 0.9.5 'axis=-1' of argmax meant that there is none."""
    file = tmp_path / "net-symbol.json"
    file.write_text(written_by(version, mx.sym.argmax(mx.sym.var("data"), axis=-1, name="top")))
    found = load_symbol(str(file)).infer_shape(data=(3, 4))[1]
    assert found == [(1,)] if version < 905 else [(3,)]
