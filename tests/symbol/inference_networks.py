"""Networks to prepare for inference, values for them, and their results in the dtype of these values."""

from __future__ import annotations

from typing import Any, Dict, NamedTuple

import mxnet as mx
import numpy as np
from hypothesis import strategies as st
from mxnet.gluon.model_zoo import vision


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


def fill(symbol, shapes, seed=0):
    """Return a network with random parameters, every kind of BatchNorm's among them; signals keep their size."""
    rng = np.random.RandomState(seed)
    args, _, aux = symbol.infer_shape(**shapes)
    values = {name: _draw(rng, name, shape) for name, shape in zip(symbol.list_arguments(), args)}
    states = {name: _draw(rng, name, shape) for name, shape in zip(symbol.list_auxiliary_states(), aux)}
    return Network(symbol, {name: values.pop(name) for name in shapes}, values, states)


def _draw(rng, name, shape):
    if name.endswith("var"):
        return rng.uniform(0.25, 4, shape).astype(np.float32)
    if name.endswith("gamma"):
        return rng.uniform(-1.5, 1.5, shape).astype(np.float32)
    if name.endswith("weight"):
        fan_in = max(1, int(np.prod(shape[1:])))
        return (rng.randn(*shape) * np.sqrt(2 / fan_in)).astype(np.float32)
    return (rng.randn(*shape) * 0.5).astype(np.float32)


def run(symbol, inputs, args, aux, dtype="float32"):
    """Return a symbol's outputs in float64, computed without MXNet's subgraph backend; arrays of numpy count as dtype."""
    given = {**inputs, **args, **aux}
    arrays = [v if isinstance(v, mx.nd.NDArray) else mx.nd.array(v, dtype=dtype) for v in map(given.get, symbol.list_inputs())]
    results = mx.nd.CachedOp(symbol)(*arrays)
    return [each.asnumpy().astype(np.float64) for each in (results if isinstance(results, list) else [results])]


def zoo(name, size=32, seed=0, **kwargs):
    """Return a network of Gluon's model zoo with random parameters and statistics."""
    return fill(vision.get_model(name, classes=10, **kwargs)(mx.sym.var("data")), {"data": (2, 3, size, size)}, seed)


def error(results, exact):
    """Return the relative RMS error of results."""
    return np.sqrt(sum(np.sum((a - b) ** 2) for a, b in zip(results, exact)) / sum(np.sum(b**2) for b in exact))


@st.composite
def networks(draw):
    """Return a small random network of layers, BatchNorms and dropout, some of whose weights are shared."""
    tensors = [(mx.sym.var("data"), (2, 4, 5, 5))]
    shared = {}
    for number in range(draw(st.integers(2, 8))):
        x, shape = tensors[draw(st.integers(max(0, len(tensors) - 3), len(tensors) - 1))]
        kind = draw(st.sampled_from(("conv", "conv", "deconv", "dense", "norm", "norm", "norm", "dropout", "relu", "add")))
        tensors.append(_STEPS[kind](draw, f"{kind}{number}", x, shape, tensors, shared))
    heads = draw(st.lists(st.integers(1, len(tensors) - 1), max_size=2))
    symbol = mx.sym.Group([tensors[i][0] for i in (*heads, len(tensors) - 1)])
    return fill(symbol, {"data": (2, 4, 5, 5)} if "data" in symbol.list_inputs() else {}, draw(st.integers(0, 99)))


def _weight(draw, name, kind, shape, shared):
    if draw(st.integers(0, 3)) == 0 and (kind, shape) in shared:
        return shared[kind, shape]
    shared[kind, shape] = mx.sym.var(f"{name}_weight")
    return shared[kind, shape]


def _conv(draw, name, x, shape, tensors, shared):
    if len(shape) != 4:
        return _dense(draw, name, x, shape, tensors, shared)
    groups = draw(st.sampled_from((1, 2, 4)))
    weight = _weight(draw, name, "conv", (4, 4 // groups), shared)
    options = {"num_group": groups, "no_bias": draw(st.booleans()), "kernel": (3, 3), "pad": (1, 1)}
    return mx.sym.Convolution(x, weight, num_filter=4, name=name, **options), shape


def _deconv(draw, name, x, shape, tensors, shared):
    if len(shape) != 4:
        return _dense(draw, name, x, shape, tensors, shared)
    groups = draw(st.sampled_from((1, 2, 4)))
    weight = _weight(draw, name, "deconv", (4, 4 // groups), shared)
    options = {"num_group": groups, "no_bias": draw(st.booleans()), "kernel": (3, 3), "pad": (1, 1)}
    return mx.sym.Deconvolution(x, weight, num_filter=4, name=name, **options), shape


def _dense(draw, name, x, shape, tensors, shared):
    flatten = draw(st.booleans())
    width = int(np.prod(shape[1:])) if flatten else shape[-1]
    weight = _weight(draw, name, "dense", (4, width), shared)
    out = mx.sym.FullyConnected(
        x, weight, num_hidden=4, flatten=flatten, no_bias=draw(st.booleans()), name=name
    )
    return out, (shape[0], 4) if flatten else (*shape[:-1], 4)


def _norm(draw, name, x, shape, tensors, shared):
    axis = draw(st.sampled_from((1, 1, 1, -1)))
    options = {"fix_gamma": draw(st.booleans()), "eps": draw(st.sampled_from((1e-5, 1e-3, 0.1)))}
    return mx.sym.BatchNorm(x, axis=axis, name=name, **options)[0], shape


def _dropout(draw, name, x, shape, tensors, shared):
    return mx.sym.Dropout(x, p=0.5, axes=draw(st.sampled_from(((), (0,)))), name=name), shape


def _relu(draw, name, x, shape, tensors, shared):
    return mx.sym.Activation(x, act_type="relu", name=name), shape


def _add(draw, name, x, shape, tensors, shared):
    others = [other for other, found in tensors if found == shape]
    return mx.sym.elemwise_add(x, others[draw(st.integers(0, len(others) - 1))], name=name), shape


_STEPS = {
    "conv": _conv, "deconv": _deconv, "dense": _dense, "norm": _norm, "dropout": _dropout, "relu": _relu, "add": _add,
}  # fmt: skip
