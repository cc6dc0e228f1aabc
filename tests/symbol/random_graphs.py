"""Random networks of tiny tensors, valid for MXNet, for properties that must hold for any network."""

from __future__ import annotations

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
        """Return the graph for hypothesis to show."""
        return self.symbol.debug_str()

    def values(self):
        """Return the values of all variables."""
        return {**self.inputs, **self.params}


class _Names(mx.name.NameManager):
    """Names of operators; MXNet does not require them to be unique."""

    def __init__(self, duplicates):
        super().__init__()
        self.duplicates = duplicates
        self.count = 0

    def get(self, name, hint):
        self.count += 1
        return name or ("twin" if self.duplicates and self.count % 3 == 0 else f"{hint}{self.count}")


class _Tensor(NamedTuple):
    symbol: Any
    shape: tuple


class _Builder:
    """What has been built so far: tensors to go on from, weights that may be shared, values of variables."""

    def __init__(self, seed, duplicates):
        self.rng = np.random.RandomState(seed)
        self.values = {name: self.rng.randn(*shape) for name, shape in INPUTS.items()}
        self.values["ids"] = self.rng.randint(0, TABLE[0] - 1, INPUTS["ids"])
        self.duplicates = duplicates
        self.weights = []
        self.tensors = [_Tensor(mx.sym.var(name), shape) for name, shape in INPUTS.items() if name != "ids"]
        self.ids = mx.sym.var("ids")
        self.extra_heads = []

    def param(self, shape, share=False, kind="weight", low=None):
        """Return a parameter, one that exists already if it may be shared."""
        for weight in self.weights if share else ():
            if weight.shape == shape:
                return weight.symbol
        name = f"param{len(self.values)}_{kind}"
        spread = self.rng.randn(*shape) / np.sqrt(np.prod(shape[1:]))
        self.values[name] = self.rng.uniform(low, 1.5, shape) if low else spread
        weight = _Tensor(mx.sym.var(name), shape)
        self.weights += [weight] * (kind == "weight")
        return weight.symbol

    def pick(self, number, ndim=None, shape=None):
        """Return a tensor of a number of dimensions or of a shape."""
        found = [t for t in self.tensors if ndim in (None, len(t.shape)) and shape in (None, t.shape)]
        return found[number % len(found)]

    def step(self, kind, first, second):
        ndim, function = kind
        x = self.pick(first, ndim)
        self.tensors.extend(_Tensor(*each) for each in function(self, x.symbol, x.shape, second))


_KINDS = []


def _kind(ndim=None, weight=1):
    """Register a way to go on from a tensor of a number of dimensions, any if None."""

    def register(function):
        _KINDS.extend([(ndim, function)] * weight)
        return function

    return register


_ELEMENTWISE = (
    mx.sym.relu,
    mx.sym.tanh,
    mx.sym.abs,
    mx.sym.square,
    mx.sym.BlockGrad,
    mx.sym.Dropout,
    lambda x: mx.sym.Activation(x, act_type="tanh"),
    lambda x: mx.sym.exp(mx.sym.tanh(x)),
    lambda x: x + 0.3,
    lambda x: x * -1.7,
    lambda x: x + 1e-9,
    lambda x: mx.sym.clip(x, a_min=-0.7, a_max=2.1),
    lambda x: mx.sym.softmax(x, axis=-1),
    *(
        lambda x, dtype=dtype: mx.sym.Cast(mx.sym.Cast(x, dtype=dtype), dtype="float32")  # of the network's own
        for dtype in ("float16", "float32", "float64")
    ),
)
_OF_TWO = (mx.sym.elemwise_add, mx.sym.elemwise_mul, mx.sym.broadcast_mul)


@_kind(weight=8)
def _elementwise(b, x, shape, number):
    return [(_ELEMENTWISE[number % len(_ELEMENTWISE)](x), shape)]


@_kind(weight=2)
def _of_two(b, x, shape, number):
    return [(_OF_TWO[number % len(_OF_TWO)](x, b.pick(number, shape=shape).symbol), shape)]


@_kind()
def _reduce(b, x, shape, number):
    reduced = mx.sym.sum(x, axis=len(shape) - 1, keepdims=True)
    return [(reduced, (*shape[:-1], 1)), (mx.sym.broadcast_add(x, reduced), shape)]


@_kind(2)
def _float64_branch(b, x, shape, number):
    weight = mx.sym.Cast(b.param((WIDTH, shape[1]), share=number % 2 == 0), dtype="float64")
    out = mx.sym.FullyConnected(mx.sym.Cast(x, dtype="float64"), weight, no_bias=True, num_hidden=WIDTH)
    b.extra_heads += [out] * (number % 3 == 0)
    return [(mx.sym.Cast(out, dtype="float32"), (shape[0], WIDTH))]


@_kind(2, weight=2)
def _embedding(b, x, shape, number):
    """Of a table that other layers may share, at indices in float32 or computed in integers."""
    ids = mx.sym.Cast(b.ids, dtype="int32") + 1 if number % 2 else b.ids
    b.extra_heads += [ids] * (number % 4 == 1)
    return [(mx.sym.Embedding(ids, b.param(TABLE, share=True), input_dim=TABLE[0], output_dim=WIDTH), (ROWS, WIDTH))]


