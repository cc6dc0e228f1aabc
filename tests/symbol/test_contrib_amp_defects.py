"""Defects of ``mxnet.contrib.amp`` in MXNet 1.9.1: each test shows it there, and that mxmp has it not.

MXNet has no float16 matrix products on CPU, so contrib.amp's graphs are checked by type inference, which
is what binding runs first.
"""

from __future__ import annotations

import ast
import functools
import json
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from mxnet.contrib import amp

import mxmp.gluon
from mxmp import Policy
from mxmp.errors import PolicyError
from mxmp.rules import RULES
from mxmp.symbol import convert_graph, convert_model, convert_symbol
from tests.symbol import small
from tests.symbol.measure import entries_of, measure, nodes_of
from tests.symbol.networks import load

X = {"x": (3, 4)}


dense = functools.partial(small.dense, hidden=4)


def params_of(symbol, inputs=("x",), **shapes):
    """Return weights of 0.1."""
    args, _, _ = symbol.infer_shape(**(shapes or X))
    return {n: mx.nd.full(s, 0.1) for n, s in zip(symbol.list_arguments(), args) if n not in inputs}


def raises_type_error():
    return pytest.raises(mx.MXNetError, match="expected float(16|32|64), got float(16|32|64)")


# 19
@pytest.mark.parametrize("order", ["embedding first", "layer first"])
def test_tied_weights_bind(order):
    weight, ids = mx.sym.var("weight"), mx.sym.var("ids")
    rows = mx.sym.Embedding(ids, weight, input_dim=5, output_dim=4, name="embed")
    heads = [dense(rows, weight=weight, hidden=5), rows]
    net = mx.sym.Group(heads if order == "layer first" else heads[::-1])
    with raises_type_error():
        amp.convert_model(net, params_of(net, ["ids"], ids=(2,)), {}, cast_optional_params=True)
    ours = convert_model(net, params_of(net, ["ids"], ids=(2,)), {}, "O2", {"ids": (2,)})
    assert small.type_checks(ours.symbol, ours.arg_params, ["ids"])
    assert sum(node["op"] == "Cast" for node in nodes_of(ours.symbol) if node["inputs"] == [[1, 0, 0]]) <= 1


# 19
@pytest.mark.parametrize("excluded", ["a", "b"])
def test_a_weight_shared_with_an_excluded_layer_binds(excluded):
    weight, x = mx.sym.var("weight"), mx.sym.var("x")
    net = mx.sym.Group([dense(x, "a", weight), dense(x, "b", weight)])
    with raises_type_error():
        amp.convert_model(net, params_of(net), {}, cast_optional_params=True, excluded_sym_names=[excluded])
    ours = convert_model(net, params_of(net), {}, f"O2,name:{excluded}=float32", X)
    assert small.type_checks(ours.symbol, ours.arg_params)
    assert ours.arg_params["weight"].dtype == np.float32


# 20
def test_float32_operators_never_read_a_stored_float16_weight():
    weight, x = mx.sym.var("weight"), mx.sym.var("x")
    net = mx.sym.Group([dense(x, weight=weight), mx.sym.exp(weight, name="exp")])
    theirs, args, _ = amp.convert_model(net, params_of(net), {}, cast_optional_params=True)
    assert "exp" in amp.list_fp32_ops("float16")
    assert theirs.get_internals()["exp_output"].infer_type(weight=args["weight"].dtype)[1] == [np.float16]
    ours = convert_model(net, params_of(net), {}, "O2", X)
    types = {"weight": ours.arg_params["weight"].dtype}
    assert ours.symbol.get_internals()["exp_output"].infer_type(**types)[1] == [np.float32]


def _loop():
    data = mx.sym.FullyConnected(mx.sym.var("x"), no_bias=True, num_hidden=4, flatten=False, name="before")
    out, _ = mx.sym.contrib.foreach(lambda x, s: (dense(x, name="inside"), s), data, mx.sym.var("s"))
    return out


def _branch():
    hidden = dense(mx.sym.var("x"), name="before")
    condition = mx.sym.sum(mx.sym.var("s")) > 0
    weight = mx.sym.var("inside_weight", shape=(4, 4))
    return mx.sym.contrib.cond(
        condition, lambda: dense(hidden, "inside", weight), lambda: mx.sym.exp(hidden, name="other")
    )


