"""What conversions refuse, and how they say it; nothing of the caller's is changed."""

import mxnet as mx
import numpy as np
import pytest

from mxmp import Policy
from mxmp.errors import CheckpointError, ConvertError, InferenceError, MxmpError, ParamsError, PolicyError
from mxmp.symbol import (
    convert_checkpoint,
    convert_model,
    convert_symbol,
    load_checkpoint,
    on_cpu,
    save_checkpoint,
)
from tests import messages
from tests.symbol.small import X, convolutional, dense, params_of, snapshot

NETWORK, SHAPES = convolutional()
ARGS, AUX = params_of(NETWORK, SHAPES)
LAYER = mx.sym.relu(mx.sym.FullyConnected(mx.sym.var("x"), num_hidden=6, name="fc"), name="act")
WEIGHTS, _ = params_of(LAYER, X)
TWINS = mx.sym.Group([dense(mx.sym.var("x")), mx.sym.exp(mx.sym.var("fc_weight"), name="exp")])


def model(args=WEIGHTS, aux=None, policy="O1", shapes=X, dtypes=None, sym=LAYER, **changes):
    return lambda: convert_model(sym, args, {} if aux is None else aux, policy, shapes, dtypes, **changes)


def weight(value):
    return model({**WEIGHTS, "fc_weight": value})


def symbol(*args, **options):
    return lambda: convert_symbol(LAYER, *args, **options)


def of(value):
    return lambda: convert_symbol(value)


def another(name, shape, shapes):
    """Return a conversion for inference with an array of another network's shape."""
    args, aux = ({**each, name: mx.nd.ones(shape)} if name in each else each for each in (ARGS, AUX))
    return model(args, aux, "O0", shapes, sym=NETWORK, for_inference=True)


def named(pattern):
    return lambda: Policy.parse("O1", names={pattern: "float32"})


def epoch(value):
    """Return calls that read or write a checkpoint of an epoch that is none."""
    return [
        lambda: load_checkpoint("net", value),
        lambda: save_checkpoint("net", value, LAYER, WEIGHTS, {}),
        lambda: convert_checkpoint("net", value, "out"),
    ]


NO_SYMBOLS = {
    "sym is a NoneType": None,
    "sym is a str": LAYER.tojson(),
    "sym is a list": [LAYER],
    "sym is a NDArray": mx.nd.ones(2),
    "sym is a Dense; expected a Symbol; for a Gluon net call mxmp.gluon.convert": mx.gluon.nn.Dense(2),
}
def lacking(arrays, name, **others):
    """Return arrays but for one, and others."""
    return {**{key: array for key, array in arrays.items() if key != name}, **others}


