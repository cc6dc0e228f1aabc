"""Training steps of a Gluon net: ``python -m tests.gpu_record.programs.gluon_step NET MODE OPTIMIZER FACTS``."""

from __future__ import annotations

import contextlib
import sys
from typing import Any, Callable, Tuple

import mxmp  # isort: skip  # before MXNet, which needs it on a new numpy or Python
import mxnet as mx
from mxnet import autograd, gluon
from mxnet.contrib import amp as contrib_amp

from mxmp import amp
from tests.gpu_record.programs.common import OPTIMIZERS, run_steps, sections, write
from tests.gpu_record.programs.nets import CTX, NETS, Case

POLICIES = ("O1", "O2", "O3")


def main(name: str, mode: str, optimizer: str, facts_path: str) -> None:
    """Run the steps and an inference, and write what the record cannot tell."""
    if mode == "contrib_amp":
        contrib_amp.init()
    elif mode == "amp":
        amp.init()
    case = NETS[name]()
    case.net.initialize(ctx=CTX)
    case.net.hybridize(static_alloc=True, static_shape=True)
    convert(case.net, mode)
    dtype = "float16" if mode == "net_cast" else "float32"
    inputs = [mx.nd.ones(s, ctx=CTX, dtype=dtype if len(s) == 4 else "float32") for s in case.shapes]
    trainer, scaled = make_trainer(case.net, mode, optimizer)
    facts = run_steps(mode, lambda begin: step(case, inputs, trainer, scaled, begin))
    mixed = mode in (*POLICIES, "cast", "amp")
    if mixed:
        facts["casts"] = mxmp.gluon.report(case.net).casts
    sections(f"{mode}/inference")("forward")
    case.net(*inputs)
    if mixed:
        facts["inference_casts"] = mxmp.gluon.report(case.net).casts  # SSD's graph has detections then
    write(facts_path, {mode: facts})


def convert(net: Any, mode: str) -> None:
    """Have a net run in a mode."""
    if mode in POLICIES:
        mxmp.gluon.convert(net, mode)
    elif mode == "cast":
        mxmp.gluon.cast(net, "float16")
    elif mode == "net_cast":
        net.cast("float16")


def make_trainer(net: Any, mode: str, optimizer: str) -> Tuple[Any, Callable[[Any], Any]]:
    """Return a trainer as a mode's documentation says, and what scales its loss."""
    params, options = net.collect_params(), dict(OPTIMIZERS[optimizer])
    if mode in POLICIES or mode == "cast":
        trainer = mxmp.gluon.Trainer(params, optimizer, options, loss_scale="dynamic")
        return trainer, trainer.scale_loss
    if mode == "net_cast":
        options["multi_precision"] = True
    trainer = gluon.Trainer(params, optimizer, options)
    module = {"contrib_amp": contrib_amp, "amp": amp}.get(mode)
    if module is None:
        return trainer, contextlib.nullcontext
    module.init_trainer(trainer)
    return trainer, lambda loss: module.scale_loss(loss, trainer)


def step(case: Case, inputs: Any, trainer: Any, scaled: Callable[[Any], Any], begin: Callable[[str], None]) -> Any:
    """Run one step; returns whether the trainer says that it was taken."""
    begin("forward")
    with autograd.record():
        loss = case.loss(case.net(*inputs), CTX)
        begin("scale")
        with scaled(loss) as big:
            begin("backward")
            big.backward()
    begin("update")
    return trainer.step(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