# 21
@pytest.mark.parametrize("make, x", [(_loop, (2, 3, 4)), (_branch, (3, 4))], ids=["foreach", "cond"])
def test_control_flow_is_converted_and_binds(make, x):
    net, shapes = make(), {"x": x, "s": (3, 4)}
    inputs = dict.fromkeys(shapes, "float32")
    with raises_type_error():
        amp.convert_symbol(net).infer_type(**inputs)
    ours = convert_graph(net, Policy.parse("O1"), shapes, inputs)
    assert {row.name: row.precision for row in ours.report.rows}["inside"] == "float16"
    assert ours.symbol.infer_type(**dict.fromkeys(net.list_arguments(), "float32"))[1] == [np.float32]
    rng = np.random.RandomState(0)
    shapes = {**dict.fromkeys(net.list_arguments(), (4, 4)), **shapes}
    arrays = {name: mx.nd.array(rng.randn(*shape)) for name, shape in shapes.items()}
    expected, result = (s.bind(mx.cpu(), arrays).forward()[0].asnumpy() for s in (net, ours.on_cpu()))
    np.testing.assert_allclose(result, expected, rtol=0.05, atol=0.05 * np.abs(expected).max())


# 22
@pytest.mark.parametrize("op", ["dot", "batch_dot", "broadcast_mul"])
def test_any_operator_can_be_put_in_low_precision(op):
    net = getattr(mx.sym, op)(mx.sym.var("x"), mx.sym.var("y"), name="node")
    with pytest.raises(AssertionError, match="not in any of them"):
        amp.convert_symbol(net, target_dtype_ops=[op])
    ours = convert_graph(net, Policy.parse(f"O1,op:{op}=float16"), {}, {"x": "float32", "y": "float32"})
    assert [row.precision for row in ours.report.rows] == ["float16"]


# 22
def test_matrix_products_of_attention_run_in_low_precision():
    net, shapes = load("attention_post")
    theirs = amp.convert_symbol(net, data_names=[*shapes, "softmax_label"])
    entries = entries_of(theirs, shapes, dict.fromkeys(theirs.list_inputs(), "float32"))
    products = [i for i, node in enumerate(nodes_of(theirs)) if node["op"] == "batch_dot"]
    in_float32 = [entries[i, 0][0] == np.float32 for i in products]
    assert in_float32.count(True) == len(products) // 2  # those behind a softmax
    ours = convert_graph(net, Policy.parse("O1"), shapes, dict.fromkeys(shapes, "float32"))
    found = {row.precision for row in ours.report.rows if row.op == "batch_dot"}
    assert found == {"float16"}
    known = dict.fromkeys(net.list_inputs(), "float32")
    entries = entries_of(ours.symbol, shapes, known)
    soft = [node["inputs"][0] for node in nodes_of(ours.symbol) if node["op"] == "softmax"]
    assert soft and all(entries[node, index][0] == np.float32 for node, index, _ in soft)


# 23
def test_indices_are_not_rounded():
    net = mx.sym.Embedding(mx.sym.var("ids"), mx.sym.var("weight"), input_dim=3000, output_dim=1, name="embed")
    values = {"ids": mx.nd.array([2049]), "weight": mx.nd.arange(3000).reshape((3000, 1)) % 2048}
    theirs = amp.convert_symbol(net, target_dtype_ops=["Embedding"])
    assert theirs.bind(mx.cpu(), values).forward()[0].asscalar() == 0  # row 2048
    ours = convert_graph(net, Policy.parse("O1,op:Embedding=float16"), {"ids": (1,)}, {"ids": "float32"})
    assert [row.precision for row in ours.report.rows] == ["float16"]
    assert ours.on_cpu().bind(mx.cpu(), values).forward()[0].asscalar() == 1  # row 2049


# 24
@pytest.mark.parametrize("stored", [False, True])
def test_saving_keeps_all_casts(stored, tmp_path):
    net, file = dense(mx.sym.var("x")), str(tmp_path / "net.json")
    theirs, args, _ = amp.convert_model(net, params_of(net), {}, cast_optional_params=stored)
    theirs.save(file)
    assert [node["op"] for node in nodes_of(mx.sym.load(file))][-1] == "amp_cast"  # the output's
    assert len(nodes_of(mx.sym.load(file))) < len(nodes_of(theirs))
    if stored:
        with raises_type_error():
            small.type_checks(mx.sym.load(file), args)
    ours = convert_model(net, params_of(net), {}, "O2" if stored else "O1", X)
    ours.symbol.save(file)
    assert nodes_of(mx.sym.load(file)) == nodes_of(ours.symbol)
    assert small.type_checks(mx.sym.load(file), ours.arg_params)


def onnx_translators():
    """Return the operators that MXNet's ONNX exporter translates, read from its source: ONNX need not be installed."""
    folder = Path(mx.__file__).parent / "onnx" / "mx2onnx" / "_op_translations"
    trees = [ast.parse(file.read_text()) for file in folder.glob("*.py")]
    calls = [
        decorator
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        for decorator in node.decorator_list
        if isinstance(decorator, ast.Call)
    ]
    return {call.args[0].value for call in calls}


