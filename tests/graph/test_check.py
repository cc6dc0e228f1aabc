"""Symbol JSON of any version, checked before MXNet loads it."""

from __future__ import annotations

import copy
import json

import mxnet as mx
import pytest

from mxmp.errors import GraphError
from mxmp.graph import check_json

OPERATORS = {"relu", "elemwise_add", "_foreach"}
X = {"op": "null", "name": "x", "inputs": []}
RELU = {"op": "relu", "name": "r", "inputs": [[0, 0, 0]]}
ADD = {"op": "elemwise_add", "name": "sum", "attrs": {"__a__": "1"}, "inputs": [[0, 0, 0], [1, 0, 0]]}
GRAPH = {"nodes": [X, RELU, ADD], "arg_nodes": [0], "heads": [[2, 0, 0]]}


def changed(**changes):
    graph = copy.deepcopy(GRAPH)
    for path, value in changes.items():
        where, *keys = path.split("__")
        target = graph[where]
        for key in keys[:-1]:
            target = target[int(key) if key.isdigit() else key]
        if keys:
            target[int(keys[-1]) if keys[-1].isdigit() else keys[-1]] = value
        else:
            graph[where] = value
    return json.dumps(graph)


def test_a_sound_graph_passes():
    check_json(changed(), OPERATORS)


def test_what_mxnet_writes_passes():
    data = mx.sym.var("data")
    out, _ = mx.sym.contrib.foreach(lambda x, s: (mx.sym.relu(x), s), data, mx.sym.var("state"))
    check_json(out.tojson(), mx.operator.get_all_registered_operators())


@pytest.mark.parametrize("old", ["attr", "param"])
def test_attributes_may_have_their_old_names(old):
    graph = copy.deepcopy(GRAPH)
    graph["nodes"][2][old] = graph["nodes"][2].pop("attrs")
    graph["nodes"][2]["backward_source_id"] = -1
    graph["nodes"][2]["inputs"] = [[0, 0], [1, 0]]  # without versions, as 0.8 wrote them
    check_json(json.dumps(graph), OPERATORS)


BAD = {
    "no JSON": ("{", "not a symbol's JSON: Expecting"),
    "no object": ("[1]", "it has no 'nodes' and 'heads'"),
    "no heads": (changed(heads=[]), "the graph has no outputs"),
    "unknown field": (json.dumps({**GRAPH, "extra": 1}), r"the graph has unknown fields \['extra'\]"),
    "unknown field of a node": (changed(nodes__1={**RELU, "extra": 1}), r"node 'r' \(relu\) has unknown fields \['extra'\]"),
    "head beyond": (changed(heads=[[7, 0, 0]]), r"output 0 of the graph refers to node 7, but the graph has 3 nodes"),
    "node is no object": (changed(nodes__1=5), "node 1: found 5, expected 'op', 'name'"),
    "unknown operator": (changed(nodes__1__op="_my_op"), r"node 'r' \(_my_op\): this MXNet has no operator '_my_op'"),
    "attributes": (changed(nodes__2__attrs=[1]), r"node 'sum' \(elemwise_add\): 'attrs' is \[1\]"),
    "attribute of a number": (changed(nodes__2__attrs={"a": 1}), "'attrs' is {'a': 1}; expected names and texts"),
    "no inputs": (changed(nodes__1__inputs=None), r"node 'r' \(relu\): 'inputs' is None; expected a list"),
    "variable with inputs": (changed(nodes__0__inputs=[[0, 0, 0]]), "a variable cannot have inputs"),
    "entry": (changed(nodes__1__inputs=[[0]]), r"node 'r' \(relu\): input 0 is \[0\]; expected \[node, output\]"),
    "negative entry": (changed(nodes__1__inputs=[[-1, 0, 0]]), r"input 0 is \[-1, 0, 0\]"),
    "beyond the end": (changed(nodes__1__inputs=[[9, 0, 0]]), "input 0 refers to node 9, but the graph has 3 nodes"),
    "out of order": (changed(nodes__1__inputs=[[2, 0, 0]]), r"input 0 refers to node 'sum' \(elemwise_add\), which comes later"),
    "itself": (changed(nodes__1__inputs=[[1, 0, 0]]), r"input 0 refers to node 'r' \(relu\), which comes later or is itself"),
    "in a body": (
        changed(nodes__1__subgraphs=[{"nodes": [X, {**RELU, "op": "nix"}], "heads": [[1, 0, 0]]}]),
        "this MXNet has no operator 'nix'",
    ),
}


@pytest.mark.parametrize("text, message", BAD.values(), ids=BAD.keys())
def test_what_is_malformed_is_named(text, message):
    with pytest.raises(GraphError, match=message):
        check_json(text, OPERATORS)
