"""The messages of mxmp.amp; a call that is refused leaves nets and trainers as they were."""

import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn

import mxmp
from mxmp import amp
from mxmp.errors import ConvertError, PolicyError, TrainerError
from tests import messages
from tests.amp.nets import buckets, images, make, trainer_of, two_layers
from tests.amp.scenarios import param
from tests.perceptron import policy_of


def initialize(level="O1", nets=1, trainers=None, **properties):
    """Make a call that is refused; check that it changed nothing."""
    nets = [make(f"net{number}_") for number in range(nets)] if isinstance(nets, int) else nets
    trainers = [trainer_of(nets[0])] if trainers is None else trainers
    kinds = [*map(type, trainers)]
    try:
        amp.initialize(nets, trainers, level, **properties)
    finally:
        assert [*map(type, trainers)] == kinds
        assert not [net for net in nets if isinstance(net, gluon.Block) and policy_of(net) is not None]


def init_trainer(trainer, *args):
    kind = type(trainer)
    try:
        started(lambda: amp.init_trainer(trainer, *args))
    finally:
        assert type(trainer) is kind


def started(call):
    """Call a function of an mxmp.amp that was initialized."""
    amp.init()
    try:
        call()
    finally:
        amp.disable()


def sgd(**kwargs):
    return gluon.Trainer([param()], "sgd", {"learning_rate": 1.0}, **kwargs)


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
    "level O4": (lambda: initialize("O4"), amp.AmpError,
        "opt_level='O4': expected one of O0, O1, O2, O3; the letter O, not a zero."),
    "master_weights, O0": (
        lambda: initialize("O0", master_weights=True), amp.AmpError,
        "master_weights=True makes no sense at O0, where parameters stay float32; use O2 or O3, or leave it "
        "out."),
    "float32, O2": (
        lambda: initialize("O2", cast_model_type="float32"), amp.AmpError,
        "cast_model_type=float32 at O2 leaves nothing in low precision; use O0."),
    "keep_batchnorm_fp32 yes": (
        lambda: initialize("O2", keep_batchnorm_fp32="yes"), amp.AmpError,
        "keep_batchnorm_fp32='yes': expected True or False."),
    "patch_torch_functions": (
        lambda: initialize(patch_torch_functions=True), amp.AmpError,
        "patch_torch_functions: mxmp patches no functions; operators are cast one by one at O1, and at no "
        "other level; leave it out."),
    "loss_scal": (lambda: initialize(loss_scal=128), amp.AmpError,
        "unknown property 'loss_scal'; the nearest are loss_scale, min_loss_scale, max_loss_scale."),
    "a static scale's minimum": (
        lambda: initialize(loss_scale=128, min_loss_scale=1), amp.AmpError,
        "min_loss_scale and max_loss_scale are for loss_scale='dynamic'; it is 128.0."),
    "0 losses": (lambda: initialize(num_losses=0), amp.AmpError, "num_losses=0: expected a whole number from 1 on."),
    "one of the trainers": (
        lambda: initialize(trainers=[sgd(), sgd(update_on_kvstore=True)]), TrainerError,
        "update_on_kvstore=True updates weights inside the all-reduce, before their gradients are checked and without "
        "float32 masters: leave update_on_kvstore out; or train float32 parameters with mx.gluon.Trainer, without a "
        "loss scale."),
    "two optimizers of three nets": (
        lambda: initialize(nets=3, trainers=[mx.optimizer.SGD(), mx.optimizer.SGD()]), amp.AmpError,
        "2 optimizers for 3 nets: mxmp cannot match them; give Trainers."),
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
}  # fmt: skip
INIT = {
    "fp61": (lambda: amp.init("fp61"), amp.AmpError,
        "target_dtype: unknown dtype 'fp61'; expected float16, bfloat16 or float32."),
    "a misspelt op": (
        lambda: amp.init("float16", ["FullyConected"]), amp.AmpError,
        "target_precision_ops: MXNet has no operator 'FullyConected'; the nearest are FullyConnected, "
        "_sg_mkldnn_fully_connected, Concat."),
    "a condition of text": (
        lambda: amp.init("float16", None, [("Activation", "act_type", "relu")]), amp.AmpError,
        "conditional_fp32_ops: ('Activation', 'act_type', 'relu') is no (operator, attribute, list of values), "
        "such as ('Activation', 'act_type', ['softrelu'])."),
    "concat twice": (lambda: amp.init("float16", ["concat"], None, ["Concat"]), amp.AmpError,
        "operator 'Concat' is in both target_precision_ops and fp32_ops; keep it in one."),
    "a second init": (
        lambda: started(lambda: amp.init("bfloat16")), amp.AmpError,
        "amp.init was called before, with other arguments "
        "(param=float32,compute=float16,output=float32,loss_scale=dynamic); call amp.disable first."),
    "remove from a list": (lambda: FP16.FP32_FUNCS.remove("softmax"), amp.AmpError,
        "mxmp.amp.lists cannot be changed in place: nothing would come of it. Give target_dtype_ops, fp32_ops "
        "or conditional_fp32_ops a changed copy, such as [*lists.symbol_fp16.FP32_FUNCS, 'relu']."),
    "a list of int8": (lambda: amp.list_fp32_ops("int8"), amp.AmpError,
        "target_dtype='int8': expected float16 or bfloat16."),
}  # fmt: skip
TRAINERS = {
    "an optimizer": (lambda: init_trainer(mx.optimizer.SGD()), TrainerError,
        "init_trainer: expected a gluon Trainer, found a SGD."),
    "a module": (
        lambda: init_trainer(mx.mod.Module(two_layers())), TrainerError,
        "init_trainer: expected a gluon Trainer, found a Module; for a Module use mxmp.module.Module."),
    "before init": (lambda: amp.init_trainer(sgd()), amp.AmpError,
        "amp.init was not called, so no net runs in mixed precision; call it first, or amp.initialize."),
    "scale_loss": (
        lambda: started(lambda: amp.scale_loss(None, sgd())), TrainerError,
        "scale_loss: the trainer was not initialized; call amp.init_trainer(trainer) first."),
    "unscale": (
        lambda: started(lambda: amp.unscale(sgd())), TrainerError,
        "unscale: the trainer was not initialized; call amp.init_trainer(trainer) first."),
}  # fmt: skip
CONVERT = {
    "no graph": (
        lambda: amp.convert_hybrid_block(nn.Dense(2, prefix="d_")), ConvertError,
        "block 'd' has no graph yet; hybridize it and run one batch, then convert it."),
    "an unbound module": (
        lambda: amp.convert_bucketing_module(buckets()), ConvertError,
        "bucketing_mod is a BucketingModule; expected a BucketingModule that is bound and has parameters: call "
        "bind and init_params first."),
    "no kernel": (
        lambda: amp.convert_symbol(dot(), "bfloat16", ["dot"]), PolicyError,
        "op override 'dot' asks for bfloat16 at node 'product' (dot), but MXNet 1.9.1 has no sound bfloat16 "
        "kernel for dot. Leave it in float32."),
    "a pattern": (lambda: excluded("fc*"), amp.AmpError,
        "excluded_sym_names: the network has no operator named 'fc*'; the nearest are fc2, fc1."),
    "a block's name": (
        lambda: amp.convert_hybrid_block(images()[0], excluded_sym_names=["conv0_fwd"]), amp.AmpError,
        "excluded_sym_names: the network has no operator named 'conv0_fwd'; the nearest are net_conv0_fwd, "
        "net_relu0_fwd, net_dense0_fwd."),
}  # fmt: skip
PARTS = {"apex": APEX, "init": INIT, "trainers": TRAINERS, "convert": CONVERT}
TABLE = {f"{part}: {name}": row for part, rows in PARTS.items() for name, row in rows.items()}


@messages.each(TABLE)
def test_messages(call, error, text, tmp_path):
    messages.check(call, error, text, tmp_path)
