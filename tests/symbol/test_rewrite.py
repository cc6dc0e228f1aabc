"""MXNet symbols through the engine: facts, conversion, types."""

from __future__ import annotations

import json

import mxnet as mx
import pytest

from mxmp import Policy
from mxmp.errors import InferenceError
from mxmp.graph import Entry
from mxmp.passes import EraseCasts
from mxmp.symbol import convert_graph, infer_facts, to_graph


def test_facts_are_mxnets():
    data = mx.sym.var("data")
    ids = mx.sym.Cast(data, dtype="int32", name="ids")
    out = mx.sym.BatchNorm(mx.sym.expand_dims(mx.sym.Cast(ids, dtype="float32"), axis=1), name="bn")
    graph = to_graph(out)
    facts = infer_facts(out, graph, {"data": (4, 5)}, {"data": "float32"}, frozenset(["bn_gamma"]))
    position = {node.name: i for i, node in enumerate(graph.nodes)}
    assert facts.dtype(Entry(position["ids"])) == "int32"
    assert facts.shape(Entry(position["bn"])) == (4, 1, 5)
    assert facts.size(Entry(position["bn_gamma"])) == 1
    assert facts.output_name(graph, Entry(position["bn"])) == "bn_output"  # three outputs, two hidden
    assert facts.dtype(Entry(position["bn"], 1)) is None


def test_unknown_shapes_stay_unknown():
    out = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3)
    facts = infer_facts(out, to_graph(out), {}, {"data": "float32"}, frozenset())
    assert facts.shape(Entry(0)) is None and facts.dtype(Entry(0)) == "float32"


@pytest.mark.parametrize("policy", ["O1", "O2", "mixed_bfloat16"])
def test_absorbing_is_undone_by_erasing(policy):
    soft = mx.sym.softmax(mx.sym.var("data"), name="soft")
    own = mx.sym.Cast(soft, dtype="float16", name="own")
    out = mx.sym.Group([mx.sym.FullyConnected(soft, num_hidden=4, name="fc"), mx.sym.Cast(own, dtype="float32")])
    found = convert_graph(out, Policy.parse("O1"), {"data": (2, 4)})
    assert EraseCasts()(found.graph).graph.nodes != found.graph.nodes
    again = convert_graph(found.symbol, Policy.parse(policy), {"data": (2, 4)})
    assert again.graph == convert_graph(out, Policy.parse(policy), {"data": (2, 4)}).graph
    restored = convert_graph(found.symbol, Policy(), {"data": (2, 4)})
    assert [restored.facts.dtype(head) for head in restored.graph.heads] == ["float32", "float32"]
    assert json.loads(restored.symbol.tojson()) == json.loads(out.tojson())


def test_numpy_symbols_stay_numpy():
    data = mx.sym.var("data").as_np_ndarray()
    out = mx.sym.np.exp(data)
    found = convert_graph(out, Policy.parse("O1"), {"data": (2, 4)}, {"data": "float32"})
    assert isinstance(found.symbol, mx.sym.numpy._Symbol)
    assert found.report.without_rule == ()


def test_a_network_that_is_wrong_by_itself_names_the_node():
    data = mx.sym.var("data")
    wrong = mx.sym.elemwise_add(mx.sym.Cast(data, dtype="int32"), data, name="culprit")
    with pytest.raises(InferenceError, match="node 'culprit': MXNet cannot infer its dtypes"):
        convert_graph(wrong, Policy.parse("O1"), {"data": (2, 4)}, {"data": "float32"})
