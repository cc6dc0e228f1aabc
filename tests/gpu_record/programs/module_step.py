"""Training steps of a Module.

Called as ``python -m tests.gpu_record.programs.module_step NET MODE[,MODE...] OPTIMIZER FACTS``.

contrib.amp cannot train a Module. In its mode the same symbol, loss heads included, is a SymbolBlock.
"""

from __future__ import annotations

import sys
import traceback
from typing import Any, Callable

import mxmp  # isort: skip  # before MXNet, which needs it on a new numpy or Python
import mxnet as mx
from mxnet import autograd, gluon
from mxnet.contrib import amp as contrib_amp

import symbols
from tests.gpu_record.networks import ARGUMENTS, DATA, FILES, LABELS, image_shape
from tests.gpu_record.programs.common import OPTIMIZERS, run_steps, sections, write

CTX = mx.gpu(0)


def main(name: str, modes: str, optimizer: str, facts_path: str) -> None:
    """Run the steps in one mode after the other, and write what the record cannot tell."""
    facts = {}
    for mode in modes.split(","):
        try:
            facts[mode] = run_mode(name, mode, optimizer)
        except Exception:  # the other modes run all the same
            facts[mode] = {"error": traceback.format_exc()}
    write(facts_path, facts)


def run_mode(name: str, mode: str, optimizer: str) -> Any:
    """Run the steps and an inference, and return what the record cannot tell."""
    if mode == "contrib_amp":
        contrib_amp.init()
    assert symbols.NETWORKS[name].module.__name__ == f"symbols.{FILES[name]}"
    symbol = symbols.get_symbol(name, **ARGUMENTS.get(name, {"num_classes": 10}))
    iterator = make_iterator(name)
    if mode == "contrib_amp":
        return run_block(symbol, iterator, optimizer)
    module = make_module(symbol, mode, iterator, optimizer)
    batch = next(iterator)
    facts = run_steps(mode, lambda begin: step(module, batch, begin))
    if mode != "float32":
        facts["casts"] = facts["inference_casts"] = module.report.casts
    sections(f"{mode}/inference")("forward")
    module.forward(batch, is_train=False)
    sections("between")("modes")
    return facts


def make_iterator(name: str) -> Any:
    """Return an iterator over one batch."""
    data = DATA.get(name) or {"data": image_shape(name)}
    rows = next(iter(data.values()))[0]
    label = LABELS.get(name) or {"softmax_label": (rows,)}
    values = ({key: mx.nd.ones(shape) for key, shape in part.items()} for part in (data, label))
    return mx.io.NDArrayIter(*values, batch_size=rows)


def make_module(symbol: Any, mode: str, iterator: Any, optimizer: str) -> Any:
    """Return a module that runs in a mode, ready to be trained."""
    data, label = iterator.provide_data, iterator.provide_label
    options = {"data_names": [d.name for d in data], "label_names": [d.name for d in label], "context": CTX}
    if mode == "float32":
        module = mx.mod.Module(symbol, **options)
    else:
        module = mxmp.module.Module(symbol, policy=mode, loss_scale="dynamic", **options)
    module.bind(data, label)
    module.init_params(mx.init.Normal(0.01))
    module.init_optimizer(optimizer=optimizer, optimizer_params=dict(OPTIMIZERS[optimizer]))
    return module


def step(module: Any, batch: Any, begin: Callable[[str], None]) -> Any:
    """Run one step; returns what `update` returns, which of mxmp's modules is whether it was taken."""
    begin("forward")
    module.forward(batch, is_train=True)
    begin("backward")
    module.backward()
    begin("update")
    return module.update()


def run_block(symbol: Any, iterator: Any, optimizer: str) -> Any:
    """Train a symbol as a block with contrib.amp; returns which steps were taken."""
    described = [*iterator.provide_data, *iterator.provide_label]
    block = gluon.SymbolBlock(symbol, [mx.sym.var(d.name) for d in described])
    block.initialize(mx.init.Normal(0.01), ctx=CTX)
    block.hybridize(static_alloc=True, static_shape=True)
    inputs = [mx.nd.ones(d.shape, ctx=CTX) for d in described]
    trainer = gluon.Trainer(block.collect_params(), optimizer, dict(OPTIMIZERS[optimizer]))
    contrib_amp.init_trainer(trainer)

    def run(begin: Callable[[str], None]) -> None:
        begin("forward")
        with autograd.record():
            outputs = block(*inputs)
            begin("scale")
            with contrib_amp.scale_loss(outputs, trainer) as scaled:
                begin("backward")
                autograd.backward(scaled)
        begin("update")
        trainer.step(1)

    return run_steps("contrib_amp", run)


if __name__ == "__main__":
    main(*sys.argv[1:])
