"""Every message of mxmp.amp; a call that is refused leaves nets, trainers and MXNet as they were."""

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn

import mxmp
from mxmp import amp
from mxmp.errors import ConvertError, DtypeError, LossScaleError, PolicyError, TrainerError
from mxmp.gluon.conversion import conversion_of
from tests import messages
from tests.amp.nets import buckets, images, make, ready, trainer_of, two_layers
from tests.amp.scenarios import TWO, param


def unchanged(state, call):
    """Make a call that fails; check that it changed nothing."""
    before = state()
    try:
        call()
    finally:
        assert state() == before


def initialize(level="O1", nets=1, trainers=None, **properties):
    nets = [make(f"net{number}_") for number in range(nets)] if isinstance(nets, int) else nets
    trainers = [trainer_of(nets[0])] if trainers is None else trainers
    unchanged(
        lambda: [*map(type, trainers), *(conversion_of(net) for net in nets if isinstance(net, gluon.Block))],
        lambda: amp.initialize(nets, trainers, level, **properties),
    )


def init(*arguments):
    owners = gluon.HybridBlock, gluon.Trainer, mx.nd, mx.sym
    unchanged(lambda: [dict(vars(owner)) for owner in owners], lambda: amp.init(*arguments))


def started(call):
    """Call a function of an mxmp.amp that was initialized."""
    amp.init()
    try:
        call()
    finally:
        amp.disable()


def init_trainer(trainer, *args):
    unchanged(
        lambda: (type(trainer), dict(getattr(trainer, "__dict__", {}))),
        lambda: started(lambda: amp.init_trainer(trainer, *args)),
    )


def sgd(*args, **kwargs):
    return gluon.Trainer([param(*args)], "sgd", {"learning_rate": 1.0}, **kwargs)


def after_a_step_in_float16():
    w = param(dtype="float16")
    trainer = gluon.Trainer([w], "sgd", {"multi_precision": True}, update_on_kvstore=False)
    with autograd.record():
        (w.data() * 1.0).backward()
    trainer.step(1)
    return trainer


def with_a_kvstore_that_updates():
    trainer = gluon.Trainer([param(ctx=TWO)], "sgd")
    trainer._init_kvstore()
    return trainer


class Stepping(gluon.Trainer):
    """A trainer with a step of its own."""

    step = gluon.Trainer.update


def unscaled():
    return mxmp.gluon.Trainer([param()], "adam", loss_scale=None)._amp_loss_scaler


def between(call):
    """Call a function between backward and step."""
    net = make()
    net, trainer = amp.initialize(net, trainer_of(net))
    with autograd.record(), amp.scale_loss(net(mx.nd.ones((8, 3))).sum(), trainer) as scaled:
        scaled.backward()
    call(trainer)


def excluded(name):
    return amp.convert_model(two_layers(), {}, {}, excluded_sym_names=[name])


def dot():
    return mx.sym.dot(mx.sym.var("x"), mx.sym.var("y"), name="product")


def masters(made, asked):
    net = make()
    trainer = mxmp.gluon.Trainer(net.collect_params(), "sgd", {"multi_precision": made})
    return amp.initialize(net, trainer, "O2", master_weights=asked)


