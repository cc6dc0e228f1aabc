"""What conversions refuse, and how they say it; nothing of the caller's is changed."""

import mxnet as mx
import numpy as np
import pytest

from mxmp.errors import CheckpointError, ConvertError, InferenceError, MxmpError, ParamsError, PolicyError
from mxmp.symbol import convert_model, convert_symbol, load_checkpoint
from tests import messages
from tests.symbol.small import X, convolutional, dense, params_of, snapshot

NETWORK, SHAPES = convolutional()
ARGS, AUX = params_of(NETWORK, SHAPES)
LAYER = mx.sym.relu(mx.sym.FullyConnected(mx.sym.var("x"), num_hidden=6, name="fc"), name="act")
WEIGHTS, _ = params_of(LAYER, X)
TWINS = mx.sym.Group([dense(mx.sym.var("x")), mx.sym.exp(mx.sym.var("fc_weight"), name="exp")])


def model(args=WEIGHTS, aux=None, policy="O1", shapes=X, sym=LAYER, **changes):
    return lambda: convert_model(sym, args, {} if aux is None else aux, policy, shapes, **changes)


def network(args=ARGS, aux=AUX, **changes):
    return model(args, aux, "O2", SHAPES, NETWORK, **changes)


def symbol(*args, **options):
    return lambda: convert_symbol(LAYER, *args, **options)


def without(arrays, name, **others):
    """Return arrays but for one, and others."""
    return {**{key: array for key, array in arrays.items() if key != name}, **others}


REFUSED = [
    # arguments of the wrong kind
    ("sym is a str", ConvertError, model(sym=LAYER.tojson())),
    ("sym is a Dense; expected a Symbol; for a Gluon net call mxmp.gluon.convert", ConvertError, model(sym=mx.gluon.nn.Dense(2))),
    ("arg_params is", ConvertError, model(None)),
    ("aux_params is", ConvertError, model(aux=[1])),
    ("arg_params: 'fc_weight' is a ndarray; expected an NDArray", ConvertError, model({"fc_weight": np.ones((6, 6))})),
    ("RowSparseNDArray; expected a dense one", ConvertError, model({"fc_weight": mx.nd.ones((6, 6)).tostype("row_sparse")})),
    ("shapes is 5", ConvertError, symbol("O1", 5)),
    ("shapes is [('x',)]; expected a dict, or pairs", ConvertError, symbol("O1", [("x",)])),
    ("'x' has shape (4, 'six')", ConvertError, symbol("O1", {"x": (4, "six")})),
    ("'x' has shape (-1, 6); a size cannot be negative", ConvertError, symbol("O1", {"x": (-1, 6)})),
    ("'x' has shape (1099511627776, 6); this MXNet has", ConvertError, symbol("O1", {"x": (2**40, 6)})),
    ("dtypes is a str", ConvertError, symbol("O1", X, "float32")),
    ("dtypes: 'x': unknown dtype 'floaty'; expected one of float16, bfloat16", ConvertError, symbol("O1", X, {"x": "floaty"})),
    ("ranges is a list; expected what mxmp.diagnose.measure_ranges returns", ConvertError, symbol(ranges=[1])),
    ("give the part of it that it calls 'ranges'", ConvertError, symbol(ranges={"ranges": {}})),
    ("ranges: 'fc_output' is -1", ConvertError, symbol(ranges={"fc_output": -1})),
    ("data_names is 5", ConvertError, symbol(data_names=5)),
    ("convert_symbol has no option for_inference", ConvertError, symbol(for_inference=True)),
    ("epoch=3.0: expected a whole number from 0 on", CheckpointError, lambda: load_checkpoint("net", 3.0)),
    ("epoch=True: expected a whole number from 0 on", CheckpointError, lambda: load_checkpoint("net", True)),
    # names that are not there
    ("shapes: the symbol has no variable 'data'", ConvertError, symbol("O1", {"data": (4, 6)})),
    ("dtypes: the symbol has no variable 'data'", ConvertError, symbol("O1", X, {"data": "float32"})),
    ("data_names: the symbol has no variable 'data'", ConvertError, symbol(data_names=["data"])),
    ("ranges: the symbol has no output 'nix'", ConvertError, symbol(ranges={"nix": 1.0})),
    ("no operator 'softmax'", PolicyError, model(policy="O1,op:softmax=float16")),
    ("'stage9'", PolicyError, model(policy="O1,block:stage9=float32")),
    # parameters that do not fit
    ("two variables of the name 'fc_weight'", ConvertError, model(sym=TWINS)),
    ("'fc_weight', which the symbol has; the nearest are fc_wieght", ParamsError,
        network(without(ARGS, "fc_weight", fc_wieght=ARGS["fc_weight"]))),
    ("lacks 'fc_weight'", ParamsError, network(without(ARGS, "fc_weight"), {**AUX, "fc_weight": ARGS["fc_weight"]})),
    ("aux_params lacks 'bn_moving_mean', 'bn_moving_var'", ParamsError, network(aux={})),
    ("node 'conv'", ParamsError, network({**ARGS, "conv_weight": mx.nd.ones((4, 3))})),
    ("'bn_moving_var'", ParamsError, network(aux={**AUX, "bn_moving_var": mx.nd.ones(9)})),
    ("'fc_weight' of node 'fc' has shape (6, 6), not (6, 7), as the symbol wants with x (4, 7): correct the shapes",
        ParamsError, model(shapes={"x": (4, 7)})),
    ("'bn_gamma'... has shape (4, 1)", ParamsError, network({**ARGS, "bn_gamma": mx.nd.ones((4, 1))}, for_inference=True)),
    ("[5,5]", InferenceError, symbol("O1", {"x": (4, 6), "fc_weight": (5, 5)})),
    # dtypes that do not fit
    ("node 'fc': MXNet cannot infer its dtypes", InferenceError, model({**WEIGHTS, "fc_weight": WEIGHTS["fc_weight"].astype("int32")})),
    ("it has the dtype number -7", InferenceError, lambda: convert_symbol(mx.sym.relu(mx.sym.var("x", attr={"__dtype__": "-7"})))),
]  # fmt: skip


@messages.each({text: (call, error, f"...{text}...") for text, error, call in REFUSED})
def test_messages(call, error, text, tmp_path):
    messages.check(call, error, text, tmp_path)


FAILED = {
    "missing parameter": ({"conv_weight": ARGS["conv_weight"]}, "O2", SHAPES),
    "out of range, and a wrong policy": ({**ARGS, "fc_weight": ARGS["fc_weight"] * 1e6}, "O2,name:nix=float32", SHAPES),
    "wrong shapes": (ARGS, "O2", {"x": (2, 4, 8, 8)}),
}


@pytest.mark.parametrize("args, policy, shapes", FAILED.values(), ids=FAILED.keys())
def test_a_failed_conversion_leaves_the_callers_model_as_it_was(args, policy, shapes):
    before = NETWORK.tojson(), NETWORK.attr_dict(), snapshot(args, AUX)
    with pytest.raises(MxmpError):
        convert_model(NETWORK, args, AUX, policy, shapes)
    assert (NETWORK.tojson(), NETWORK.attr_dict(), snapshot(args, AUX)) == before
