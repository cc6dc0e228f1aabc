"""MXNet symbols through the engine: facts, conversion, types."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon.model_zoo import vision

from mxmp import Policy
from mxmp.errors import ConvertError, InferenceError
from mxmp.graph import Entry
from mxmp.passes import EraseCasts, Facts, make_plan
from mxmp.rules import DENY, RULES, RuleSet
from mxmp.symbol import convert_graph, from_graph, infer_facts, to_graph

# One of each family; a forward pass is never run here, so the large ones cost little.
NETWORKS = [
    "alexnet", "vgg11_bn", "resnet18_v1", "resnet50_v2", "squeezenet1.0", "densenet121", "mobilenet1.0",
    "mobilenetv2_1.0", "inceptionv3",
]  # fmt: skip
POLICIES = ["O1", "O2", "O3", "mixed_bfloat16"]


@pytest.fixture(scope="module")
def zoo():
    nets = {name: vision.get_model(name, classes=10) for name in NETWORKS}
    return {name: (net(mx.sym.var("data")), frozenset(net.collect_params())) for name, net in nets.items()}


def shape_of(name):
    return {"data": (2, 3, 299, 299) if "inception" in name else (2, 3, 224, 224)}


def convert(zoo, name, policy):
    symbol, params = zoo[name]
    return convert_graph(symbol, Policy.parse(policy), shape_of(name), {"data": "float32"}, params)


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


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", NETWORKS)
def test_float32_operators_never_read_low_precision(zoo, name, policy):
    found = convert(zoo, name, policy)
    low = Policy.parse(policy).compute_dtype
    checked = 0
    for node in found.graph.nodes:
        rule = RULES.find(node.op, dict(node.attrs))
        if rule is None or node.op in ("Cast", "amp_cast"):
            continue
        read = {found.facts.dtype(e) for p, e in enumerate(node.inputs) if rule.is_data(p)}
        kept = {found.facts.dtype(node.inputs[p]) for p in rule.keep if p < len(node.inputs)}
        assert len(read) <= 1 and low not in kept, node
        if rule.category == DENY and policy != "O3":
            assert low not in read, node
        checked += read == {low}
    assert checked > 10


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", NETWORKS)
def test_outputs_keep_names_and_dtypes(zoo, name, policy):
    found = convert(zoo, name, policy)
    assert found.symbol.list_outputs() == zoo[name][0].list_outputs()
    assert found.symbol.list_arguments() == zoo[name][0].list_arguments()
    assert [found.facts.dtype(head) for head in found.graph.heads] == ["float32"]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", NETWORKS)
def test_erasing_restores_the_network(zoo, name, policy):
    found = convert(zoo, name, policy)
    original = json.loads(zoo[name][0].tojson(remove_amp_cast=False))
    assert found.graph != to_graph(zoo[name][0])
    restored = from_graph(EraseCasts()(found.graph).graph)
    assert json.loads(restored.tojson(remove_amp_cast=False)) == original


@pytest.mark.parametrize("name", NETWORKS)
def test_conversion_is_idempotent_and_deterministic(zoo, name):
    found = convert(zoo, name, "O2")
    params = zoo[name][1]
    again = convert_graph(found.symbol, Policy.parse("O2"), shape_of(name), {"data": "float32"}, params)
    assert again.graph == found.graph
    assert convert(zoo, name, "O2").graph == found.graph


@pytest.mark.parametrize("name", NETWORKS)
def test_no_more_casts_than_contrib_amp(zoo, name):
    from mxnet.contrib import amp

    symbol = zoo[name][0]
    theirs = amp.convert_symbol(symbol, target_dtype="float16", cast_optional_params=False)
    count = sum(node.op.startswith("amp_") for node in to_graph(theirs).nodes)
    assert 0 < convert(zoo, name, "O1").report.casts <= count + 1  # theirs leaves the output in float16


def test_the_source_is_not_changed(zoo):
    symbol = zoo["resnet18_v1"][0]
    before = symbol.tojson()
    convert(zoo, "resnet18_v1", "O2")
    assert symbol.tojson() == before


def test_a_variable_that_is_an_output_and_cast_for_others():
    weight = mx.sym.var("weight")
    out = mx.sym.FullyConnected(mx.sym.var("data"), weight, num_hidden=3, no_bias=True, name="fc")
    found = convert_graph(mx.sym.Group([out, weight]), Policy.parse("O1"), {"data": (2, 4)})
    assert found.symbol.list_outputs() == ["fc_output", "weight"]
    assert [found.facts.dtype(head) for head in found.graph.heads] == ["float32", "float32"]


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


@pytest.mark.behaviour("float64 and integers")
def test_float64_and_integer_branches_are_left_alone():
    data = mx.sym.var("data")
    wide = mx.sym.FullyConnected(mx.sym.Cast(data, dtype="float64"), num_hidden=3, name="wide")
    number = mx.sym.Cast(data, dtype="int32") + 1
    narrow = mx.sym.FullyConnected(data, num_hidden=3, name="narrow")
    found = convert_graph(mx.sym.Group([wide, number, narrow]), Policy.parse("O1"), {"data": (2, 4)})
    assert [found.facts.dtype(head) for head in found.graph.heads] == ["float64", "int32", "float32"]
    assert {row.name: row.precision for row in found.report.rows}["wide"] == "as it was"


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


def test_a_conversion_that_does_not_type_check_names_the_node(monkeypatch):
    """With a wrong rule a sum would get two dtypes; MXNet's own check finds it."""
    wrong = RuleSet(tuple(replace(r, any=(1,)) if r.op == "elemwise_add" else r for r in RULES))
    monkeypatch.setattr("mxmp.symbol.conversion.make_plan", partial(make_plan, rules=wrong))
    data = mx.sym.var("data")
    fc = mx.sym.FullyConnected(data, num_hidden=4, name="fc")
    out = mx.sym.FullyConnected(mx.sym.elemwise_add(fc, data, name="culprit"), num_hidden=2)
    with pytest.raises(ConvertError, match="the converted network does not type-check: node 'culprit'"):
        convert_graph(out, Policy.parse("O1"), {"data": (2, 4)}, {"data": "float32"})


@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_emulated_logits_are_close_to_float32(zoo, policy):
    """A whole network: within the bound of some tens of roundings of float16 (eps 2**-10)."""
    symbol, params = zoo["resnet18_v1"]
    shape = {"data": (1, 3, 64, 64)}
    found = convert_graph(symbol, Policy.parse(policy), shape, {"data": "float32"}, params)
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
