"""Errors of nodes: own and carried, against numpy; every kind of node, and nothing changed."""

from __future__ import annotations

import math

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

import symbols
from mxmp.errors import ConvertError
from mxmp.probe.node_errors import node_errors, relative_error
from mxmp.symbol import convert_model


def half(array):
    with np.errstate(over="ignore"):
        return array.astype(np.float16).astype(np.float32)


def ratio(low, exact):
    return np.linalg.norm(low - exact) / np.linalg.norm(exact)


def values_of(sym, seed=0, scale=1.0, **shapes):
    args, _, aux = sym.infer_shape(**shapes)
    draw = np.random.RandomState(seed)
    given = {name: mx.nd.array(draw.randn(*s) * scale) for name, s in zip(sym.list_arguments(), args)}
    return {**given, **{name: mx.nd.ones(s) for name, s in zip(sym.list_auxiliary_states(), aux)}}


def measure(sym, policy, values, data=("data",), **changes):
    """Return the errors by name."""
    states = set(sym.list_auxiliary_states())
    aux = {name: array for name, array in values.items() if name in states}
    args = {name: array for name, array in values.items() if name not in (*states, *data)}
    model = convert_model(sym, args, aux, policy, {name: values[name].shape for name in data}, **changes)
    return {error.name: error for error in node_errors(model.decisions, [values])}


def dense_square_sum():
    data = mx.sym.var("data")
    dense = mx.sym.FullyConnected(data, num_hidden=3, no_bias=True, name="dense")
    return mx.sym.FullyConnected(dense * dense, num_hidden=2, no_bias=True, name="sum")


@pytest.mark.parametrize("policy", ["O1", "O2", "O3"])
def test_own_and_carried_errors_are_those_of_numpy(policy):
    """Products of float16 are exact in float32, and so few terms add up alike in any order but for the last bit."""
    sym = dense_square_sum()
    values = values_of(sym, data=(5, 4))
    x, w, v = (values[name].asnumpy() for name in ("data", "dense_weight", "sum_weight"))
    dense, low = x @ w.T, half(half(x) @ half(w).T)
    square, low_square = dense * dense, half(low * low)
    found = measure(sym, policy, values)
    own = {
        "dense": ratio(low, dense),
        "_mul": ratio(half(half(dense) * half(dense)), square),
        "sum": ratio(half(half(square) @ half(v).T), square @ v.T),
    }
    carried = {
        "dense": ratio(low, dense),
        "_mul": ratio(low_square, square),
        "sum": ratio(half(low_square @ half(v).T), square @ v.T),
    }
    for name, error in found.items():
        name = name.rstrip("0123456789")
        assert error.own == pytest.approx(own[name], rel=0.02) and error.own > 1e-5
        assert error.carried == pytest.approx(carried[name], rel=0.02)


def test_a_node_in_float32_has_no_own_error_and_carries_that_of_its_inputs():
    sym = mx.sym.softmax(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name="dense"), name="probabilities")
    found = measure(sym, "O2", values_of(sym, data=(5, 4)))
    assert found["probabilities"].own == 0 < found["probabilities"].carried


def test_an_overflow_is_infinite_from_where_it_begins():
    sym = dense_square_sum()
    found = measure(sym, "O2", values_of(sym, scale=30.0, data=(5, 4)))
    (square,) = (error for error in found.values() if error.op == "elemwise_mul")
    assert found["dense"].own < 1e-3 and math.isinf(square.own) and math.isinf(square.carried)


@pytest.mark.parametrize("factor", [1e26, 1e-26])
def test_values_whose_squares_float32_cannot_hold_have_their_error(factor):
    """Softplus or masks give such values in float32 behind a node in low precision."""
    sym = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, no_bias=True, name="dense") * factor
    values = values_of(sym, data=(5, 4))
    x, w = values["data"].asnumpy(), values["dense_weight"].asnumpy()
    (found,) = (error for name, error in measure(sym, "O1,op:_mul_scalar=float32", values).items() if name != "dense")
    assert found.own == 0 and found.carried == pytest.approx(ratio(half(half(x) @ half(w).T), x @ w.T), rel=0.02)


