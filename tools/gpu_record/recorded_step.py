"""Runs training steps of a network under the recorder, as `step` asks: network, mode, shapes, optimizer.

It warms up with ten steps, in which MXNet allocates, fuses and tunes, and mxmp compares weights with their masters, and
marks the next: forward, backward, update.
"""

from __future__ import annotations

import contextlib
import json
import runpy
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

import mxmp  # isort: skip  # before MXNet, which needs it on a new numpy or Python
import mxnet as mx
from mxnet import autograd, gluon

import symbols
from mxmp.errors import MxmpError, mxnet_reason
from mxmp.train.step import COMPARED_STEPS
from tools.gpu_record import control

CTX = mx.gpu(0)
OPTIONS: Dict[str, Dict[str, float]] = {"sgd": {"learning_rate": 0.1, "momentum": 0.9, "wd": 1e-4}}
FUNCTION = "network"  # of a user's file
Shapes = Mapping[str, Tuple[int, ...]]
Network = Tuple[Any, Sequence[Any], Sequence[Any], Callable[..., Any]]  # net, inputs, labels, loss
Begin = Callable[[str], None]
Step = Callable[[Begin], None]


class UsageError(Exception):
    """What was asked for does not exist or does not fit; the message says what to do."""


def main(network: str, mode: str, shapes: str, optimizer: str) -> None:
    """Run the steps."""
    given = {name: tuple(shape) for name, shape in json.loads(shapes).items()}
    options = OPTIONS.get(optimizer, {})
    known = sorted(mx.optimizer.Optimizer.opt_registry)
    if optimizer.lower() not in known:
        raise UsageError(f"unknown optimizer {optimizer!r}; expected one of {', '.join(known)}")
    if network.endswith(".py"):
        if given:
            raise UsageError(f"--shape {next(iter(given))}: {network} makes its inputs itself; leave --shape out")
        run = gluon_step(load(network), mode, optimizer, options)
    else:
        run = module_step(network, given, mode, optimizer, options)
    control.deliver(1.0)  # a finite check finds all gradients finite
    for _ in range(COMPARED_STEPS):
        run(lambda section: None)
    run(_begin_section)
    _begin_section("end")


def load(path: str) -> Network:
    """Return what the function ``network`` of a Python file gives: net, inputs, labels and loss."""
    if not Path(path).is_file():
        raise UsageError(f"{path} is not there; name a Python file, or a network of symbols")
    sys.path.insert(0, str(Path(path).resolve().parent))  # for what it imports, as where it is run itself
    try:
        function = runpy.run_path(path).get(FUNCTION)
        found = function() if callable(function) else None
    except Exception as error:
        raise UsageError(f"{path} fails with {_one_line(error)}") from error
    if not callable(function):
        raise UsageError(f"{path} has no function {FUNCTION}(); it returns a net, its inputs, its labels and its loss")
    if not isinstance(found, tuple) or len(found) != 4:
        what = f"{len(found)} values" if isinstance(found, tuple) else f"a {type(found).__name__}"
        raise UsageError(f"{FUNCTION}() of {path} returns {what}; expected (net, inputs, labels, loss)")
    for what, arrays in zip(("inputs", "labels"), found[1:3]):
        if not isinstance(arrays, (list, tuple)) or not all(isinstance(each, mx.nd.NDArray) for each in arrays):
            raise UsageError(f"the {what} that {FUNCTION}() of {path} returns are no list of NDArrays")
    return found


def gluon_step(network: Network, mode: str, optimizer: str, options: Mapping[str, float]) -> Step:
    """Return a function that runs a step of a Gluon net."""
    net, inputs, labels, loss = network
    inputs, labels = ([array.as_in_context(CTX) for array in arrays] for arrays in (inputs, labels))
    params = net.collect_params()
    params.initialize(ctx=CTX)  # those that the file left to us
    params.reset_ctx(CTX)
    if mode != "float32":
        mxmp.gluon.convert(net, mode)
    net.hybridize(static_alloc=True, static_shape=True)
    trainer: Any = (gluon if mode == "float32" else mxmp.gluon).Trainer(params, optimizer, dict(options))
    scaled = contextlib.nullcontext if mode == "float32" else trainer.scale_loss

    def run(begin: Begin) -> None:
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


def module_step(name: str, shapes: Shapes, mode: str, optimizer: str, options: Mapping[str, float]) -> Step:
    """Return a function that runs a step of one of the networks of `symbols`, as a Module."""
    try:
        symbol = symbols.get_symbol(name)
    except ValueError as error:
        raise UsageError(str(error)) from error
    data, labels = input_shapes(symbol, name, shapes)
    names: Dict[str, Any] = {"data_names": list(data), "label_names": list(labels), "context": CTX}
    module = mx.mod.Module(symbol, **names) if mode == "float32" else mxmp.module.Module(symbol, policy=mode, **names)
    module.bind(list(data.items()), list(labels.items()))
    module.init_params(mx.init.Normal(0.01))
    module.init_optimizer(optimizer=optimizer, optimizer_params=dict(options))
    batch = mx.io.DataBatch(*([mx.nd.ones(shape) for shape in part.values()] for part in (data, labels)))

    def run(begin: Begin) -> None:
        begin("forward")
        module.forward(batch, is_train=True)
        begin("backward")
        module.backward()
        begin("update")
        module.update()

    return run


def input_shapes(symbol: Any, name: str, given: Shapes) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """Return the shapes of a symbol's data and of its labels, by name; what was not given is inferred."""
    arguments = symbol.list_arguments()
    unknown = sorted(set(given) - set(arguments))
    if unknown:
        raise UsageError(f"{name} has no input {', '.join(unknown)}; its inputs are {', '.join(_inputs(symbol))}")
    reason = ""
    try:
        inferred = dict(zip(arguments, symbol.infer_shape_partial(**given)[0]))
    except mx.MXNetError as error:  # some operators fail where the shape of their input is unknown
        inferred, reason = {}, f" (MXNet: {mxnet_reason(error)})"
    inputs = {one: given.get(one) or inferred.get(one, ()) for one in _inputs(symbol)}
    missing = [one for one, shape in inputs.items() if not shape or min(shape) < 1]
    if missing:
        which = ", ".join(f"{one}={'x'.join(map(str, shape))}" for one, shape in given.items())
        found = f"{', '.join(missing)} is not known{f' with {which}{reason}' if which else ''}"
        how = f"give it, batch first, as --shape {missing[0]}=SIZE,SIZE,..., which may be repeated"
        raise UsageError(f"{name}: the shape of {found}; {how}")
    labels = {one: shape for one, shape in inputs.items() if one.endswith("label")}
    return {one: shape for one, shape in inputs.items() if one not in labels}, labels


def _inputs(symbol: Any) -> List[str]:
    """Return the arguments of a network of `symbols` that are no parameters: those without an ending of one."""
    endings = ("_weight", "_bias", "_gamma", "_beta", "_parameters", "_scale")
    return [name for name in symbol.list_arguments() if not name.endswith(endings)]


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
