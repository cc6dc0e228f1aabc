"""What policies, dtypes, files, the export to ONNX and the Estimator say of the mistakes that users make most."""

import mxnet as mx
import pytest
from mxnet import gluon

import symbols
from mxmp import Policy
from mxmp.errors import (
    CheckpointError,
    ConvertError,
    LossScaleError,
    ParamsError,
    PolicyError,
    TrainerError,
)
from mxmp.estimator import MixedPrecisionHandler
from mxmp.gluon import convert
from mxmp.onnx import export_model, exportable
from mxmp.symbol import convert_symbol, load_params
from tests import messages
from tests.arrays_files import arrays_file, entry, sparse_entry
from tests.full_disk import files_of_at_most
from tests.perceptron import X as PERCEPTRON
from tests.perceptron import make

# Of policies: a text, fields, what is said.
POLICIES = {
    "unknown preset": ("mixed_flaot16", {}, "unknown policy 'mixed_flaot16'; the nearest are mixed_float16, mixed_bfloat16, float16."),
    "unknown field": ("O1,keep_batchnorm=True", {}, "policy 'O1,keep_batchnorm=True': unknown field 'keep_batchnorm'; the nearest are keep_batchnorm_fp32, param."),
    "unknown keyword": ("O1", {"los_scale": 1}, "unknown policy field 'los_scale'; the nearest are loss_scale, blocks."),
    "unknown dtype": ("compute=fp61", {}, "policy 'compute=fp61': compute_dtype: unknown dtype 'fp61'; expected float16, bfloat16 or float32."),
    "not a precision": ("O0", {"compute_dtype": "int8"}, "compute_dtype='int8': expected float16, bfloat16 or float32."),
    "not a pair": ("O1,O2", {}, "policy 'O1,O2': 'O2' is no 'field=value' pair; it is another policy: give each policy by itself, on the command line with a --policy of its own."),
    "a flag without a value": ("O1,pure", {}, "policy 'O1,pure': 'pure' is no 'field=value' pair; write pure=True."),
    "neither": ("O1,x", {}, "policy 'O1,x': 'x' is no 'field=value' pair."),
    "unknown override": ("O1,ops:relu=float16", {}, "policy 'O1,ops:relu=float16': unknown override 'ops:relu'; expected op:<name>, name:<pattern> or block:<pattern>."),
    "not a flag": ("O1,pure=1", {}, "policy 'O1,pure=1': pure='1': expected True or False."),
    "two low dtypes": ("O0", {"param_dtype": "float16", "compute_dtype": "bfloat16"}, "param_dtype='float16' with compute_dtype='bfloat16' makes no sense: it is float32 or the compute dtype."),
    "batch norm in float32": ("O0", {"keep_batchnorm_fp32": True}, "keep_batchnorm_fp32=True with compute_dtype='float32' makes no sense: everything is float32 already."),
    "loss scale in float32": ("O0", {"loss_scale": "dynamic"}, "loss_scale='dynamic' with compute_dtype='float32' makes no sense: float32 gradients need no scaling. Set compute_dtype, or leave loss_scale out."),
    "loss scale that no trainer takes": ("O1,loss_scale=1e300", {}, "policy 'O1,loss_scale=1e300': loss_scale='1e300': expected None, 'dynamic' or a number between 2**-126 and 2**126."),
    "override in another dtype": ("O1", {"ops": {"softmax": "bfloat16"}}, "ops: 'softmax' is set to bfloat16, but compute_dtype='float16'; use float16 or float32."),
    "an override twice": ("O1,op:a=float16,op:a=float32", {}, "policy 'O1,op:a=float16,op:a=float32': ops: 'a' is given twice; keep one of them."),
    "pattern with a comma": ("O1", {"names": {"[a,b]*": "float32"}}, "names: '[a,b]*' is no pattern of names; it must not be empty, hold ',' or '=', or begin or end with a blank. For such a character write '?'."),
}  # fmt: skip
# Of policies whose patterns match nothing in a small net.
UNMATCHED = {
    "a name": ({"names": {"net_dense2*": "float32"}}, "...names: 'net_dense2*' matches no node; the nearest are net_dense1_fwd, net_dense0_fwd..."),
    "a block": ({"blocks": {"net_dense2_": "float32"}}, "...blocks: 'net_dense2_' matches no block; the nearest are net_dense..."),
    "an operator": ({"ops": {"FullyConected": "float32"}}, "...ops: the network has no operator 'FullyConected'; the nearest are FullyConnected..."),
}  # fmt: skip
RELU = mx.sym.relu(mx.sym.var("x"))
X = {"x": (2, 3)}


def of(text, fields):
    return lambda: Policy.parse(text, **fields)


def unmatched(fields):
    return lambda: convert(make(), Policy.parse("O1", **fields))(PERCEPTRON)


def export(symbol=RELU, shapes=X, file="net.onnx"):
    return lambda tmp_path: export_model(symbol, {}, {}, str(tmp_path / file), shapes)