def test_a_finite_difference_from_huge_values_is_not_lost():
    """A mask of -1e30 beside values that are off; float16 has -inf there."""
    mask = mx.nd.array([[-1e30, 0.0, 0.0]])
    sym = mx.sym.broadcast_add(mx.sym.var("data"), mx.sym.var("mask"), name="masked")
    values = {"data": mx.nd.ones((1, 3)), "mask": mask}
    assert measure(sym, "O3", values, data=("data", "mask"))["masked"].own == math.inf
    sym = mx.sym.broadcast_mul(mx.sym.sqrt(mx.sym.var("data"), name="root"), mx.sym.var("mask"), name="product")
    values = {"data": mx.nd.full((1, 3), 2.0), "mask": mask}
    found = measure(sym, "O1,op:sqrt=float16,op:broadcast_mul=float32", values, data=("data", "mask"))
    root = np.float32(np.sqrt(np.float32(2)))
    assert found["product"].carried == pytest.approx(abs(float(np.float16(root)) / float(root) - 1), rel=1e-3)


def test_where_float32_is_infinite_itself_nothing_is_compared():
    """An attention mask of -inf is as good in float16."""
    data = mx.sym.var("data")
    sym = mx.sym.relu(mx.sym.broadcast_add(data, mx.sym.log(data, name="log")), name="positive")
    values = {"data": mx.nd.array([[0.0, 1.0, 2.0]])}
    found = measure(sym, "O3", values)
    assert 0 <= found["log"].own < 1e-3 and found["positive"].carried < 1e-2


def test_an_output_of_zeros_has_no_error_if_it_stays_zero():
    sym = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name="dense")
    values = {name: array * 0 for name, array in values_of(sym, data=(5, 4)).items()}
    assert measure(sym, "O2", values)["dense"].own == 0


def test_values_that_vanish_are_an_error_of_1():
    sym = dense_square_sum()
    found = measure(sym, "O2", values_of(sym, scale=5e-3, data=(5, 4)))
    (square,) = (error for error in found.values() if error.op == "elemwise_mul")
    assert square.own == pytest.approx(1.0, abs=0.01)


def test_the_worst_of_all_batches_counts():
    sym = dense_square_sum()
    small = values_of(sym, data=(5, 4))
    large = {**small, "data": small["data"] * 1e4}
    args = {name: array for name, array in small.items() if name != "data"}
    decisions = convert_model(sym, args, {}, "O2", {"data": (5, 4)}).decisions
    both = node_errors(decisions, [small, large])
    for one, of_small, of_large in zip(both, node_errors(decisions, [small]), node_errors(decisions, [large])):
        assert (one.own, one.carried) == (max(of_small.own, of_large.own), max(of_small.carried, of_large.carried))


def test_of_several_outputs_the_worst_counts():
    data = mx.sym.var("data")
    parts = mx.sym.split(mx.sym.FullyConnected(data, num_hidden=4, no_bias=True, name="dense"), num_outputs=2, name="s")
    sym = mx.sym.FullyConnected(parts[0] + parts[1] * 2, num_hidden=2, no_bias=True, name="end")
    values = values_of(sym, data=(5, 4))
    x, w = values["data"].asnumpy(), values["dense_weight"].asnumpy()
    dense, low = x @ w.T, half(half(x) @ half(w).T)
    found = measure(sym, "O2", values)["s"]
    assert found.carried == pytest.approx(max(ratio(low[:, i : i + 2], dense[:, i : i + 2]) for i in (0, 2)), rel=0.02)


def loop():
    def step(data, state):
        new = mx.sym.FullyConnected(data, weight=mx.sym.var("weight"), num_hidden=4, no_bias=True, name="inner") + state
        return new, new

    outputs, _ = mx.sym.contrib.foreach(step, mx.sym.var("data"), mx.sym.zeros((2, 4)), name="loop")
    return mx.sym.FullyConnected(outputs, num_hidden=2, name="end", no_bias=True)


def test_a_loop_is_compared_as_a_whole():
    sym = loop()
    found = measure(sym, "O2", values_of(sym, data=(3, 2, 4)))
    (whole,) = (error for error in found.values() if error.op == "_foreach")
    assert 1e-5 < whole.own < 1e-2 and "inner" not in found


