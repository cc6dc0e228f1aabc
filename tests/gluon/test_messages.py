"""The messages of mxmp.gluon: a call, its error, and the full text."""

import functools

import mxnet as mx
import numpy as np
from mxnet import gluon
from mxnet.gluon import nn, rnn

import mxmp
from mxmp import Policy
from mxmp.errors import (
    CheckpointError,
    ConvertError,
    DtypeError,
    InferenceError,
    LossScaleError,
    ParamsError,
    PolicyError,
    TrainerError,
)
from mxmp.gluon import (
    Accumulator,
    SharedLossScale,
    Trainer,
    adopt_weights,
    averaged,
    cast,
    convert,
    exact_value,
    export,
    freeze,
    load_checkpoint,
    precision,
    report,
    restore,
    save_checkpoint,
    set_policy,
)
from mxmp.optimizer import LossScaleOptimizer
from mxmp.train import kvstores
from tests import messages
from tests.gluon.nets import sequence, started
from tests.gluon.trainer_tools import param, sgd

X = mx.nd.ones((2, 3))
ONE = mx.nd.ones((1,))
COMPRESSION = {"type": "2bit", "threshold": 0.5}
COMPRESSED = (
    "compression_params compares gradients with a threshold while they are scaled, so that the loss scale would change "
    "the training; use loss_scale=None, or no compression."
)


def dense(**options):
    return started(nn.Dense(2, in_units=3, prefix="net_", **options))


def called(net, *args):
    return convert(net, "O1")(*args)


def half(net):
    net.cast("float16")
    return net


def hooked(block, hook):
    block.register_forward_hook(hook)
    return sequence(block)


def failing(block, *args):
    raise ValueError("too bad")


def trainer_of(*args, **options):
    return Trainer([param([1.0])], *args, **options)


def sparse():
    return Trainer(started(nn.Embedding(5, 3, sparse_grad=True, prefix="net_")), "sgd", loss_scale=8)


def num_losses(count, loss_id):
    trainer = Trainer.adopt(gluon.Trainer([param([1.0])], "sgd"), 8, num_losses=count)
    trainer.scale_loss(ONE, loss_id=loss_id).__enter__()


def generator(x):
    yield x


async def coroutine(x):
    return x