def export_to_a_full_disk(tmp_path):
    with files_of_at_most(10):
        export()(tmp_path)


MESSAGES = {
    **{f"policy, {id}": (of(text, fields), PolicyError, said) for id, (text, fields, said) in POLICIES.items()},
    **{f"pattern, {id}": (unmatched(fields), PolicyError, said) for id, (fields, said) in UNMATCHED.items()},
    "export, no shape": (export(shapes={}), ConvertError, "...the input 'x' has no shape; give shapes=..."),
    "export, no parameters": (export(mx.sym.FullyConnected(mx.sym.var("x"), num_hidden=2, name="fc")), ParamsError, "...lacks 'fc_weight', 'fc_bias'..."),
    "export, unknown operator": (export(mx.sym.arcsinh(mx.sym.var("x"))), ConvertError, "...cannot translate the network: node 'arcsinh0' (arcsinh): it has no translation..."),
    "export, no folder": (export(file="none/net.onnx"), CheckpointError, "...none/net.onnx: there is no folder ...none; make it first..."),
    "export, full disk": (export_to_a_full_disk, CheckpointError, "...net.onnx: the model cannot be written: File too large..."),
    "export, bfloat16": (lambda: exportable(convert_symbol(symbols.get_symbol("mlp"), "mixed_bfloat16")), ConvertError, "...node 'data_cast_bfloat16' (amp_cast): ... drops every amp_cast; convert to..."),
    "estimator, a net": (lambda: MixedPrecisionHandler().train_begin(gluon.nn.Dense(3)), TrainerError, "...expected a mxnet.gluon.contrib.estimator.Estimator, found a Dense..."),
    "estimator, loss scale": (lambda: MixedPrecisionHandler("O1", loss_scale="often"), LossScaleError, "...unknown loss scale 'often'..."),
}  # fmt: skip


@messages.each(MESSAGES)
def test_messages(call, error, text, tmp_path):
    """No file is left of an export that was refused."""
    messages.check(call, error, text, tmp_path)
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------------- files of arrays, which MXNet would read beyond

ONE, HUGE = arrays_file([entry()], [b"a"]), (2**60).to_bytes(8, "little")
DAMAGED = {  # the content of a file, and what is said behind its name
    "a huge size": (arrays_file([entry(shape=(2**40, 3))], []), "entry 0: the shape (1099511627776, 3) of 4 bytes each needs"),
    "a size below zero": (arrays_file([entry(), entry(shape=(-2, 3))], []), "entry 1: found the shape (-2, 3), expected sizes"),
    "too many axes": (arrays_file([entry(axes=2**31 - 1)], []), "entry 0: found 2147483647 axes, expected 0 to 32"),
    "a storage type": (arrays_file([entry(storage=7)], []), "entry 0: found the storage type 7, expected one of"),
    "a dtype": (arrays_file([entry(flag=99)], []), "entry 0: found the dtype number 99, expected one of"),
    "a device": (arrays_file([entry(device=77)], []), "entry 0: found the device type 77, expected one of"),
    "too few names": (arrays_file([entry(), entry()], [b"a"]), "the names: found 1, expected 2, one for each array, or none"),
    "count of arrays": (ONE[:16] + HUGE + ONE[24:], f"{2**60} arrays declared, but"),
    "length of a name": (ONE[:-9] + HUGE + ONE[-1:], f"{2**60} bytes declared, but"),
    "behind the end": (ONE + b"12345", "the end: found 5 bytes more, expected none"),
    "a name that is no text": (arrays_file([entry()], [b"\xff"]), "cannot load it"),
    **{name: (arrays_file([sparse_entry(*sparse)], []), "values have indices that are not places in an array of the shape") for name, sparse in {
        "a row beyond the array": ((4, 2), (2, 2), [0, 10**9]),
        "a row below zero": ((4, 2), (2, 2), [-5, 1]),
        "a row twice": ((4, 2), (2, 2), [1, 1]),
        "fewer rows than values": ((4, 2), (2, 2), [1]),
        "rows of another size": ((4, 2), (2, 3), [0, 1]),
        "a column beyond the array": ((2, 3), (2,), [0, 1, 2], [0, 3]),
        "a column below zero": ((2, 3), (2,), [0, 1, 2], [0, -5]),
        "a start beyond the values": ((2, 3), (2,), [0, 10**9, 2], [0, 1]),
        "a first start that is not 0": ((2, 3), (2,), [1, 1, 2], [0, 1]),
        "a last start before the last value": ((2, 3), (2,), [0, 1, 1], [0, 1]),
        "fewer starts than rows": ((2, 3), (2,), [0, 2], [0, 1]),
        "no starts": ((0, 3), (0,), [], []),
    }.items()},
}  # fmt: skip


@pytest.mark.parametrize("content, text", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_of_arrays_is_refused_with_the_place(content, text, tmp_path):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        load_params(str(tmp_path / "file"))
    assert f"{tmp_path / 'file'}: " in str(caught.value) and text in str(caught.value)
