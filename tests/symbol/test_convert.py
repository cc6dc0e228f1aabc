"""Models: which dtype each parameter is stored in, and what becomes of values, and of scalars, beyond low precision."""

import mxnet as mx
import numpy as np
import pytest

from mxmp import Policy
from mxmp.symbol import convert_model, convert_symbol, on_cpu, to_graph
from tests.symbol.small import X, casts_of, convert, convolutional, dense, dtypes_of, params_of, precisions

BFLOAT16 = Policy(param_dtype="bfloat16", compute_dtype="bfloat16")
LAYER = dense(mx.sym.var("x"))


def model_of(weight, policy="O2", **changes):
    """Return one layer converted, whose weight starts with the values given and is 1 otherwise."""
    values = np.ones((6, 6), np.float32)
    values.flat[: len(weight)] = weight
    return convert_model(LAYER, {"fc_weight": mx.nd.array(values)}, {}, policy, X, **changes)


def stored(model, count):
    """Return the first values of a layer's weight, as float32."""
    return model.arg_params["fc_weight"].astype("float32").asnumpy().flat[:count]


def test_a_model_that_stores_float32_has_the_very_arrays_and_shows_no_values():
    args, aux = params_of(LAYER, X)
    for policy in ("O0", "O1", "mixed_bfloat16"):
        assert convert_model(LAYER, args, aux, policy, X).arg_params["fc_weight"] is args["fc_weight"]
    shown = "ConvertedModel(<Symbol fc>, arguments=1, auxiliary_states=0, policy='param=float16,compute=float16,"
    assert repr(convert_model(LAYER, args, aux, "O2", X)).startswith(shown)


@pytest.mark.parametrize("order", [1, -1], ids=["embedding first", "layer first"])
def test_tied_weights_of_low_layers_are_stored_low(order):
    weight = mx.sym.var("weight")
    rows = mx.sym.Embedding(mx.sym.var("ids"), weight, input_dim=6, output_dim=6, name="embed")
    net = mx.sym.Group([dense(rows, "after"), dense(mx.sym.var("x"), "fc", weight)][::order])
    args = {"weight": mx.nd.ones((6, 6)), "after_weight": mx.nd.ones((6, 6))}
    found = convert_model(net, args, {}, "O2", {"x": (4, 6), "ids": (4,)})
    assert dtypes_of(found.arg_params) == dict.fromkeys(args, "float16") and "weight" not in casts_of(found.symbol)


@pytest.mark.parametrize("dtype", ["float64", "int8"])
def test_parameters_of_other_dtypes_are_left_alone(dtype):
    table = mx.nd.array(np.array([[2049] * 6]).astype(dtype), dtype=dtype)  # which float16 has not; int8 wraps it
    wide = mx.sym.Cast(mx.sym.var("table_weight", dtype=dtype), dtype="float32", name="wide")
    net = mx.sym.broadcast_add(LAYER, wide, name="sum")
    found = convert_model(net, {"fc_weight": mx.nd.ones((6, 6)), "table_weight": table}, {}, "O2", X)
    assert found.arg_params["table_weight"] is table
    assert dtypes_of(found.arg_params)["fc_weight"] == "float16"


# Weights of a layer -> what is stored of them in float16, and (clamped, largest, underflowed) if a change is listed.
VALUES = {
    "in range": ([65504.0, -65504.0, 2.0**-24, -(2.0**-24)], [65504, -65504, 2**-24, -(2**-24)], None),
    "rounded to nearest, ties to even": ([2049, 2051, -2049, 1 + 2**-11, -0.0], [2048, 2052, -2048, 1, -0.0], None),
    "clamped with their sign": ([1e5, -2e5, 65504.0, 7.0], [65504, -65504, 65504, 7], (2, 2e5, 0)),
    # From 65520 on float16 has no finite neighbour; between it and 65504 rounding and clamping agree.
    "would round to infinity": ([65519.0, 65520.0, -65520.0], [65504, 65504, -65504], (3, 65520, 0)),
    "become zero": ([1e-9, -1e-9, 2.0**-25, 2.0**-24, 0.0], [0, 0, 0, 2**-24, 0], (0, 1, 3)),  # 2**-25: a tie, to even
    "not finite": ([np.nan, np.inf, -np.inf, 2.0], [np.nan, np.inf, -np.inf, 2], None),
    "the largest finite one": ([np.inf, -1e6, np.nan, 1e5], [np.inf, -65504, np.nan, 65504], (2, 1e6, 0)),
}