class Untraceable(gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        return x.reshape((x.shape[0], -1))


class Wrong(gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        return F.elemwise_add(F.cast(x, "int32", name="ints"), x, name="culprit")


class Region(gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        with precision("flaot32"):
            return F.relu(x)


class Pair(gluon.HybridBlock):
    def hybrid_forward(self, F, pair):
        return F.dot(pair[0], pair[1])


def under_numpy():
    with mx.util.np_shape(True), mx.util.np_array(True):
        convert(nn.Dense(2), "O2")


class Scaled(nn.Dense):
    def forward(self, x):
        return super().forward(x / 255)


def low_region():
    net = convert(dense(), "O1")
    with precision("bfloat16"):
        net(X)


SYMBOL = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2, name="net_fwd")
CONVERSIONS = {
    "convert: no block": (lambda: convert("net", "O1"), ConvertError, "expected a Gluon block, found str."),
    "convert: no graph": (lambda: convert(gluon.Block(prefix="net_"), "O1"), ConvertError,
        "block 'net' (Block) holds no HybridBlock, so there is no graph to convert."
    ),
    "convert: policy": (lambda: convert(dense(), "O7"), PolicyError,
        "unknown policy 'O7'; the nearest are O3, O2, O1."
    ),
    "convert: a field": (lambda: convert(dense(), "O1", last_layer_fp23=True), PolicyError,
        "unknown policy field 'last_layer_fp23'; the nearest are last_layer_fp32, loss_scale."
    ),
    "convert: out_of_range": (lambda: convert(dense(), "O2,out_of_range=float32"), ConvertError,
        "block 'net': out_of_range='float32' is only for models: a net's weights change in training. "
        "Keep the layer in float32 by a pattern of names, or freeze the net under this policy."
    ),
    "convert: a pattern for blocks": (lambda: convert(dense(), "O1", blocks={"ne_": "float32"}), PolicyError,
        "blocks: 'ne_' matches no block; the nearest are net_."
    ),
    "convert: a pattern for nodes": (lambda: convert(dense(), "O1", names={"*typo*": "float32"})(X), PolicyError,
        "names: '*typo*' matches no node; expected one of net_fwd."
    ),
    "convert: a net that was cast": (lambda: convert(half(dense()), "O1"), ConvertError,
        "block 'net': parameter 'net_weight' is float16 already, as net.cast('float16') leaves it, and a "
        "load with dtype_source='saved'; call "
        "net.cast('float32') first, and mxmp.gluon.cast(net, 'float16') in its place to store weights in "
        "float16."
    ),
    "cast: a net that was cast": (lambda: cast(half(dense()), "float16"), ConvertError,
        "block 'net': parameter 'net_weight' is float16 already, as net.cast('float16') leaves it, and a "
        "load with dtype_source='saved'; call "
        "net.cast('float32') first, and mxmp.gluon.cast(net, 'float16') in its place to store weights in "
        "float16."
    ),
    "convert: a layer that was cast": (lambda: convert(sequence(half(dense())), "O1"), ConvertError,
        "block 'net': parameter 'net_weight' is float16 already, as net.cast('float16') leaves it, and a "
        "load with dtype_source='saved'; call "
        "net.cast('float32') first, and mxmp.gluon.cast(net, 'float16') in its place to store weights in "
        "float16."
    ),
    "convert: two dtypes": (
        lambda: called(sequence(half(nn.Dense(3, in_units=3, prefix="a_")), dense()), X),
        InferenceError,
        "block 'net': node 'a_fwd': MXNet cannot infer its dtypes: Check failed: assign(&dattr, "
        "vec.at(i)): Incompatible attr in node a_fwd at 1-th input: expected float32, got float16 But "
        "parameter 'a_weight' is float16 already, as net.cast('float16') leaves it, and a "
        "load with dtype_source='saved'; call "
        "net.cast('float32') first, and mxmp.gluon.cast(net, 'float16') in its place to store weights in "
        "float16.",
    ),
    "convert: numpy": (under_numpy, ConvertError,
        "block '...': under npx.set_np parameters can be stored only in float32, but the policy has "
        "param_dtype='float16'; use one with param_dtype='float32', such as 'O1'."
    ),
    "cast: MXNet's": (lambda: convert(dense(), "O1").cast("float16"), ConvertError,
        "block 'net' is converted (param=float32,compute=float16,output=float32,loss_scale=dynamic); use "
        "mxmp.gluon.cast(net, 'float16'), which replaces this policy, or mxmp.gluon.restore(net) first."
    ),
    "cast: MXNet's, to float32": (lambda: convert(dense(), "O2").cast("float32"), ConvertError,
        "block 'net' is converted (param=float16,compute=float16,output=float32,loss_scale=dynamic), whose policy sets "
        "the dtypes of parameters; leave cast('float32') out, or undo the conversion by mxmp.gluon.restore(net) "
        "first."
    ),
    "cast: a frozen block": (lambda: freeze(dense(), "O1").cast("float32"), ConvertError,
        "block '...' is frozen with weights in float16, a snapshot; leave cast('float32') out, or freeze the net that "
        "it was made of under another policy."
    ),
    "call: no tracing": (lambda: called(sequence(dense(), Untraceable(prefix="culprit_")), X), ConvertError,
        "block 'culprit' (Untraceable) cannot be traced: AttributeError: 'Symbol' object has no attribute "
        "'shape'. Its hybrid_forward must work on symbols: no shapes, no values, no indexing. Rewrite it, "
        "or convert the blocks around it; mxmp.gluon.restore(net) has the net run as before."
    ),
    "call: no tracing, with a hook": (
        lambda: called(hooked(Untraceable(prefix="culprit_"), lambda *args: None), X),
        ConvertError,
        "block 'culprit' (Untraceable) cannot be traced: AttributeError: 'Symbol' object has no attribute "
        "'shape'. Its hybrid_forward must work on symbols: no shapes, no values, no indexing. Rewrite it, "
        "or convert the blocks around it; mxmp.gluon.restore(net) has the net run as before.",
    ),
    "call: dtypes of a node": (lambda: called(Wrong(prefix="net_"), X), InferenceError,
        "block 'net': node 'net_culprit': MXNet cannot infer its dtypes: Check failed: "
        "assign(&dattr, vec.at(i)): Incompatible attr in node net_culprit at 1-th input: expected int32, "
        "got float32"
    ),
    "call: a hook": (lambda: called(hooked(dense(), failing), X), ConvertError,
        "block 'net' (Dense): its forward hook 'failing' fails: ValueError: too bad. Hooks on the blocks "
        "within a converted net run once, when it is traced, and on symbols. Detach it, or register it on "
        "'net' itself, where it gets arrays."
    ),
    "call: a region": (lambda: called(Region(prefix="net_"), X), ConvertError,
        "block 'net' (Region): precision('flaot32'): unknown dtype 'flaot32'; expected one of float32, "
        "low, policy, float16, bfloat16."
    ),
    "an input too many": (lambda: called(nn.Flatten(prefix="net_"), X, X), ConvertError,
        "block 'net' (Flatten) cannot be traced: TypeError: ...takes 3 positional arguments but 4 were given."
    ),
    "ranges of another net": (lambda: convert(dense(), "O1", ranges={"other_output": 1.0})(X), ConvertError,
        "...ranges: the net has none of these outputs, such as 'other_output'; measure the net that is converted, not another one."
    ),
    "call: too many arguments": (lambda: called(dense(), X, X), ConvertError,
        "block 'net' (Dense) cannot be traced: TypeError: ...hybrid_forward() got multiple values for "
        "argument 'weight'. Its hybrid_forward must work on symbols: no shapes, no values, no indexing. "
        "Rewrite it, or convert the blocks around it; mxmp.gluon.restore(net) has the net run as before."
    ),
    "call: float64": (lambda: called(dense(), X.astype("float64")), InferenceError,
        "block 'net': node 'net_fwd': MXNet cannot infer its dtypes: Check failed: "
        "assign(&dattr, vec.at(i)): Incompatible attr in node net_fwd at 1-th input: expected float64, got "
        "float32. Input 'data' is float64: give x.astype('float32')"
    ),
    "call: uint8": (lambda: called(dense(), X.astype("uint8")), InferenceError,
        "block 'net': node 'net_fwd': MXNet cannot infer its dtypes: Check failed: "
        "assign(&dattr, vec.at(i)): Incompatible attr in node net_fwd at 1-th input: expected uint8, got "
        "float32. Input 'data' is uint8: give x.astype('float32')"
    ),
    "call: another low dtype": (low_region, PolicyError,
        "precision 'bfloat16' (region) asks for bfloat16 at node 'net_fwd' (FullyConnected), "
        "but the policy's compute_dtype is float16; use float16 or float32."
    ),
    "report: no block": (lambda: report(None), ConvertError, "report: expected a Gluon block, found NoneType."),
    "report: not converted": (lambda: report(dense()), ConvertError,
        "block 'net' (Dense) is not converted; call convert first."
    ),
    "report: restored": (lambda: report(restore(convert(dense(), "O0"))), ConvertError,
        "block 'net' (Dense) is not converted; call convert first."
    ),
    "report: a part": (lambda: report(convert(sequence(dense()), "O1")[0]), ConvertError,
        "report: block 'net' is part of a converted net; give the net. For a precision of its own: "
        "mxmp.gluon.set_policy(block, 'float32'), and convert the net again."
    ),
    "report: unknown inputs": (lambda: report(convert(Pair(prefix="net_"), "O0")), ConvertError,
        "block 'net' is float32, and its inputs are not known; hybridize it and run one batch before its "
        "report."
    ),
    "restore: no block": (lambda: restore("net"), ConvertError, "restore: expected a Gluon block, found str."),
    "restore: a part": (lambda: restore(convert(sequence(dense()), "O1")[0]), ConvertError,
        "restore: block 'net' is part of a converted net; give the net. For a precision of its own: "
        "mxmp.gluon.set_policy(block, 'float32'), and convert the net again."
    ),
    "export: no block": (lambda: export(None, "net"), ConvertError,
        "export: net is a NoneType, path a str; expected a Gluon block and the prefix of the files."
    ),
    "export: no path": (lambda: export(dense(), 5), ConvertError,
        "export: net is a Dense, path a int; expected a Gluon block and the prefix of the files."
    ),
    "export: not converted": (lambda: export(dense(), "net"), ConvertError,
        "block 'net' is not converted; use net.export."
    ),
    "export: not called": (lambda: export(convert(dense(), "O1"), "net"), ConvertError,
        "block 'net' has not been called yet outside of precision regions, so its parameters and shapes "
        "are not known; run one batch before exporting."
    ),
    "export: a plain block": (lambda: export(convert(sequence(dense(), kind=nn.Sequential), "O1"), "net"), ConvertError,
        "block 'net' (Sequential) has no graph of its own; export the converted blocks in it: net."
    ),
    "export: a missing folder": (
        lambda tmp_path: export(convert(dense(), "O1"), str(tmp_path / "missing" / "net")),
        ConvertError,
        "export: path='.../missing/net': there is no folder .../missing; make it first.",
    ),
    "precision: unknown": (lambda: precision("float23"), DtypeError,
        "precision('float23'): unknown dtype 'float23'; expected one of float32, low, policy, float16, "
        "bfloat16."
    ),
    "precision: int8": (lambda: precision("int8"), PolicyError,
        "precision('int8'): expected one of float32, low, policy, float16, bfloat16."
    ),
    "precision: a generator": (lambda: precision("float32")(generator), PolicyError,
        "precision('float32'): 'generator' is a generator or coroutine function, which runs after the call; open the "
        "region within it, with no yield or await inside."
    ),
    "precision: a coroutine": (lambda: precision("float32")(coroutine), PolicyError,
        "precision('float32'): 'coroutine' is a generator or coroutine function, which runs after the call; open the "
        "region within it, with no yield or await inside."
    ),
    "precision: a partial": (lambda: precision("low")(functools.partial(generator, X)), PolicyError,
        "precision('low'): functools.partial(<function generator at ...>, ...) is a generator or coroutine "
        "function, which runs after the call; open the region within it, with no yield or await inside."
    ),
    "convert: another dtype than a block's": (
        lambda: convert(sequence(set_policy(nn.Dense(2, prefix="inner_"), "mixed_float16")), "mixed_bfloat16"), PolicyError,
        "block 'inner': set_policy gave it compute_dtype='float16', but the net's policy has 'bfloat16'; convert the "
        "net with 'mixed_float16', or call set_policy again."
    ),
    "convert: float32, unlike a block": (
        lambda: convert(sequence(set_policy(nn.Dense(2, prefix="inner_"), "mixed_float16")), "float32"), PolicyError,
        "block 'inner': set_policy gave it compute_dtype='float16', but the net's policy has 'float32'; convert the "
        "net with 'mixed_float16', or call set_policy again."
    ),
    "set_policy: no block": (lambda: set_policy("net", "float32"), ConvertError,
        "set_policy: expected a Gluon block, found str."
    ),
    "set_policy: storage": (lambda: set_policy(dense(), "O2"), PolicyError,
        "set_policy: block 'net': param_dtype='float16' cannot be set for one block; give 'float32', "
        "'mixed_float16', 'mixed_bfloat16' or 'low', and param_dtype to the net's policy."
    ),
    "set_policy: a scale": (lambda: set_policy(dense(), "O1,loss_scale=128"), PolicyError,
        "set_policy: block 'net': loss_scale=128.0 cannot be set for one block; give 'float32', "
        "'mixed_float16', 'mixed_bfloat16' or 'low', and loss_scale to the net's policy."
    ),
    "set_policy: operators": (lambda: set_policy(dense(), "O1,op:softmax=float16"), PolicyError,
        "set_policy: block 'net': ops=(('softmax', 'float16'),) cannot be set for one block; give "
        "'float32', 'mixed_float16', 'mixed_bfloat16' or 'low', and ops to the net's policy."
    ),
    "set_policy: BatchNorm": (lambda: set_policy(dense(), "O1,keep_batchnorm_fp32=True"), PolicyError,
        "set_policy: block 'net': keep_batchnorm_fp32=True cannot be set for one block; give "
        "'float32', 'mixed_float16', 'mixed_bfloat16' or 'low', and keep_batchnorm_fp32 to the net's "
        "policy."
    ),
    "set_policy: last layer": (lambda: set_policy(dense(), "O1,last_layer_fp32=True"), PolicyError,
        "set_policy: block 'net': last_layer_fp32=True cannot be set for one block; give 'float32', "
        "'mixed_float16', 'mixed_bfloat16' or 'low', and last_layer_fp32 to the net's policy."
    ),
    "set_policy: outputs": (
        lambda: set_policy(dense(), Policy(compute_dtype="float16", output_dtype="float16")),
        PolicyError,
        "set_policy: block 'net': output_dtype='float16' cannot be set for one block; give 'float32', "
        "'mixed_float16', 'mixed_bfloat16' or 'low', and output_dtype to the net's policy.",
    ),
    "mxmp.report": (lambda: mxmp.report(dense()), TypeError, "mxmp.report is a module; use mxmp.gluon.report."),
    "Policy by its name": (lambda: Policy("O1"), PolicyError,
        "param_dtype: unknown dtype 'O1'; expected float16, bfloat16 or float32. A policy by its name is "
        "Policy.parse('O1')."
    ),
}  # fmt: skip
NOTHING_TO_FREEZE = (
    "expected a HybridBlock, a model (symbol, arg_params, aux_params), the prefix of a checkpoint, or the paths of its "
    "two files."
)
NO_VALUE = (
    "block 'net': parameter 'net_weight' has no value yet; initialize or load it, and run one batch if its shape "
    "follows from the input's."
)
INFERENCE = {
    "freeze: a number": (lambda: freeze(3), ConvertError, f"freeze: found a int; {NOTHING_TO_FREEZE}"),
    "freeze: a symbol": (lambda: freeze(SYMBOL), ConvertError, f"freeze: found a Symbol; {NOTHING_TO_FREEZE}"),
    "freeze: half a model": (lambda: freeze((SYMBOL, {})), ConvertError,
        f"freeze: found a tuple of 2; {NOTHING_TO_FREEZE}"
    ),
    "freeze: no symbol": (lambda: freeze(("a", {}, {})), ConvertError, "sym is a str; expected a Symbol."),
    "freeze: a model without values": (lambda: freeze((SYMBOL, {}, {})), ParamsError,
        "arg_params lacks 'net_fwd_weight', 'net_fwd_bias', which the symbol has; it is empty."
    ),
    "freeze: no file": (lambda: freeze("nowhere"), CheckpointError, "nowhere-symbol.json: there is no such file."),
    "freeze: no graph": (lambda: freeze(sequence(dense(), kind=nn.Sequential)), ConvertError,
        "block 'net' (Sequential) has no graph of its own; freeze the blocks in it: net."
    ),
    "freeze: no block with a graph": (lambda: freeze(nn.Sequential(prefix="net_")), ConvertError,
        "block 'net' (Sequential) holds no HybridBlock, so there is no graph to convert."
    ),
    "freeze: no value": (lambda: freeze(nn.Dense(2, prefix="net_")), ConvertError, NO_VALUE),
    "freeze: no shape": (lambda: freeze(started(nn.Dense(2, prefix="net_"))), ConvertError, NO_VALUE),
    "freeze: not called": (lambda: freeze(Untraceable(prefix="net_")), ConvertError,
        "block 'net' (Untraceable) cannot be traced before its first call; convert or hybridize it, and run one batch."
    ),
    "freeze: no states": (lambda: freeze(started(rnn.LSTM(3, input_size=2, prefix="net_"))), ConvertError,
        "block 'net' (LSTM) cannot be traced before its first call; convert or hybridize it, and run one batch."
    ),
    "freeze: no GPU": (lambda: freeze(dense(), ctx=mx.gpu(7)), ConvertError,
        "freeze: ctx is gpu(7), but MXNet finds ... GPUs here."
    ),
    "freeze: context": (lambda: freeze(dense(), ctx="gpu"), ConvertError,
        "freeze: ctx is 'gpu'; expected a context, such as mx.cpu() or mx.gpu(0)."
    ),
    "freeze: policy": (lambda: freeze(dense(), "O7"), PolicyError,
        "unknown policy 'O7'; the nearest are O3, O2, O1."
    ),
    "freeze: a field": (lambda: freeze(dense(), speed=1), PolicyError,
        "unknown policy field 'speed'; the nearest are pure."
    ),
    "freeze: bfloat16 on a GPU": (lambda: freeze(dense(), "bf16", ctx=mx.gpu(0)), ConvertError,
        "block 'net': policy 'param=float32,compute=bfloat16,output=float32' uses bfloat16 on gpu(0), but MXNet 1.9.1 "
        "has no bfloat16 kernels for GPUs. Take a float16 policy there, such as 'O1', or run on a CPU."
    ),
    "freeze: an input": (lambda: freeze(dense(), shapes={"date": (1,)}), ConvertError,
        "shapes: the symbol has no variable 'date'; the nearest are data."
    ),
    "freeze: a shape": (lambda: freeze(dense(), shapes={"data": (1, 4)}), InferenceError,
        "block 'net': node 'net_fwd': MXNet cannot infer its shapes: Shape inconsistent, Provided = [2,3], inferred "
        "shape=(2,4)"
    ),
    "freeze: a pattern": (lambda: freeze(dense(), "O2,name:nothing=float32"), PolicyError,
        "names: 'nothing' matches no node; expected one of net_fwd."
    ),
    "freeze: a pattern of an option": (lambda: freeze(dense(), names={"nothing": "float32"}), PolicyError,
        "names: 'nothing' matches no node; expected one of net_fwd."
    ),
    "freeze: an input too many": (lambda: freeze(dense(), "float32")(X, X), ConvertError,
        "block '...' was frozen with the inputs data; this call gives 2, or nests them differently. Hybridize the net "
        "that it was made of, call the net as you call the block, and freeze it again."
    ),
    "freeze: a forward": (lambda: freeze(started(Scaled(2, in_units=3, prefix="net_"))), UserWarning,
        "freeze: block 'net': hybrid_forward is frozen, without Scaled.forward around it."
    ),
    "export for inference: no folder": (
        lambda: export(dense(), "missing/net", for_inference=True),
        ConvertError,
        "export: path='missing/net': there is no folder ...missing; make it first.",
    ),
    "export for inference: no graph": (
        lambda: export(sequence(dense(), kind=nn.Sequential), "net", for_inference=True),
        ConvertError,
        "block 'net' (Sequential) has no graph of its own; freeze the blocks in it: net.",
    ),
    "export for inference: no value": (
        lambda: export(nn.Dense(2, prefix="net_"), "net", for_inference=True), ConvertError, NO_VALUE
    ),
}  # fmt: skip
TRAINERS = {
    "no parameters": (lambda: Trainer([], "sgd"), TrainerError,
        "there are no parameters to train; is the net empty?"
    ),
    "an empty net": (lambda: Trainer(nn.HybridSequential(), "sgd"), TrainerError,
        "there are no parameters to train; is the net empty?"
    ),
    "a number": (lambda: Trainer(3, "sgd"), ValueError,
        "First argument must be a list or dict of Parameters, got <class 'int'>."
    ),
    "no optimizer": (lambda: trainer_of(None), TrainerError,
        "optimizer is None; expected a name or an mx.optimizer.Optimizer."
    ),
    "options twice": (lambda: trainer_of(mx.optimizer.SGD(), {"wd": 0.1}), TrainerError,
        "optimizer_params has ['wd'], but the optimizer is an instance; set them on it."
    ),
    "no kvstore": (lambda: trainer_of("sgd", None, 5), TrainerError,
        "kvstore is 5; expected a name, a KVStore or None."
    ),
    "an unknown kvstore": (lambda: trainer_of("sgd", None, "devcie"), TrainerError,
        "unknown kvstore 'devcie'; the nearest are device, dist_device_sync."
    ),
    "two scales": (lambda: trainer_of(LossScaleOptimizer(mx.optimizer.SGD()), loss_scale=128), TrainerError,
        "loss_scale=128, but the LossScaleOptimizer has one; leave it out."
    ),
    "a wrong scale": (lambda: trainer_of("sgd", loss_scale="statisch"), LossScaleError,
        "unknown loss scale 'statisch'; expected 'dynamic', a number, a LossScale or None."
    ),
    "a scale of 0": (lambda: trainer_of("sgd", loss_scale=0), LossScaleError,
        "scale=0.0 is no loss scale; expected a positive, finite number between 2**-126 and 2**126, so "
        "that it and its inverse are float32 numbers."
    ),
    "a scale that is no number": (lambda: trainer_of("sgd", loss_scale=np.nan), LossScaleError,
        "scale=nan is no loss scale; expected a positive, finite number between 2**-126 and 2**126, so "
        "that it and its inverse are float32 numbers."
    ),
    "adopt: a module": (
        lambda: Trainer.adopt(mx.mod.Module(mx.sym.var("data"), label_names=None)),
        TrainerError,
        "adopt: expected a gluon Trainer, found a Module; for a Module use mxmp.module.Module.",
    ),
    "step: batch_size": (lambda: trainer_of("sgd").step(0), TrainerError,
        "step: batch_size=0; expected a positive number."
    ),
    "clip_global_norm: max_norm": (lambda: trainer_of("sgd").clip_global_norm(np.nan), TrainerError,
        "clip_global_norm: max_norm=nan; expected a positive number."
    ),
    "clip_global_norm: True": (lambda: trainer_of("sgd").clip_global_norm(True), TrainerError,
        "clip_global_norm: max_norm=True; expected a positive number."
    ),
    "clip_global_norm: batch_size": (lambda: trainer_of("sgd").clip_global_norm(1.0, 0), TrainerError,
        "clip_global_norm: batch_size=0; expected a positive number."
    ),
    "clip_value: batch_size": (lambda: trainer_of("sgd").clip_value(1.0, "4"), TrainerError,
        "clip_value: batch_size='4'; expected a positive number."
    ),
    "clip_value: max_value": (lambda: trainer_of("sgd").clip_value(None), TrainerError,
        "clip_value: max_value=None; expected a positive number."
    ),
    "a hook": (lambda: trainer_of("sgd").register_step_hook(3), TrainerError,
        "register_step_hook: 3 is no function; expected one of (trainer, updated)."
    ),
    "nonfinite_loss": (lambda: trainer_of("sgd", nonfinite_loss="ignore"), TrainerError,
        "nonfinite_loss is 'ignore'; expected 'raise' or 'skip'."
    ),
    "nonfinite_loss, no scale": (
        lambda: trainer_of("sgd", loss_scale=None, nonfinite_loss="skip"),
        TrainerError,
        "nonfinite_loss='skip', but without a loss scale nothing is checked; give loss_scale=1, which "
        "checks and does not scale.",
    ),
    "max_nonfinite_losses": (
        lambda: trainer_of("sgd", nonfinite_loss="skip", max_nonfinite_losses=0),
        TrainerError,
        "max_nonfinite_losses is 0; expected a whole number from 1 on.",
    ),
    "loss_id": (lambda: num_losses(2, 2), TrainerError,
        "loss_id=2: the trainer has losses 0 to 1; num_losses says how many."
    ),
    "loss_id, a text": (lambda: num_losses(2, "0"), TrainerError,
        "loss_id='0': the trainer has losses 0 to 1; num_losses says how many."
    ),
    "loss_id, one loss": (lambda: num_losses(1, 1), TrainerError,
        "loss_id=1: the trainer has losses 0 to 0; num_losses says how many."
    ),
    "num_losses of a shared scale": (
        lambda: Trainer.adopt(gluon.Trainer([param([1.0])], "sgd"), SharedLossScale(8), num_losses=2),
        TrainerError,
        "loss_scale: a SharedLossScale is for trainers with one loss; leave num_losses out.",
    ),
    "a shared scale": (lambda: SharedLossScale("dinamic"), LossScaleError,
        "unknown loss scale 'dinamic'; expected 'dynamic', a number, a LossScale or None."
    ),
    "a shared scale, later": (
        lambda: setattr(trainer_of("sgd", loss_scale=8), "loss_scale", SharedLossScale(8)),
        TrainerError,
        "setting loss_scale: give a SharedLossScale to the constructor, or to Trainer.adopt(trainer, shared).",
    ),
    "update of a shared scale": (lambda: SharedLossScale(8).update(), TrainerError,
        "update: no trainer has made a step since the last update of the shared loss scale."
    ),
    "scale_loss: a number": (lambda: trainer_of("sgd").scale_loss(3.0).__enter__(), TrainerError,
        "scale_loss: loss is a float; expected an NDArray, or lists and tuples of them."
    ),
    "scale_loss: nested": (lambda: trainer_of("sgd").scale_loss([ONE, [None]]).__enter__(), TrainerError,
        "scale_loss: loss[1][0] is a NoneType; expected an NDArray, or lists and tuples of them."
    ),
    "scale_loss: integers": (
        lambda: trainer_of("sgd").scale_loss(ONE.astype("int32")).__enter__(),
        TrainerError,
        "scale_loss: loss has dtype int32; expected a float.",
    ),
    "scale_loss: another trainer": (
        lambda: trainer_of("sgd").scale_loss(ONE, gluon.Trainer([param([1.0])], "sgd")),
        TrainerError,
        "scale_loss: expected further trainers of mxmp, found a Trainer of mxnet.gluon.trainer; see Trainer.adopt.",
    ),
    "compression of scaled gradients": (
        lambda: sgd(param([1.0]), compression_params=COMPRESSION), TrainerError, COMPRESSED,
    ),
    "compression, a later scale": (
        lambda: setattr(sgd(param([1.0]), None, compression_params=COMPRESSION), "loss_scale", 8),
        TrainerError,
        COMPRESSED,
    ),
    "compression, an adopted trainer": (
        lambda: Trainer.adopt(gluon.Trainer([param([1.0])], "sgd", compression_params=COMPRESSION)),
        TrainerError,
        COMPRESSED,
    ),
    "compression of float16": (
        lambda: kvstores.refuse_compression({"type": "2bit"}, False, True),
        TrainerError,
        "compression_params: MXNet compresses only float32 gradients; use a policy with "
        "param_dtype='float32', or no compression.",
    ),
    "a checkpoint of no net": (lambda: save_checkpoint("net", 0, ONE, trainer_of("sgd")), TrainerError,
        "save_checkpoint: expected a Gluon net, found a NDArray."
    ),
    "a checkpoint with a trainer of MXNet": (
        lambda: load_checkpoint("net", 0, dense(), gluon.Trainer([param([1.0])], "sgd")),
        TrainerError,
        "load_checkpoint: expected a trainer of mxmp, found a Trainer of mxnet.gluon.trainer; see Trainer.adopt.",
    ),
    "a checkpoint without an epoch": (
        lambda: save_checkpoint("net", -1, dense(), trainer_of("sgd")),
        CheckpointError,
        "epoch=-1: expected a whole number from 0 on, as in 'net-0007.params'.",
    ),
    "update_on_kvstore": (
        lambda: sgd(param([1.0]), update_on_kvstore=True),
        TrainerError,
        "update_on_kvstore=True updates weights inside the all-reduce, before their gradients are checked and without "
        "float32 masters: leave update_on_kvstore out; or train float32 parameters with mx.gluon.Trainer, without a "
        "loss scale.",
    ),
    "row_sparse": (
        lambda: sgd(param(np.ones((3, 2)), stype="row_sparse", grad_stype="row_sparse")),
        TrainerError,
        "parameter 'w' is row_sparse, so that its kvstore updates weights inside the all-reduce, before their "
        "gradients are checked and without float32 masters: make it with stype='default' (its gradient may be "
        "row_sparse); or train float32 parameters with mx.gluon.Trainer, without a loss scale.",
    ),
    "Accumulator: no number": (lambda: Accumulator(trainer_of("sgd"), 0), TrainerError,
        "Accumulator: steps=0; expected how many batches make a group, 1 or more."
    ),
    "Accumulator: MXNet's trainer": (lambda: Accumulator(gluon.Trainer([param([1.0])], "sgd"), 2), TrainerError,
        "Accumulator: expected a trainer of mxmp, found a Trainer of mxnet.gluon.trainer; Trainer.adopt "
        "makes it one of mxmp."
    ),
    "Accumulator: no trainer": (lambda: Accumulator([], 2), TrainerError,
        "Accumulator: trainer is an empty list; give a trainer of mxmp, or a list of them."
    ),
    "Accumulator: no loop": (lambda: Accumulator(trainer_of("sgd"), 2)(3), TrainerError,
        "Accumulator: a int is nothing to loop over; give a loader."
    ),
    "Accumulator: row_sparse": (lambda: next(Accumulator(sparse(), 2)([1])), TrainerError,
        "Accumulator: the gradient of parameter 'net_weight' is row_sparse, which MXNet does not add up; "
        "make its layer with sparse_grad=False."
    ),
    "Accumulator: clips no batch": (lambda: Accumulator(trainer_of("sgd"), 2).clip_global_norm(1.0, 2), TrainerError,
        "clip_global_norm was called outside of the loop; call it once in `for batch in accumulator(loader):`."
    ),
    "Accumulator: no batch": (lambda: Accumulator(trainer_of("sgd"), 2).step(2), TrainerError,
        "step was called outside of the loop; call it once in `for batch in accumulator(loader):`."
    ),
    "averaged: decay": (lambda: averaged(dense(), 1), TrainerError,
        "averaged: decay=1; expected a number from 0 to below 1."
    ),
    "averaged: decay, a text": (lambda: averaged(dense(), "0.9"), TrainerError,
        "averaged: decay='0.9'; expected a number from 0 to below 1."
    ),
    "averaged: no net": (lambda: averaged("net"), TrainerError, "averaged: expected a Gluon net, found a str."),
    "averaged: no value": (lambda: averaged(nn.Dense(2, prefix="net_")), TrainerError,
        "averaged: parameter 'net_weight' has no value yet; initialize the net, and run one batch if its shapes follow "
        "from the input's. Then call averaged(net)."
    ),
    "averaged: before the first batch": (lambda: averaged(started(nn.Dense(2, prefix="net_"))), TrainerError,
        "averaged: parameter 'net_weight' has no value yet; initialize the net, and run one batch if its shapes follow "
        "from the input's. Then call averaged(net)."
    ),
    "exact_value: no value": (lambda: exact_value(nn.Dense(2, prefix="net_").weight), TrainerError,
        "exact_value: parameter 'net_weight' is not initialized."
    ),
    "exact_value: an array": (lambda: exact_value(ONE), TrainerError,
        "exact_value: expected a gluon Parameter, found a NDArray."
    ),
    "adopt_weights: a trainer": (lambda: adopt_weights(trainer_of("sgd")), TrainerError,
        "adopt_weights: expected a Gluon net, found a Trainer."
    ),
}  # fmt: skip


@messages.each({**CONVERSIONS, **INFERENCE, **TRAINERS})
def test_messages(call, error, text, tmp_path):
    messages.check(call, error, text, tmp_path)
