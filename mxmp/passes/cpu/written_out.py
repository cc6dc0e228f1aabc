"""Replaces operators whose float32 kernels on a CPU are slow to train by several operators with faster kernels.

Each function below rewrites one operator. Its docstring has the operator's times before and after, the difference of
the results, and a condition for its removal. Times are milliseconds of forward, and of forward with backward. They are
times of a single operator on one thread of an AMD EPYC (Zen 3), in float32. Differences are relative to the largest
value of an output or a gradient. All are float32 in a mixed network, by the rules or by `WidenSlowKernels`, and stay
float32.

Whole steps in float32 there (forward, backward, SGD) are faster by these factors:

- style transfer 1.7 (InstanceNorm), MobileNet v2 1.43 (clip), ResNet-18 with GroupNorm 1.34;
- MobileNet v3 1.28 (clip and broadcast_mul), four feed-forward layers of a BERT with GELU by erf 1.25;
- MobileNet with Swish 1.20, SE-ResNeXt-50 1.13 (broadcast_mul), BERT small 1.09 (LayerNorm).

The style transfer's process takes 9 % more memory, that of GroupNorm 7 %, MobileNet v2's 6 %, BERT's 5 %. The others
take less or none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple

from ... import dtypes
from ...graph import Entry, Graph, GraphBuilder, Node
from ...rules.conditions import value_of
from ..base import Pass, insert_next_to, replacement, sweep
from ..facts import Shape
from .layouts import Layouts

_FEW = 2**14  # elements, with which a kernel takes little longer than it takes to call it


class _Call(NamedTuple):
    """An operator in the new graph, with the shapes of its inputs."""

    builder: GraphBuilder
    node: Node
    shapes: Tuple[Shape, ...]

    def add(self, op: str, word: str, *inputs: Entry, **attrs: Any) -> Entry:
        """Add an operator in front of it."""
        texts = {key: str(value) for key, value in attrs.items()}
        return insert_next_to(self.builder, self.node, op, word, *inputs, **texts)

    def become(self, op: str, *inputs: Entry, **attrs: Any) -> Node:
        """Return the node that replaces it, under its name."""
        texts = {key: str(value) for key, value in attrs.items()}
        return replacement(self.node, op, *inputs, **texts)

    def full(self, word: str, shape: Shape, value: float = 1.0) -> Entry:
        """Add a constant."""
        return self.add("_full", word, shape=shape, value=repr(value), dtype=dtypes.FLOAT32)

    def column(self, word: str, data: Entry) -> Entry:
        """Add an entry as a matrix of one column."""
        return self.add("Reshape", word, data, shape=(-1, 1))

    def source(self, entry: Entry) -> Node:
        """Return the node that gives an entry of the new graph."""
        return self.builder.nodes[entry.node]

    def number(self, key: str, default: float) -> float:
        """Return an attribute that is a number."""
        value = value_of(dict(self.node.attrs), key)
        return default if value is None else value


def _clip(call: _Call) -> Optional[Node]:
    """Write clip from 0 on as a maximum and a minimum.

    8 x 96 x 112 x 112: 68 / 149 -> 30 / 73. oneDNN's relu in place of the maximum takes 16 / 49, and hides a NaN: it
    gives 0. Values are clip's, NaN and infinities included, but -0 becomes 0. Gradients are clip's, with two
    exceptions. At NaN the gradient is 0, where clip passes it on. An infinite gradient gives NaN where the data is out
    of bounds, where clip gives 0, because the mask is a factor (inf * 0). To be removed when clip
    (src/operator/tensor/matrix_op-inl.h) has no branch at each element.
    """
    low, high = (value_of(dict(call.node.attrs), key) for key in ("a_min", "a_max"))
    if low != 0 or not isinstance(high, (int, float)) or high < 0:
        return None
    positive = call.add("_maximum_scalar", "positive", *call.node.inputs, scalar="0")
    return call.become("_minimum_scalar", positive, scalar=call.node.get("a_max"))


def _activation(name: str, call: _Call) -> Node:
    """Write tanh and sigmoid as oneDNN's.

    8 x 64 x 56 x 56: tanh 34 / 38 -> 8 / 19, sigmoid 15 / 20 -> 2 / 7; differences 1.5e-7 and 2.4e-7. To be removed
    when MXNet's are vectors.
    """
    return call.become("Activation", *call.node.inputs, act_type=name)


def _broadcast_mul(call: _Call) -> Optional[Node]:
    """Write the scale of channels as a product with the matrix of a column of scales and a row of ones.

    8 x 64 x 56 x 56 by 8 x 64 x 1 x 1: 4 / 48 -> 6 / 14, 8 x 512 x 7 x 7: 0.7 / 6.6 -> 0.7 / 1.6; difference 5e-7.
    MXNet sums the gradient of a broadcast input with an index for each element
    (src/operator/tensor/broadcast_reduce-inl.h). To be removed when it does not.
    """
    data = _scaled(*call.shapes)
    if data is None:
        return None
    scale, shape, inputs = 1 - data, call.shapes[data], call.node.inputs
    if shape[0] == 1 or call.shapes[scale] != (*shape[:2], 1, 1) or shape == call.shapes[scale]:
        return None
    rows, ones = _rows(call, inputs[data])
    zeros = call.add("zeros_like", "zeros", _first(call, rows, 1))
    images = call.add("Reshape", "images", zeros, shape=(-1, shape[1], 1, 1))
    shared = call.add("broadcast_add", "shared", inputs[scale], images)  # by the images of a later batch
    scales = call.add("dot", "scales", call.column("column", shared), ones)
    factors = (rows, scales) if data == 0 else (scales, rows)  # variables keep their order
    return call.become("reshape_like", call.add("elemwise_mul", "scaled", *factors), inputs[data])


def _scaled(*shapes: Shape) -> Optional[int]:
    """Return which of two tensors are images whose channels the other scales, of each image or of all; else None."""
    for data, (shape, scale) in enumerate((shapes, shapes[::-1])):
        if len(shape) == 4 and scale in ((*shape[:2], 1, 1), (1, shape[1], 1, 1)):
            return data
    return None


def _rows(call: _Call, data: Entry) -> Tuple[Entry, Entry]:
    """Add each channel of each image as a row, and a row of as many ones; for any batch and size of images."""
    rows = call.add("Reshape", "rows", data, shape=(-3, -1))
    return rows, call.add("ones_like", "ones", _first(call, rows, 0))


def _first(call: _Call, rows: Entry, axis: int) -> Entry:
    """Add the first row or column of a matrix, as a constant: no gradient goes back through it."""
    return call.add("slice_axis", "first", call.add("BlockGrad", "constant", rows), axis=axis, begin=0, end=1)


_Product = Callable[[str, Entry], Entry]
"""Takes a word for a name and a matrix, and adds the product of the matrix with another."""


def _standardized(call: _Call, rows: Entry, epsilon: float, mean: _Product, spread: _Product) -> Tuple[Entry, Entry]:
    """Add rows minus their means; return these, and a column of the factors that make their variance 1.

    ``mean`` gives the means of rows as a column, ``spread`` a matrix of a column. The gradients of products are
    products, where those of means and broadcasts are slow.

    Sums are of distances to the first element, so that equal values give 0. Values of 100 +- 1 give results with an
    error of 1e-6. MXNet's InstanceNorm has one of 2e-4, its GroupNorm one of 8e-6. No gradient is lost, because
    standardized values do not depend on the number that is subtracted from a row.
    """
    near = call.add("elemwise_sub", "near", rows, spread("firsts", _first(call, rows, -1)))
    centered = call.add("elemwise_sub", "centered", near, spread("means", mean("mean", near)))
    variance = mean("variance", call.add("square", "squares", centered))
    return centered, call.add("rsqrt", "inverse", call.add("_plus_scalar", "safe", variance, scalar=repr(epsilon)))


def _layer_norm(call: _Call) -> Optional[Node]:
    """Write LayerNorm of the last axis as dense layers with weights of ones.

    1024 x 256: 1.0 / 13 -> 2.0 / 5.1, 1024 x 768: 3.3 / 44 -> 7.9 / 21, 4096 x 512: 8 / 123 -> 22 / 56; on two threads
    1024 x 512: 1.3 / 16 -> 4.0 / 10. These were without the distance to the first element. Difference 2e-6. To be
    removed when MXNet's backward pass (src/operator/nn/layer_norm-inl.h) sums rows without an index for each element.
    """
    shape, axis = call.shapes[0], call.number("axis", -1)
    if axis not in (-1, len(shape) - 1) or value_of(dict(call.node.attrs), "output_mean_var"):
        return None
    data, *params = call.node.inputs
    count = shape[-1]

    def layer(weight: Entry, units: int, word: str, rows: Entry) -> Entry:
        return call.add("FullyConnected", word, rows, weight, num_hidden=units, no_bias=True, flatten=False)

    mean = partial(layer, call.full("mean_of", (1, count), 1 / count), 1)
    spread = partial(layer, call.full("ones", (count, 1)), count)
    scale, shift = (partial(layer, call.column(f"column{k}", each), count) for k, each in enumerate(params))
    centered, inverse = _standardized(call, data, call.number("eps", 1e-5), mean, spread)
    scaled = call.add("elemwise_mul", "scaled", centered, scale("scales", inverse))
    return call.become("elemwise_add", scaled, shift("shifts", call.add("ones_like", "one", inverse)))


def _instance_norm(call: _Call) -> Node:
    """Write InstanceNorm so that each channel of each image is a row, with one scale and one shift for all of it.

    8 x 64 x 56 x 56: 48 / 205 -> 27 / 52; difference 8e-6. To be removed when MXNet's backward pass
    (src/operator/instance_norm-inl.h) has no broadcasts.
    """
    return _norm(call, call.node.inputs[0], call.shapes[0][1], call.number("eps", 1e-3))


def _group_norm(call: _Call) -> Optional[Node]:
    """Write GroupNorm as InstanceNorm of groups, which have one scale and one shift each in this MXNet.

    8 x 64 x 56 x 56 in 32 groups: 43 / 144 -> 26 / 55, 8 x 512 x 7 x 7: 6 / 18 -> 3 / 6; difference 5e-7. To be removed
    when MXNet's backward pass (src/operator/nn/group_norm-inl.h) has no broadcasts.
    """
    if value_of(dict(call.node.attrs), "output_mean_var"):
        return None
    groups = int(call.number("num_groups", 1))
    data = call.add("Reshape", "groups", call.node.inputs[0], shape=(0, groups, -1))
    return _norm(call, data, groups, call.number("eps", 1e-5))


def _norm(call: _Call, data: Entry, channels: int, epsilon: float) -> Node:
    """Return the node that standardizes, scales and shifts each of so many channels of each image of data."""
    like, gamma, beta = call.node.inputs
    rows, ones = _rows(call, data)
    mean_of = call.column("mean_of", call.add("softmax", "equal", call.add("zeros_like", "zeros", ones)))

    def mean(word: str, matrix: Entry) -> Entry:
        return call.add("dot", word, matrix, mean_of)

    def spread(word: str, column: Entry) -> Entry:
        return call.add("dot", word, column, ones)

    centered, inverse = _standardized(call, rows, epsilon, mean, spread)
    images = call.add("Reshape", "images", inverse, shape=(-1, channels))
    scales = call.column("scale", call.add("broadcast_mul", "gamma", images, gamma))
    shifts = call.column("shift", call.add("broadcast_add", "beta", call.add("zeros_like", "none", images), beta))
    scaled = call.add("elemwise_mul", "scaled", centered, spread("scales", scales))
    shifted = call.add("elemwise_add", "shifted", scaled, spread("shifts", shifts))
    return call.become("reshape_like", shifted, like)


def _gelu(call: _Call) -> Optional[Node]:
    """Write x / 2 * (1 + erf(x / sqrt(2))) as oneDNN's GELU.

    1024 x 2048: 65 / 103 -> 3 / 9; difference 2e-7. To be removed when erf is vectors.
    """
    for half, other in (call.node.inputs, reversed(call.node.inputs)):
        mul, plus = call.source(half), call.source(other)
        if mul.op != "_mul_scalar" or plus.op != "_plus_scalar" or not _is(mul, 0.5) or not _is(plus, 1):
            continue
        erf = call.source(plus.inputs[0])
        scaled = call.source(erf.inputs[0]) if erf.op == "erf" else erf
        factor = {"_div_scalar": math.sqrt(2), "_mul_scalar": math.sqrt(0.5)}.get(scaled.op)
        if factor and _is(scaled, factor) and scaled.inputs[0].key == mul.inputs[0].key:
            return call.become("LeakyReLU", mul.inputs[0], act_type="gelu")
    return None


def _is(node: Node, number: float) -> bool:
    """Return whether a node's scalar equals a number in float32."""
    return math.isclose(float(node.get("scalar") or "nan"), number, rel_tol=1e-6)