UNFIT = {  # parameters of a network
    "arg_params lacks 'fc_weight'": (lacking(ARGS, "fc_weight"), AUX),
    "'fc_weight', which the symbol has; the nearest are fc_wieght": (
        lacking(ARGS, "fc_weight", fc_wieght=ARGS["fc_weight"]), AUX),
    "aux_params lacks 'bn_moving_mean', 'bn_moving_var'": (ARGS, {}),
    "aux_params lacks 'bn_moving_var'": (
        {**ARGS, "bn_moving_var": AUX["bn_moving_var"]}, lacking(AUX, "bn_moving_var")),
    "lacks 'fc_weight'": (lacking(ARGS, "fc_weight"), {**AUX, "fc_weight": ARGS["fc_weight"]}),
    "node 'fc'": ({**ARGS, "fc_weight": mx.nd.ones((5, 7))}, AUX),
    "'bn_moving_var'": (ARGS, {**AUX, "bn_moving_var": mx.nd.ones(9)}),
    "'bn_gamma'": ({**ARGS, "bn_gamma": mx.nd.ones(9)}, AUX),
    "node 'conv'": ({**ARGS, "conv_weight": mx.nd.ones((4, 3))}, AUX),
}  # fmt: skip
BAD_SHAPES = {
    "no variable 'data'": {"data": (4, 6)},
    "no variable 'act_output'": {"act_output": (4, 6)},
    "no variable 5": {5: (4, 6)},
    "'x' has shape None; expected a tuple of integers": {"x": None},
    "'x' has shape 4": {"x": 4},
    "'x' has shape 'ab'": {"x": "ab"},
    "'x' has shape (4, 'six')": {"x": (4, "six")},
    "'x' has shape ('4', '6')": {"x": ("4", "6")},
    "'x' has shape (4.5, 6)": {"x": (4.5, 6)},
    "'x' has shape (-1, 6); a size cannot be negative": {"x": (-1, 6)},
    "'x' has shape (1099511627776, 6); this MXNet has": {"x": (2**40, 6)},
    "shapes is [('x',)]; expected a dict, or pairs": [("x",)],
    "shapes is [5]": [5],
    "shapes is 5": 5,
    "shapes is 'x'": "x",
}
BAD_DTYPES = {
    "dtypes: the symbol has no variable 'data'": {"data": "float32"},
    "dtypes: 'x': unknown dtype 'floaty'; expected one of float16, bfloat16, float32, float64": {"x": "floaty"},
    "dtypes: 'x': unknown dtype 5": {"x": 5},
    "dtypes: 'x': unknown dtype 'complex64'": {"x": "complex64"},
    "dtypes is a str": "float32",
    "dtypes is a list": ["x"],
    "dtypes is a int": 5,
}
BAD_RANGES = {
    "ranges: the symbol has no output 'nix'": {"nix": 1.0},
    "ranges: 'fc_output' is -1": {"fc_output": -1},
    "ranges is a list; expected what mxmp.diagnose.measure_ranges returns": [1],
    "give the part of it that it calls 'ranges'": {"ranges": {}},
}
BAD_POLICIES = {
    "unknown policy 'O9'; the nearest are": ("O9", {}),
    "found a int": (5, {}),
    "unknown policy field 'bananas'": ("O1", {"bananas": 1}),
    "param_dtype='bfloat16' with compute_dtype='float16'": ("O1", {"param_dtype": "bfloat16"}),
    "'nix' matches no node": ("O1,name:nix=float32", {}),
    "no operator 'softmax'": ("O1,op:softmax=float16", {}),
    "'stage9'": ("O1,block:stage9=float32", {}),
    "'stage9_*' matches no node": ("O1,name:stage9_*=float32", {}),
}
REFUSED = [
    ("arg_params: 'fc_weight' is a ndarray; expected an NDArray", ConvertError, weight(np.ones((6, 6), np.float32))),
    ("arg_params: 'fc_weight' is a NoneType", ConvertError, weight(None)),
    ("RowSparseNDArray; expected a dense one", ConvertError, weight(mx.nd.ones((6, 6)).tostype("row_sparse"))),
    ("aux_params: 'bn_moving_var' is a list", ConvertError, model(ARGS, {**AUX, "bn_moving_var": [1]}, sym=NETWORK)),
    *(("arg_params is", ConvertError, model(value)) for value in (None, 5, [1])),
    *(("aux_params is", ConvertError, model(aux=value)) for value in (5, [1])),
    ("node 'fc': MXNet cannot infer its dtypes", InferenceError, weight(WEIGHTS["fc_weight"].astype("int32"))),
    *((text, ConvertError, model(sym=value)) for text, value in NO_SYMBOLS.items()),
    *((text, ConvertError, of(value)) for text, value in NO_SYMBOLS.items()),
    ("two variables of the name 'fc_weight'", ConvertError, model(sym=TWINS)),
    *((text, ConvertError, symbol("O1", value)) for text, value in BAD_SHAPES.items()),
    ("[5,5]", InferenceError, symbol("O1", {"x": (4, 6), "fc_weight": (5, 5)})),
    (
        "'fc_weight' of node 'fc' has shape (6, 6), not (6, 7), as the symbol wants with x (4, 7): correct the shapes",
        ParamsError,
        model(shapes={"x": (4, 7)}),
    ),
    *((text, ConvertError, symbol("O1", X, value)) for text, value in BAD_DTYPES.items()),
    ("dtypes: the symbol has no variable 'data'", ConvertError, lambda: on_cpu(LAYER, {"data": "float32"})),
    ("node 'fc': MXNet cannot infer its dtypes", InferenceError, model(dtypes={"x": "int32"})),
    *((text, ConvertError, symbol(ranges=value)) for text, value in BAD_RANGES.items()),
    ("data_names: the symbol has no variable 'data'", ConvertError, symbol(data_names=["data"])),
    ("data_names: the symbol has no variable 5", ConvertError, symbol(data_names=[5])),
    ("data_names is 5", ConvertError, symbol(data_names=5)),
    *((text, PolicyError, model(policy=spec, **changes)) for text, (spec, changes) in BAD_POLICIES.items()),
    *((text, ParamsError, model(*params, "O2", SHAPES, sym=NETWORK)) for text, params in UNFIT.items()),
    ("convert_symbol has no option for_inference", ConvertError, symbol(for_inference=True)),
    *(
        (f"'{name}'... has shape {shape}", ParamsError, another(name, shape, shapes))
        for name, shape in (("bn_moving_mean", (5,)), ("bn_gamma", (4, 1)), ("conv_weight", (5, 3, 3, 3)))
        for shapes in (None, SHAPES)
    ),
    *(
        (f"epoch={value!r}: expected a whole number from 0 on", CheckpointError, call)
        for value in (-1, 3.0, True, "3", None)
        for call in epoch(value)
    ),
    *(
        ("begin or end with a blank. For such a character write '?'", PolicyError, named(name))
        for name in (" a", "a\n", "\f", "a\u2028", "")
    ),
]


MESSAGES = {f"{i} {text}": (call, error, f"...{text}...") for i, (text, error, call) in enumerate(REFUSED)}


@messages.each(MESSAGES)
def test_messages(call, error, text, tmp_path):
    messages.check(call, error, text, tmp_path)


FAILED = {
    "missing parameter": ({"conv_weight": ARGS["conv_weight"]}, "O2", SHAPES),
    "wrong shape": ({**ARGS, "fc_weight": mx.nd.ones((5, 7))}, "O2", SHAPES),
    "out of range, and a wrong policy": ({**ARGS, "fc_weight": ARGS["fc_weight"] * 1e6}, "O2,name:nix=float32", SHAPES),
    "wrong shapes": (ARGS, "O2", {"x": (2, 4, 8, 8)}),
}


@pytest.mark.parametrize("args, policy, shapes", FAILED.values(), ids=FAILED.keys())
def test_a_failed_conversion_leaves_the_callers_model_as_it_was(args, policy, shapes):
    before = NETWORK.tojson(), NETWORK.attr_dict(), snapshot(args, AUX)
    with pytest.raises(MxmpError):
        convert_model(NETWORK, args, AUX, policy, shapes)
    assert (NETWORK.tojson(), NETWORK.attr_dict(), snapshot(args, AUX)) == before