@_kind(2, weight=3)
def _fully_connected(b, x, shape, number):
    hidden = (WIDTH, TABLE[0])[number % 2]
    bias = [] if number % 4 else [b.param((hidden,), kind="bias")]
    weight = b.param((hidden, shape[1]), share=number % 3 > 0)
    return [(mx.sym.FullyConnected(x, weight, *bias, no_bias=not bias, num_hidden=hidden), (shape[0], hidden))]


@_kind(3)
def _dense(b, x, shape, number):
    weight = b.param((WIDTH, shape[2]), share=number % 2 == 0)
    out = mx.sym.FullyConnected(x, weight, no_bias=True, num_hidden=WIDTH, flatten=False)
    return [(out, (*shape[:2], WIDTH))]


@_kind(3, weight=3)
def _attention(b, x, shape, number):
    other = b.pick(number, shape=shape).symbol
    scores = mx.sym.batch_dot(x, other, transpose_b=True)
    return [(mx.sym.batch_dot(mx.sym.softmax(scores, axis=-1), other), shape), (scores, (*shape[:2], shape[1]))]


@_kind(4, weight=3)
def _convolution(b, x, shape, number):
    kernel = 1 if min(shape[2:]) < 3 else (1, 3)[number % 2]
    weight = b.param((WIDTH, shape[1], kernel, kernel), share=number % 3 == 0)
    size = {"kernel": (kernel, kernel), "pad": (kernel // 2,) * 2, "num_filter": WIDTH}
    return [(mx.sym.Convolution(x, weight, no_bias=True, **size), (shape[0], WIDTH, *shape[2:]))]


@_kind(4, weight=2)
def _batch_norm(b, x, shape, number):
    """Often behind a convolution, into which inference folds it."""
    if number % 3:
        ((x, shape),) = _convolution(b, x, shape, number)
    params = [b.param((shape[1],), kind=kind, low=0.5) for kind in ("gamma", "beta", "mean", "var")]
    return [(mx.sym.BatchNorm(x, *params, fix_gamma=False, eps=1e-3)[0], shape)]


@_kind(3)
def _loop(b, x, shape, number):
    """A recurrent layer whose body reads an outer weight, and gives several things."""
    if b.duplicates:
        return []  # MXNet wants what enters a body to have unique names
    weights = [b.param((shape[2], shape[2]), share=number % 2 == 0) for _ in range(2)]
    begin = mx.sym.Reshape(mx.sym.slice_axis(x, axis=0, begin=0, end=1), shape=shape[1:])

    def body(data, state):
        pairs = zip((data, state), weights)
        total = mx.sym.elemwise_add(*(mx.sym.FullyConnected(*pair, no_bias=True, num_hidden=shape[2]) for pair in pairs))
        new = mx.sym.tanh(total)
        out = (total, new, mx.sym.softmax(total, axis=-1), data)[number % 4]
        return mx.sym.elemwise_add(out, new), new

    outputs, state = mx.sym.contrib.foreach(body, x, begin)
    return [(outputs, shape), (state, shape[1:])]


@_kind()
def _transpose(b, x, shape, number):
    axes = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
    return [(mx.sym.transpose(x, axes=axes), tuple(shape[axis] for axis in axes))]


@_kind()
def _flatten(b, x, shape, number):
    return [(mx.sym.Flatten(x), (shape[0], int(np.prod(shape[1:]))))]


@_kind()
def _join(b, x, shape, number):
    return [(mx.sym.Concat(x, b.pick(number, shape=shape).symbol, dim=1), (shape[0], 2 * shape[1], *shape[2:]))]


@_kind()
def _split(b, x, shape, number):
    if shape[1] % 2:
        return [(mx.sym.slice_axis(x, axis=1, begin=0, end=1), (shape[0], 1, *shape[2:]))]
    return [(part, (shape[0], shape[1] // 2, *shape[2:])) for part in mx.sym.SliceChannel(x, num_outputs=2, axis=1)]


_NUMBER = st.integers(0, 23)
_STEPS = st.lists(st.tuples(st.sampled_from(_KINDS), _NUMBER, _NUMBER), min_size=6, max_size=16)


@st.composite
def networks(draw):
    """Return a random network."""
    b = _Builder(draw(st.integers(0, 2**16)), duplicates=draw(st.integers(0, 7)) == 7)
    with _Names(b.duplicates):
        for kind, first, second in draw(_STEPS):
            b.step(kind, -1 - first % 4, second)  # from the newest on, so that graphs are deep
        others = draw(st.lists(_NUMBER, max_size=2))  # among them inputs, and what others read
        heads = [*b.tensors[-2:], *(b.pick(number) for number in others)]
        half = [mx.sym.Cast(b.tensors[0].symbol, dtype="float16")] * (draw(st.integers(0, 7)) == 7)
    symbol = mx.sym.Group([*(tensor.symbol for tensor in heads), *b.extra_heads, *half])
    values = {name: b.values[name].astype(np.float32) for name in symbol.list_inputs()}
    inputs = {name: value for name, value in values.items() if name in INPUTS}
    return Network(symbol, inputs, {name: value for name, value in values.items() if name not in INPUTS})
