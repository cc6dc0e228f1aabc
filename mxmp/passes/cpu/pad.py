"""Channels of zeros in front of bfloat16 convolutions on a CPU, whose fast kernels want an even number of them.

Of a bfloat16 convolution with an odd number of input channels oneDNN 2.4.4 has no kernel but one that unrolls the image
in front of a matrix product (``x64:gemm:jit``), and it gives the plain layout, in which all that follows stays up to
the next convolution. On an AMD EPYC of family 26 (AVX512-BF16, no AMX), two threads, 3 x 3, 64 channels out, batch 8 of
56 x 56, forward, ms by the number of input channels:

    1     2     3     4     7     8     9     10    15    17    18    31
    0.33  0.08  0.39  0.14  0.62  0.32  0.79  0.30  1.24  1.40  0.51  2.59

Zeros change no value and no gradient, but for the order of sums. There a fourth channel that was added by hand, in
front of a network, took DenseNet-121's folded inference from 116 ms to 65, ResNet-18's training step from 157 to 132,
and MobileNet's from 85 to 71; this pass has not been timed.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import AbstractSet, Dict, Optional, Tuple

from ... import dtypes
from ...graph import Entry, Graph, GraphBuilder, Node
from ...rules.conditions import value_of
from ..base import beside, rewritten
from ..facts import Named, Shape, cast_from
from .layouts import Layouts

_MOST = 15  # input channels: at 17, the next odd number, training is slower with one more
_FIRST_CHANNEL = {"axis": "1", "begin": "0", "end": "1"}


def pad_channels(graph: Graph, layouts: Layouts, wide: AbstractSet[Named]) -> Tuple[Graph, Layouts]:
    """Return the graph with a channel of zeros for convolutions of data that is cast from float32, and its layouts.

    ``wide`` are the float32 entries of the graph by name. Data and weights get the channel in float32, so that nothing
    but casts and the convolution is in bfloat16. Kernels of 1 x 1 gain nothing; those that AMX has were not measured.
    Bodies stay as they are.
    """
    shapes: Dict[Named, Optional[Shape]] = dict(layouts.shapes)

    def visit(builder: GraphBuilder, position: int, node: Node) -> Node:
        old = graph.nodes[position]
        shape = layouts.shape(graph, old.inputs[0]) if old.op == "Convolution" else None
        if shape is None or not _gains(old, shape) or cast_from(graph, old.inputs[0], wide) is None:
            return node
        add = partial(beside, builder, node)

        def padded(port: int, word: str) -> Entry:
            exact = cast_from(graph, old.inputs[port], wide)
            low = node.inputs[port]
            entry = builder.mapped(exact) if exact else add("amp_cast", f"{word}_float32", low, dtype=dtypes.FLOAT32)
            first = add("slice_axis", f"{word}_first", add("BlockGrad", f"{word}_fixed", entry), **_FIRST_CHANNEL)
            zeros = add("zeros_like", f"{word}_zeros", first)
            both = add("Concat", f"{word}_padded", entry, zeros, dim="1", num_args="2")
            return add("amp_cast", f"{word}_bfloat16", both, dtype=dtypes.BFLOAT16)

        data = padded(0, "data")
        shapes[builder.nodes[data.node].name, 0] = (shape[0], shape[1] + 1, *shape[2:])
        return node.rewired((data, padded(1, "weight"), *node.inputs[2:]))

    if layouts.amx or all(node.op != "Convolution" for node in graph.nodes):
        return graph, layouts
    after = rewritten(graph, visit)
    return after if len(after.nodes) > len(graph.nodes) else graph, replace(layouts, shapes=shapes)


def _gains(node: Node, shape: Shape) -> bool:
    """Return whether a convolution of data of a shape is faster with another channel."""
    attrs = dict(node.attrs)
    is_plain = int(node.get("num_group") or 1) == 1 and node.get("layout") in (None, "None", "NCHW")
    is_wide = len(shape) == 4 and value_of(attrs, "kernel") != (1, 1)
    return is_plain and is_wide and shape[1] % 2 == 1 and shape[1] <= _MOST
