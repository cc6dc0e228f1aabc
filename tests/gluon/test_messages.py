"""What mxmp.gluon says of faults that users meet most, in full, and of wrong arguments."""

import re

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from mxnet.gluon import nn

import mxmp
from mxmp import Policy
from mxmp.errors import CheckpointError, ConvertError, InferenceError, LossScaleError, PolicyError, TrainerError
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
from tests import messages
from tests.gluon.nets import sequence, started
from tests.gluon.trainer_tools import param, sgd

X = mx.nd.ones((2, 3))
ONE = mx.nd.ones((1,))


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


def mxnets_trainer():
    return gluon.Trainer([param([1.0])], "sgd")


def sparse():
    return Trainer(started(nn.Embedding(5, 3, sparse_grad=True, prefix="net_")), "sgd", loss_scale=8)


class Untraceable(gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        return x.reshape((x.shape[0], -1))


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


NETS = {
    "convert: no graph": (lambda: convert(gluon.Block(prefix="net_"), "O1"), ConvertError,
        "block 'net' (Block) holds no HybridBlock, so there is no graph to convert."
    ),
    "convert: out_of_range": (lambda: convert(dense(), "O2,out_of_range=float32"), ConvertError,
        "block 'net': out_of_range='float32' is only for models: a net's weights change in training. "
        "Keep the layer in float32 by a pattern of names, or freeze the net under this policy."
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
        "block 'net': node 'a_fwd': MXNet cannot infer its dtypes: ...parameter 'a_weight' is float16 already, as "
        "net.cast('float16') leaves it, ...call net.cast('float32') first...",
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
    "call: an input too many": (lambda: called(nn.Flatten(prefix="net_"), X, X), ConvertError,
        "block 'net' (Flatten) cannot be traced: TypeError: ...takes 3 positional arguments but 4 were given."
    ),
    "call: a hook": (lambda: called(hooked(dense(), failing), X), ConvertError,
        "block 'net' (Dense): its forward hook 'failing' fails: ValueError: too bad. Hooks on the blocks "
        "within a converted net run once, when it is traced, and on symbols. Detach it, or register it on "
        "'net' itself, where it gets arrays."
    ),
    "call: ranges of another net": (lambda: convert(dense(), "O1", ranges={"other_output": 1.0})(X), ConvertError,
        "...ranges: the net has none of these outputs, such as 'other_output'; measure the net that is converted, not another one."
    ),
    "call: float64": (lambda: called(dense(), X.astype("float64")), InferenceError,
        "block 'net': node 'net_fwd': ... Input 'data' is float64: give x.astype('float32')"
    ),
    "call: another low dtype": (low_region, PolicyError,
        "precision 'bfloat16' (region) asks for bfloat16 at node 'net_fwd' (FullyConnected), "
        "but the policy's compute_dtype is float16; use float16 or float32."
    ),
    "report: unknown inputs": (lambda: report(convert(Pair(prefix="net_"), "O0")), ConvertError,
        "block 'net' is float32, and its inputs are not known; hybridize it and run one batch before its "
        "report."
    ),
    "call: a frozen block, float64": (lambda: freeze(dense(), "float32")(X.astype("float64")), InferenceError,
        "block '...': ...net_fwd: ... expected float64, got float32. Input 'data' is float64: give x.astype('float32')"
    ),
    "call: a frozen block, another size": (lambda: freeze(dense(), "float32")(mx.nd.ones((2, 5))), InferenceError,
        "block '...': ...net_fwd: Shape inconsistent, Provided = [2,3], inferred shape=(2,5)"
    ),
    "restore: a frozen block": (lambda: restore(freeze(dense(), "O1")), ConvertError,
        "restore: block '...' is frozen, a snapshot that cannot be restored. The net that it was made of is unchanged: "
        "use that, or restore that if it is converted."
    ),
    "trainer: a frozen block": (lambda: Trainer(freeze(dense(), "O1"), "sgd"), TrainerError,
        "all parameters are of a frozen block, which has no gradients; train the net that it was made of, and freeze "
        "that afterwards."
    ),
    "restore: a part": (lambda: restore(convert(sequence(dense()), "O1")[0]), ConvertError,
        "restore: block 'net' is part of a converted net; give the net. For a precision of its own: "
        "mxmp.gluon.set_policy(block, 'float32'), and convert the net again."
    ),
    "export: a plain block": (lambda: export(convert(sequence(dense(), kind=nn.Sequential), "O1"), "net"), ConvertError,
        "block 'net' (Sequential) has no graph of its own; export the converted blocks in it: net."
    ),
    "freeze: no value": (lambda: freeze(nn.Dense(2, prefix="net_")), ConvertError,
        "block 'net': parameter 'net_weight' has no value yet; initialize or load it, and run one batch if its shape "
        "follows from the input's."
    ),
    "freeze: not called": (lambda: freeze(Untraceable(prefix="net_")), ConvertError,
        "block 'net' (Untraceable) cannot be traced before its first call; convert or hybridize it, and run one batch."
    ),
    "freeze: bfloat16 on a GPU": (lambda: freeze(dense(), "bf16", ctx=mx.gpu(0)), ConvertError,
        "block 'net': bfloat16 on gpu(0), but MXNet 1.9.1 "
        "has no bfloat16 kernels for GPUs. Take a float16 policy there, such as 'O1', or run on a CPU."
    ),
    "freeze: a forward": (lambda: freeze(started(Scaled(2, in_units=3, prefix="net_"))), UserWarning,
        "freeze: block 'net': hybrid_forward is frozen, without Scaled.forward around it."
    ),
}  # fmt: skip
TRAINERS = {
    "compression of scaled gradients": (
        lambda: sgd(param([1.0]), compression_params={"type": "2bit", "threshold": 0.5}), TrainerError,
        "compression_params compares gradients with a threshold while they are scaled, so that the loss scale would "
        "change the training; use loss_scale=None, or no compression.",
    ),
    "a checkpoint with a trainer of MXNet": (
        lambda: load_checkpoint("net", 0, dense(), mxnets_trainer()),
        TrainerError,
        "load_checkpoint: expected a trainer of mxmp, found a Trainer of mxnet.gluon.trainer; see Trainer.adopt.",
    ),
    "update_on_kvstore": (
        lambda: sgd(param([1.0]), update_on_kvstore=True),
        TrainerError,
        "update_on_kvstore=True updates weights inside the all-reduce, before their gradients are checked and without "
        "float32 masters: leave update_on_kvstore out; or train float32 parameters with mx.gluon.Trainer, without a "
        "loss scale.",
    ),
    "Accumulator: row_sparse": (lambda: next(Accumulator(sparse(), 2)([1])), TrainerError,
        "Accumulator: the gradient of parameter 'net_weight' is row_sparse, which MXNet does not add up; "
        "make its layer with sparse_grad=False."
    ),
    "averaged: before the first batch": (lambda: averaged(started(nn.Dense(2, prefix="net_"))), TrainerError,
        "averaged: parameter 'net_weight' has no value yet; initialize the net, and run one batch if its shapes follow "
        "from the input's. Then call averaged(net)."
    ),
}  # fmt: skip


@messages.each({**NETS, **TRAINERS})
def test_messages(call, error, text, tmp_path):
    messages.check(call, error, text, tmp_path)


def set_scale(trainer, scale):
    trainer.loss_scale = scale


def shared_by_losses():
    Trainer.adopt(mxnets_trainer(), SharedLossScale(8), num_losses=2)


WRONG = {  # a call, the class of its error, and words of its text
    "convert": (lambda: convert("net", "O1"), ConvertError, "expected a Gluon block, found str"),
    "convert: frozen in low precision": (
        lambda: convert(freeze(dense(), "O2"), "O1"), ConvertError, "is frozen with weights in float16, a snapshot: freeze"
    ),
    "cast": (lambda: cast(half(dense()), "float16"), ConvertError, "'net_weight' is float16 already"),
    "report": (lambda: report(None), ConvertError, "report: expected a Gluon block, found NoneType"),
    "mxmp.report": (lambda: mxmp.report(dense()), TypeError, "is a module; use mxmp.gluon.report"),
    "export": (lambda: export(dense(), 5), ConvertError, "path an int; expected a Gluon block and the prefix of the files"),
    "export: not converted": (lambda: export(dense(), "net"), ConvertError, "is not converted; use net.export"),
    "export: a missing folder": (
        lambda: export(convert(dense(), "O1"), "missing/net"), CheckpointError, "there is no folder .*missing; make it first"
    ),
    "export for inference: a missing folder": (
        lambda: export(dense(), "missing/net", for_inference=True), CheckpointError, "there is no folder .*missing; make it"
    ),
    "precision": (lambda: precision("int8"), PolicyError, "expected one of float32, low, policy, float16, bfloat16"),
    "set_policy": (lambda: set_policy("net", "float32"), ConvertError, "set_policy: expected a Gluon block, found str"),
    "freeze": (lambda: freeze(3), ConvertError, "found an int; expected a HybridBlock, "),
    "freeze: half a model": (lambda: freeze((mx.sym.var("x"), {})), ConvertError, "found a tuple of 2; expected"),
    "freeze: a prefix": (lambda: freeze("net"), ConvertError, r"found a str; expected .* as mxmp.symbol.load_checkpoint"),
    "freeze: a plain block": (
        lambda: freeze(sequence(dense(), kind=nn.Sequential)), ConvertError, "no graph of its own; freeze the blocks in it"
    ),
    "freeze: a missing GPU": (lambda: freeze(dense(), ctx=mx.gpu(7)), ConvertError, r"ctx is gpu\(7\), but MXNet finds"),
    "freeze: no context": (lambda: freeze(dense(), ctx="gpu"), ConvertError, "ctx is 'gpu'; expected a context"),
    "freeze: an input": (lambda: freeze(dense(), shapes={"date": (1,)}), ConvertError, "variable 'date'; the nearest are data"),
    "freeze: a pattern": (lambda: freeze(dense(), names={"no": "float32"}), PolicyError, "names: 'no' matches no node"),
    "no parameters": (lambda: Trainer([], "sgd"), TrainerError, "no parameters to train; is the net empty"),
    "an empty net": (lambda: Trainer(nn.HybridSequential(), "sgd"), TrainerError, "no parameters to train"),
    "no optimizer": (lambda: trainer_of(None), TrainerError, "optimizer is None; expected a name or"),
    "options twice": (lambda: trainer_of(mx.optimizer.SGD(), {"wd": 0.1}), TrainerError, "an instance; set them on it"),
    "no kvstore": (lambda: trainer_of("sgd", None, 5), TrainerError, "kvstore is 5; expected a name, a KVStore or None"),
    "an unknown kvstore": (lambda: trainer_of("sgd", None, "devcie"), TrainerError, "'devcie'; the nearest are device"),
    "two scales": (
        lambda: trainer_of(LossScaleOptimizer(mx.optimizer.SGD()), loss_scale=128), TrainerError, "has one; leave it out"
    ),
    "adopt": (
        lambda: Trainer.adopt(mx.mod.Module(mx.sym.var("data"), label_names=None)), TrainerError, "for a Module use mxmp.module"
    ),
    "compression, a later scale": (
        lambda: set_scale(sgd(param([1.0]), None, compression_params={"type": "2bit"}), 8), TrainerError, "^compression_params"
    ),
    "compression, adopted": (
        lambda: Trainer.adopt(gluon.Trainer([param([1.0])], "sgd", compression_params={"type": "2bit"})),
        TrainerError, "^compression_params",
    ),
    "step": (lambda: trainer_of("sgd").step(0), TrainerError, "step: batch_size=0; expected a positive number"),
    "clip_global_norm": (lambda: trainer_of("sgd").clip_global_norm(np.nan), TrainerError, "max_norm=nan; expected a positive"),
    "clip_global_norm: True": (lambda: trainer_of("sgd").clip_global_norm(True), TrainerError, "max_norm=True; expected"),
    "clip_value": (lambda: trainer_of("sgd").clip_value(None), TrainerError, "max_value=None; expected a positive number"),
    "clip_value: batch_size": (lambda: trainer_of("sgd").clip_value(1.0, "4"), TrainerError, "batch_size='4'; expected a pos"),
    "a hook": (lambda: trainer_of("sgd").register_step_hook(3), TrainerError, "3 is no function; expected one of"),
    "nonfinite_loss": (lambda: trainer_of("sgd", nonfinite_loss="ignore"), TrainerError, "expected 'raise' or 'skip'"),
    "max_nonfinite_losses": (lambda: trainer_of("sgd", max_nonfinite_losses=0), TrainerError, "expected a whole number from 1"),
    "loss_id": (
        lambda: Trainer.adopt(mxnets_trainer(), 8, num_losses=2).scale_loss(ONE, loss_id=2).__enter__(),
        TrainerError, "loss_id=2: the trainer has losses 0 to 1; num_losses says how many",
    ),
    "num_losses of a shared scale": (shared_by_losses, TrainerError, "for trainers with one loss; leave num_losses out"),
    "a shared scale": (lambda: SharedLossScale("dinamic"), LossScaleError, "unknown loss scale 'dinamic'; expected"),
    "a shared scale, later": (
        lambda: set_scale(trainer_of("sgd"), SharedLossScale(8)), TrainerError, "give a SharedLossScale to the constructor"
    ),
    "update of a shared scale": (lambda: SharedLossScale(8).update(), TrainerError, "no trainer has made a step since"),
    "scale_loss": (lambda: trainer_of("sgd").scale_loss(3.0).__enter__(), TrainerError, "loss is a float; expected an NDArray"),
    "scale_loss: nested": (
        lambda: trainer_of("sgd").scale_loss([ONE, [None]]).__enter__(), TrainerError, r"loss\[1\]\[0\] is a NoneType; expected"
    ),
    "scale_loss: integers": (
        lambda: trainer_of("sgd").scale_loss(ONE.astype("int32")).__enter__(), TrainerError, "dtype int32; expected a float"
    ),
    "scale_loss: another trainer": (
        lambda: trainer_of("sgd").scale_loss(ONE, mxnets_trainer()), TrainerError, "further trainers of mxmp, found a Trainer of"
    ),
    "a checkpoint of no net": (
        lambda: save_checkpoint("net", 0, ONE, trainer_of("sgd")), TrainerError, "expected a Gluon net, found an NDArray"
    ),
    "a checkpoint without an epoch": (
        lambda: save_checkpoint("net", -1, dense(), trainer_of("sgd")), CheckpointError, "epoch=-1: expected a whole number"
    ),
    "Accumulator: no number": (lambda: Accumulator(trainer_of("sgd"), 0), TrainerError, "steps=0; expected how many batches"),
    "Accumulator: no trainer": (lambda: Accumulator([], 2), TrainerError, "trainer is an empty list; give a trainer"),
    "Accumulator: MXNet's": (lambda: Accumulator(mxnets_trainer(), 2), TrainerError, "Trainer.adopt makes it one of mxmp"),
    "Accumulator: no loop": (lambda: Accumulator(trainer_of("sgd"), 2)(3), TrainerError, "an int is nothing to loop over"),
    "Accumulator: clips no batch": (
        lambda: Accumulator(trainer_of("sgd"), 2).clip_global_norm(1.0, 2), TrainerError, "clip_global_norm was called outside"
    ),
    "Accumulator: no batch": (lambda: Accumulator(trainer_of("sgd"), 2).step(2), TrainerError, "step was called outside of the loop"),
    "averaged": (lambda: averaged("net"), TrainerError, "averaged: expected a Gluon net, found a str"),
    "averaged: decay": (lambda: averaged(dense(), 1), TrainerError, "decay=1; expected a number from 0 to below 1"),
    "exact_value": (lambda: exact_value(ONE), TrainerError, "expected a gluon Parameter, found an NDArray"),
    "exact_value: no value": (lambda: exact_value(nn.Dense(2).weight), TrainerError, "is not initialized"),
    "adopt_weights": (lambda: adopt_weights(trainer_of("sgd")), TrainerError, "expected a Gluon net, found a Trainer"),
    "Policy by its name": (lambda: Policy("O1"), PolicyError, r"A policy by its name is Policy.parse\('O1'\)"),
}  # fmt: skip


@pytest.mark.parametrize("call, error, text", WRONG.values(), ids=WRONG)
def test_a_wrong_argument_is_named(call, error, text):
    with pytest.raises(error) as caught:
        call()
    assert type(caught.value) is error
    assert re.search(text, str(caught.value))
