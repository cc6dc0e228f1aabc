"""Symbols of every kind: what is theirs stays, and what plain MXNet makes of the result."""

import mxnet as mx
import numpy as np
import pytest

from mxmp import Policy
from mxmp.symbol import convert_symbol, to_graph
from tests.symbol.small import TWICE, X, assert_facts, convert, dense, precisions, run

POLICIES = ("O2", "mixed_bfloat16", "O1,output=float16")


def nodes_of(symbol):
    return {node.name: node for node in to_graph(symbol).nodes}


def _networks():
    x = mx.sym.var("x")
    fc, soft = dense(x), mx.sym.softmax(x, name="soft")
    parts = mx.sym.SliceChannel(dense(x, "wide"), num_outputs=2, axis=1, name="parts")
    count = mx.sym.Cast(x, dtype="int32", name="count")
    double = mx.sym.Cast(x, dtype="float64", name="double")
    return {
        "one": fc,
        "a group": mx.sym.Group([soft, fc]),
        "one output twice": mx.sym.Group([fc, soft, fc]),
        "an input": mx.sym.Group([x, fc]),
        "an input alone": x,
        "a cast of an input": mx.sym.Group([mx.sym.Cast(x, dtype="float16", name="half"), x, fc]),
        "a weight": mx.sym.Group([fc, fc.get_internals()["fc_weight"]]),
        "all of several outputs": mx.sym.Group([parts[0], parts[1]]),
        "several outputs in reverse": mx.sym.Group([parts[1], fc, parts[0]]),
        "other dtypes": mx.sym.Group([count, fc, double]),
        "hidden outputs": mx.sym.BatchNorm(fc, name="bn"),
        "indices among the outputs": mx.sym.Group(list(mx.sym.topk(fc, ret_typ="both", k=2, name="top"))),
        "a loss": mx.sym.SoftmaxOutput(fc, mx.sym.var("label"), name="loss"),
        "internals": mx.sym.Concat(fc, soft, dim=1, name="join").get_internals(),
    }


NETWORKS = _networks()

# No cast can take these names, 'x' and 'top_output0': its output would be called 'x_output'. Where the policy wants
# such an output in float16, and it is not computed in it, the dtype counts.
UNNAMEABLE = ("an input", "an input alone", "a cast of an input", "a weight", "indices among the outputs", "internals")


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", NETWORKS)
def test_outputs_keep_names_order_and_dtypes_and_converting_back_gives_the_network(name, policy):
    net, wanted = NETWORKS[name], Policy.parse(policy).output_dtype
    found = convert(net, policy)
    assert_facts(found, X, frozenset(net.list_arguments()) - {"x"})
    assert name in UNNAMEABLE and wanted == "float16" or found.symbol.list_outputs() == net.list_outputs()
    assert found.symbol.list_inputs() == net.list_inputs()
    before = net.infer_type(**dict.fromkeys(net.list_arguments(), "float32"))[1]
    expected = [wanted if dtype == np.float32 else np.dtype(dtype).name for dtype in before]
    if name == "indices among the outputs":
        expected[1] = "float32"  # positions, which low precision cannot hold
    assert [found.facts.dtype(head) for head in found.graph.heads] == expected
    assert found.symbol.infer_shape(**X)[1] == net.infer_shape(**X)[1]
    assert to_graph(convert(found.symbol, "O0").symbol) == to_graph(net)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("stype", ["csr", "row_sparse"])
def test_a_product_of_sparse_data_stays_as_it_is(stype, policy):
    """MXNet has no cast of sparse arrays that leaves them sparse."""
    net = mx.sym.dot(mx.sym.var("x", stype=stype), mx.sym.var("weight", shape=(6, 6)), name="product")
    assert to_graph(convert(net, policy.partition(",")[0]).symbol) == to_graph(net)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_an_input_that_declares_another_dtype_keeps_it(dtype):
    net = mx.sym.Group([dense(mx.sym.var("y", dtype=dtype), "own"), dense(mx.sym.var("x"))])
    found = convert(net, "O2", {**X, "y": (4, 6)}, dtypes={"y": dtype})
    assert precisions(found) == {"own": "as it was", "fc": "float16"}
    assert nodes_of(found.symbol)["y"] == nodes_of(net)["y"]
    assert found.symbol.infer_type(x="float32")[1] == [np.dtype(dtype), np.float32]


