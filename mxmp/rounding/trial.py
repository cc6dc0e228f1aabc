"""Tries the library out: its operators against numpy, and within a network against MXNet's casts.

In the network they stand behind and before convolutions and a BatchNorm of 16 channels, whose arrays have a layout of
oneDNN, in place, with enough values for several threads, and add to a gradient.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Callable, Dict, List

import mxnet as mx
import numpy as np

from ..passes.emulate import ROUND, ROUND_FORWARD
from .library import load

_CHANNELS, _SIZE = 16, 32
_TOLERANCE = 2.0**-7  # of the largest value: sums in another order, then rounded to another float16


def check(library: str) -> None:
    """Load a library and raise unless its operators round right, forward and backward."""
    if not load(Path(library)):
        raise OSError(f"{library} cannot be loaded")
    check_values()
    for static in (False, True):
        check_network(static)


def check_values() -> None:
    """Raise unless all float16 values, slightly changed, are rounded as numpy does."""
    values = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    values = values[np.isfinite(values)].reshape(2, 31, 32, 32) * np.float32(1.0004)
    expected = _rounded(values)
    for op, wanted in ((ROUND, expected), (ROUND_FORWARD, values)):
        data = mx.nd.array(values)
        data.attach_grad()
        with mx.autograd.record():
            found = mx.nd.CachedOp(operator(op))(data)
        found.backward(mx.nd.array(values))
        np.testing.assert_array_equal(found.asnumpy(), expected)
        np.testing.assert_array_equal(data.grad.asnumpy(), wanted)


def check_network(static: bool) -> None:
    """Raise unless a network, with its memory allocated once or not, gives twice what it gives with casts."""
    inputs = _inputs()
    wanted = _steps(_network({ROUND: _cast, ROUND_FORWARD: _cast_forward}), inputs, static)
    found = _steps(_network({op: _operator_on(op) for op in (ROUND, ROUND_FORWARD)}), inputs, static)
    for name, value in found.items():
        error, size = np.abs(value - wanted[name]).max(), np.abs(wanted[name]).max()
        if not error <= _TOLERANCE * size:
            raise AssertionError(f"{name} is {error} off, of {size}")
    for name in ("output", "first"):  # which nothing but a rounding writes
        np.testing.assert_array_equal(found[name], _rounded(found[name]), err_msg=name)


def operator(op: str) -> Any:
    """Return the symbol of one of the operators, which reads the variable ``data``."""
    nodes = [
        {"op": "null", "name": "data", "inputs": []},
        {"op": op, "name": "rounded", "inputs": [[0, 0, 0]]},
    ]
    graph = {"nodes": nodes, "arg_nodes": [0], "node_row_ptr": [0, 1, 2], "heads": [[1, 0, 0]]}
    return mx.sym.load_json(json.dumps({**graph, "attrs": {"mxnet_version": ["int", 10901]}}))


def _network(rounding: Dict[str, Callable[[Any], Any]]) -> Any:
    """Return a residual block whose tensors are rounded, by operators or by what stands for them."""
    again, forward = rounding[ROUND], rounding[ROUND_FORWARD]

    def convolution(data: Any, name: str) -> Any:
        return mx.sym.Convolution(data, kernel=(3, 3), pad=(1, 1), num_filter=_CHANNELS, no_bias=True, name=name)

    conv = again(convolution(again(mx.sym.var("data")), "conv"))
    norm = forward(mx.sym.BatchNorm(conv, fix_gamma=False, name="norm"))
    total = again(mx.sym.elemwise_add(norm, again(convolution(conv, "beside"))))
    second = again(mx.sym.BatchNorm(mx.sym.tanh(total), fix_gamma=False, name="second"))
    return again(convolution(second, "last"))


def _inputs() -> Dict[str, np.ndarray]:
    """Return the network's inputs, and the gradient of its output as ``head``."""
    rng = np.random.RandomState(0)
    symbol = _network({ROUND: _cast, ROUND_FORWARD: _cast_forward})
    shape = (4, _CHANNELS, _SIZE, _SIZE)
    args, _, aux = symbol.infer_shape(data=shape)
    shapes = {**dict(zip(symbol.list_arguments(), args)), **dict(zip(symbol.list_auxiliary_states(), aux))}
    values = {name: rng.standard_normal(each) for name, each in shapes.items()}
    values.update((name, np.ones(shapes[name])) for name in shapes if name.endswith(("gamma", "var")))
    return {name: value.astype(np.float32) for name, value in {**values, "head": rng.standard_normal(shape)}.items()}


def _steps(symbol: Any, inputs: Dict[str, np.ndarray], static: bool) -> Dict[str, np.ndarray]:
    """Run a network forward and backward twice; return its output and gradients.

    That of ``data`` is added up; ``first`` is what it was after the first time.
    """
    flags: List[Any] = [("static_alloc", True), ("static_shape", True)] if static else []
    run, head = mx.nd.CachedOp(symbol, flags), mx.nd.array(inputs["head"])
    arrays = {name: mx.nd.array(inputs[name]) for name in symbol.list_inputs()}
    found = {}
    for name in symbol.list_arguments():
        arrays[name].attach_grad("add" if name == "data" else "write")
    for _ in range(2):
        with mx.autograd.record():
            output = run(*arrays.values())
        output.backward(head)
        found.setdefault("first", arrays["data"].grad.asnumpy())
    found.update((name, arrays[name].grad.asnumpy()) for name in symbol.list_arguments())
    return {**found, "output": output.asnumpy()}


def _rounded(values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return values.astype(np.float16).astype(np.float32)


def _cast(data: Any) -> Any:
    return mx.sym.Cast(mx.sym.Cast(data, dtype="float16"), dtype="float32")


def _cast_forward(data: Any) -> Any:
    return data + mx.sym.BlockGrad(_cast(data) - data)


def _operator_on(op: str) -> Callable[[Any], Any]:
    return lambda data: operator(op)(data=data)
