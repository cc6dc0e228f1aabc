"""What policies, dtypes, files, the export to ONNX and the Estimator say of wrong arguments: one table."""

import os
import sys
from pathlib import Path
from unittest import mock

import mxnet as mx
import onnx
import pytest
from mxnet import gluon

import mxmp.onnx as exporting
import symbols
from mxmp import compat, dtypes
from mxmp.checkpoint import check_arrays_file
from mxmp.errors import (
    CheckpointError,
    ConvertError,
    DependencyError,
    DtypeError,
    LossScaleError,
    ParamsError,
    PolicyError,
    TrainerError,
)
from mxmp.estimator import MixedPrecisionHandler
from mxmp.files import replacing, saving
from mxmp.loss_scale import StaticLossScale
from mxmp.onnx import export_model, exportable
from mxmp.policy import Policy, check_matches
from mxmp.symbol import convert_symbol
from mxmp.symbol.checkpoint import load_arrays
from tests import messages
from tests.arrays_files import arrays_file, entry, sparse_entry

# Of policies: a text, fields, what is said.
POLICIES = {
    'unknown dtype in a string': ('compute=fp61', {}, "policy 'compute=fp61': compute_dtype: unknown dtype 'fp61'; expected float16, bfloat16 or float32."),
    'unknown dtype': ('O0', {'compute_dtype': 'fp61'}, "compute_dtype: unknown dtype 'fp61'; expected float16, bfloat16 or float32."),
    'not a precision': ('O0', {'compute_dtype': 'int8'}, "compute_dtype='int8': expected float16, bfloat16 or float32."),
    'unknown preset': ('mixed_flaot16', {}, "unknown policy 'mixed_flaot16'; the nearest are mixed_float16, mixed_bfloat16, float16."),
    'unknown field': ('O1,keep_batchnorm=True', {}, "policy 'O1,keep_batchnorm=True': unknown field 'keep_batchnorm'; the nearest are keep_batchnorm_fp32, param."),
    'unknown keyword': ('O1', {'los_scale': 1}, "unknown policy field 'los_scale'; the nearest are loss_scale, blocks."),
    'not a pair': ('O1,O2', {}, "policy 'O1,O2': 'O2' is no 'field=value' pair."),
    'nothing behind a comma': ('O1,', {}, "policy 'O1,': '' is no 'field=value' pair."),
    'unknown override': ('O1,ops:relu=float16', {}, "policy 'O1,ops:relu=float16': unknown override 'ops:relu'; expected op:<name>, name:<pattern> or block:<pattern>."),
    'not a flag': ('O1,pure=1', {}, "policy 'O1,pure=1': pure='1': expected True or False."),
    'not a string': (16, {}, "expected a policy or its name, such as 'O1'; found a int."),
    'params lower than compute': ('O2', {'compute_dtype': 'float32'}, "param_dtype='float16' with compute_dtype='float32' makes no sense: it is float32 or the compute dtype."),
    'two low dtypes': ('O0', {'param_dtype': 'float16', 'compute_dtype': 'bfloat16'}, "param_dtype='float16' with compute_dtype='bfloat16' makes no sense: it is float32 or the compute dtype."),
    'output in another': ('O0', {'compute_dtype': 'bfloat16', 'output_dtype': 'float16'}, "output_dtype='float16' with compute_dtype='bfloat16' makes no sense: it is float32 or the compute dtype."),
    'batch norm in float32': ('O0', {'keep_batchnorm_fp32': True}, "keep_batchnorm_fp32=True with compute_dtype='float32' makes no sense: everything is float32 already."),
    'last layer in float32': ('O0,last_layer_fp32=True', {}, "policy 'O0,last_layer_fp32=True': last_layer_fp32=True with compute_dtype='float32' makes no sense: everything is float32 already."),
    'last layer neither': ('O1,last_layer_fp32=yes', {}, "policy 'O1,last_layer_fp32=yes': last_layer_fp32='yes': expected True or False."),
    'pure float32': ('O0', {'pure': True}, "pure=True with compute_dtype='float32' makes no sense: everything is float32 already."),
    'loss scale in float32': ('O0', {'loss_scale': 'dynamic'}, "loss_scale='dynamic' with compute_dtype='float32' makes no sense: float32 gradients need no scaling. Set compute_dtype, or leave loss_scale out."),
    'negative loss scale': ('O1', {'loss_scale': -1}, "loss_scale=-1: expected None, 'dynamic' or a number between 2**-126 and 2**126."),
    'NaN loss scale': ('O1,loss_scale=nan', {}, "policy 'O1,loss_scale=nan': loss_scale='nan': expected None, 'dynamic' or a number between 2**-126 and 2**126."),
    'loss scale that no trainer takes': ('O1,loss_scale=1e300', {}, "policy 'O1,loss_scale=1e300': loss_scale='1e300': expected None, 'dynamic' or a number between 2**-126 and 2**126."),
    'loss scale of many digits': ('O1', {'loss_scale': 10**400}, "loss_scale=1000...: expected None, 'dynamic' or a number between 2**-126 and 2**126."),
    'loss scale as an object': ('O1', {'loss_scale': StaticLossScale(3)}, "loss_scale=StaticLossScale(value=3.0): expected None, 'dynamic' or a number between 2**-126 and 2**126. Give a LossScale to the trainer."),
    'word as loss scale': ('O1', {'loss_scale': 'dynamc'}, "loss_scale='dynamc': expected None, 'dynamic' or a number between 2**-126 and 2**126."),
    'loss scale True': ('O1', {'loss_scale': True}, "loss_scale=True: expected None, 'dynamic' or a number between 2**-126 and 2**126."),
    'override in another dtype': ('O1', {'ops': {'softmax': 'bfloat16'}}, "ops: 'softmax' is set to bfloat16, but compute_dtype='float16'; use float16 or float32."),
    'an override twice': ('O1,op:a=float16,op:a=float32', {}, "policy 'O1,op:a=float16,op:a=float32': ops: 'a' is given twice; keep one of them."),
    'an override twice in pairs': ('O1', {'names': [('a', 'float16'), ('b', 'float32'), ('a', 'float32')]}, "names: 'a' is given twice; keep one of them."),
    'pattern with a comma': ('O1', {'names': {'[a,b]*': 'float32'}}, "names: '[a,b]*' is no pattern of names; it must not be empty, hold ',' or '=', or begin or end with a blank. For such a character write '?'."),
    'empty pattern': ('O1,block:=float32', {}, "policy 'O1,block:=float32': unknown override 'block:'; expected op:<name>, name:<pattern> or block:<pattern>."),
    'overrides that are none': ('O1', {'ops': 5}, 'ops=5: expected a dict or pairs of pattern and dtype.'),
    'override without a dtype': ('O1', {'names': {'a': 'f99'}}, "names['a']: unknown dtype 'f99'; expected float16, bfloat16 or float32."),
    'out of range': ('O2,out_of_range=drop', {}, "policy 'O2,out_of_range=drop': out_of_range='drop': expected 'clamp' or 'float32'."),
}

