"""Networks to prepare for inference, values for them, and their results in the dtype of these values."""

from __future__ import annotations

from typing import Any, Dict, NamedTuple

import mxnet as mx
import numpy as np
from hypothesis import strategies as st


class Network(NamedTuple):
    """A symbol with the values of its inputs, its arguments and its auxiliary states, as numpy arrays."""

    symbol: Any
    inputs: Dict[str, np.ndarray]
    args: Dict[str, np.ndarray]
    aux: Dict[str, np.ndarray]

    def __repr__(self):
        """Return the graph for hypothesis to show."""
        return self.symbol.debug_str()

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


def _layer(draw, kind, name, x, shape, shared):
    """Return a layer, of a weight that another layer may have, and its shape."""
    groups, no_bias, flatten = draw(st.sampled_from((1, 2, 4))), draw(st.booleans()), draw(st.booleans())
    key = (kind, groups) if len(shape) == 4 and kind != "dense" else (shape[1:] if flatten else shape[-1:])
    weight = mx.sym.var(f"{name}_weight")
    if draw(st.integers(0, 3)) == 0:
        weight = shared.get(key, weight)
    shared[key] = weight
    options = {"no_bias": no_bias, "name": name}
    if len(shape) != 4 or kind == "dense":
        out = mx.sym.FullyConnected(x, weight, num_hidden=4, flatten=flatten, **options)
        return out, (shape[0], 4) if flatten else (*shape[:-1], 4)
    layer = mx.sym.Convolution if kind == "conv" else mx.sym.Deconvolution
    return layer(x, weight, num_filter=4, num_group=groups, kernel=(3, 3), pad=(1, 1), **options), shape


@st.composite
def networks(draw):
    """Return a small random network of layers, BatchNorms and dropout, some of whose weights are shared."""
    tensors, shared = [(mx.sym.var("data"), (2, 4, 5, 5))], {}
    for number in range(draw(st.integers(2, 8))):
        x, shape = tensors[draw(st.integers(max(0, len(tensors) - 3), len(tensors) - 1))]
        kind = draw(st.sampled_from(("conv", "conv", "deconv", "dense", "norm", "norm", "norm", "dropout", "relu", "add")))
        name = f"{kind}{number}"
        if kind in ("conv", "deconv", "dense"):
            x, shape = _layer(draw, kind, name, x, shape, shared)
        elif kind == "norm":
            options = {"axis": draw(st.sampled_from((1, 1, 1, -1))), "eps": draw(st.sampled_from((1e-5, 0.1)))}
            x = mx.sym.BatchNorm(x, fix_gamma=draw(st.booleans()), name=name, **options)[0]
        elif kind == "dropout":
            x = mx.sym.Dropout(x, p=0.5, axes=draw(st.sampled_from(((), (0,)))), name=name)
        elif kind == "relu":
            x = mx.sym.Activation(x, act_type="relu", name=name)
        else:
            x = mx.sym.elemwise_add(x, draw(st.sampled_from([t for t, size in tensors if size == shape])), name=name)
        tensors.append((x, shape))
    heads = draw(st.lists(st.integers(1, len(tensors) - 1), max_size=2))
    symbol = mx.sym.Group([tensors[i][0] for i in (*heads, len(tensors) - 1)])
    return fill(symbol, {"data": (2, 4, 5, 5)} if "data" in symbol.list_inputs() else {}, draw(st.integers(0, 99)))