def test_declared_dtypes_come_back_when_converting_back():
    net = dense(mx.sym.var("x", dtype="float32"), weight=mx.sym.var("fc_weight", dtype="float32", lr_mult=2.0))
    low = convert(net, "O2")
    assert nodes_of(low.symbol)["fc_weight"].get("__dtype__") == "2"
    assert to_graph(convert(low.symbol, "O0").symbol) == to_graph(net)


@pytest.mark.behaviour("custom operators")
@pytest.mark.parametrize("policy", POLICIES)
def test_a_custom_operator_reads_and_gives_float32(policy):
    net = dense(mx.sym.Custom(dense(mx.sym.var("x"), "a"), op_type=TWICE, name="double"), "b")
    found = convert(net, policy)
    low = Policy.parse(policy).compute_dtype
    assert precisions(found) == {"a": low, "double": "as it was", "b": low}
    assert found.report.without_rule == ("Custom",)
    assert nodes_of(found.symbol)["double"].attrs == nodes_of(net)["double"].attrs
    if policy == "O2":
        (result,) = run(found.on_cpu(), {"x": mx.nd.ones((4, 6)), "a_weight": mx.nd.ones((6, 6)), "b_weight": mx.nd.ones((6, 6))})
        assert (result == 72).all()


def test_casts_stand_in_the_group_of_what_they_read_or_else_of_their_reader():
    """Where both have one: so half the bytes cross over, if it narrows."""
    with mx.AttrScope(ctx_group="first"):
        soft = mx.sym.softmax(mx.sym.var("x"), name="soft")
    with mx.AttrScope(ctx_group="second"):
        fc = dense(mx.sym.relu(soft, name="act"))
    nodes = convert(mx.sym.Group([fc, dense(soft, "third")])).graph.nodes
    groups = {nodes[n.inputs[0].node].name: n.get("__ctx_group__") for n in nodes if n.op == "Cast"}
    assert groups["soft"] == "first"
    assert groups["fc_weight"] == groups["fc_float16"] == "second"
    assert groups["third_weight"] is groups["third_float16"] is None


@pytest.mark.parametrize(
    "shapes",
    [{"x": (4, 6)}, {"x": [4, 6]}, {"x": (np.int64(4), np.int32(6))}, [("x", (4, 6))], [mx.io.DataDesc("x", (4, 6))]],
    ids=["dict", "list", "numpy", "pairs", "DataDesc"],
)
def test_shapes_are_given_as_module_has_them(shapes):
    net = mx.sym.mean(dense(mx.sym.var("x")), axis=1, name="mean")
    assert to_graph(convert_symbol(net, "O1", shapes)) == convert(net).graph


def stored(symbol):
    """Return the names of the variables that a symbol declares in float16."""
    return {name for name, node in nodes_of(symbol).items() if node.is_variable and node.get("__dtype__") == "2"}


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_a_label_has_the_dtype_of_the_data_where_that_is_no_float32(dtype):
    """MXNet wants them alike; a label that is taken for float32 would not type-check."""
    for data, dtypes in ((mx.sym.var("x", dtype=dtype), None), (mx.sym.var("x"), {"x": dtype})):
        found = convert_symbol(mx.sym.SoftmaxOutput(dense(data), name="soft"), "O1", X, dtypes)
        types = dict(zip(found.list_arguments(), found.infer_type(x=dtype)[0]))
        assert np.dtype(types["soft_label"]) == np.dtype(dtype)


@pytest.mark.parametrize("stype", ["row_sparse", "csr"])
def test_what_reads_sparse_data_is_left_alone(stype):
    net = mx.sym.sparse.dot(mx.sym.var("x", stype=stype), mx.sym.var("weight", shape=(6, 6)), name="product")
    assert convert_symbol(net, "O2", X).tojson() == net.tojson()


ROLES = {
    "by their names": ({}, {"fc_weight"}),
    "all but inputs and labels": ({"shapes": X}, {"fc_weight", "other"}),
    "all but data_names": ({"data_names": ["x"]}, {"fc_weight", "other"}),
    "all but data_names, with shapes": ({"shapes": X, "data_names": ["x", "fc_weight"]}, {"other"}),
}


@pytest.mark.parametrize("options, expected", ROLES.values(), ids=ROLES.keys())
def test_parameters_are_known(options, expected):
    net = dense(dense(dense(mx.sym.var("x")), "b", mx.sym.var("other")), "c", mx.sym.var("soft_label"))
    assert stored(convert_symbol(net, "O2", **options)) == expected


def test_numpy_symbols_stay_numpy():
    found = convert(mx.sym.np.exp(mx.sym.var("x").as_np_ndarray()))
    assert isinstance(found.symbol, mx.sym.numpy._Symbol) and found.report.without_rule == ()
