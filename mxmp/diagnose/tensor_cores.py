"""Layers whose sizes do not fill tensor cores, which take float16 in multiples of 8.

References:
    NVIDIA, "Train With Mixed Precision" (https://docs.nvidia.com/deeplearning/performance/mixed-precision-training/),
    section on shape constraints: batch, channels and the sizes of linear layers are to be multiples
    of 8. "Tensor Ops Made Easier in cuDNN" (https://developer.nvidia.com/blog/tensor-ops-made-easier-in-cudnn/):
    from 7.3 on cuDNN pads the channels of convolutions in NCHW, and of no other layout.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Collection, Dict, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..graph import Graph, Node
from ..passes import Facts
from ..rules.core import flag_of, value_of

MULTIPLE = 8
BATCH = "batch"

_Shape = Optional[Tuple[int, ...]]
_Sizes = Dict[str, Optional[int]]


class Uneven(NamedTuple):
    """A layer with sizes that are no multiples of 8."""

    name: str
    op: str
    # By their names: 'batch'; 'in' and 'out' (channels), 'in per group' and 'out per group'. Attention has 'head',
    # 'length' and 'key length'. A product has its sides: (rows, inner) x (inner, columns).
    sizes: Mapping[str, int]
    padded: bool = False  # whether cuDNN pads the channels, which costs a copy


def uneven_layers(graph: Graph, facts: Facts, layers: Collection[Tuple[str, str]]) -> Tuple[Uneven, ...]:
    """Return those of the float16 layers (name, operator) whose sizes are no multiples of 8, as far as known.

    ``tensordot`` and ``einsum`` are left out: what products they make is up to MXNet. So is the fused RNN, which has
    no tensor cores in float16 (``without_tensor_cores`` in rules.conditions).
    """
    found = []
    for position, node in enumerate(graph.nodes):
        measure = _MEASURES.get(node.op)
        if measure and (node.name, node.op) in layers:
            shapes = [facts.shapes.get((entry.node, entry.index)) for entry in node.inputs]
            known = [None if shape is None else tuple(max(size, 0) for size in shape) for shape in shapes]
            sizes = measure(node, known)  # 0 where a size is unknown
            uneven = {what: size for what, size in sizes.items() if size and size % MULTIPLE}
            if uneven:
                plain = _value(node, "layout", "NC").startswith("NC") and _value(node, "num_group", 1) == 1
                padded = measure is _convolution and plain and set(uneven) != {BATCH}
                found.append(Uneven(node.name, node.op, uneven, padded))
        for number, body in enumerate(node.subgraphs):
            if (position, number) in facts.bodies:
                found.extend(uneven_layers(body, facts.bodies[position, number], layers))
    return tuple(found)


def _value(node: Node, key: str, default: Any) -> Any:
    """Return the value of an attribute, or the default where it is not given."""
    value = value_of(dict(node.attrs), key)
    return default if value is None else value


def _at(shape: _Shape, axis: int) -> Optional[int]:
    return shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None


def _convolution(node: Node, shapes: Sequence[_Shape]) -> _Sizes:
    """Return batch and channels per group; the weight has those that come in behind its filters, or first."""
    groups = _value(node, "num_group", 1)
    if node.op == "Deconvolution":
        channels = (_at(shapes[1], 0) or 0) // groups
    else:
        channels = _at(shapes[1], _value(node, "layout", "NC").index("C")) or 0
    each = " per group" if groups > 1 else ""
    return {BATCH: _at(shapes[0], 0), f"in{each}": channels, f"out{each}": _value(node, "num_filter", 0) // groups}


def _fully_connected(node: Node, shapes: Sequence[_Shape]) -> _Sizes:
    data = shapes[0] or (0,)
    batch = data[0] if flag_of(dict(node.attrs), "flatten", True) else math.prod(data[:-1])
    return {BATCH: batch, "in": _at(shapes[1], 1), "out": _value(node, "num_hidden", 0)}


def _matrices(node: Node, shapes: Sequence[_Shape]) -> _Sizes:
    """Return the sides of products of the last two axes."""
    left = (-1, -2) if flag_of(dict(node.attrs), "transpose_a", False) else (-2, -1)
    right = -2 if flag_of(dict(node.attrs), "transpose_b", False) else -1
    return {"rows": _at(shapes[0], left[0]), "inner": _at(shapes[0], left[1]), "columns": _at(shapes[1], right)}


def _dot(node: Node, shapes: Sequence[_Shape]) -> _Sizes:
    """Return the sides of a product of matrices; of more axes ``dot`` makes its own matrices."""
    return _matrices(node, shapes) if all(shape is not None and len(shape) == 2 for shape in shapes) else {}


def _self_attention(node: Node, shapes: Sequence[_Shape]) -> _Sizes:
    """Return length and head of (length, batch, heads * 3 * head)."""
    width = _at(shapes[0], 2)
    return {"length": _at(shapes[0], 0), "head": width // (3 * _value(node, "heads", 1)) if width else None}


def _cross_attention(node: Node, shapes: Sequence[_Shape]) -> _Sizes:
    """Return lengths and head; keys and values are (length, batch, heads * 2 * head)."""
    keys = 1 if node.op.endswith("_qk") else 0
    width = _at(shapes[keys], 2)
    return {
        "length": _at(shapes[0], 0) if keys else _at(shapes[1], 1),
        "key length": _at(shapes[keys], 0),
        "head": width // (2 * _value(node, "heads", 1)) if width else None,
    }


_ATTENTION = "_contrib_interleaved_matmul_"

_MEASURES: Dict[str, Callable[[Node, Sequence[_Shape]], _Sizes]] = {
    **dict.fromkeys(["Convolution", "Convolution_v1", "Deconvolution"], _convolution),
    "FullyConnected": _fully_connected,
    **dict.fromkeys(["dot", "_np_dot"], _dot),
    **dict.fromkeys(["batch_dot", "_linalg_gemm2", "_npi_matmul"], _matrices),
    **dict.fromkeys([f"{_ATTENTION}selfatt_qk", f"{_ATTENTION}selfatt_valatt"], _self_attention),
    **dict.fromkeys([f"{_ATTENTION}encdec_qk", f"{_ATTENTION}encdec_valatt"], _cross_attention),
}
