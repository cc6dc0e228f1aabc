"""Bad arguments: one clear line that names the argument or the node, and nothing of the caller's is changed."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

from mxmp.errors import ConvertError, InferenceError, MxmpError, ParamsError, PolicyError
from mxmp.symbol import convert_buckets, convert_model, convert_symbol
from tests.symbol.refusals import refused
from tests.symbol.small import X, convolutional, dense, params_of, snapshot

NETWORK, SHAPES = convolutional()
ARGS, AUX = params_of(NETWORK, SHAPES)
LAYER = mx.sym.relu(mx.sym.FullyConnected(mx.sym.var("x"), num_hidden=6, name="fc"), name="act")
WEIGHTS, _ = params_of(LAYER, X)


VALUES = {
    "numpy": (np.ones((6, 6), np.float32), "'fc_weight' is a ndarray; expected an NDArray"),
    "nothing": (None, "'fc_weight' is a NoneType"),
    "a number": (1.0, "'fc_weight' is a float"),
    "sparse": (mx.nd.ones((6, 6)).tostype("row_sparse"), "RowSparseNDArray; expected a dense one"),
}


@pytest.mark.parametrize("value, message", VALUES.values(), ids=VALUES.keys())
def test_a_parameter_that_is_no_ndarray_is_named(value, message):
    with refused(ConvertError, "arg_params", message):
        convert_model(LAYER, {**WEIGHTS, "fc_weight": value}, {}, "O2", X)


def test_an_auxiliary_state_that_is_no_ndarray_is_named():
    with refused(ConvertError, "aux_params: 'bn_moving_var' is a list; expected an NDArray"):
        convert_model(NETWORK, ARGS, {**AUX, "bn_moving_var": [1, 1]}, "O2", SHAPES)


@pytest.mark.parametrize("value", [None, 5, [1]], ids=str)
@pytest.mark.parametrize("argument", ["arg_params", "aux_params"])
def test_parameters_that_are_no_dict_are_named(argument, value):
    given = {"arg_params": WEIGHTS, "aux_params": {}, argument: value}
    with refused(ConvertError, argument):
        convert_model(LAYER, given["arg_params"], given["aux_params"], "O2", X)


@pytest.mark.parametrize("convert", [convert_symbol, lambda sym: convert_model(sym, {}, {})], ids=["symbol", "model"])
@pytest.mark.parametrize(
    "value, found",
    [
        (None, "NoneType"),
        ("net-symbol.json", "str"),
        (LAYER.tojson(), "str"),
        ([LAYER], "list"),
        (mx.nd.ones(2), "NDArray"),
        (mx.gluon.nn.Dense(2), "Dense; expected a Symbol; for a Gluon net call mxmp.gluon.convert"),
    ],
    ids=["nothing", "file", "JSON", "list", "array", "Gluon net"],
)
def test_what_is_no_symbol_is_named(value, found, convert):
    with refused(ConvertError, f"sym is a {found}"):
        convert(value)


def test_two_variables_of_one_name_are_named():
    """MXNet builds such a symbol, but does not bind it."""
    net = mx.sym.Group([dense(mx.sym.var("x")), mx.sym.exp(mx.sym.var("fc_weight"), name="exp")])
    with pytest.raises(mx.MXNetError, match="arg_names.size"):
        net.bind(mx.cpu(), {"x": mx.nd.ones((4, 6)), "fc_weight": mx.nd.ones((6, 6))})
    with refused(ConvertError, "'fc_weight'") as caught:
        convert_model(net, {"fc_weight": mx.nd.ones((6, 6))}, {}, "O2", X)
    assert "bug" not in str(caught.value)


BAD_SHAPES = {
    "unknown name": ({"data": (4, 6)}, "no variable 'data'"),
    "output's name": ({"act_output": (4, 6)}, "no variable 'act_output'"),
    "name is a number": ({5: (4, 6)}, "no variable 5"),
    "nothing": ({"x": None}, "'x' has shape None; expected a tuple of integers"),
    "a number": ({"x": 4}, "'x' has shape 4"),
    "a text": ({"x": "ab"}, "'x' has shape 'ab'"),
    "a text within": ({"x": (4, "six")}, "'x' has shape (4, 'six')"),
    "digits": ({"x": ("4", "6")}, "'x' has shape ('4', '6')"),
    "fractions": ({"x": (4.5, 6)}, "'x' has shape (4.5, 6)"),
    "negative": ({"x": (-1, 6)}, "'x' has shape (-1, 6); a size cannot be negative"),
    "too large for MXNet": ({"x": (2**40, 6)}, "'x'"),
    "pairs without a shape": ([("x",)], "shapes"),
    "pairs that are none": ([5], "shapes"),
    "no pairs": (5, "shapes"),
    "a bare name": ("x", "shapes"),
}


@pytest.mark.parametrize("shapes, message", BAD_SHAPES.values(), ids=BAD_SHAPES.keys())
def test_wrong_shapes_are_named(shapes, message):
    with refused(ConvertError, message):
        convert_symbol(LAYER, "O1", shapes)


def test_shapes_that_contradict_each_other_name_the_node():
    with refused(InferenceError, "node 'fc'", "[5,5]"):
        convert_symbol(LAYER, "O1", {"x": (4, 6), "fc_weight": (5, 5)})


def test_shapes_that_contradict_the_parameters_name_them():
    message = (
        "'fc_weight' of node 'fc' has shape (6, 6), not (6, 7), as the symbol wants with x (4, 7): correct the shapes"
    )
    with refused(ParamsError, message):
        convert_model(LAYER, WEIGHTS, {}, "O1", {"x": (4, 7)})


BAD_DTYPES = {
    "unknown name": ({"data": "float32"}, "no variable 'data'"),
    "no such dtype": (
        {"x": "floaty"},
        "dtypes: 'x': unknown dtype 'floaty'; expected one of float16, bfloat16, float32, float64",
    ),
    "a number": ({"x": 5}, "dtypes: 'x': unknown dtype 5"),
    "not MXNet's": ({"x": "complex64"}, "dtypes: 'x': unknown dtype 'complex64'"),
    "a text": ("float32", "dtypes"),
    "a list": (["x"], "dtypes"),
    "no dict": (5, "dtypes"),
}


@pytest.mark.parametrize("dtypes, message", BAD_DTYPES.values(), ids=BAD_DTYPES.keys())
def test_wrong_dtypes_are_named(dtypes, message):
    with refused(ConvertError, message):
        convert_symbol(LAYER, "O1", X, dtypes)


def test_dtypes_that_contradict_the_parameters_name_the_node():
    with refused(InferenceError, "node 'fc'", "dtypes"):
        convert_model(LAYER, WEIGHTS, {}, "O1", X, {"x": "int32"})


@pytest.mark.parametrize(
    "names, message", [(["data"], "no variable 'data'"), ([5], "no variable 5"), (5, "data_names")]
)
def test_wrong_data_names_are_named(names, message):
    with refused(ConvertError, "data_names", message):
        convert_symbol(LAYER, "O2", data_names=names)


@pytest.mark.parametrize(
    "policy, changes, message",
    [
        ("O9", {}, "unknown policy 'O9'; the nearest are"),
        (5, {}, "found a int"),
        ("O1", {"bananas": 1}, "unknown policy field 'bananas'"),
        ("O1", {"param_dtype": "bfloat16"}, "param_dtype='bfloat16' with compute_dtype='float16'"),
        ("O1,name:nix=float32", {}, "'nix' matches no node"),
        ("O1,op:softmax=float16", {}, "no operator 'softmax'"),
        ("O1,block:stage9=float32", {}, "'stage9'"),
        ("O1,name:stage9_*=float32", {}, "'stage9_*' matches no node"),
    ],
)
def test_a_wrong_policy_is_named(policy, changes, message):
    with refused(PolicyError, message):
        convert_model(LAYER, WEIGHTS, {}, policy, X, **changes)


def test_no_buckets_at_all():
    with refused(ConvertError, "buckets is empty"):
        convert_buckets(lambda key: (LAYER, ["x"], None), [], WEIGHTS, {})


def test_a_bucket_that_is_no_symbol():
    with refused(ConvertError, "sym is a str"):
        convert_buckets(lambda key: ("net", ["x"], None), [1], WEIGHTS, {})


def test_parameters_that_one_bucket_lacks_are_named():
    def sym_gen(key):
        return (dense(LAYER, "more") if key == 2 else LAYER), ["x"], None

    with refused(ConvertError, "arg_params lacks 'more_weight'"):
        convert_buckets(sym_gen, [1, 2], WEIGHTS, {})


def test_shapes_of_a_bucket_are_checked():
    with refused(ConvertError, "shapes: the symbol has no variable 'y'"):
        convert_buckets(lambda key: (LAYER, ["x"], None), [1], WEIGHTS, {}, shapes={1: {"y": (4, 6)}})


REFUSED = {
    "missing parameter": ({"conv_weight": ARGS["conv_weight"]}, AUX, "O2", SHAPES),
    "wrong shape": ({**ARGS, "fc_weight": mx.nd.ones((5, 7))}, AUX, "O2", SHAPES),
    "values out of range, and a wrong policy": (
        {**ARGS, "fc_weight": ARGS["fc_weight"] * 1e6},
        AUX,
        "O2,name:nix=float32",
        SHAPES,
    ),
    "wrong shapes": (ARGS, AUX, "O2", {"x": (2, 4, 8, 8)}),
}


@pytest.mark.parametrize("args, aux, policy, shapes", REFUSED.values(), ids=REFUSED.keys())
def test_a_failed_conversion_leaves_the_callers_model_as_it_was(args, aux, policy, shapes):
    before = NETWORK.tojson(), NETWORK.attr_dict(), snapshot(args, aux)
    with pytest.raises(MxmpError):
        convert_model(NETWORK, args, aux, policy, shapes)
    assert (NETWORK.tojson(), NETWORK.attr_dict(), snapshot(args, aux)) == before