NODES = [("Convolution", "net0_conv0_fwd"), ("softmax", "net0_softmax0")]
# Of policies whose patterns match nothing.
UNMATCHED = {
    "a name": ({"names": {"net0_conv1*": "float32"}}, "names: 'net0_conv1*' matches no node; the nearest are net0_conv0_fwd..."),
    "a block": ({"blocks": {"net0_conv1_": "float32"}}, "blocks: 'net0_conv1_' matches no block; the nearest are net0_conv0_..."),
    "an operator": ({"ops": {"sofmax": "float32"}}, "ops: the network has no operator 'sofmax'; the nearest are softmax..."),
}

# Of files of arrays: entries, names, what is said behind the file.
DAMAGED = {
    "a huge size": ([entry(shape=(2**40, 3))], [], "entry 0: the shape (1099511627776, 3) of 4 bytes each needs..."),
    "sizes whose product overflows": ([entry(shape=(2**32, 2**32))], [], "entry 0: the shape (4294967296, 4294967296)..."),
    "a size below zero": ([entry(), entry(shape=(-2, 3))], [], "entry 1: found the shape (-2, 3), expected sizes..."),
    "too many axes": ([entry(axes=2**31 - 1)], [], "entry 0: found 2147483647 axes, expected 0 to 32..."),
    "axes below zero": ([entry(axes=-1)], [], "entry 0: found -1 axes, expected 0 to 32..."),
    "a storage type": ([entry(storage=7)], [], "entry 0: found the storage type 7, expected one of [0, 1, 2]..."),
    "a dtype": ([entry(flag=99)], [], "entry 0: found the dtype number 99, expected one of [0, 1, 2, 3, 4, 5, 6, 7..."),
    "a device": ([entry(device=77)], [], "entry 0: found the device type 77, expected one of [1, 2, 3, 5]..."),
    "an old entry": ([b"\xc0\xfa\x93\xf9"], [], "entry 0: found 4187224768 axes, expected 0 to 32..."),
    "a row beyond the array": ([entry(), sparse_entry((4, 2), (2, 2), [0, 10**9])], [],
        "entry 1: (2, 2) values have indices that are not places in an array of the shape (4, 2)..."),
    **{name: ([sparse_entry(*sparse)], [], "entry 0: (...) values have indices that are not places...") for name, sparse in {
        "a row below zero": ((4, 2), (2, 2), [-5, 1]),
        "a row twice": ((4, 2), (2, 2), [1, 1]),
        "more rows than the array": ((4, 2), (5, 2), [0, 1, 2, 3, 4]),
        "fewer rows than values": ((4, 2), (2, 2), [1]),
        "rows of another size": ((4, 2), (2, 3), [0, 1]),
        "rows of no axis": ((4, 2), (2, 2), [[0, 1]]),
        "a column beyond the array": ((2, 3), (2,), [0, 1, 2], [0, 3]),
        "a column below zero": ((2, 3), (2,), [0, 1, 2], [0, -5]),
        "a start beyond the values": ((2, 3), (2,), [0, 10**9, 2], [0, 1]),
        "a start below zero": ((2, 3), (2,), [0, -5, 2], [0, 1]),
        "a first start that is not 0": ((2, 3), (2,), [1, 1, 2], [0, 1]),
        "a last start before the last value": ((2, 3), (2,), [0, 1, 1], [0, 1]),
        "fewer starts than rows": ((2, 3), (2,), [0, 2], [0, 1]),
        "no starts": ((0, 3), (0,), [], []),
        "fewer columns than values": ((2, 3), (2,), [0, 1, 2], [0]),
        "a csr array of three axes": ((2, 3, 1), (2,), [0, 1, 2], [0, 1]),
    }.items()},
    "indices of 32 bits": ([sparse_entry((4, 2), (2, 2), [0, 1], dtype="int32")], [],
        "entry 0: found the dtype number of indices 4, expected one of [6]..."),
    "too few names": ([entry(), entry()], [b"a"], "the names: found 1, expected 2, one for each array, or none..."),
}


