"""Gradients in emulated float16: rounded, overflowing, and the rounding of casts itself."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

from mxmp import Policy
from tests.passes.oracle import EPS32, Run, assert_rounded, few_bits, float16

data, weight, other = (mx.sym.var(name) for name in ("data", "weight", "other"))


def test_gradients_overflow_within_the_network():
    symbol = mx.sym.FullyConnected(data, weight, num_hidden=1, no_bias=True)
    inputs = {"data": np.array([[40000.0], [30000]]), "weight": np.array([[2.0**-15]])}
    head = np.ones((2, 1))
    found = Run(symbol, inputs, head_grads=[head], wrt=("data", "weight"))
    np.testing.assert_array_equal(found.grads["weight"], [[np.inf]])  # 70000
    np.testing.assert_array_equal(found.grads["data"], [[2.0**-15]] * 2)
    scaled = Run(symbol, inputs, head_grads=[head * 2.0**-11], wrt=("data", "weight"))
    np.testing.assert_array_equal(scaled.grads["weight"], float16([[70000 * 2.0**-11]]))
    np.testing.assert_array_equal(scaled.grads["data"], [[0.0]] * 2)  # 2**-26


def test_gradients_between_layers_are_float16(rng):
    w = mx.sym.var("w2")
    hidden = mx.sym.FullyConnected(data, weight, num_hidden=8, no_bias=True)
    symbol = mx.sym.FullyConnected(mx.sym.relu(hidden), w, num_hidden=4, no_bias=True)
    x, w1, w2, head = few_bits(rng, 4, 8), few_bits(rng, 8, 8) / 16, few_bits(rng, 4, 8) / 16, few_bits(rng, 4, 4)
    found = Run(symbol, {"data": x, "weight": w1, "w2": w2}, head_grads=[head], wrt=("data", "weight", "w2"))
    active = float16(x @ w1.T)
    between = float16((head @ w2) * (active > 0))
    assert np.any(between != (head @ w2) * (active > 0))
    assert_rounded(found.grads["w2"], head.T @ np.maximum(active, 0), 8 * 2000 * EPS32)
    assert_rounded(found.grads["weight"], between.T @ x, 8 * 2000 * EPS32)
    assert_rounded(found.grads["data"], between @ w1, 8 * 2000 * EPS32)


def test_gradients_of_several_readers_are_summed_in_float32_and_rounded_once():
    twice = mx.sym.FullyConnected(data, weight, num_hidden=1, no_bias=True, name="a")
    again = mx.sym.FullyConnected(data, other, num_hidden=1, no_bias=True, name="b")
    head = [np.array([[1.0]]), np.array([[2.0**-11]])]
    inputs = {"data": np.ones((1, 1)), "weight": np.ones((1, 1)), "other": np.array([[3.0]])}
    found = Run(mx.sym.Group([twice, again]), inputs, head_grads=head, wrt=("data",))
    assert found.grads["data"][0, 0] == 1 + 2.0**-9  # 1 + 3 * 2**-11, a tie, to even


def edge_cases():
    """Return all float16 values, the float32 values halfway between them, and their neighbours."""
    values = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)
    finite = np.sort(values[np.isfinite(values)])
    halfway = (finite[1:] + finite[:-1]) / 2
    ends = np.array([65520, -65520, 1e30, -1e30, 2.0**-149, -0.0], np.float32)
    points = np.concatenate([halfway, ends])
    return np.concatenate([values, points, np.nextafter(points, np.float32(np.inf)), np.nextafter(points, -np.inf)])


@pytest.mark.parametrize("op", [mx.sym.Cast, mx.sym.amp_cast], ids=["Cast", "amp_cast"])
def test_casts_round_as_numpy_does(op):
    x = edge_cases().astype(np.float32)
    symbol = op(op(data, dtype="float16"), dtype="float32")
    found = Run(symbol, {"data": x}, Policy(), head_grads=[x], wrt=("data",))
    with np.errstate(over="ignore"):
        expected = x.astype(np.float16).astype(np.float32)
    for result in (found.outputs[0], found.grads["data"]):
        np.testing.assert_array_equal(result, expected)  # NaN equals NaN here
        number = ~np.isnan(x)
        np.testing.assert_array_equal(np.signbit(result[number]), np.signbit(expected[number]))
