"""Random networks of tiny tensors, valid for MXNet, for properties that must hold for any network."""

from __future__ import annotations

import json
from typing import Any, Dict, NamedTuple

import mxnet as mx
import numpy as np
from hypothesis import strategies as st

STEPS, ROWS, WIDTH = 2, 3, 4
INPUTS = {"rows": (ROWS, WIDTH), "sequence": (STEPS, ROWS, WIDTH), "image": (2, WIDTH, 4, 4), "ids": (ROWS,)}
TABLE = (5, WIDTH)


class Network(NamedTuple):
    """A random network.

    Attributes:
        symbol: Its symbol.
        inputs: Values of its inputs by name, float32 arrays.
        params: Values of its parameters and auxiliary states, likewise.
    """

    symbol: Any
    inputs: Dict[str, np.ndarray]
    params: Dict[str, np.ndarray]

    def __repr__(self):
        """Return the graph, one line per node, for hypothesis to show."""
        graph = json.loads(self.symbol.tojson(remove_amp_cast=False))
        lines = [
            f"{i}: {n['name']} = {n['op']}({[tuple(e[:2]) for e in n['inputs']]}) {n.get('attrs', '')}"
            for i, n in enumerate(graph["nodes"])
        ]
        return "\n".join([*lines, f"return {[tuple(head[:2]) for head in graph['heads']]}"])

    def values(self):
        """Return the values of all variables."""
        return {**self.inputs, **self.params}


class _Tensor(NamedTuple):
    symbol: Any
    shape: tuple


_KINDS = []


def _kind(ndim=None):
    """Register a way to go on from a tensor of a number of dimensions, any if None."""

    def register(function):
        _KINDS.append((ndim, function))
        return function

    return register


class _Builder:
    """What has been built so far: tensors to go on from, weights that may be shared, values of variables."""

    def __init__(self, seed, duplicates):
        self.rng = np.random.RandomState(seed)
        self.values = {}
        self.count = 0
        self.duplicates = duplicates
        self.weights = []
        self.tensors = [_Tensor(mx.sym.var(name), shape) for name, shape in INPUTS.items() if name != "ids"]
        self.ids = mx.sym.var("ids")
        self.extra_heads = []

    def name(self):
        """Return a name for the next operator; MXNet does not require it to be unique."""
        self.count += 1
        return "twin" if self.duplicates and self.count % 3 == 0 else f"node{self.count}"

    def param(self, shape, share=False, kind="weight", low=None):
        """Return a parameter, one that exists already if it may be shared."""
        for weight in self.weights if share else ():
            if weight.shape == shape:
                return weight.symbol
        self.count += 1
        name = f"param{self.count}_{kind}"
        values = self.rng.uniform(low, 1.5, shape) if low else self.rng.randn(*shape) / np.sqrt(np.prod(shape[1:]))
        self.values[name] = values.astype(np.float32)
        weight = _Tensor(mx.sym.var(name), shape)
        if kind == "weight":
            self.weights.append(weight)
        return weight.symbol

    def pick(self, number, ndim=None, shape=None):
        """Return a tensor of a number of dimensions or of a shape."""
        found = [t for t in self.tensors if ndim in (None, len(t.shape)) and shape in (None, t.shape)]
        return found[number % len(found)]

    def step(self, kind, first, second):
        ndim, function = _KINDS[kind]
        x = self.pick(first, ndim)
        self.tensors.extend(_Tensor(*each) for each in function(self, x.symbol, x.shape, second))


# Elementwise, for any number of dimensions.


@_kind()
def _function(b, x, shape, number):
    names = ("relu", "tanh", "sigmoid", "abs", "square", "BlockGrad", "identity")
    return [(getattr(mx.sym, names[number % len(names)])(x, name=b.name()), shape)]


@_kind()
def _activation(b, x, shape, number):
    return [(mx.sym.Activation(x, act_type=("relu", "softrelu", "tanh")[number % 3], name=b.name()), shape)]


