"""Symbol JSON of any version, checked before MXNet loads it."""

from __future__ import annotations

import copy
import json

import mxnet as mx
import pytest

from mxmp.graph import check_json

OPERATORS = {"relu", "elemwise_add", "_foreach"}
X = {"op": "null", "name": "x", "inputs": []}
RELU = {"op": "relu", "name": "r", "inputs": [[0, 0, 0]]}
ADD = {"op": "elemwise_add", "name": "sum", "attrs": {"__a__": "1"}, "inputs": [[0, 0, 0], [1, 0, 0]]}
GRAPH = {"nodes": [X, RELU, ADD], "arg_nodes": [0], "heads": [[2, 0, 0]]}


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