FP16 = amp.lists.symbol_fp16
APEX = {
    "level 01": (lambda: initialize("01"), amp.AmpError,
        "opt_level='01': expected one of O0, O1, O2, O3; the letter O, not a zero."),
    "level O4": (lambda: initialize("O4"), amp.AmpError,
        "opt_level='O4': expected one of O0, O1, O2, O3; the letter O, not a zero."),
    "cast_model_type, O1": (
        lambda: initialize(cast_model_type="float16"), amp.AmpError,
        "cast_model_type=float16 makes no sense at O1, where parameters stay float32; use O2 or O3, or leave "
        "it out."),
    "keep_batchnorm_fp32, O1": (
        lambda: initialize(keep_batchnorm_fp32=True), amp.AmpError,
        "keep_batchnorm_fp32=True makes no sense at O1, where parameters stay float32; use O2 or O3, or leave "
        "it out."),
    "master_weights, O1": (
        lambda: initialize(master_weights=False), amp.AmpError,
        "master_weights=False makes no sense at O1, where parameters stay float32; use O2 or O3, or leave it "
        "out."),
    "master_weights, O0": (
        lambda: initialize("O0", master_weights=True), amp.AmpError,
        "master_weights=True makes no sense at O0, where parameters stay float32; use O2 or O3, or leave it "
        "out."),
    "cast_model_type, O0": (
        lambda: initialize("O0", cast_model_type=np.float16), amp.AmpError,
        "cast_model_type=<class 'numpy.float16'> makes no sense at O0, where parameters stay float32; use O2 "
        "or O3, or leave it out."),
    "loss_scale, O0": (lambda: initialize("O0", loss_scale=128), PolicyError,
        "loss_scale=128.0 with compute_dtype='float32' makes no sense: float32 gradients need no scaling. Set "
        "compute_dtype, or leave loss_scale out."),
    "cast_model_outputs, O0": (
        lambda: initialize("O0", cast_model_outputs="float16"), PolicyError,
        "output_dtype='float16' with compute_dtype='float32' makes no sense: it is float32 or the compute "
        "dtype."),
    "float32, O2": (
        lambda: initialize("O2", cast_model_type="float32"), amp.AmpError,
        "cast_model_type=float32 at O2 leaves nothing in low precision; use O0."),
    "fp61": (lambda: initialize("O2", cast_model_type="fp61"), DtypeError,
        "unknown dtype 'fp61'; expected float16, bfloat16 or float32."),
    "keep_batchnorm_fp32 yes": (
        lambda: initialize("O2", keep_batchnorm_fp32="yes"), amp.AmpError,
        "keep_batchnorm_fp32='yes': expected True or False."),
    "master_weights 1.5": (
        lambda: initialize("O2", master_weights=1.5), amp.AmpError, "master_weights=1.5: expected True or False."),
    "outputs in bfloat16": (
        lambda: initialize("O2", cast_model_outputs="bfloat16"), PolicyError,
        "output_dtype='bfloat16' with compute_dtype='float16' makes no sense: it is float32 or the compute "
        "dtype."),
    "patch_torch_functions": (
        lambda: initialize(patch_torch_functions=True), amp.AmpError,
        "patch_torch_functions: mxmp patches no functions; operators are cast one by one at O1, and at no "
        "other level; leave it out."),
    "verbosity": (lambda: initialize(verbosity=0), amp.AmpError,
        "verbosity: mxmp writes to Python's logging; set the level of the logger 'mxmp'; leave it out."),
    "loss_scal": (lambda: initialize(loss_scal=128), amp.AmpError,
        "unknown property 'loss_scal'; the nearest are loss_scale, min_loss_scale, max_loss_scale."),
    "a static scale's minimum": (
        lambda: initialize(loss_scale=128, min_loss_scale=1), amp.AmpError,
        "min_loss_scale and max_loss_scale are for loss_scale='dynamic'; it is 128.0."),
    "no scale's maximum": (
        lambda: initialize("O3", max_loss_scale=1), amp.AmpError,
        "min_loss_scale and max_loss_scale are for loss_scale='dynamic'; it is None."),
    "min_loss_scale -1": (lambda: initialize(min_loss_scale=-1), LossScaleError,
        "min_scale=-1.0 is no loss scale; expected a positive, finite number between 2**-126 and 2**126, so "
        "that it and its inverse are float32 numbers."),
    "dinamic": (lambda: initialize(loss_scale="dinamic"), PolicyError,
        "loss_scale='dinamic': expected None, 'dynamic' or a number between 2**-126 and 2**126."),
    "0 losses": (lambda: initialize(num_losses=0), amp.AmpError, "num_losses=0: expected a whole number from 1 on."),
    "one of the trainers": (
        lambda: initialize(trainers=[sgd(), sgd(update_on_kvstore=True)]), TrainerError,
        "update_on_kvstore=True updates weights inside the all-reduce, before their gradients are checked and without "
        "float32 masters: leave update_on_kvstore out; or train float32 parameters with mx.gluon.Trainer, without a "
        "loss scale."),
    "one of the nets": (
        lambda: initialize(nets=[make(), 1]), ConvertError, "expected a Gluon block, found int."),
    "two optimizers of a net": (
        lambda: initialize(trainers=[mx.optimizer.SGD(), mx.optimizer.SGD()]), amp.AmpError,
        "2 optimizers for 1 nets: mxmp cannot match them; give Trainers."),
    "two optimizers of three nets": (
        lambda: initialize(nets=3, trainers=[mx.optimizer.SGD(), mx.optimizer.SGD()]), amp.AmpError,
        "2 optimizers for 3 nets: mxmp cannot match them; give Trainers."),
    "an optimizer of two nets": (
        lambda: initialize(nets=2, trainers=[mx.optimizer.SGD()]), amp.AmpError,
        "1 optimizers for 2 nets: mxmp cannot match them; give Trainers."),
    "a net without values": (
        lambda: initialize(nets=[make(), nn.Dense(2, in_units=3, prefix="dense_")], trainers=[mx.optimizer.SGD()] * 2),
        amp.AmpError,
        "parameter 'dense_weight' is not initialized, so that no trainer can be made of the optimizer; call "
        "initialize of block 'dense' first."),
    "masters of the trainer": (
        lambda: masters(True, False), amp.AmpError,
        "master_weights=False, but the trainer was made with multi_precision=True; leave master_weights out, "
        "or make the trainer anew."),
    "state_dict": (lambda: amp.state_dict(), amp.AmpError,
        "state_dict: give the trainers: mxmp keeps nothing of them itself."),
    "load_state_dict": (lambda: amp.load_state_dict({}), amp.AmpError,
        "load_state_dict: give the trainers: mxmp keeps nothing of them itself."),
    "state_dict between": (lambda: between(amp.state_dict), TrainerError,
        "state_dict came between backward and step, where gradients of the present scale wait to be used; call "
        "step first (update on a module), or discard_grads to give them up."),
    "load_state_dict between": (
        lambda: between(lambda trainer: amp.load_state_dict({}, trainer)), TrainerError,
        "load_state_dict came between backward and step, where gradients of the present scale wait to be used; "
        "call step first (update on a module), or discard_grads to give them up."),
}  # fmt: skip
INIT = {
    "float32": (lambda: init("float32"), amp.AmpError, "target_dtype='float32': expected float16 or bfloat16."),
    "fp61": (lambda: init("fp61"), amp.AmpError,
        "target_dtype: unknown dtype 'fp61'; expected float16, bfloat16 or float32."),
    "ops as text": (
        lambda: init("float16", "FullyConnected"), amp.AmpError, "target_precision_ops is a str; expected a list."),
    "a misspelt op": (
        lambda: init("float16", ["FullyConected"]), amp.AmpError,
        "target_precision_ops: MXNet has no operator 'FullyConected'; the nearest are FullyConnected, "
        "_sg_mkldnn_fully_connected, Concat."),
    "an op of 1": (lambda: init("float16", [1]), amp.AmpError,
        "target_precision_ops: MXNet has no operator 1; expected one of Activation, BatchNorm, BatchNorm_v1, "
        "BilinearSampler, BlockGrad, CTCLoss, Concat, Convolution, Convolution_v1, Correlation."),
    "one of the ops": (
        lambda: init("float16", ["Convolution", "no_such_operator"]), amp.AmpError,
        "target_precision_ops: MXNet has no operator 'no_such_operator'; the nearest are _npi_subtract, "
        "GridGenerator, _npi_mod_scalar."),
    "no condition": (
        lambda: init("float16", None, ["Activation"]), amp.AmpError,
        "conditional_fp32_ops: 'Activation' is no (operator, attribute, list of values), such as "
        "('Activation', 'act_type', ['softrelu'])."),
    "a condition of text": (
        lambda: init("float16", None, [("Activation", "act_type", "relu")]), amp.AmpError,
        "conditional_fp32_ops: ('Activation', 'act_type', 'relu') is no (operator, attribute, list of values), "
        "such as ('Activation', 'act_type', ['softrelu'])."),
    "exp twice": (
        lambda: init("float16", ["exp"], None, ["exp"]), amp.AmpError,
        "operator 'exp' is in both target_precision_ops and fp32_ops; keep it in one."),
    "concat twice": (lambda: init("float16", ["concat"], None, ["Concat"]), amp.AmpError,
        "operator 'Concat' is in both target_precision_ops and fp32_ops; keep it in one."),
    "exp and a condition": (
        lambda: init("float16", None, [("exp", "x", ["1"])], ["exp"]), amp.AmpError,
        "operator 'exp' is in both fp32_ops and conditional_fp32_ops; keep it in one."),
    "a second init": (
        lambda: started(lambda: amp.init("bfloat16")), amp.AmpError,
        "amp.init was called before, with other arguments "
        "(param=float32,compute=float16,output=float32,loss_scale=dynamic); call amp.disable first."),
    "remove from a list": (lambda: FP16.FP32_FUNCS.remove("softmax"), amp.AmpError,
        "mxmp.amp.lists cannot be changed in place: nothing would come of it. Give target_dtype_ops, fp32_ops "
        "or conditional_fp32_ops a changed copy, such as [*lists.symbol_fp16.FP32_FUNCS, 'relu']."),
    "append to a list": (lambda: FP16.FP16_FUNCS.append("relu"), amp.AmpError,
        "mxmp.amp.lists cannot be changed in place: nothing would come of it. Give target_dtype_ops, fp32_ops "
        "or conditional_fp32_ops a changed copy, such as [*lists.symbol_fp16.FP32_FUNCS, 'relu']."),
    "add to a list": (lambda: FP16.FP16_FUNCS.__iadd__(["relu"]), amp.AmpError,
        "mxmp.amp.lists cannot be changed in place: nothing would come of it. Give target_dtype_ops, fp32_ops "
        "or conditional_fp32_ops a changed copy, such as [*lists.symbol_fp16.FP32_FUNCS, 'relu']."),
    "pop from a dict": (lambda: FP16.FP16_USE_FP32_PARAMS.pop("BatchNorm"), amp.AmpError,
        "mxmp.amp.lists cannot be changed in place: nothing would come of it. Give target_dtype_ops, fp32_ops "
        "or conditional_fp32_ops a changed copy, such as [*lists.symbol_fp16.FP32_FUNCS, 'relu']."),
    "a list of int8": (lambda: amp.list_fp32_ops("int8"), amp.AmpError,
        "target_dtype='int8': expected float16 or bfloat16."),
}  # fmt: skip
TRAINERS = {
    "update_on_kvstore": (
        lambda: init_trainer(sgd(update_on_kvstore=True)), TrainerError,
        "update_on_kvstore=True updates weights inside the all-reduce, before their gradients are checked and without "
        "float32 masters: leave update_on_kvstore out; or train float32 parameters with mx.gluon.Trainer, without a "
        "loss scale."),
    "a kvstore that updates": (
        lambda: init_trainer(with_a_kvstore_that_updates()), TrainerError,
        "the kvstore of this trainer is set up already and updates weights by itself, before any check and "
        "without float32 masters; make the trainer with update_on_kvstore=False."),
    "after a step": (
        lambda: init_trainer(after_a_step_in_float16()), TrainerError,
        "the trainer has made a step or loaded states, and parameter 'w' is stored in float16, so that its "
        "optimizer state may lack a float32 master; set the trainer up before its first step."),
    "a step of its own": (
        lambda: init_trainer(Stepping([param()], "sgd")), TrainerError,
        "Stepping has a method step of its own, which mxmp's trainer would replace; derive it from "
        "mxmp.gluon.Trainer."),
    "an optimizer": (lambda: init_trainer(mx.optimizer.SGD()), TrainerError,
        "init_trainer: expected a gluon Trainer, found a SGD."),
    "None": (lambda: init_trainer(None), TrainerError,
        "init_trainer: expected a gluon Trainer, found a NoneType."),
    "a dict": (lambda: init_trainer({"w": param()}), TrainerError,
        "init_trainer: expected a gluon Trainer, found a dict."),
    "a module": (
        lambda: init_trainer(mx.mod.Module(two_layers())), TrainerError,
        "init_trainer: expected a gluon Trainer, found a Module; for a Module use mxmp.module.Module."),
    "dinamic": (lambda: init_trainer(sgd(), "dinamic"), LossScaleError,
        "unknown loss scale 'dinamic'; expected 'dynamic', a number, a LossScale or None."),
    "before init": (lambda: amp.init_trainer(sgd()), amp.AmpError,
        "amp.init was not called, so no net runs in mixed precision; call it first, or amp.initialize."),
    "scale_loss": (
        lambda: started(lambda: amp.scale_loss(None, sgd())), TrainerError,
        "scale_loss: the trainer was not initialized; call amp.init_trainer(trainer) first."),
    "scale_loss of a number": (
        lambda: started(lambda: amp.scale_loss(None, 1.0)), TrainerError,
        "scale_loss: expected a gluon Trainer, found a float."),
    "scale_loss of none": (lambda: started(lambda: amp.scale_loss(None, [])), TrainerError,
        "scale_loss: the list of trainers is empty."),
    "unscale": (
        lambda: started(lambda: amp.unscale(sgd())), TrainerError,
        "unscale: the trainer was not initialized; call amp.init_trainer(trainer) first."),
    "unscale of a number": (
        lambda: started(lambda: amp.unscale(1.0)), TrainerError, "unscale: expected a gluon Trainer, found a float."),
    "a scale for none": (
        lambda: setattr(unscaled(), "_loss_scale", 512.0), LossScaleError,
        "_loss_scale=512.0, but the trainer has no loss scale, as by default with bfloat16; set its loss_scale "
        "to 'dynamic' or a number first."),
}  # fmt: skip
CONVERT = {
    "a plain block": (
        lambda: amp.convert_hybrid_block(gluon.Block()), ConvertError, "block is a Block; expected a HybridBlock."),
    "no graph": (
        lambda: amp.convert_hybrid_block(nn.Dense(2, prefix="d_")), ConvertError,
        "block 'd' has no graph yet; hybridize it and run one batch, then convert it."),
    "a file": (lambda: amp.convert_symbol("net.json"), ConvertError, "sym is a str; expected a Symbol."),
    "no symbol": (lambda: amp.convert_model(None, {}, {}), ConvertError, "sym is a NoneType; expected a Symbol."),
    "no module": (
        lambda: amp.convert_bucketing_module(None), ConvertError,
        "bucketing_mod is a NoneType; expected a BucketingModule that is bound and has parameters: call bind "
        "and init_params first."),
    "an unbound module": (
        lambda: amp.convert_bucketing_module(buckets()), ConvertError,
        "bucketing_mod is a BucketingModule; expected a BucketingModule that is bound and has parameters: call "
        "bind and init_params first."),
    "no kernel": (
        lambda: amp.convert_symbol(dot(), "bfloat16", ["dot"]), PolicyError,
        "op override 'dot' asks for bfloat16 at node 'product' (dot), but MXNet 1.9.1 has no sound bfloat16 "
        "kernel for dot. Leave it in float32."),
    "no such name": (lambda: excluded("fc3"), amp.AmpError,
        "excluded_sym_names: the network has no operator named 'fc3'; the nearest are fc2, fc1."),
    "an input's name": (lambda: excluded("data"), amp.AmpError,
        "excluded_sym_names: the network has no operator named 'data'; the nearest are act."),
    "a pattern": (lambda: excluded("fc*"), amp.AmpError,
        "excluded_sym_names: the network has no operator named 'fc*'; the nearest are fc2, fc1."),
    "a number": (lambda: excluded(1), amp.AmpError,
        "excluded_sym_names: the network has no operator named '1'; the nearest are fc1."),
    "a symbol's name": (
        lambda: amp.convert_symbol(two_layers(), excluded_sym_names=["fc3"]), amp.AmpError,
        "excluded_sym_names: the network has no operator named 'fc3'; the nearest are fc2, fc1."),
    "a block's name": (
        lambda: amp.convert_hybrid_block(images()[0], excluded_sym_names=["conv0_fwd"]), amp.AmpError,
        "excluded_sym_names: the network has no operator named 'conv0_fwd'; the nearest are net_conv0_fwd, "
        "net_relu0_fwd, net_dense0_fwd."),
    "a bucket's name": (
        lambda: amp.convert_bucketing_module(ready(), excluded_sym_names=["fc5"]), amp.AmpError,
        "excluded_sym_names: the network has no operator named 'fc5'; the nearest are fc2, fc1, fc0."),
}  # fmt: skip
PARTS = {"apex": APEX, "init": INIT, "trainers": TRAINERS, "convert": CONVERT}
TABLE = {f"{part}: {name}": row for part, rows in PARTS.items() for name, row in rows.items()}


@messages.each(TABLE)
def test_messages(call, error, text, tmp_path):
    messages.check(call, error, text, tmp_path)
