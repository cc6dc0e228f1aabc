"""The messages of modules, where nothing else is to be seen."""

import mxnet as mx

from mxmp.errors import ConvertError, PassError, PolicyError, TrainerError
from mxmp.module import Module
from tests import messages
from tests.module.test_bucketing import KEYS, NAMES, batch, sym_gen
from tests.module.test_bucketing import bound as buckets
from tests.module.test_loss_heads import fc, run
from tests.module.tools import SHAPES, TWO, bound, mlp, plain, ready, updating


def bound_alone():
    module = Module(mlp())
    module.bind(*SHAPES)
    return module


def grows():
    def make(length):
        extra = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, name="extra")
        return (sym_gen(length)[0] if length == KEYS[0] else mx.sym.SoftmaxOutput(extra, name="softmax")), *NAMES

    module = buckets(make, policy="float32", loss_scale=4)
    module.init_params()
    module.forward_backward(batch(KEYS[1], 0))


TABLE = {
    "update": (lambda: Module(mlp()).update(), TrainerError, "update: ...call bind first..."),
    "no init_params": (
        lambda: bound_alone().init_optimizer(), TrainerError,
        "init_optimizer: the module is not ready; call init_params first."),
    "no init_optimizer": (
        lambda: bound().update(), TrainerError, "update: the module is not ready; call init_optimizer first."),
    "an update alone": (
        lambda: ready().update(), TrainerError,
        "update: no backward has run since the last update; call forward_backward first, or leave update out. Only a "
        "module with loss_scale=None updates without a backward, with the gradients that are there."),
    "a pattern": (lambda: bound(policy="O1,name:nothing*=float32"), PolicyError,
        "names: 'nothing*' matches no node; expected one of fc1, fc2, relu1, softmax."),
    "loss_heads": (lambda: bound(loss_heads=["nothing"]), PassError,
        "pass scale-loss: the graph has no Custom operator 'nothing'; check the names in loss_heads."),
    "shared_module": (
        lambda: bound(bind={"shared_module": plain()}), TrainerError,
        "bind: shared_module is <mxnet.module.module.Module object at ...>; expected a bound and initialized "
        "mxmp.module.Module."),
    "stored lower than shared": (
        lambda: Module(mlp(), policy="O2").bind(*SHAPES, shared_module=bound(policy="float32")), ConvertError,
        "parameters ['fc1_bias', 'fc1_weight', 'fc2_bias', 'fc2_weight'] are stored in float32 by the module "
        "that is shared with, but in low precision here; use a policy with param_dtype='float32', such as 'O1'."),
    "compression": (
        lambda: ready(context=TWO, kvstore="device", compression_params={"type": "2bit", "threshold": 0.5}), TrainerError,
        "compression_params compares gradients with a threshold while they are scaled, so that the loss scale "
        "would change the training; use loss_scale=None, or no compression."),
    "an async kvstore": (
        lambda: ready(loss_scale=8, kvstore=updating()), TrainerError,
        "kvstore 'dist_async' updates weights inside the all-reduce, before their gradients are checked and "
        "without float32 masters. Use a synchronous kvstore, or loss_scale=None and a policy with "
        "param_dtype='float32'."),
    "no loss head": (
        lambda: run(Module, fc("last"), {}), TrainerError,
        "backward: none of the outputs ['last_output'] comes from a loss head, so there is nothing to scale. "
        "End the network in one, such as SoftmaxOutput or make_loss; or give out_grads; or set loss_scale=None."),
    "a bucket's own parameter": (
        grows, TrainerError,
        "bind: parameters ['extra_weight', 'extra_bias'] are missing in the module that is shared with; the "
        "default bucket must have the parameters of all."),
}  # fmt: skip


@messages.each(TABLE)
def test_messages(call, error, text, tmp_path):
    messages.check(call, error, text, tmp_path)
