"""Training steps on two GPUs: ``python -m tests.gpu_record.programs.two_gpus FRONT MODE FACTS``."""

from __future__ import annotations

import contextlib
import functools
import sys
from typing import Any, Callable

import mxmp  # isort: skip  # before MXNet, which needs it on a new numpy or Python
import mxnet as mx
from mxnet import autograd, gluon

from tests.gpu_record.programs.common import OPTIMIZERS, run_steps, write
from tests.gpu_record.programs.module_step import step as step_of_module
from tests.gpu_record.programs.nets import small

GPUS = [mx.gpu(0), mx.gpu(1)]
SHAPE = (8, 3, 32, 32)  # of both GPUs together


def main(front: str, mode: str, facts_path: str) -> None:
    """Run the steps, and write which were taken."""
    step = {"gluon": gluon_step, "module": module_step}[front](mode)
    write(facts_path, run_steps(mode, step))


def gluon_step(mode: str) -> Callable[[Any], Any]:
    """Return a step of a net that is on both GPUs."""
    case = small()
    case.net.initialize(ctx=GPUS)
    case.net.hybridize(static_alloc=True, static_shape=True)
    options = dict(OPTIMIZERS["sgd"])
    if mode == "float32":
        trainer = gluon.Trainer(case.net.collect_params(), "sgd", options)
    else:
        mxmp.gluon.convert(case.net, mode)
        trainer = mxmp.gluon.Trainer(case.net.collect_params(), "sgd", options)
    batches = gluon.utils.split_and_load(mx.nd.ones(SHAPE), GPUS)

    def step(begin: Callable[[str], None]) -> Any:
        begin("forward")
        with autograd.record():
            losses = [case.loss(case.net(batch), batch.context) for batch in batches]
        begin("scale")
        with contextlib.nullcontext(losses) if mode == "float32" else trainer.scale_loss(losses) as scaled:
            begin("backward")
            autograd.backward(scaled)
        begin("update")
        return trainer.step(SHAPE[0])

    return step


def module_step(mode: str) -> Callable[[Any], Any]:
    """Return a step of a module that is on both GPUs."""
    net, _, _ = small()
    symbol = mx.sym.SoftmaxOutput(net(mx.sym.var("data")), name="softmax")
    options = {"context": GPUS}
    module = (
        mx.mod.Module(symbol, **options) if mode == "float32" else mxmp.module.Module(symbol, policy=mode, **options)
    )
    iterator = mx.io.NDArrayIter(mx.nd.ones(SHAPE), mx.nd.zeros(SHAPE[:1]), batch_size=SHAPE[0])
    module.bind(iterator.provide_data, iterator.provide_label)
    module.init_params()
    module.init_optimizer(kvstore="device", optimizer_params=dict(OPTIMIZERS["sgd"]))
    return functools.partial(step_of_module, module, next(iterator))


if __name__ == "__main__":
    main(*sys.argv[1:])
