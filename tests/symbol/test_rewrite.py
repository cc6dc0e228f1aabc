"""MXNet symbols through the engine: facts, conversion, types."""

from __future__ import annotations

import json

import mxnet as mx
import numpy as np
import pytest

from mxmp import Policy
from mxmp.errors import InferenceError
from mxmp.graph import Entry
from mxmp.passes import EraseCasts, Facts
from mxmp.symbol import convert_graph, infer_facts, to_graph
from tests.symbol.networks import load
from tests.symbol.small import convert


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


def test_casts_of_the_network_are_absorbed():
    data = mx.sym.var("data")
    half = mx.sym.Cast(data, dtype="float16", name="half")
    out = mx.sym.Group([mx.sym.FullyConnected(data, num_hidden=3, name="fc"), half])
    found = convert_graph(out, Policy.parse("O1"), {"data": (2, 4)})
    readers = [node for node in found.graph.nodes if node.op == "Cast" and node.inputs[0].node == 0]
    assert [node.name for node in readers] == ["half"]
    assert found.symbol.list_outputs() == ["fc_output", "half_output"]


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


@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_emulated_logits_are_close_to_float32(policy):
    """A whole network: within the bound of some tens of roundings of float16 (eps 2**-10)."""
    symbol, shape = load("zoo/resnet18_v1")[0], {"data": (1, 3, 64, 64)}
    found = convert(symbol, policy, shape)
    rng = np.random.RandomState(0)
    shapes, _, aux = symbol.infer_shape(**shape)
    values = {n: rng.randn(*s) / np.sqrt(np.prod(s[1:]) or 1) for n, s in zip(symbol.list_arguments(), shapes)}
    values.update({n: np.ones(s) for n, s in zip(symbol.list_auxiliary_states(), aux)})

    def run(graph, low=()):
        arrays = [mx.nd.array(values[n], dtype="float16" if n in low else "float32") for n in graph.list_inputs()]
        return mx.nd.CachedOp(graph)(*arrays).asnumpy()

    expected, result = run(symbol), run(found.on_cpu(), found.low_params)
    assert result.dtype == np.float32
    assert 0 < np.abs(result - expected).max() < 32 * 2**-10 * np.abs(expected).max()


def test_facts_without_a_graph_are_float32():
    graph = to_graph(mx.sym.Cast(mx.sym.var("x", dtype="int32"), dtype="float16"))
    assert [Facts.assume_float32(graph).dtype(Entry(i)) for i in range(2)] == ["int32", "float16"]
