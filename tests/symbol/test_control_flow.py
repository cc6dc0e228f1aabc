"""Bodies of _foreach, _while_loop and _cond: entered, run, and equal in dtype at loop state."""

import mxnet as mx
import numpy as np
import pytest

from mxmp import Policy
from mxmp.symbol import convert_symbol, to_graph
from tests.symbol import small
from tests.symbol.measure import nodes_of

POLICIES = ("O1", "O2", "mixed_bfloat16", "param=bfloat16,compute=bfloat16")
STEPS, ROWS, WIDTH = 3, 2, 4
SHAPES = {"data": (STEPS, ROWS, WIDTH), "state": (ROWS, WIDTH), "weight": (WIDTH, WIDTH), "x": (ROWS, WIDTH)}


def dense(data, weight, name):
    return mx.sym.FullyConnected(data, weight, no_bias=True, num_hidden=WIDTH, name=name)


def foreach():
    """A recurrent layer between two others, so that what enters its body is float16 outside."""
    weight = mx.sym.var("weight")
    data = mx.sym.FullyConnected(mx.sym.var("data"), weight, no_bias=True, num_hidden=WIDTH, flatten=False, name="before")

    def body(step, state):
        hidden = mx.sym.elemwise_add(dense(step, weight, "i2h"), dense(state, weight, "h2h"), name="sum")
        return mx.sym.softmax(hidden, name="soft"), mx.sym.tanh(hidden, name="new")

    out, state = mx.sym.contrib.foreach(body, data, mx.sym.var("state"))
    return mx.sym.Group([dense(mx.sym.Flatten(out, name="flat"), mx.sym.var("last"), "after"), state])


def while_loop():
    weight = mx.sym.var("weight")

    def function(count, state):
        hidden = dense(state, weight, "hidden")
        return mx.sym.relu(hidden, name="out"), [count + 1, mx.sym.tanh(hidden, name="new")]

    begin = [mx.sym.var("count"), dense(mx.sym.var("x"), weight, "before")]
    outputs, states = mx.sym.contrib.while_loop(lambda count, state: count < 3, function, begin, max_iterations=4)
    return mx.sym.Group([outputs, *states])


def cond():
    weight, x = mx.sym.var("weight"), mx.sym.var("x")
    hidden = dense(x, weight, "before")
    return mx.sym.contrib.cond(
        mx.sym.sum(x) > mx.sym.var("threshold"),
        lambda: dense(hidden, weight, "then"),
        lambda: mx.sym.exp(hidden, name="else"),
    )


# What makes each, its inputs, and what its layers compute in, None for the policy's dtype.
NETWORKS = {
    "_foreach": (foreach, ("data", "state"), {"i2h": None, "h2h": None, "soft": "float32"}),
    "_while_loop": (while_loop, ("x", "count"), {"hidden": None}),
    "_cond": (cond, ("x", "threshold"), {"then": None, "else": "float32"}),
}


def values_of(symbol):
    rng = np.random.RandomState(0)
    shapes = {**SHAPES, "last": (WIDTH, ROWS * WIDTH), "count": (1,), "threshold": (1,)}
    values = {name: rng.randn(*shapes[name]).astype(np.float32) * 0.5 for name in symbol.list_inputs()}
    return {name: values[name] * (name not in ("count", "threshold")) for name in values}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("op", NETWORKS)
def test_bodies_are_entered_run_and_converted_back(op, policy):
    """Within 8 roundings of float16: no output is behind more, and no weight matrix has a norm above 2."""
    make, inputs, expected = NETWORKS[op]
    symbol, low = make(), Policy.parse(policy).compute_dtype
    values = values_of(symbol)
    options = policy, {name: value.shape for name, value in values.items()}, frozenset(symbol.list_arguments()) - set(inputs)
    found = small.convert(symbol, *options)
    small.assert_facts(found, *options[1:])
    rows = small.precisions(found)
    assert {name: rows[name] for name in expected} == {name: dtype or low for name, dtype in expected.items()}
    assert found.symbol.list_inputs() == symbol.list_inputs()
    assert found.symbol.list_outputs() == symbol.list_outputs()
    assert to_graph(convert_symbol(found.symbol, "O0")) == to_graph(symbol) != to_graph(found.symbol)
    assert to_graph(small.convert(found.symbol, *options).symbol) == to_graph(found.symbol)
    if low == "float16":
        steps = 3 if op == "_while_loop" else None  # a step that was not taken is left undefined
        stored = {n: mx.nd.array(v, dtype="float16") if n in found.low_params else v for n, v in values.items()}
        pairs = list(zip(small.run(symbol, values), small.run(found.on_cpu(), stored)))
        for exact, result in pairs:
            assert result.dtype == np.float32
            assert np.abs(result - exact)[:steps].max() < 8 * 2.0**-11 * max(1, np.abs(exact)[:steps].max())
        assert any(np.any(result != exact) for exact, result in pairs)


