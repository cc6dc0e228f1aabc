"""Running error analysis: a symbol evaluated in numpy with a bound on the error of each value.

A ``Ball`` is what a tensor would be in exact arithmetic, with a radius within which the computed
tensor must lie. Each operator widens the radius by what it makes of the radii of its inputs, and by
its own rounding: 2**-11 relative for a float16 result, 2**-24 for each float32 operation. So the
bound is no tolerance: it follows from the graph (Higham, "Accuracy and Stability of Numerical
Algorithms", 2nd edition, section 3.3). Casts round, and are otherwise the identity, so that the
centres are those of the network before its conversion.

Nothing of mxmp or MXNet takes part: the graph is read from the JSON.
"""

from __future__ import annotations

import ast
import json
from typing import NamedTuple

import numpy as np

from tests.numpy_layers import convolution

# Unit roundoff and half of the smallest subnormal.
ROUNDING = {"float16": (2.0**-11, 2.0**-25), "float32": (2.0**-24, 2.0**-150), "float64": (2.0**-53, 0.0)}
FLOAT16_MAX = 65504.0
LIBRARY = 8  # units in the last place within which exp, tanh and their like are right, generously


class Ball(NamedTuple):
    """A tensor: its exact value and the largest error of each element, both float64, and its dtype."""

    value: np.ndarray
    error: np.ndarray
    dtype: str

    def size(self):
        """Return the largest magnitude that the computed elements can have."""
        return np.abs(self.value) + self.error


def ball(values, dtype="float32"):
    """Return an array that is given, so without error."""
    exact = np.asarray(values, np.float64)
    return Ball(exact, np.zeros_like(exact), dtype)


def evaluate(text, inputs):
    """Return the balls of a symbol's outputs.

    Args:
        text: The symbol's JSON, casts included.
        inputs: Balls of all variables by name.
    """
    graph = json.loads(text)
    names = [node["name"] for node in graph["nodes"] if node["op"] == "null"]
    return _run(graph, [inputs[name] for name in names])


def _run(graph, inputs):
    entries, given = {}, iter(inputs)
    for position, node in enumerate(graph["nodes"]):
        if node["op"] == "null":
            entries[position, 0] = next(given)
            continue
        read = [entries[entry[0], entry[1]] for entry in node["inputs"]]
        attrs = {key: _value(text) for key, text in node.get("attrs", {}).items()}
        results = _foreach(attrs, *node["subgraphs"], read) if node["op"] == "_foreach" else _OPERATORS[node["op"]](attrs, *read)
        for index, result in enumerate(results if isinstance(results, list) else [results]):
            entries[position, index] = result
    return [entries[head[0], head[1]] for head in graph["heads"]]


def _foreach(attrs, body, read):
    data, states, remain = (attrs[key] for key in ("in_data_locs", "in_state_locs", "remain_locs"))
    places = [*data, *states, *remain]
    sequences, state = read[: len(data)], read[len(data) : len(data) + len(states)]
    steps = []
    for step in range(len(sequences[0].value)):
        now = [_map(lambda a, step=step: a[step], each) for each in sequences]
        values = dict(zip(places, [*now, *state, *read[len(data) + len(states) :]]))
        results = _run(body, [values[place] for place in sorted(values)])
        assert [r.dtype for r in results[attrs["num_out_data"] :]] == [s.dtype for s in state]  # loop state
        outputs, state = results[: attrs["num_out_data"]], results[attrs["num_out_data"] :]
        steps.append(outputs)
    return [_gather(np.stack, column) for column in zip(*steps)] + state