@pytest.mark.parametrize("policy", ["O1", "O2"])
@pytest.mark.parametrize("values, expected, change", VALUES.values(), ids=VALUES.keys())
def test_values_are_stored_in_range_and_changes_are_listed(values, expected, change, policy):
    """Under O1 in float32, to be cast at run time."""
    found = model_of(values, policy)
    if policy == "O1":
        expected = np.where(np.isinf(values), values, np.clip(values, -65504, 65504))
    np.testing.assert_array_equal(stored(found, len(values)), np.float32(expected))
    listed = [] if change is None else [("fc_weight", *change)]
    assert [(c.name, c.clamped, c.largest, c.underflowed) for c in found.changes] == listed and found.out_of_range == ()


@pytest.mark.bfloat16
def test_values_beyond_bfloat16_are_clamped():
    largest = np.float32(3.3895314e38)  # (2 - 2**-7) * 2**127
    found = model_of([3.4e38, -3.4e38], BFLOAT16)
    np.testing.assert_array_equal(stored(found, 2), [largest, -largest])
    assert [(c.name, c.clamped) for c in found.changes] == [("fc_weight", 2)]


@pytest.mark.parametrize("policy", ["O1", "O2", "O1,name:turned=float32"])
def test_weights_that_are_moved_before_they_are_cast_are_clamped_too(policy):
    turned = mx.sym.transpose(mx.sym.var("fc_weight"), axes=(1, 0), name="turned")
    net, array = dense(mx.sym.var("x"), weight=turned), mx.nd.ones((6, 6)) * -1e5
    found = convert_model(net, {"fc_weight": array}, {}, policy, X)
    assert (found.arg_params["fc_weight"].asnumpy() == -65504).all()
    assert [(c.name, c.clamped) for c in found.changes] == [("fc_weight", 36)]


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_weights_out_of_range_keep_their_layer_in_float32_if_wished(policy, sign):
    x = mx.sym.var("x")
    net = mx.sym.Group([dense(x, "fits"), dense(x, "wide")])
    args = {"fits_weight": mx.nd.ones((6, 6)), "wide_weight": mx.nd.ones((6, 6)) * sign * 1e5}
    found = convert_model(net, args, {}, policy, X, out_of_range="float32")
    assert found.out_of_range == ("wide_weight",) and found.changes == ()
    assert found.arg_params["wide_weight"] is args["wide_weight"]
    assert precisions(found) == {"fits": "float16", "wide": "float32"}
    assert "'wide_weight' has values beyond float16's range" in found.report.rows[1].reason


@pytest.mark.parametrize("exact", ["exp", "output"])
def test_weights_out_of_range_that_float32_reads_too_are_not_clamped(exact):
    weight = mx.sym.var("weight")
    other = mx.sym.exp(weight, name="exp") if exact == "exp" else weight
    net = mx.sym.Group([dense(mx.sym.var("x"), "fc", weight), other])
    array = mx.nd.ones((6, 6)) * -1e5
    found = convert_model(net, {"weight": array}, {}, "O2", X)
    assert found.out_of_range == ("weight",) and found.arg_params["weight"] is array
    assert {row.precision for row in found.report.rows} == {"float32"}


@pytest.mark.parametrize("policy", ["O1", "O2", pytest.param("bfloat16", marks=pytest.mark.bfloat16)])
def test_bytes_are_those_of_the_arrays(policy):
    net, shapes = convolutional()
    params = params_of(net, shapes)
    found = convert_model(net, *params, policy, shapes)
    pairs = params, (found.arg_params, found.aux_params)
    before, after = (sum(a.asnumpy().nbytes for arrays in each for a in arrays.values()) for each in pairs)
    assert found.param_bytes == (before, after) and (after < before) == (policy != "O1")


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
