"""Transposed convolutions rewritten so that MXNet can train them on CPU with a computed weight.

MXNet 1.9.1 ends the process there, or says 'could not execute a primitive'. Its backward pass
(MKLDNNDeconvBwd::IOSwapWeightsTensors in src/operator/nn/mkldnn/mkldnn_deconvolution-inl.h) notes
the memory of the weight's gradient before anything has allocated it. The gradient of a parameter
is allocated beforehand; that of a computed array, as every emulated weight is, when an operator
first writes to it. To be removed when UpdateMKLDNNMemDesc (src/ndarray/ndarray.cc) allocates it.

In float64 MXNet takes another kernel (src/operator/nn/deconvolution-inl.h), which is sound but for dilation, and has
one or two dimensions. So a dilated kernel becomes a larger one with zeros inside, and a volume is computed by planes,
which are then summed along its depth. Zeros times infinity leave NaN beside an infinite value there.
"""

from __future__ import annotations

from typing import Any, Optional, Tuple

from ..graph import Entry, GraphBuilder, Node
from ..graph.core import make_attrs
from ..rules.conditions import value_of

_SIZES = ("adj", "kernel", "pad", "stride", "target_shape")


def trainable_deconvolution(builder: GraphBuilder, node: Node, weight: Optional[Tuple[int, ...]]) -> Node:
    """Return the float64 node that replaces a Deconvolution; nodes in front of it are added to the graph.

    The node is rewired to the new graph's entries, all float32; ``weight`` is the shape of its weight, if known.
    """
    kernel, dilate = (_sizes(node, key) for key in ("kernel", "dilate"))
    node = node.rewired(tuple(_add(builder, node, "Cast", entry, dtype="float64") for entry in node.inputs))
    if len(kernel) == 3:
        return _by_planes(builder, _with_shape(builder, node, weight), kernel)
    if set(dilate) <= {1}:
        return node
    return _spread(builder, _with_shape(builder, node, weight), kernel, dilate)


def _spread(builder: GraphBuilder, node: Node, kernel: Tuple[int, ...], dilate: Tuple[int, ...]) -> Node:
    """Return an undilated Deconvolution: another, of one pixel, puts zeros between the weight's values."""
    data, weight, *bias = node.inputs
    filters, one = int(_value(node, "num_filter")) // int(_value(node, "num_group") or 1), (1,) * len(kernel)
    weight = _add(builder, node, "Reshape", weight, shape=(-1, 1, *kernel))
    pixel = _add(builder, node, "_ones", shape=(1, 1, *one), dtype="float64")
    attrs = {"kernel": one, "stride": dilate, "num_filter": 1, "no_bias": True}
    weight = _add(builder, node, "Deconvolution", weight, pixel, **attrs)
    weight = _add(builder, node, "Reshape", weight, shape=(-1, filters, *(0 for _ in kernel)))
    larger = tuple(step * (size - 1) + 1 for step, size in zip(dilate, kernel))
    return node.with_attrs({"kernel": str(larger), "dilate": None}).rewired((data, weight, *bias))


def _by_planes(builder: GraphBuilder, node: Node, kernel: Tuple[int, ...]) -> Node:
    """Return the last node of a Deconvolution of volumes (N, C, D, H, W).

    The depth of the kernel counts as filters first. Then one of a single dimension, whose constant weight says how far
    in depth each of them lies, sums them.
    """
    data, weight, *bias = node.inputs
    depth, filters = kernel[0], int(_value(node, "num_filter"))
    deep = _add(builder, node, "transpose", data, axes=(0, 2, 1, 3, 4))
    planes = _add(builder, node, "Reshape", deep, shape=(-3, -2))
    weight = _add(builder, node, "Reshape", weight, shape=(0, -3, -2))
    attrs = {"num_filter": str(filters * depth), "no_bias": "True"}
    planes = _insert(builder, _part(node, slice(1, 3)).with_attrs(attrs).rewired((planes, weight)))
    planes = _add(builder, node, "reshape_like", planes, deep, lhs_begin=0, lhs_end=1, rhs_begin=0, rhs_end=2)
    lines = _add(builder, node, "transpose", planes, axes=(0, 3, 4, 2, 1))
    line = _add(builder, node, "Reshape", lines, shape=(-1, 0, 0), reverse=True)
    places = _add(builder, node, "tile", _add(builder, node, "_eye", N=depth, dtype="float64"), reps=(filters, 1))
    places = _add(builder, node, "Reshape", places, shape=(-1, 1, depth))
    attrs = {"num_group": str(filters), "no_bias": str(not bias)}
    summed = _insert(builder, _part(node, slice(1)).with_attrs(attrs).rewired((line, places, *bias)))
    summed = _add(builder, node, "reshape_like", summed, lines, lhs_begin=0, lhs_end=1, rhs_begin=0, rhs_end=3)
    axes = make_attrs({"axes": "(0, 3, 4, 1, 2)"})
    return Node("transpose", node.name, axes, (summed,), control_deps=node.control_deps)


def _with_shape(builder: GraphBuilder, node: Node, shape: Optional[Tuple[int, ...]]) -> Node:
    """Return a node whose weight tells MXNet its shape, which it does not infer through a Reshape."""
    if shape is None:
        return node
    data, weight, *bias = node.inputs
    like = _add(builder, node, "_zeros", shape=shape, dtype="float64")
    return node.rewired((data, _add(builder, node, "_identity_with_attr_like_rhs", weight, like), *bias))


def _part(node: Node, part: slice) -> Node:
    """Return a node for some of the dimensions."""
    cut = {key: _sizes(node, key)[part] for key in _SIZES}
    return node.with_attrs({"dilate": None, "layout": None, **{key: str(v) if v else None for key, v in cut.items()}})


def _sizes(node: Node, key: str) -> Tuple[int, ...]:
    value = _value(node, key)
    return (value,) if isinstance(value, int) else tuple(value or ())


def _value(node: Node, key: str) -> Any:
    return value_of(dict(node.attrs), key)


def _insert(builder: GraphBuilder, node: Node) -> Entry:
    """Add a node beside the one that keeps its name."""
    return Entry(builder.add(node._replace(name=builder.unique(f"{node.name}_deconvolution"), control_deps=())))


def _add(builder: GraphBuilder, node: Node, op: str, *inputs: Entry, **attrs: object) -> Entry:
    texts = {key: str(value) for key, value in attrs.items()}
    return builder.insert(op, f"{node.name}_{op.strip('_').lower()}", *inputs, **texts)