def _value(text):
    """Return an attribute as a Python value."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return {"true": True, "false": False}.get(text, text)


# What the operators are made of.


def _rounded(value, error, dtype, count=1):
    """Return a ball with the error of ``count`` float32 operations and of its storage added."""
    size = np.abs(value) + error
    unit, tiny = ROUNDING["float64" if dtype == "float64" else "float32"]
    error = error + count * (unit * size + tiny)
    if dtype == "float16":
        unit, tiny = ROUNDING["float16"]
        error = error + unit * (np.abs(value) + error) + tiny
        error = np.where(np.abs(value) + error < FLOAT16_MAX, error, np.inf)  # may overflow: nothing is known
    return Ball(value, error, dtype)


def _map(function, x):
    """Apply what moves elements, or selects them so that an error never grows."""
    return Ball(function(x.value), function(x.error), x.dtype)


def _gather(function, balls):
    assert len({each.dtype for each in balls}) == 1
    return Ball(function([b.value for b in balls]), function([b.error for b in balls]), balls[0].dtype)


def _linear(function, *factors, count=1):
    """Apply what is linear in each factor: its errors are bounded by the same function of magnitudes."""
    value = function(*(f.value for f in factors))
    largest = function(*(f.size() for f in factors))
    spread = largest - function(*(np.abs(f.value) for f in factors))
    dtype = factors[0].dtype
    assert all(f.dtype == dtype for f in factors)
    unit = ROUNDING["float64" if dtype == "float64" else "float32"][0]
    # A float32 sum of n products is off by at most n units of the sum of magnitudes.
    return _rounded(value, np.maximum(spread, 0) + (count + 2) * unit * largest, dtype)


def _monotone(function):
    """Return an operator that applies a monotone function."""

    def operator(attrs, x):
        value = function(x.value)
        error = np.maximum(function(x.value + x.error) - value, value - function(x.value - x.error))
        return _rounded(value, error, x.dtype, LIBRARY)

    return operator


def _add(attrs, x, y):
    assert x.dtype == y.dtype
    return _rounded(x.value + y.value, x.error + y.error, x.dtype)


def _mul(attrs, x, y):
    return _linear(np.multiply, x, y)


def _scalar(value, x):
    """Return a node's scalar, which a float16 kernel rounds to float16."""
    return _rounded(np.float64(value), 0.0, x.dtype)


def _with_scalar(operator):
    return lambda attrs, x: operator(attrs, x, _scalar(attrs["scalar"], x))


def _clip(attrs, x):
    low, high = (_scalar(attrs[key], x) for key in ("a_min", "a_max"))
    error = np.maximum(x.error, max(low.error, high.error))
    return Ball(np.clip(x.value, low.value, high.value), error, x.dtype)


# The operators.


def _cast(attrs, x):
    dtype = attrs["dtype"]
    if dtype.startswith(("int", "uint")):
        assert not x.error.any()  # truncation is not continuous: exact values alone
        return ball(np.trunc(x.value), dtype)
    widens = (x.dtype, dtype) in (("float16", "float32"), ("float16", "float64"), ("float32", "float64"))
    return (
        Ball(x.value, x.error, dtype)
        if widens or x.dtype == dtype
        else _rounded(x.value, x.error, dtype, 0 if dtype == "float16" else 1)
    )


def _fully_connected(attrs, x, weight, bias=None):
    flat = _map(lambda a: a.reshape(len(a), -1), x) if attrs.get("flatten", True) else x
    out = _linear(lambda a, w: a @ w.T, flat, weight, count=weight.value.shape[1])
    # The bias is added in float32, before the one rounding; a second one only widens the bound.
    return out if bias is None else _add(attrs, out, bias)


def _convolution(attrs, x, weight, bias=None):
    options = {"stride": attrs.get("stride") or (1, 1), "pad": attrs.get("pad") or (0, 0)}
    count = int(np.prod(weight.value.shape[1:]))
    out = _linear(
        lambda a, w: convolution(a, w, groups=attrs.get("num_group", 1), **options)[0], x, weight, count=count
    )
    return out if bias is None else _add(attrs, out, _map(lambda b: b[:, None, None], bias))


