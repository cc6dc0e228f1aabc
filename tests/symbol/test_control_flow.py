"""Bodies of _foreach, _while_loop and _cond: entered, run, and equal in dtype at loop state."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

from mxmp import Policy
from mxmp.symbol import convert_symbol, to_graph
from tests.symbol import small
from tests.symbol.balls import ball, evaluate
from tests.symbol.measure import nodes_of

POLICIES = ("O1", "O2", "mixed_bfloat16")
STEPS, ROWS, WIDTH = 3, 2, 4
SHAPES = {"data": (STEPS, ROWS, WIDTH), "state": (ROWS, WIDTH), "weight": (WIDTH, WIDTH), "x": (ROWS, WIDTH)}


def dense(data, weight, name):
    return mx.sym.FullyConnected(data, weight, no_bias=True, num_hidden=WIDTH, name=name)


def foreach():
    """A recurrent layer between two others, so that what enters its body is float16 outside."""
    weight = mx.sym.var("weight")
    data = mx.sym.var("data")
    data = mx.sym.FullyConnected(data, weight, no_bias=True, num_hidden=WIDTH, flatten=False, name="before")

    def body(step, state):
        hidden = mx.sym.elemwise_add(dense(step, weight, "i2h"), dense(state, weight, "h2h"), name="sum")
        return mx.sym.softmax(hidden, name="soft"), mx.sym.tanh(hidden, name="new")

    out, state = mx.sym.contrib.foreach(body, data, mx.sym.var("state"))
    return mx.sym.Group([dense(mx.sym.Flatten(out, name="flat"), mx.sym.var("last"), "after"), state])


def while_loop():
    weight = mx.sym.var("weight")

    def condition(count, state):
        return count < 3

    def function(count, state):
        hidden = dense(state, weight, "hidden")
        return mx.sym.relu(hidden, name="out"), [count + 1, mx.sym.tanh(hidden, name="new")]

    outputs, states = mx.sym.contrib.while_loop(
        condition, function, [mx.sym.var("count"), dense(mx.sym.var("x"), weight, "before")], max_iterations=4
    )
    return mx.sym.Group([outputs, *states])


def cond():
    weight, x = mx.sym.var("weight"), mx.sym.var("x")
    hidden = dense(x, weight, "before")
    return mx.sym.contrib.cond(
        mx.sym.sum(x) > mx.sym.var("threshold"),
        lambda: dense(hidden, weight, "then"),
        lambda: mx.sym.exp(hidden, name="else"),
    )


NETWORKS = {"_foreach": foreach, "_while_loop": while_loop, "_cond": cond}
INPUTS = {"_foreach": ("data", "state"), "_while_loop": ("x", "count"), "_cond": ("x", "threshold")}


def values_of(op):
    rng = np.random.RandomState(0)
    symbol = NETWORKS[op]()
    shapes = {**SHAPES, "last": (WIDTH, ROWS * WIDTH), "count": (1,), "threshold": (1,)}
    values = {name: rng.randn(*shapes[name]) * 0.5 for name in symbol.list_inputs()}
    values.update({name: np.zeros(1) for name in ("count", "threshold") if name in values})
    return {name: value.astype(np.float32) for name, value in values.items()}


def convert(op, policy, symbol=None):
    symbol = NETWORKS[op]() if symbol is None else symbol
    shapes = {name: value.shape for name, value in values_of(op).items()}
    return small.convert(symbol, policy, shapes, frozenset(symbol.list_arguments()) - set(INPUTS[op]))


def run(symbol, values, low=frozenset()):
    arrays = {n: mx.nd.array(v, dtype="float16" if n in low else "float32") for n, v in values.items()}
    return [out.asnumpy() for out in symbol.bind(mx.cpu(), arrays).forward()]


def body_of(symbol, op, number=0):
    (node,) = (node for node in nodes_of(symbol) if node["op"] == op)
    return node["subgraphs"][number]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("op", NETWORKS)
def test_bodies_are_entered_and_converted_back(op, policy):
    symbol, low = NETWORKS[op](), Policy.parse(policy).compute_dtype
    found = convert(op, policy, symbol)
    rows = small.precisions(found)
    expected = {
        "_foreach": {"i2h": low, "h2h": low, "soft": "float32"},
        "_while_loop": {"hidden": low},
        "_cond": {"then": low, "else": "float32"},
    }[op]
    assert {name: rows[name] for name in expected} == expected
    assert found.symbol.list_inputs() == symbol.list_inputs()
    assert found.symbol.list_outputs() == symbol.list_outputs()
    assert to_graph(convert_symbol(found.symbol, "O0")) == to_graph(symbol) != to_graph(found.symbol)
    assert to_graph(convert(op, policy, found.symbol).symbol) == to_graph(found.symbol)


@pytest.mark.parametrize("policy", ["O1", "O2"])
@pytest.mark.parametrize("op", NETWORKS)
def test_runs_in_emulated_float16(op, policy):
    """Within 8 roundings of float16: no output is behind more, and no weight matrix has a norm above 2."""
    values, found = values_of(op), convert(op, policy)
    expected, results = run(NETWORKS[op](), values), run(found.on_cpu(), values, found.low_params)
    if op == "_while_loop":  # steps that were not taken are left undefined
        expected, results = ([each[:3] for each in arrays] for arrays in (expected, results))
    for exact, result in zip(expected, results):
        assert result.dtype == np.float32
        assert np.abs(result - exact).max() < 8 * 2.0**-11 * max(1, np.abs(exact).max())
    assert any(np.any(result != exact) for exact, result in zip(expected, results))


def test_a_loop_stays_within_the_derived_bound():
    values, found = values_of("_foreach"), convert("_foreach", "O1")
    exact = evaluate(found.symbol.tojson(remove_amp_cast=False), {name: ball(v) for name, v in values.items()})
    for result, each in zip(run(found.on_cpu(), values), exact):
        assert np.all(np.abs(result - each.value) <= each.error) and each.error.max() < 0.05


def test_what_a_loop_reads_in_low_precision_is_cast_in_front_of_it():
    """The weight is cast once, not in every iteration, and shared with the layer outside."""
    found = convert("_foreach", "O1")
    outside = [n for n in nodes_of(found.symbol) if n["op"] == "Cast"]
    assert sum(nodes_of(found.symbol)[n["inputs"][0][0]]["name"] == "weight" for n in outside) == 1
    body = body_of(found.symbol, "_foreach")["nodes"]
    weights = {i for i, node in enumerate(body) if node["op"] == "null" and node["name"] == "weight"}
    assert not any(node["op"] == "Cast" and node["inputs"][0][0] in weights for node in body)


def test_a_stored_weight_that_only_a_loop_reads_is_stored_low():
    weight = mx.sym.var("weight")

    def body(step, state):
        new = mx.sym.tanh(dense(step, weight, "h"), name="new")
        return new, mx.sym.elemwise_add(state, new, name="add")

    out, _ = mx.sym.contrib.foreach(body, mx.sym.var("data"), mx.sym.var("state"))
    found = small.convert(out, "O2", {name: SHAPES[name] for name in ("data", "state")})
    assert found.low_params == {"weight"}


def test_loops_within_loops():
    weight = mx.sym.var("weight")

    def inner(step, state):
        new = mx.sym.tanh(dense(step, weight, "inner") + state, name="new")
        return new, new

    def outer(step, state):
        rows, last = mx.sym.contrib.foreach(inner, mx.sym.expand_dims(step, axis=1, name="rows"), state)
        return mx.sym.exp(rows, name="exp"), last

    out, state = mx.sym.contrib.foreach(outer, mx.sym.var("data"), mx.sym.var("state"))
    symbol = mx.sym.Group([out, state])
    shapes = {"data": (STEPS, ROWS, WIDTH), "state": (1, WIDTH), "weight": (WIDTH, WIDTH)}
    found = small.convert(symbol, "O1", shapes, params=["weight"])
    assert small.precisions(found)["inner"] == "float16"
    assert to_graph(convert_symbol(found.symbol, "O0")) == to_graph(symbol)
    rng = np.random.RandomState(0)
    values = {name: rng.randn(*shape).astype(np.float32) * 0.5 for name, shape in shapes.items()}
    for exact, result in zip(run(symbol, values), run(found.on_cpu(), values)):
        assert 0 < np.abs(result - exact).max() < 16 * 2.0**-11 * np.abs(exact).max()


@pytest.mark.bfloat16
@pytest.mark.parametrize("followed", [False, True])
def test_outputs_of_a_loop_run_in_bfloat16(followed):
    """Each step writes to a slice of what the loop gives, which MXNet's bfloat16 kernels cannot."""
    weight = mx.sym.var("weight")

    def body(step, state):
        new = mx.sym.elemwise_add(dense(step, weight, "h"), state, name="new")
        return new, new

    out, state = mx.sym.contrib.foreach(body, mx.sym.var("data"), mx.sym.var("state"))
    net = mx.sym.FullyConnected(out, weight, no_bias=True, num_hidden=WIDTH, flatten=False) if followed else state
    found = small.convert(net, "mixed_bfloat16", {name: SHAPES[name] for name in ("data", "state")})
    rng = np.random.RandomState(0)
    values = {name: rng.randn(*SHAPES[name]).astype(np.float32) for name in net.list_inputs()}
    (exact,), (result,) = run(net, values), run(found.on_cpu(), values)
    assert 0 < np.abs(result - exact).max() < 8 * 2.0**-8 * np.abs(exact).max()