# 25
def test_every_operator_has_a_translator_to_onnx():
    known = onnx_translators()
    assert len(known) > 100
    net, shapes = load("symbols/lenet")
    theirs = {node["op"] for node in nodes_of(amp.convert_symbol(net))} - {"null"}
    assert theirs - known == {"amp_cast"}
    ours = convert_graph(net, Policy.parse("O1"), shapes, {"data": "float32"})
    assert ours.report.casts > 0
    assert {node["op"] for node in nodes_of(ours.symbol)} - {"null"} <= known


# 26
def test_inputs_may_declare_their_dtype():
    net = dense(mx.sym.var("x", dtype="float32"))
    with pytest.raises(KeyError, match="x"):
        amp.convert_model(net, params_of(net), {})
    ours = convert_model(net, params_of(net), {}, "O2", X)
    assert small.type_checks(ours.symbol, ours.arg_params)
    assert json.loads(ours.symbol.tojson())["nodes"][0]["attrs"]["__dtype__"] == "0"


# 26
def test_the_callers_dicts_are_untouched():
    net = mx.sym.BatchNorm(dense(mx.sym.var("x")), name="bn")
    aux = {name: mx.nd.ones(4) for name in net.list_auxiliary_states()}
    mine = params_of(net)
    amp.convert_model(net, mine, aux, cast_optional_params=True)
    assert mine["fc_weight"].dtype == np.float16
    args, weight = params_of(net), None
    weight = args["fc_weight"]
    before = dict(args), dict(aux), weight.asnumpy()
    convert_model(net, args, aux, "O2", X)
    assert (args, aux) == before[:2] and args["fc_weight"] is weight
    np.testing.assert_array_equal(weight.asnumpy(), before[2])


# 27
def test_outputs_keep_their_names():
    net = dense(mx.sym.var("x"))
    assert amp.convert_symbol(net).list_outputs() == ["fc_output_amp_cast_float32_output"]
    for policy in ("O1", "O2", "mixed_bfloat16"):
        assert convert_symbol(net, policy, X).list_outputs() == ["fc_output"]


# 27
def test_no_two_nodes_get_one_name():
    x = mx.sym.var("x_0")
    net = mx.sym.Group([dense(mx.sym.relu(mx.sym.var("y"), name="x"), name="a"), dense(x, name="b")])
    theirs = [node["name"] for node in nodes_of(amp.convert_symbol(net))]
    assert len(set(theirs)) < len(theirs)
    taken = mx.sym.var("x_0_cast_float16")  # what mxmp would call a cast
    net = mx.sym.Group([net[0], net[1], mx.sym.exp(taken, name="exp")])
    ours = [node["name"] for node in nodes_of(convert_symbol(net, "O1"))]
    assert len(set(ours)) == len(ours) and "x_0_cast_float16" in ours


# 28
def test_casts_have_the_context_group_of_their_layer():
    with mx.AttrScope(ctx_group="dev1"):
        net = dense(mx.sym.var("x"))
    groups = {
        who: {
            node.get("attrs", {}).get("__ctx_group__")
            for node in nodes_of(symbol)
            if node["op"] in ("Cast", "amp_cast")
        }
        for who, symbol in (("theirs", amp.convert_symbol(net)), ("ours", convert_symbol(net, "O1", X)))
    }
    assert groups == {"theirs": {None}, "ours": {"dev1"}}


# 28
def test_float64_branches_are_left_alone():
    x = mx.sym.var("x")
    net = dense(mx.sym.Cast(x, dtype="float64", name="wide"))
    assert net.infer_type(x="float32")[1] == [np.float64]
    with raises_type_error():
        amp.convert_symbol(net)
    ours = convert_symbol(mx.sym.Group([net, dense(x, name="other")]), "O1", X)
    assert ours.infer_type(x="float32", other_weight="float32")[1] == [np.float64, np.float32]


# 28
def test_an_excluded_name_that_does_not_exist_is_an_error():
    net = dense(mx.sym.var("x"))
    amp.convert_symbol(net, excluded_sym_names=["fcc"])
    with pytest.raises(PolicyError, match="names: 'fcc' matches no node; the nearest are fc"):
        convert_symbol(net, "O1,name:fcc=float32")


# 28
def test_numpy_dtypes_are_dtypes():
    net = dense(mx.sym.var("x"))
    with pytest.raises(AssertionError, match="Only target_dtype float16 and bfloat16 are supported"):
        amp.convert_symbol(net, target_dtype=np.float16)
    assert nodes_of(convert_symbol(net, Policy(compute_dtype=np.float16))) == nodes_of(convert_symbol(net, "O1"))


