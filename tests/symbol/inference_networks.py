"""Networks to prepare for inference, values for them, and their results in the dtype of these values."""

from __future__ import annotations

from typing import Any, Dict, NamedTuple

import mxnet as mx
import numpy as np


class Network(NamedTuple):
    """A symbol with the values of its inputs, its arguments and its auxiliary states, as numpy arrays."""

    symbol: Any
    inputs: Dict[str, np.ndarray]
    args: Dict[str, np.ndarray]
    aux: Dict[str, np.ndarray]

    @property
    def shapes(self):
        """The shapes of the inputs."""
        return {name: value.shape for name, value in self.inputs.items()}

    def params(self, dtype="float32"):
        """Return arguments and auxiliary states as NDArrays."""
        arrays = ({name: mx.nd.array(v, dtype=dtype) for name, v in found.items()} for found in (self.args, self.aux))
        return tuple(arrays)

    def run(self, dtype="float32"):
        """Return the outputs as ``run`` does."""
        return run(self.symbol, self.inputs, self.args, self.aux, dtype)


def fill(symbol, shapes, seed=0):
    """Return a network with random parameters, every kind of BatchNorm's among them; signals keep their size."""
    rng = np.random.default_rng(seed)
    args, _, aux = symbol.infer_shape(**shapes)
    values = {name: _draw(rng, name, shape) for name, shape in zip(symbol.list_arguments(), args)}
    states = {name: _draw(rng, name, shape) for name, shape in zip(symbol.list_auxiliary_states(), aux)}
    return Network(symbol, {name: values.pop(name) for name in shapes}, values, states)


def _draw(rng, name, shape):
    if name.endswith(("var", "gamma")):
        return rng.uniform(*((0.25, 4) if name.endswith("var") else (-1.5, 1.5)), shape).astype(np.float32)
    spread = np.sqrt(2 / max(1, int(np.prod(shape[1:])))) if name.endswith("weight") else 0.5
    return rng.standard_normal(shape, np.float32) * np.float32(spread)


def run(symbol, inputs, args, aux, dtype="float32"):
    """Return a symbol's outputs in float64, computed without MXNet's subgraph backend; arrays of numpy count as dtype."""
    given = {**inputs, **args, **aux}
    arrays = [v if isinstance(v, mx.nd.NDArray) else mx.nd.array(v, dtype=dtype) for v in map(given.get, symbol.list_inputs())]
    results = mx.nd.CachedOp(symbol)(*arrays)
    return [each.asnumpy().astype(np.float64) for each in (results if isinstance(results, list) else [results])]
