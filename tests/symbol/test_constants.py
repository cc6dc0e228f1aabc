"""Scalars of operators that a low precision dtype rounds onto an extreme value, or that are beyond its range."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

from mxmp.symbol import convert_model, convert_symbol, on_cpu
from tests.symbol.small import X, dense


def clipped(bound, name="bound"):
    """Return a network with a bound between two layers."""
    return dense(mx.sym.clip(dense(mx.sym.var("x"), "first"), -8, bound, name=name), "last")


def rows_of(symbol, policy="O1", shapes=X):
    model = convert_model(symbol, *params_of(symbol, shapes), policy, shapes=shapes)
    return {row.name: row for row in model.report.rows}


def params_of(symbol, shapes):
    arguments, _, _ = symbol.infer_shape(**shapes)
    named = zip(symbol.list_arguments(), arguments)
    return {name: mx.nd.ones(shape) for name, shape in named if name not in shapes}, {}


SCALARS = [
    *((value, "O1", "float32") for value in (0.9999, 1.0004, 65500.0, -1.0001)),  # which float16 rounds onto 1, ...
    *((value, "O1", "float16") for value in (0, 1, -1, 65504, float("inf"), 0.5, 0.999, 1.001, 1 - 1e-9)),
    *((value, "mixed_bfloat16", "float32") for value in (0.9985,)),
]


@pytest.mark.parametrize("value, policy, precision", SCALARS)
def test_a_scalar_that_is_rounded_onto_an_extreme_keeps_its_operator_in_float32(value, policy, precision):
    """Of 1 - 1e-9 float32 makes 1 too."""
    row = rows_of(clipped(value), policy)["bound"]
    assert row.precision == precision and (policy != "O1" or (" becomes " in row.reason) == (precision == "float32"))


def test_what_reads_such_a_bound_is_float32_up_to_the_next_layer():
    x = mx.sym.var("x")
    data = mx.sym.reshape(mx.sym.clip(dense(x, "first"), 0, 0.9999, name="bound"), (4, 6), name="moved")
    rest = mx.sym.elemwise_add(1 - data, dense(x, "other"), name="rest")
    rows = rows_of(dense(rest, "last"))
    assert [rows[name].precision for name in ("bound", "moved", "rest")] == ["float32"] * 3
    assert rows["rest"].reason.startswith("infer behind ")
    assert rows["last"].precision == "float16"


def masked(value=-1e18):
    return mx.sym.softmax(mx.sym.var("x") * 0 + value, name="soft")


def attrs_of(symbol, op):
    return [attrs for name, attrs in symbol.attr_dict().items() if op in name and "scalar" in attrs]


@pytest.mark.parametrize("value, clamped", [(-1e18, -65504.0), (1e5, 65504.0), (65519, 65504.0), (float("-inf"), None)])
def test_a_finite_scalar_beyond_float16_is_clamped_under_a_pure_policy(value, clamped):
    symbol = convert_symbol(masked(value), "O3", shapes=X)
    (scalar,) = [attrs["scalar"] for attrs in attrs_of(symbol, "plusscalar")]
    assert float(scalar) == (value if clamped is None else clamped)


@pytest.mark.parametrize("policy", ["O0", "O1"])
def test_another_policy_finds_the_scalar_that_was_clamped(policy):
    net = masked()
    again = convert_symbol(convert_symbol(net, "O3", shapes=X), policy, shapes=X)
    assert again.tojson() == convert_symbol(net, policy, shapes=X).tojson()


def test_an_override_that_asks_for_float16_clamps_too():
    symbol = convert_symbol(masked(), "O1,op:_plus_scalar=float16", shapes=X)
    values = {"x": mx.nd.ones(X["x"])}
    (output,) = on_cpu(symbol).bind(mx.cpu(), values).forward()
    np.testing.assert_allclose(output.asnumpy(), np.full(X["x"], 1 / 6), rtol=1e-6)


def test_a_scalar_beyond_bfloat16_is_clamped_where_only_float32_has_a_kernel():
    value = float(np.finfo("float32").min)
    symbol = convert_symbol(masked(value), "bfloat16", shapes=X)
    (scalar,) = [float(attrs["scalar"]) for attrs in attrs_of(symbol, "plusscalar")]
    assert scalar == -(2.0 - 2.0**-7) * 2.0**127


def test_the_factor_of_a_product_is_clamped():
    net = mx.sym.linalg.gemm2(mx.sym.var("a"), mx.sym.var("b"), alpha=1e6, name="product")
    shapes = {"a": (3, 4), "b": (4, 5)}
    symbol = convert_symbol(net, "O3", shapes=shapes)
    values = {name: mx.nd.ones(shape) * 0.125 for name, shape in shapes.items()}
    (output,) = on_cpu(symbol, dict.fromkeys(shapes, "float32")).bind(mx.cpu(), values).forward()
    assert output.asnumpy().tolist() == [[65504 * 0.125 * 0.125 * 4] * 5] * 3
    assert convert_symbol(symbol, "O0", shapes=shapes).tojson() == net.tojson()
