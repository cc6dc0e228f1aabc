"""Symbols as MXNet 0.8 to 1.8 wrote them: loaded, converted, and the same as today's.

What changed between the versions is in src/nnvm/legacy_json_util.cc and nnvm's saveload_json.cc at tag
1.9.1: 0.8 kept operator parameters apart from attributes, spelled hidden attributes without underscores,
and left auxiliary states out; up to 1.0 attributes were called 'attr'; versions of entries and row
pointers came with 0.9.
"""

from __future__ import annotations

import json

import mxnet as mx
import numpy as np
import pytest

from mxmp.errors import CheckpointError
from mxmp.symbol import convert_checkpoint, convert_model, load_symbol, on_cpu, to_graph
from tests.symbol.small import dtypes_of, params_of

VERSIONS = (800, 905, 10000, 10800)
SHAPES = {"data": (2, 3, 8, 8)}
AUX = ("bn_moving_mean", "bn_moving_var")


def network():
    with mx.AttrScope(ctx_group="dev1"):
        data = mx.sym.Convolution(mx.sym.var("data"), kernel=(3, 3), num_filter=4, name="conv")
        data = mx.sym.BatchNorm(data, fix_gamma=False, eps=1e-3, name="bn")
    data = mx.sym.Pooling(mx.sym.Activation(data, act_type="relu", name="relu"), kernel=(2, 2), name="pool")
    data = mx.sym.FullyConnected(mx.sym.Flatten(data, name="flat"), num_hidden=5, name="fc")
    return mx.sym.SoftmaxOutput(data, name="softmax")


def written_by(version, symbol):
    """Return a symbol's JSON in the format of an older version."""
    graph = json.loads(symbol.tojson())
    if version < 900:
        return json.dumps(_written_by_0_8(graph))
    for node in graph["nodes"]:
        if version < 10100 and "attrs" in node:
            node["attr"] = node.pop("attrs")
    graph["attrs"]["mxnet_version"] = ["int", version]
    return json.dumps(graph)


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


@pytest.mark.parametrize("version", VERSIONS)
def test_an_old_checkpoint_converts_as_todays(version, tmp_path):
    args, aux = params_of(network(), {**SHAPES, "softmax_label": (2,)})
    old, new = str(tmp_path / "old"), str(tmp_path / "new")
    mx.model.save_checkpoint(old, 3, network(), args, aux)
    (tmp_path / "old-symbol.json").write_text(written_by(version, network()))
    found = convert_checkpoint(old, 3, new, "O2", SHAPES)
    expected = convert_model(network(), args, aux, "O2", SHAPES)
    assert found.report.rows == expected.report.rows and dtypes_of(found.arg_params) == dtypes_of(expected.arg_params)
    loaded = load_symbol(f"{old}-symbol.json")
    assert loaded.list_auxiliary_states() == list(AUX) and loaded.attr_dict()["conv"]["__ctx_group__"] == "dev1"
    symbol, args, aux = mx.model.load_checkpoint(new, 3)  # by MXNet alone
    assert to_graph(symbol) == to_graph(found.symbol) and {**dtypes_of(args), **dtypes_of(aux)}["bn_moving_mean"] == "float32"
    values = {**args, "data": mx.nd.ones(SHAPES["data"])}
    results = (
        on_cpu(each).bind(mx.cpu(), {**values, "softmax_label": mx.nd.zeros(2)}, aux_states=aux).forward()[0].asnumpy()
        for each in (symbol, expected.symbol)
    )
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("version", [904, 905])
def test_the_meaning_of_old_attributes_is_upgraded(version, tmp_path):
    """Before 0.9.5 'axis=-1' of argmax meant that there is none."""
    file = tmp_path / "net-symbol.json"
    file.write_text(written_by(version, mx.sym.argmax(mx.sym.var("data"), axis=-1, name="top")))
    found = load_symbol(str(file)).infer_shape(data=(3, 4))[1]
    assert found == [(1,)] if version < 905 else [(3,)]


def test_an_old_symbol_that_is_malformed_names_the_node(tmp_path):
    graph = json.loads(written_by(800, network()))
    graph["nodes"][3]["inputs"][0] = [99, 0]
    file = tmp_path / "net-symbol.json"
    file.write_text(json.dumps(graph))
    with pytest.raises(
        CheckpointError, match=r"net-symbol.json: node 'conv' \(Convolution\): input 0 refers to node 99"
    ):
        load_symbol(str(file))