def test_what_a_loop_reads_in_low_precision_is_cast_in_front_of_it():
    """The weight is cast once, not in every iteration, and shared with the layer outside."""
    nodes = nodes_of(small.convert(foreach(), "O1", SHAPES, params=["weight", "last"]).symbol)
    assert [nodes[n["inputs"][0][0]]["name"] for n in nodes if n["op"] == "Cast"].count("weight") == 1
    (body,) = (node["subgraphs"][0]["nodes"] for node in nodes if node["op"] == "_foreach")
    assert not any(node["op"] == "Cast" and body[node["inputs"][0][0]]["name"] == "weight" for node in body)


def test_a_stored_weight_that_only_a_loop_reads_is_stored_low():
    def body(step, state):
        new = mx.sym.tanh(dense(step, mx.sym.var("weight"), "h"), name="new")
        return new, mx.sym.elemwise_add(state, new, name="add")

    out, _ = mx.sym.contrib.foreach(body, mx.sym.var("data"), mx.sym.var("state"))
    found = small.convert(out, "O2", {name: SHAPES[name] for name in ("data", "state")})
    assert found.low_params == {"weight"}


def test_loops_within_loops():
    def inner(step, state):
        new = mx.sym.tanh(dense(step, mx.sym.var("weight"), "inner") + state, name="new")
        return new, new

    def outer(step, state):
        rows, last = mx.sym.contrib.foreach(inner, mx.sym.expand_dims(step, axis=1, name="rows"), state)
        return mx.sym.exp(rows, name="exp"), last

    symbol = mx.sym.Group(mx.sym.contrib.foreach(outer, mx.sym.var("data"), mx.sym.var("state")))
    shapes = {"data": (STEPS, ROWS, WIDTH), "state": (1, WIDTH), "weight": (WIDTH, WIDTH)}
    found = small.convert(symbol, "O1", shapes, params=["weight"])
    assert small.precisions(found)["inner"] == "float16"
    assert to_graph(convert_symbol(found.symbol, "O0")) == to_graph(symbol)
    values = {name: value[: shapes[name][0]] for name, value in values_of(symbol).items()}
    for exact, result in zip(small.run(symbol, values), small.run(found.on_cpu(), values)):
        assert 0 < np.abs(result - exact).max() < 16 * 2.0**-11 * np.abs(exact).max()


@pytest.mark.bfloat16
@pytest.mark.parametrize("followed", [False, True])
def test_outputs_of_a_loop_run_in_bfloat16(followed):
    """Each step writes to a slice of what the loop gives, which MXNet's bfloat16 kernels cannot."""
    weight = mx.sym.var("weight")  # one variable: MXNet binds two of one name to two arrays

    def body(step, state):
        new = mx.sym.elemwise_add(dense(step, weight, "h"), state, name="new")
        return new, new

    out, state = mx.sym.contrib.foreach(body, mx.sym.var("data"), mx.sym.var("state"))
    after = mx.sym.FullyConnected(out, weight, no_bias=True, num_hidden=WIDTH, flatten=False)
    net = after if followed else state
    found = small.convert(net, "mixed_bfloat16", {name: SHAPES[name] for name in ("data", "state")})
    (exact,), (result,) = small.run(net, values_of(net)), small.run(found.on_cpu(), values_of(net))
    assert 0 < np.abs(result - exact).max() < 8 * 2.0**-8 * np.abs(exact).max()