def of(function, *args, **kwargs):
    return lambda: function(*args, **kwargs)


def unmatched(changes):
    return lambda: check_matches(Policy.parse("O1", **changes), NODES, ["net0_", "net0_conv0_"])


ONE, HUGE = arrays_file([entry()], [b"a"]), (2**60).to_bytes(8, "little")


def read(data, by=check_arrays_file):
    """Return the check of a file of arrays with this content."""

    def call(tmp_path):
        (tmp_path / "file").write_bytes(data)
        by(str(tmp_path / "file"))

    return call


def save(error, *whats):
    """Return a save that fails with an error, another save of the same file within it if there are two names."""

    def call(tmp_path):
        with saving(whats[0], str(tmp_path / "a")) as (name,):
            with saving(f"{name}: {whats[-1]}", name) if whats[1:] else mock.MagicMock():
                raise error

    return call


def replace(name, make=None):
    def call(tmp_path):
        if make:
            make(tmp_path / name)
        with replacing(str(tmp_path / "a"), str(tmp_path / name)):
            pytest.fail("the block ran")

    return call


RELU = mx.sym.relu(mx.sym.var("x"))
DENSE = mx.sym.FullyConnected(mx.sym.var("x"), num_hidden=2, name="fc")
X = {"x": (2, 3)}