_WRITE: Dict[str, Callable[[_Call], Optional[Node]]] = {
    "clip": _clip,
    "tanh": partial(_activation, "tanh"),
    "sigmoid": partial(_activation, "sigmoid"),
    "broadcast_mul": _broadcast_mul,
    "LayerNorm": _layer_norm,
    "InstanceNorm": _instance_norm,
    "GroupNorm": _group_norm,
    "elemwise_mul": _gelu,
}


def is_shaped(node: Node) -> bool:
    """Return whether the form of a rewritten operator depends on shapes, which another call may not have."""
    if node.op == "LayerNorm":
        return (value_of(dict(node.attrs), "axis") or 0) > 0  # which is the last one of some tensors only
    return node.op == "broadcast_mul"


def shape_choice(node: Node, shapes: Tuple[Optional[Shape], ...]) -> Any:
    """Return the choice that shapes make for an operator, None if none. Its form holds for all with the same choice."""
    known_shapes = [shape for shape in shapes if shape is not None]
    if len(known_shapes) < len(shapes) or not is_shaped(node):
        return None
    return len(known_shapes[0]) if node.op == "LayerNorm" else _scaled(*known_shapes)


@dataclass(frozen=True)
class WriteOut(Pass):
    """Writes out the operators above, except in bodies, with unknown shapes, or with few elements.

    Shapes decide once, those of the first training call: the result holds for others with the same `shape_choice`.
    ``layouts`` have the shapes of the graph's entries.
    """

    layouts: Layouts = field(default_factory=Layouts)

    def run(self, graph: Graph) -> Graph:
        """Return the graph with faster operators."""
        if not any(node.op in _WRITE for node in graph.nodes):
            return graph

        def visit(builder: GraphBuilder, position: int, node: Node) -> Node:
            write = _WRITE.get(node.op)
            shapes = [self._shape(graph, entry) for entry in graph.nodes[position].inputs] if write else []
            known_shapes = tuple(shape for shape in shapes if shape is not None)
            if write is None or len(known_shapes) < len(shapes) or max(map(math.prod, known_shapes)) < _FEW:
                return node
            return write(_Call(builder, node, known_shapes)) or node

        return sweep(graph, visit)

    def _shape(self, graph: Graph, entry: Entry) -> Optional[Shape]:
        """Return the shape of a float32 entry; None for others, and where it is not known."""
        node = graph.nodes[entry.node]
        if node.op == "amp_cast" and node.get("dtype") == dtypes.FLOAT32:
            return self.layouts.shape(graph, entry)
        return self.layouts.float32.get((node.name, entry.index))
