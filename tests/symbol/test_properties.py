"""What every conversion must hold, one property each, and the general ones over every network."""

from __future__ import annotations

import itertools
import json

import mxnet as mx
import numpy as np
import pytest

from mxmp import Policy, amp
from mxmp.symbol import convert_symbol
from tests.symbol.measure import BFLOAT16, CASTS, entries_of, measure, nodes_of
from tests.symbol.networks import NAMES, PLACEMENT, load
from tests.symbol.small import X, convert, dense, precisions

POLICIES = ("O1", "O2", "mixed_bfloat16")
FLOAT32 = {dtype: set(amp.list_fp32_ops(dtype)) for dtype in ("float16", "bfloat16")}
NEVER_LOW = {  # ports that read indices, lengths or statistics
    "BatchNorm": (1, 2, 3, 4),
    **dict.fromkeys(["Embedding", "one_hot", "where"], (0,)),
    **dict.fromkeys(["take", "gather_nd", "pick", "SequenceMask", "SequenceReverse", "SequenceLast"], (1,)),
}
QUICK = {*PLACEMENT, "symbols/lenet", "symbols/resnet18_v1"}
# One of each family, with every policy; a forward pass is never run here, so the large ones cost little.
EACH_POLICY = {
    f"zoo/{name}"
    for name in "alexnet vgg11_bn resnet18_v1 resnet50_v2 squeezenet1.0 densenet121 mobilenet1.0 mobilenetv2_1.0 "
    "inceptionv3".split()
}
EVERY = [
    pytest.param(name, policy, marks=() if name in QUICK | EACH_POLICY else pytest.mark.slow)
    for name in NAMES
    for policy in ((*POLICIES, "O3") if name in EACH_POLICY else POLICIES[len(name) % 3 :][:1])
]


def casts(found):
    """Return (name of what is cast, dtype) of all casts."""
    nodes = nodes_of(found.symbol)
    return [
        (nodes[node["inputs"][0][0]]["name"], node["attrs"]["dtype"]) for node in nodes if node["op"].endswith("ast")
    ]


def text(symbol):
    return symbol.tojson(remove_amp_cast=False)


@pytest.mark.parametrize("name, policy", EVERY)
def test_every_network_converts_soundly(name, policy):
    """One conversion for all of it, since the networks are many.

    Idempotent, deterministic and invertible; node order topological, names unique; outputs keep names
    and dtypes; no float32-only operator reads low precision; save and load round trip.
    """
    symbol, shapes = load(name)
    before = text(symbol)
    params = {n for n in symbol.list_arguments() if n not in shapes and not n.endswith("label")}
    found = convert(symbol, policy, shapes, params)
    assert text(symbol) == before
    after = text(found.symbol)
    assert after != before
    assert text(convert(found.symbol, policy, shapes, params).symbol) == after
    assert text(convert(symbol, policy, shapes, params).symbol) == after
    assert json.loads(text(convert_symbol(found.symbol, "O0"))) == json.loads(before)
    assert found.symbol.list_outputs() == symbol.list_outputs()
    assert found.symbol.list_inputs() == symbol.list_inputs()
    assert_sound(found, Policy.parse(policy), shapes)
    assert text(mx.sym.load_json(after)) == after


def assert_sound(found, policy, shapes):
    """Check a converted graph with MXNet's own inference."""
    low = policy.compute_dtype
    nodes = nodes_of(found.symbol)
    assert len({node["name"] for node in nodes}) == len(nodes)
    stored = {name: BFLOAT16 if low == "bfloat16" else np.float16 for name in found.low_params}
    given = {name: stored.get(name, np.float32) for name in found.symbol.list_inputs()}
    entries = entries_of(found.symbol, shapes, given)
    low_dtype = BFLOAT16 if low == "bfloat16" else np.dtype(low)
    reads_low = 0
    for number, node in enumerate(nodes):
        assert all(position < number for position, *_ in node["inputs"])
        if node["op"] in CASTS:
            continue
        for port, (position, index, *_) in enumerate(node["inputs"]):
            is_low = entries[position, index][0] == low_dtype
            reads_low += is_low
            denied = node["op"] in FLOAT32[low] and not policy.pure
            assert not (is_low and denied), node
            assert not (is_low and port in NEVER_LOW.get(node["op"], ())), node
    assert reads_low > 1
    heads = json.loads(text(found.symbol))["heads"]
    assert all(entries[node, index][0] != low_dtype for node, index, *_ in heads)


