"""Runs training steps of a network under the recorder, as `step` asks: file, mode, optimizer.

It warms up with ten steps, in which MXNet allocates, fuses and tunes, and mxmp compares weights with their masters, and
marks the next: forward, backward, update.
"""

from __future__ import annotations

import contextlib
import runpy
import sys
from pathlib import Path
from typing import Any, Callable, Dict, Sequence, Tuple

import mxmp  # isort: skip  # before MXNet, which needs it on a new numpy or Python
import mxnet as mx
from mxnet import autograd, gluon

from mxmp.errors import MxmpError, mxnet_reason
from mxmp.train.step import COMPARED_STEPS
from tools.gpu_record import control

CTX = mx.gpu(0)
OPTIONS: Dict[str, Dict[str, float]] = {"sgd": {"learning_rate": 0.1, "momentum": 0.9, "wd": 1e-4}}
Network = Tuple[Any, Sequence[Any], Sequence[Any], Callable[..., Any]]  # net, inputs, labels, loss


class UsageError(Exception):
    """The file that was named does not fit; the message says what to do."""


def main(path: str, mode: str, optimizer: str) -> None:
    """Run the steps."""
    run = training_step(load(path), mode, optimizer)
    control.deliver(1.0)  # a finite check finds all gradients finite
    for _ in range(COMPARED_STEPS):
        run(lambda section: None)
    run(_begin_section)
    _begin_section("end")


def load(path: str) -> Network:
    """Return what the function ``network`` of a Python file gives: net, inputs, labels and loss."""
    if not Path(path).is_file():
        raise UsageError(f"{path} is not there; name a Python file with a function network()")
    sys.path.insert(0, str(Path(path).resolve().parent))  # for what it imports, as where it is run itself
    function = runpy.run_path(path).get("network")
    if not callable(function):
        raise UsageError(f"{path} has no function network(); it returns a net, its inputs, its labels and its loss")
    net, inputs, labels, loss = function()
    return net, inputs, labels, loss


def training_step(network: Network, mode: str, optimizer: str) -> Callable[[Callable[[str], None]], None]:
    """Return a function that runs a step, and calls its argument with the name of each section that begins."""
    net, inputs, labels, loss = network
    inputs, labels = ([array.as_in_context(CTX) for array in arrays] for arrays in (inputs, labels))
    params = net.collect_params()
    params.initialize(ctx=CTX)  # those that the file left to us
    params.reset_ctx(CTX)
    if mode != "float32":
        mxmp.gluon.convert(net, mode)
    net.hybridize(static_alloc=True, static_shape=True)
    options = dict(OPTIONS.get(optimizer, {}))
    trainer: Any = (gluon if mode == "float32" else mxmp.gluon).Trainer(params, optimizer, options)
    scaled = contextlib.nullcontext if mode == "float32" else trainer.scale_loss

    def run(begin: Callable[[str], None]) -> None:
        begin("forward")
        with autograd.record():
            outputs = net(*inputs)
            losses = loss(*(outputs if isinstance(outputs, (list, tuple)) else [outputs]), *labels)
            with scaled(losses) as scaled_losses:
                begin("backward")
                autograd.backward(scaled_losses)
        begin("update")
        trainer.step(len(inputs[0]))

    return run


def _one_line(error: Exception) -> str:
    """Return the kind of an error and the first line of what it says."""
    if isinstance(error, mx.MXNetError):
        return f"MXNetError: {mxnet_reason(error)}"
    return ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])


def _begin_section(name: str) -> None:
    mx.nd.waitall()
    control.mark(name)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except (UsageError, MxmpError) as error:
        raise SystemExit(f"mxmp: {error}") from error
    except Exception as error:
        raise SystemExit(f"mxmp: {sys.argv[1]} fails with {_one_line(error)}") from error
