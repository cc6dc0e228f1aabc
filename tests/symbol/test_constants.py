"""Scalars of operators that a low precision dtype rounds onto an extreme value, or that are beyond its range."""

import mxnet as mx
import numpy as np
import pytest

from mxmp.symbol import convert_symbol, on_cpu, to_graph
from tests.symbol.small import X, convert, dense


def test_a_bound_that_low_precision_rounds_onto_an_extreme_is_float32_up_to_the_next_layer():
    data = mx.sym.clip(dense(mx.sym.var("x"), "first"), 0, 0.9999, name="bound")
    rest = mx.sym.elemwise_add(1 - mx.sym.reshape(data, (4, 6), name="moved"), dense(mx.sym.var("x"), "other"), name="rest")
    rows = {row.name: row for row in convert(dense(rest, "last"), "O1").report.rows}
    assert [rows[name].precision for name in ("bound", "moved", "rest", "last")] == ["float32"] * 3 + ["float16"]
    assert " becomes 1 " in rows["bound"].reason and rows["rest"].reason.startswith("infer behind ")


CLAMPED = [
    (-1e18, "O3", -65504.0),
    (1e5, "O3", 65504.0),
    (65519, "O3", 65504.0),
    (float("-inf"), "O3", float("-inf")),
    (-1e18, "O1,op:_plus_scalar=float16", -65504.0),
    (float(np.finfo("float32").min), "bfloat16", -(2.0 - 2.0**-7) * 2.0**127),  # where only float32 has a kernel
]


@pytest.mark.parametrize("value, policy, clamped", CLAMPED)
def test_a_finite_scalar_beyond_the_range_is_clamped_where_it_must_be_low_and_stays_so(value, policy, clamped):
    """As weights do that were stored."""
    net = mx.sym.softmax(mx.sym.var("x") * 0 + value, name="soft")
    symbol = convert_symbol(net, policy, shapes=X)
    for found in (symbol, convert_symbol(symbol, policy, X), convert_symbol(symbol, "O0", X)):
        scalars = (attrs.get("scalar") for name, attrs in found.attr_dict().items() if "plusscalar" in name)
        assert [float(scalar) for scalar in scalars if scalar] == [clamped]


def test_the_factor_of_a_product_is_clamped():
    net = mx.sym.linalg.gemm2(mx.sym.var("a"), mx.sym.var("b"), alpha=1e6, name="product")
    shapes = {"a": (3, 4), "b": (4, 5)}
    symbol = convert_symbol(net, "O3", shapes=shapes)
    values = {name: mx.nd.ones(shape) * 0.125 for name, shape in shapes.items()}
    (output,) = on_cpu(symbol, dict.fromkeys(shapes, "float32")).bind(mx.cpu(), values).forward()
    assert output.asnumpy().tolist() == [[65504 * 0.125 * 0.125 * 4] * 5] * 3
    (product,) = (node for node in to_graph(convert_symbol(symbol, "O0", shapes=shapes)).operators())
    assert (product.op, product.name, product.get("alpha")) == ("_linalg_gemm2", "product", "65504.0")