def test_no_allow_operator_leaves_the_graph_unchanged():
    net = mx.sym.softmax(mx.sym.relu(mx.sym.var("x"), name="act") * 0.5, name="soft")
    for policy in ("O1", "O2", "mixed_bfloat16"):
        assert text(convert(net, policy).symbol) == text(net)


def test_one_operator_has_exactly_two_casts():
    found = convert(dense(mx.sym.var("x")), "O2")
    assert casts(found) == [("x", "float16"), ("fc_float16", "float32")]


@pytest.mark.behaviour("the widest dtype")
def test_deny_carries_through_infer_operators():
    """exp -> sum is a softmax in parts: a float16 sum behind an exponential overflows."""
    net = dense(mx.sym.sum(mx.sym.exp(dense(mx.sym.var("x"), "a"), name="exp"), axis=1, keepdims=True, name="sum"), "b")
    assert precisions(convert(net))["sum"] == "float32"


def test_deny_does_not_carry_through_a_trailing_clear_operator():
    net = dense(mx.sym.Reshape(mx.sym.exp(dense(mx.sym.var("x"), "a"), name="exp"), shape=(2, 12), name="move"), "b")
    found = convert(net)
    assert precisions(found)["move"] == "float16"
    assert ("exp", "float16") in casts(found)


def test_deny_carries_through_clear_operators_to_infer_operators():
    moved = mx.sym.Reshape(mx.sym.exp(dense(mx.sym.var("x"), "a"), name="exp"), shape=(2, 12), name="move")
    net = dense(mx.sym.elemwise_add(moved, moved, name="add"), "b")
    assert precisions(convert(net))["add"] == "float32"


def test_a_reduction_without_an_exponential_is_not_pinned():
    net = dense(mx.sym.sum(dense(mx.sym.var("x"), "a"), axis=1, keepdims=True, name="sum"), "b")
    assert precisions(convert(net))["sum"] == "float16"


def test_low_precision_spreads_sideways_through_clear_operators():
    """The other input of the concatenation is float32, but a cast of it is cheaper than two of the rest."""
    x = mx.sym.var("x")
    side = mx.sym.relu(mx.sym.slice_axis(x, axis=1, begin=0, end=1, name="part"), name="side")
    net = dense(mx.sym.relu(mx.sym.Concat(dense(x, "a"), side, dim=1, name="join"), name="act"), "b")
    found = precisions(convert(net))
    assert {found[name] for name in ("a", "join", "act", "side", "b")} == {"float16"}


@pytest.mark.behaviour("one cast of a weight")
def test_a_tensor_used_several_times_has_one_cast():
    x = mx.sym.var("x")
    net = mx.sym.Group([dense(x, f"fc{i}") for i in range(3)])
    assert casts(convert(net, "O2")).count(("x", "float16")) == 1


def test_casts_are_optimal_against_brute_force():
    """Every way to run the free operators, forced by name and measured by MXNet's inference."""
    x = mx.sym.var("x")
    first = mx.sym.relu(dense(x, "a"), name="r1")
    left = mx.sym.softmax(mx.sym.tanh(first, name="t1"), name="soft")
    wide = mx.sym.Concat(first, mx.sym.abs(left, name="a1"), dim=1, name="join")
    right = mx.sym.slice_axis(mx.sym.relu(wide, name="r2"), axis=1, begin=0, end=7, name="cut")
    net = mx.sym.Group([dense(right, "b"), mx.sym.max(right, axis=1, name="top"), mx.sym.relu(left, name="r3")])
    free = ["r1", "join", "a1", "r2", "cut", "top", "r3"]

    def price(policy):
        return measure(convert(net, policy).symbol, X, {"x": "float32", "a_weight": "float32", "b_weight": "float32"})

    every = [
        price(Policy.parse("O1", names=dict(zip(free, choice))))
        for choice in itertools.product(("float16", "float32"), repeat=len(free))
    ]
    best = min(cost.bytes for cost in every)
    found = price("O1")
    assert found.bytes == best < max(cost.bytes for cost in every)
    assert found.casts == min(cost.casts for cost in every if cost.bytes == best)


def test_dynamic_shapes_run_at_any_size():
    """Without shapes one graph fits all of them."""
    net = mx.sym.softmax(dense(mx.sym.relu(dense(mx.sym.var("x"), "a"), name="act"), "b"), name="soft")
    found = convert(net, shapes={}, params=["a_weight", "b_weight"], dtypes={"x": "float32"})
    rng = np.random.RandomState(0)
    weights = {name: mx.nd.array(rng.randn(6, 6)) for name in ("a_weight", "b_weight")}
    for rows in (1, 3, 17):
        values = {**weights, "x": mx.nd.array(rng.randn(rows, 6))}
        expected, result = (s.bind(mx.cpu(), values).forward()[0].asnumpy() for s in (net, found.on_cpu()))
        assert result.shape == (rows, 6)
        np.testing.assert_allclose(result, expected, atol=0.05)