def test_nothing_that_is_given_changes_and_statistics_stay_as_they_are():
    data = mx.sym.var("data")
    sym = mx.sym.BatchNorm(mx.sym.FullyConnected(data, num_hidden=3, name="dense"), name="norm", fix_gamma=False)
    values = values_of(sym, data=(5, 4))
    before = {name: array.asnumpy() for name, array in values.items()}
    with autograd.record():  # as in a loop that asks for it
        measure(sym, "O2", values)
    assert all((values[name].asnumpy() == before[name]).all() for name in values)


def test_an_input_that_is_missing_is_named():
    sym = dense_square_sum()
    values = values_of(sym, data=(5, 4))
    args = {name: array for name, array in values.items() if name != "data"}
    decisions = convert_model(sym, args, {}, "O2", {"data": (5, 4)}).decisions
    with pytest.raises(ConvertError, match="a batch lacks the input 'data'"):
        node_errors(decisions, [values, args])
    with pytest.raises(ConvertError, match="batches is empty"):
        node_errors(decisions, [])


def images(size, channels=3):
    return {"data": mx.nd.random.normal(shape=(2, channels, size, size)), "softmax_label": mx.nd.zeros(2)}


def words(**more):
    return {"data": mx.nd.array(np.arange(15).reshape(3, 5) % 11), **more}


TINY = {"num_layers": 2, "num_hidden": 8, "num_heads": 2, "vocab_size": 11, "max_length": 9, "num_classes": 4}
WORDS = {"num_classes": 11, "seq_len": 5, "num_hidden": 6, "num_embed": 4}
NETWORKS = {
    "mlp": ({"num_classes": 10}, lambda: images(28, 1)),
    "lenet": ({"num_classes": 10}, lambda: images(28, 1)),
    "cifar_resnet20_v1": ({"num_classes": 10}, lambda: images(32)),
    "mobilenet_v2": ({"num_classes": 10}, lambda: images(64)),
    "lstm_lm": (WORDS, lambda: words(softmax_label=mx.nd.zeros((3, 5)))),
    "transformer": (
        TINY,
        lambda: words(
            token_types=mx.nd.zeros((3, 5)), valid_length=mx.nd.array([5, 1, 4]), softmax_label=mx.nd.zeros(3)
        ),
    ),
}


@pytest.mark.parametrize("policy", ["O2", "O3"])
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_have_an_error_for_each_node_in_low_precision_and_no_own_error_elsewhere(name, policy):
    options, make = NETWORKS[name]
    sym, inputs = symbols.get_symbol(name, **options), make()
    shapes = {key: array.shape for key, array in inputs.items() if key in sym.list_arguments()}
    values = {key: array if "var" in key else array * 0.1 for key, array in values_of(sym, **shapes).items()}
    states = sym.list_auxiliary_states()
    args = {key: array for key, array in values.items() if key not in (*states, *inputs)}
    model = convert_model(sym, args, {key: values[key] for key in states}, policy, shapes)
    found = {error.name: error for error in node_errors(model.decisions, [{**values, **inputs}])}
    low = {row.name for row in model.report.rows if row.precision == "float16"}
    assert low <= set(found) and not any(found[name].own for name in set(found) - low)
    assert any(found[name].own > 1e-5 for name in low)


@pytest.mark.bfloat16
def test_bfloat16_is_compared_too():
    sym = dense_square_sum()
    assert 1e-4 < measure(sym, "mixed_bfloat16", values_of(sym, data=(5, 4)))["dense"].own < 1e-1


@pytest.mark.parametrize("exact, low", [(1e-10, 1e34), (1e-30, 2e-30), (1e30, 3e30), (1e-42, 3e-42)])
def test_no_square_of_an_error_overflows_or_vanishes(exact, low):
    """(low / exact - 1) of one element, in Python's float64, though its square may leave float32's range."""
    arrays = [np.array([value, 0.0], np.float32) for value in (exact, low)]
    expected = abs(float(arrays[1][0]) - float(arrays[0][0])) / float(arrays[0][0])
    assert relative_error(*arrays) == pytest.approx(expected)
    assert relative_error(arrays[0], arrays[1] * np.float32(0.5), scale=0.5) == pytest.approx(expected, rel=1e-2)