def _batch_norm(attrs, x, gamma, beta, mean, var):
    column = (slice(None), *(None,) * (x.value.ndim - 2))
    slope = (gamma.value / np.sqrt(var.value + attrs["eps"]))[column]
    offset = beta.value[column] - mean.value[column] * slope
    # Computed as x * slope + offset or (x - mean) * slope + beta: float32 errors of either.
    own = (
        8
        * ROUNDING["float32"][0]
        * (np.abs(slope) * (x.size() + np.abs(mean.value[column])) + np.abs(beta.value[column]))
    )
    return _rounded(x.value * slope + offset, np.abs(slope) * x.error + own, x.dtype)


def _sum(attrs, x):
    count = int(np.prod(x.value.shape))
    return _linear(lambda a: a.sum(axis=attrs["axis"], keepdims=attrs.get("keepdims", False)), x, count=count)


def _softmax(attrs, x):
    axis = attrs.get("axis", -1)
    shifted = x.value - x.value.max(axis=axis, keepdims=True)
    value = np.exp(shifted) / np.exp(shifted).sum(axis=axis, keepdims=True)
    # If no input is off by more than d, no logarithm of an output is off by more than 2d.
    spread = 2 * x.error.max(axis=axis, keepdims=True)
    own = LIBRARY + x.value.shape[axis] + 2 * np.abs(shifted).max(axis=axis, keepdims=True)
    return _rounded(value, value * np.expm1(spread), attrs.get("dtype") or x.dtype, own)


def _embedding(attrs, indices, weight):
    rows = indices.value.astype(int)
    return _map(lambda a: a[rows], weight)


def _slice_channel(attrs, x):
    return [_map(lambda a, i=i: np.split(a, attrs["num_outputs"], attrs.get("axis", 1))[i], x) for i in range(attrs["num_outputs"])]


def _slice_axis(attrs, x):
    return _map(lambda a: np.take(a, range(attrs["begin"], attrs["end"] or a.shape[attrs["axis"]]), attrs["axis"]), x)


def _dot(attrs, x, y):
    flip = bool(attrs.get("transpose_b", False))
    return _linear(lambda a, b: a @ (b.swapaxes(-1, -2) if flip else b), x, y, count=x.value.shape[-1])


def _reshape(attrs, x):
    return _map(lambda a: a.reshape([a.shape[i] if n == 0 else n for i, n in enumerate(attrs["shape"])]), x)


_OPERATORS = {
    "Cast": _cast,
    "FullyConnected": _fully_connected,
    "Convolution": _convolution,
    "batch_dot": _dot,
    "BatchNorm": _batch_norm,
    "softmax": _softmax,
    "elemwise_add": _add,
    "elemwise_mul": _mul,
    "broadcast_add": _add,
    "broadcast_mul": _mul,
    "_plus_scalar": _with_scalar(_add),
    "_mul_scalar": _with_scalar(_mul),
    "clip": _clip,
    "relu": lambda attrs, x: Ball(np.maximum(x.value, 0), x.error, x.dtype),
    "tanh": _monotone(np.tanh),
    "abs": lambda attrs, x: Ball(np.abs(x.value), x.error, x.dtype),
    "exp": _monotone(np.exp),
    "square": lambda attrs, x: _mul(attrs, x, x),
    "Activation": _monotone(np.tanh),
    "sum": _sum,
    "Embedding": _embedding,
    "Concat": lambda attrs, *xs: _gather(lambda arrays: np.concatenate(arrays, attrs.get("dim", 1)), xs),
    "SliceChannel": _slice_channel,
    "slice_axis": _slice_axis,
    "transpose": lambda attrs, x: _map(lambda a: a.transpose(attrs["axes"]), x),
    "Reshape": _reshape,
    "Flatten": lambda attrs, x: _map(lambda a: a.reshape(len(a), -1), x),
    "BlockGrad": lambda attrs, x: x,
    "Dropout": lambda attrs, x: x,
}