def test_integer_arguments_stay_integers():
    ids = mx.sym.var("ids", dtype="int32")
    rows = mx.sym.Embedding(ids, mx.sym.var("table"), input_dim=5000, output_dim=6, name="embed")
    number = mx.sym.expand_dims(mx.sym.Cast(ids, dtype="float32", name="number"), axis=1)
    net = dense(mx.sym.broadcast_add(rows, number, name="numbered"))
    found = convert(net, "O2", {"ids": (4,)}, dtypes={"ids": "int32"})
    assert ("ids", "float16") not in casts(found)
    shapes = {"ids": (4,), "table": (5000, 6)}
    entries = entries_of(found.symbol, shapes, {"table": "float32", "fc_weight": "float16"})
    assert entries[0, 0][0] == np.int32


def test_float_indices_are_never_cast():
    """2049 is no float16 number."""
    rows = mx.sym.Embedding(mx.sym.var("ids"), mx.sym.var("table"), input_dim=5000, output_dim=6, name="embed")
    found = convert(dense(rows), "O2", {"ids": (1,)})
    assert [what for what, _ in casts(found) if what == "ids"] == []
    table = np.arange(30000, dtype=np.float32).reshape(5000, 6) % 2048
    given = {
        "ids": mx.nd.array([2049]),
        "table": mx.nd.array(table, dtype="float16" if "table" in found.low_params else "float32"),
        "fc_weight": mx.nd.array(np.eye(6), dtype="float16"),
    }
    np.testing.assert_array_equal(found.on_cpu().bind(mx.cpu(), given).forward()[0].asnumpy()[0], table[2049])


@pytest.mark.parametrize("order", ["low first", "float32 first"])
@pytest.mark.parametrize("policy", POLICIES)
def test_shared_weights_in_either_order_of_use(order, policy):
    x, weight = mx.sym.var("x"), mx.sym.var("weight")
    readers = [dense(x, weight=weight), mx.sym.exp(weight, name="exp")]
    net = mx.sym.Group(readers if order == "low first" else readers[::-1])
    found = convert(net, policy)
    assert found.low_params == frozenset()  # exp reads it in float32
    values = {"x": mx.nd.ones(X["x"]), "weight": mx.nd.ones((6, 6))}
    if policy != "mixed_bfloat16":
        results = {o: r.asnumpy() for o, r in zip(net.list_outputs(), found.on_cpu().bind(mx.cpu(), values).forward())}
        np.testing.assert_array_equal(results["fc_output"], np.full((4, 6), 6, np.float32))
        np.testing.assert_allclose(results["exp_output"], np.e, rtol=1e-6)  # not the exponential of a float16


@pytest.mark.parametrize(
    "operator, fits, beyond",
    [
        ("_mul_scalar", 65504.0, 65536.0),
        ("_mul_scalar", 2.0**-14, 2.0**-15),
        ("_plus_scalar", -65504.0, -1e9),  # a mask
        ("_plus_scalar", 1e-4, 1e-9),  # an epsilon
    ],
)
def test_scalars_on_both_sides_of_the_threshold(operator, fits, beyond):
    for scalar, expected in ((fits, "float16"), (beyond, "float32")):
        apply = getattr(mx.sym._internal, operator)
        net = dense(apply(dense(mx.sym.var("x"), "a"), scalar=scalar, name="scaled"), "b")
        assert precisions(convert(net))["scaled"] == expected


@pytest.mark.parametrize("operator", ["sum", "mean"])
def test_reductions_on_both_sides_of_the_threshold(operator):
    for length, expected in ((1024, "float16"), (1025, "float32")):
        reduced = getattr(mx.sym, operator)(dense(mx.sym.var("x"), "a", hidden=length), axis=1, name="reduced")
        net = dense(mx.sym.Reshape(reduced, shape=(-1, 1)), "b")
        assert precisions(convert(net))["reduced"] == expected


def test_a_forced_include_beats_an_exclude():
    net = mx.sym.softmax(dense(mx.sym.var("x"), "a"), name="soft")
    excluded = convert(net, "O1,name:*=float32")
    assert set(precisions(excluded).values()) == {"float32"} and text(excluded.symbol) == text(net)
    both = convert(net, "O1,name:*=float32,name:soft=float16")
    assert precisions(both) == {"a": "float32", "soft": "float16"}