PARTS = {"exporter": (mx.onnx, "export_model"), "ours": (exporting, "_tidy"), "checker": (onnx.checker, "check_model")}


def export(symbol=RELU, shapes=X, file="net.onnx"):
    return lambda tmp_path: export_model(symbol, {}, {}, str(tmp_path / file), shapes)


def within(patch, call):
    def patched(tmp_path):
        with patch:
            call(tmp_path)

    return patched


def failing(error, part="exporter"):
    """Return an export in which the exporter, or another part, fails with an error."""
    return within(mock.patch.object(*PARTS[part], side_effect=error), export())


NO_MAPPING = ImportError("Onnx and protobuf need to be installed.")  # whatever is missing
NO_MAPPING.__context__ = ImportError("cannot import name 'no_mapping' from 'onnx'")


DISK = OSError(28, "No space left on device", "a.0123.tmp")
MESSAGES = {
    **{f"policy, {id}": (of(Policy.parse, t, **c), PolicyError, m) for id, (t, c, m) in POLICIES.items()},
    "policy, the constructor": (lambda: Policy(pure=True), PolicyError, "pure=True with compute_dtype='float32' makes no sense: everything is float32 already."),
    **{
        f"pattern, {id}": (unmatched(c), PolicyError, m)
        for id, (c, m) in UNMATCHED.items()
    },
    **{
        f"dtype {given}": (of(dtypes.canonical, given), DtypeError, "unknown dtype ...; expected float16, bfloat16 or float32.")
        for given in ("fp61", "complex64", object, type(None), "O1")
    },
    **{f"file, {id}": (read(arrays_file(e, n)), CheckpointError, f"...file: {m}damaged...") for id, (e, n, m) in DAMAGED.items()},
    "file, count of arrays": (read(ONE[:16] + HUGE + ONE[24:]), CheckpointError, f"...{2**60} arrays declared, but..."),
    "file, length of a name": (read(ONE[:-9] + HUGE + ONE[-1:]), CheckpointError, f"...{2**60} bytes declared, but..."),
    "file, behind the end": (read(ONE + b"12345"), CheckpointError, "...file: the end: found 5 bytes more, expected none..."),
    "file, no text": (read(arrays_file([entry()], [b"\xff"]), load_arrays), CheckpointError, "...file...cannot load it..."),
    "save, full disk": (save(DISK, "net: the states"), CheckpointError, "net: the states cannot be written: No space left on device"),
    "save, within another": (save(DISK, "net: the checkpoint", "the states"), CheckpointError, "net: the checkpoint cannot be written: No space left on device"),
    "save, another error": (save(CheckpointError("b: there is no such file"), "net: the states"), CheckpointError, "b: there is no such file"),
    "save, pipe": (replace("pipe", os.mkfifo), OSError, "...pipe...is a pipe or a device, not a file..."),
    "save, folder": (replace("folder", Path.mkdir), OSError, "...is a folder..."),
    "save, no folder": (replace("none/b"), CheckpointError, "...there is no folder ...none; make it first..."),
    "export, no shape": (export(shapes={}), ConvertError, "...the input 'x' has no shape; give shapes=..."),
    "export, unknown input": (export(shapes={"y": (2, 3)}), ConvertError, "...shapes: the symbol has no variable 'y'..."),
    "export, no parameters": (export(DENSE), ParamsError, "...lacks 'fc_weight', 'fc_bias'..."),
    "export, unknown operator": (export(mx.sym.arcsinh(mx.sym.var("x"))), ConvertError, "...cannot translate the network: node 'arcsinh0' (arcsinh): it has no translation..."),
    "export, no symbol": (export("net-symbol.json", {}), ConvertError, "...sym is a str; expected a Symbol..."),
    "export, an assertion": (failing(AssertionError("no")), ConvertError, "MXNet's exporter to ONNX cannot translate ...AssertionError no..."),
    "export, a key": (failing(KeyError("op")), ConvertError, "MXNet's exporter to ONNX cannot translate ...KeyError 'op'..."),
    "export, an import": (failing(ImportError("no mapping")), DependencyError, "...onnx is not what MXNet's exporter reads (no mapping)..."),
    "export, full disk": (failing(DISK), CheckpointError, "...net.onnx: the model cannot be written: ...No space..."),
    "export, memory": (failing(MemoryError()), MemoryError, ""),
    "export, interrupt": (failing(KeyboardInterrupt()), KeyboardInterrupt, ""),
    "export, our fault": (failing(KeyError("mine"), part="ours"), KeyError, "'mine'"),
    "export, our interrupt": (failing(KeyboardInterrupt(), part="ours"), KeyboardInterrupt, ""),
    "export, the checker": (failing(onnx.checker.ValidationError("bad"), part="checker"), ConvertError, "...onnx's checker refuses the model ...: bad..."),
    "export, no folder": (export(file="none/net.onnx"), CheckpointError, "...none/net.onnx: there is no folder ...none; make it first..."),
    "export, no onnx": (within(mock.patch.dict(sys.modules, {"onnx": None}), export()), DependencyError, "...onnx cannot be imported ...; pip install './mxmp[onnx]'..."),
    "export, an older onnx": (within(mock.patch.object(compat, "needed", lambda: False), failing(NO_MAPPING)), DependencyError, "...cannot import name 'no_mapping' from 'onnx'); pip install 'onnx>=1.13,<1.14'."),
    "export, MXNet first": (within(mock.patch.object(compat, "needed", lambda: True), failing(NO_MAPPING)), DependencyError, "...cannot import name 'no_mapping' from 'onnx'); import mxmp before mxnet."),
    "export, a label": (export(mx.sym.elemwise_add(mx.sym.var("x"), mx.sym.var("y_label"), name="y"), {**X, "y_label": (2, 3)}), ConvertError, "the variable 'y_label': MXNet's exporter to ONNX takes it for the label of 'y'; rename it."),
    "export, too large": (within(mock.patch.object(onnx.checker, "MAXIMUM_PROTOBUF", 9), export()), ConvertError, "the model has ... bytes, and a file of ONNX at most 9; convert the weights to float16."),
    "export, a control character": (export(mx.sym.relu(mx.sym.var("x"), name="a\x01b")), ConvertError, "node 'a\\x01b': MXNet's exporter to ONNX reads no control characters; rename it."),
    "export, bfloat16": (lambda: exportable(convert_symbol(symbols.get_symbol("mlp"), "mixed_bfloat16")), ConvertError, "...node 'data_cast_bfloat16' (amp_cast): ... drops every amp_cast; convert to..."),
    "estimator, a net": (lambda: MixedPrecisionHandler().train_begin(gluon.nn.Dense(3)), TrainerError, "...expected a mxnet.gluon.contrib.estimator.Estimator, found a Dense..."),
    "estimator, a net restored": (lambda: MixedPrecisionHandler.restore(gluon.nn.Dense(3)), TrainerError, "...expected a mxnet.gluon.contrib.estimator.Estimator, found a Dense..."),
    "estimator, policy": (lambda: MixedPrecisionHandler("O9"), PolicyError, "unknown policy 'O9'..."),
    "estimator, loss scale": (lambda: MixedPrecisionHandler("O1", loss_scale="often"), LossScaleError, "...unknown loss scale 'often'..."),
}  # fmt: skip


@messages.each(MESSAGES)
def test_messages(call, error, text, tmp_path):
    """No file is left of a save or an export that was refused."""
    messages.check(call, error, text, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} <= {"file", "pipe", "folder"}