@_kind()
def _safe_exp(b, x, shape, number):
    return [(mx.sym.exp(mx.sym.tanh(x, name=b.name()), name=b.name()), shape)]


@_kind()
def _safe_log_or_root(b, x, shape, number):
    positive = mx.sym._internal._plus_scalar(mx.sym.abs(x, name=b.name()), scalar=1.0, name=b.name())
    return [((mx.sym.log if number % 2 else mx.sym.sqrt)(positive, name=b.name()), shape)]


@_kind()
def _scalar(b, x, shape, number):
    names = ("_plus_scalar", "_mul_scalar", "_rminus_scalar", "_maximum_scalar")
    scalar = (0.3, -1.7, 1e-9, 2.0)[number // 4 % 4]
    return [(getattr(mx.sym._internal, names[number % 4])(x, scalar=scalar, name=b.name()), shape)]


@_kind()
def _clip(b, x, shape, number):
    return [(mx.sym.clip(x, a_min=-0.7, a_max=1.1 + number, name=b.name()), shape)]


@_kind()
def _two(b, x, shape, number):
    names = ("elemwise_add", "elemwise_sub", "elemwise_mul", "broadcast_mul", "add_n")
    other = b.pick(number, shape=shape).symbol
    return [(getattr(mx.sym, names[number % len(names)])(x, other, name=b.name()), shape)]


@_kind()
def _divide(b, x, shape, number):
    other = mx.sym.abs(b.pick(number, shape=shape).symbol, name=b.name())
    other = mx.sym._internal._plus_scalar(other, scalar=0.5, name=b.name())
    return [(mx.sym.broadcast_div(x, other, name=b.name()), shape)]


@_kind()
def _softmax(b, x, shape, number):
    return [((mx.sym.log_softmax if number % 3 == 0 else mx.sym.softmax)(x, axis=-1, name=b.name()), shape)]


@_kind()
def _reduce(b, x, shape, number):
    function = (mx.sym.mean, mx.sym.sum, mx.sym.max)[number % 3]
    reduced = function(x, axis=len(shape) - 1, keepdims=True, name=b.name())
    return [(reduced, (*shape[:-1], 1)), (mx.sym.broadcast_add(x, reduced, name=b.name()), shape)]


@_kind()
def _select(b, x, shape, number):
    condition = b.param(shape, kind="condition")
    other = b.pick(number, shape=shape).symbol
    return [(mx.sym.where(condition, x, other, name=b.name()), shape)]


# Dtypes of the network's own.


@_kind()
def _own_cast(b, x, shape, number):
    there = mx.sym.Cast(x, dtype=("float16", "float32", "float64")[number % 3], name=b.name())
    return [(mx.sym.Cast(there, dtype="float32", name=b.name()), shape)]


@_kind(2)
def _float64_branch(b, x, shape, number):
    wide = mx.sym.Cast(x, dtype="float64", name=b.name())
    weight = mx.sym.Cast(b.param((WIDTH, shape[1]), share=number % 2 == 0), dtype="float64", name=b.name())
    out = mx.sym.FullyConnected(wide, weight, no_bias=True, num_hidden=WIDTH, name=b.name())
    if number % 3 == 0:
        b.extra_heads.append(out)
    return [(mx.sym.Cast(out, dtype="float32", name=b.name()), (shape[0], WIDTH))]


@_kind(2)
def _integer_branch(b, x, shape, number):
    count = mx.sym._internal._plus_scalar(mx.sym.Cast(b.ids, dtype="int32", name=b.name()), scalar=1, name=b.name())
    if number % 2:
        b.extra_heads.append(count)
    table = b.param(TABLE, share=True)
    rows = mx.sym.Embedding(count, table, input_dim=TABLE[0], output_dim=TABLE[1], name=b.name())
    return [(rows, (ROWS, WIDTH))]


# Products.


@_kind(2)
def _fully_connected(b, x, shape, number):
    hidden = (WIDTH, TABLE[0])[number % 2]
    weight = b.param((hidden, shape[1]), share=number % 3 > 0)
    if number % 4:
        out = mx.sym.FullyConnected(x, weight, no_bias=True, num_hidden=hidden, name=b.name())
    else:
        bias = b.param((hidden,), kind="bias")
        out = mx.sym.FullyConnected(x, weight, bias, num_hidden=hidden, name=b.name())
    return [(out, (shape[0], hidden))]


@_kind(2)
def _tied_embedding(b, x, shape, number):
    table = b.param(TABLE, share=True)
    rows = mx.sym.Embedding(b.ids, table, input_dim=TABLE[0], output_dim=TABLE[1], name=b.name())
    return [(rows, (ROWS, WIDTH))]


@_kind(2)
def _dot(b, x, shape, number):
    other = b.pick(number, shape=shape).symbol
    return [(mx.sym.dot(x, other, transpose_b=True, name=b.name()), (shape[0], shape[0]))]


@_kind(3)
def _attention(b, x, shape, number):
    other = b.pick(number, shape=shape).symbol
    scores = mx.sym.batch_dot(x, other, transpose_b=True, name=b.name())
    weights = mx.sym.softmax(scores, axis=-1, name=b.name())
    return [(mx.sym.batch_dot(weights, other, name=b.name()), shape), (scores, (*shape[:2], shape[1]))]


@_kind(3)
def _dense(b, x, shape, number):
    weight = b.param((WIDTH, shape[2]), share=number % 2 == 0)
    out = mx.sym.FullyConnected(x, weight, no_bias=True, num_hidden=WIDTH, flatten=False, name=b.name())
    return [(out, (*shape[:2], WIDTH))]


@_kind(4)
def _convolution(b, x, shape, number):
    kernel = 1 if min(shape[2:]) < 3 else (1, 3)[number % 2]
    weight = b.param((WIDTH, shape[1], kernel, kernel), share=number % 3 == 0)
    size = {"kernel": (kernel, kernel), "pad": (kernel // 2,) * 2, "num_filter": WIDTH}
    out = mx.sym.Convolution(x, weight, no_bias=True, name=b.name(), **size)
    return [(out, (shape[0], WIDTH, *shape[2:]))]


# Layers.


@_kind(4)
def _batch_norm(b, x, shape, number):
    column = (shape[1],)
    params = [b.param(column, kind=kind, low=0.5) for kind in ("gamma", "beta", "mean", "var")]
    return [(mx.sym.BatchNorm(x, *params, fix_gamma=False, eps=1e-3, name=b.name()), shape)]


@_kind()
def _layer_norm(b, x, shape, number):
    gamma, beta = (b.param((shape[-1],), kind=kind, low=0.5) for kind in ("gamma", "beta"))
    return [(mx.sym.LayerNorm(x, gamma, beta, axis=-1, eps=1e-2, name=b.name()), shape)]


@_kind(4)
def _pooling(b, x, shape, number):
    kind = ("max", "avg")[number % 2]
    if number % 3 == 0:
        return [(mx.sym.Pooling(x, kernel=(1, 1), global_pool=True, pool_type=kind, name=b.name()), (*shape[:2], 1, 1))]
    if min(shape[2:]) < 2:
        return []
    out = mx.sym.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type=kind, name=b.name())
    return [(out, (*shape[:2], shape[2] // 2, shape[3] // 2))]


@_kind(3)
def _loop(b, x, shape, number):
    """A recurrent layer whose body reads an outer weight, and gives several things."""
    if b.duplicates:
        return []  # MXNet wants what enters a body to have unique names
    weights = [b.param((shape[2], shape[2]), share=number % 2 == 0) for _ in range(2)]
    begin = mx.sym.slice_axis(x, axis=0, begin=0, end=1, name=b.name())
    begin = mx.sym.Reshape(begin, shape=(shape[1], shape[2]), name=b.name())
    names = [b.name() for _ in range(6)]

    def body(data, state):
        size = {"no_bias": True, "num_hidden": shape[2]}
        hidden = [mx.sym.FullyConnected(d, w, name=n, **size) for d, w, n in zip((data, state), weights, names)]
        total = mx.sym.elemwise_add(*hidden, name=names[2])
        new = mx.sym.tanh(total, name=names[3])
        out = (total, new, mx.sym.softmax(total, axis=-1, name=names[4]), data)[number % 4]
        return mx.sym.elemwise_add(out, new, name=names[5]), new

    outputs, state = mx.sym.contrib.foreach(body, x, begin)
    return [(outputs, shape), (state, shape[1:])]


# Shapes.


@_kind()
def _transpose(b, x, shape, number):
    axes = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
    return [(mx.sym.transpose(x, axes=axes, name=b.name()), tuple(shape[axis] for axis in axes))]


@_kind()
def _flatten(b, x, shape, number):
    return [(mx.sym.Flatten(x, name=b.name()), (shape[0], int(np.prod(shape[1:]))))]


@_kind()
def _join(b, x, shape, number):
    other = b.pick(number, shape=shape).symbol
    if number % 2 and len(shape) < 4:
        return [(mx.sym.stack(x, other, axis=0, name=b.name()), (2, *shape))]
    return [(mx.sym.Concat(x, other, dim=1, name=b.name()), (shape[0], 2 * shape[1], *shape[2:]))]


@_kind()
def _split(b, x, shape, number):
    axis = next((axis for axis, size in enumerate(shape) if axis and size % 2 == 0), None)
    if axis is None:
        return []
    half = tuple(size // 2 if i == axis else size for i, size in enumerate(shape))
    parts = mx.sym.SliceChannel(x, num_outputs=2, axis=axis, name=b.name())
    return [(parts[0], half), (parts[1], half)]


@_kind()
def _slice(b, x, shape, number):
    out = mx.sym.slice_axis(x, axis=1, begin=0, end=max(1, shape[1] - 1), name=b.name())
    return [(out, (shape[0], max(1, shape[1] - 1), *shape[2:]))]


_PRODUCTS = [i for i, (_, kind) in enumerate(_KINDS) if kind in (_fully_connected, _attention, _convolution, _dot)]
_NUMBER = st.integers(0, 23)
_KIND = st.sampled_from([*range(len(_KINDS)), *2 * _PRODUCTS])
_STEPS = st.lists(st.tuples(_KIND, _NUMBER, _NUMBER), min_size=6, max_size=16)


@st.composite
def networks(draw):
    """Return a random network."""
    b = _Builder(draw(st.integers(0, 2**16)), duplicates=draw(st.integers(0, 7)) == 7)
    with mx.name.NameManager():  # loops take their names from it
        for kind, first, second in draw(_STEPS):
            b.step(kind, -1 - first % 4, second)  # from the newest on, so that graphs are deep
    others = draw(st.lists(_NUMBER, max_size=2))  # among them inputs, and what others read
    heads = [
        *(tensor.symbol for tensor in b.tensors[-2:]),
        *(b.pick(number).symbol for number in others),
        *b.extra_heads,
    ]
    if draw(st.integers(0, 7)) == 7:
        heads.append(mx.sym.Cast(b.tensors[0].symbol, dtype="float16", name=b.name()))
    symbol = mx.sym.Group(heads)
    values = {name: b.rng.randn(*shape).astype(np.float32) for name, shape in INPUTS.items()}
    values["ids"] = b.rng.randint(0, TABLE[0] - 1, INPUTS["ids"]).astype(np.float32)
    used = symbol.list_inputs()
    return Network(
        symbol,
        {name: values[name] for name in used if name in values},
        {name: b.values[name] for name in used if name in b.values},
    )