class _Partly(gluon.HybridBlock):
    """A block with a layer that it does not use."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.used = gluon.nn.Dense(3, in_units=4)
            self.unused = gluon.nn.Dense(3, in_units=4)

    def hybrid_forward(self, F, x):
        return self.used(x)


def ready(net):
    net.initialize()
    net.hybridize()
    net(mx.nd.ones((2, 4)))
    return net


# 29
def test_a_gluon_net_converts_on_a_cpu_build():
    net = ready(gluon.nn.Dense(3, in_units=4))
    if mx.context.num_gpus() == 0:
        with pytest.raises(mx.MXNetError, match="GPU is not enabled"):
            amp.convert_hybrid_block(net)
    expected = net(mx.nd.ones((2, 4))).asnumpy()
    mxmp.gluon.convert(net, "O1")
    np.testing.assert_allclose(net(mx.nd.ones((2, 4))).asnumpy(), expected, atol=2e-3)


# 29
def test_a_gluon_net_keeps_grad_req_and_lr_mult():
    net = ready(gluon.nn.Dense(3, in_units=4))
    net.weight.grad_req, net.bias.lr_mult = "null", 0.1
    theirs = amp.convert_hybrid_block(net, ctx=mx.cpu()).collect_params()
    assert [(p.grad_req, p.lr_mult) for p in theirs.values()] == [("write", 1.0), ("write", 1.0)]
    mxmp.gluon.convert(net, "O1")
    net(mx.nd.ones((2, 4)))
    assert (net.weight.grad_req, net.bias.lr_mult) == ("null", 0.1)


# 29
def test_a_gluon_net_may_have_unused_parameters():
    with pytest.warns(UserWarning, match="not used by any computation"):
        net = ready(_Partly())
    with pytest.raises(AssertionError) as error:
        amp.convert_hybrid_block(net, ctx=mx.cpu())
    assert str(error.value) == ""
    mxmp.gluon.convert(net, "O1")
    with pytest.warns(UserWarning, match="not used by any computation"):  # MXNet's, for each graph
        assert net(mx.nd.ones((2, 4))).shape == (2, 3)
    assert len(net.collect_params().keys()) == 4


# 30
def test_operators_that_stand_in_no_list_have_a_rule():
    lists = (amp.list_lp16_ops, amp.list_fp32_ops, amp.list_lp16_fp32_ops, amp.list_widest_type_cast)
    listed = {op for each in lists for op in each("float16")}
    listed |= {op for op, *_ in amp.list_conditional_fp32_ops("float16")} | set(
        amp.list_loss_output_functions("float16")
    )
    assert len(set(RULES.ops()) - listed) > 200
    assert {"_np_dot", "_npi_exp", "_contrib_box_decode", "_contrib_BatchNormWithReLU"} <= set(RULES.ops()) - listed


# 31
def test_weights_beyond_float16_are_clamped_and_counted():
    net = dense(mx.sym.var("x"), hidden=1)
    weight = [[1e5, -1e5, 1e-9, 1.0]]
    _, theirs, _ = amp.convert_model(net, {"fc_weight": mx.nd.array(weight)}, {}, cast_optional_params=True)
    np.testing.assert_array_equal(theirs["fc_weight"].asnumpy(), [[np.inf, -np.inf, 0, 1]])
    ours = convert_model(net, {"fc_weight": mx.nd.array(weight)}, {}, "O2", X)
    np.testing.assert_array_equal(ours.arg_params["fc_weight"].asnumpy(), [[65504, -65504, 0, 1]])
    (change,) = ours.changes
    assert (change.name, change.clamped, change.largest, change.underflowed) == ("fc_weight", 2, 1e5, 1)


# 32
def test_stored_weights_are_not_cast_again_at_each_forward():
    net, shapes = load("symbols/resnet18_v1")
    theirs = amp.convert_symbol(net, data_names=[*shapes, "softmax_label"])
    args, _, aux = net.infer_shape(**shapes)
    params = {n: mx.nd.zeros(s) for n, s in zip(net.list_arguments(), args) if n not in ("data", "softmax_label")}
    states = {n: mx.nd.ones(s) for n, s in zip(net.list_auxiliary_states(), aux)}
    ours = convert_model(net, params, states, "O2", shapes)
    types = {name: array.dtype for name, array in ours.arg_params.items()}
    assert measure(theirs, shapes, {"data": "float32"}).casts > 20
    assert measure(ours.symbol, shapes, {"data": "float32", **types}).casts == 2  # data and logits
    assert ours.param_bytes[1] < 0.51 * ours.param_bytes[0]
