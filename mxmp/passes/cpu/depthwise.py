"""Depthwise convolutions of a graph that trains in bfloat16 with AMX, as convolutions of groups of channels.

oneDNN's kernels for AMX give channels last, those of depthwise convolutions blocks of 16 channels. In a MobileNet the
two meet at each BatchNorm. The copies that keep them apart (`layouts.SeparateLayouts`) take 143 of 254 ms of a step
(MobileNet 1.0, Intel Xeon, 2 threads). A convolution of groups, whose weight is zero except on a diagonal, runs on AMX
in channels last. It loses where the activation is in float32. `kernels.GROUPS` has the figures.

Outputs and gradients are those of the depthwise layer: the weight is spread by a product with a constant, whose
gradient is a sum of one term. The step has the spread weight in memory, as often as a group has channels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import AbstractSet, ClassVar, Dict, Mapping, Sequence, Tuple

from ... import dtypes
from ...graph import Entry, Graph, GraphBuilder, Key, Node
from ..base import Pass, beside, rewritten
from ..facts import Named, cast_from
from .kernels import GROUPS
from .layouts import BATCH_NORM, Layouts


@dataclass(frozen=True)
class GroupDepthwise(Pass):
    """Runs depthwise convolutions between BatchNorms and relus as convolutions of groups, where these are faster.

    Attributes:
        layouts: Those of the graph.
        wide: The names of its float32 entries.
    """

    name: ClassVar[str] = "group-depthwise"
    layouts: Layouts = field(default_factory=Layouts)
    wide: AbstractSet[Named] = frozenset()

    def run(self, graph: Graph) -> Graph:
        """Return the graph with spread weights; bodies of control flow stay as they are."""
        row = GROUPS.get(self.layouts.kind)
        if row is None:
            return graph
        size = row.channels
        readers = graph.consumers()
        masks: Dict[int, Entry] = {}  # by the number of channels

        def visit(builder: GraphBuilder, position: int, node: Node) -> Node:
            old = graph.nodes[position]
            channels = int(old.get("num_filter") or 0) if self._is_depthwise(graph, old, size) else 0
            source = cast_from(graph, old.inputs[1], self.wide) if channels else None
            if source is None or not self._is_followed(graph, position, readers):
                return node
            shape = self.layouts.shape(graph, old.inputs[1])
            if shape is None:
                return node
            if channels not in masks:
                masks[channels] = _mask(builder, node, channels, size)
            pixels = math.prod(shape[2:])
            # A copy, because Reshape cannot read a weight that oneDNN keeps in a layout of its own
            # (MKLDNNReshapeForward, src/operator/nn/mkldnn/mkldnn_reshape.cc).
            copied = beside(builder, node, "_copy", "weight_copy", builder.mapped(source))
            rows = beside(builder, node, "Reshape", "weight_rows", copied, shape=f"({channels}, 1, {pixels})")
            spread = beside(builder, node, "batch_dot", "weight_spread", masks[channels], rows)
            whole = f"({channels}, {size}, {', '.join(map(str, shape[2:]))})"
            weight = beside(builder, node, "Reshape", "weight_groups", spread, shape=whole)
            low = beside(builder, node, "amp_cast", "weight_bfloat16", weight, dtype=dtypes.BFLOAT16)
            grouped = node.rewired((node.inputs[0], low, *node.inputs[2:]))
            return grouped.with_attrs({"num_group": str(channels // size)})

        return rewritten(graph, visit)

    def _is_depthwise(self, graph: Graph, node: Node, size: int) -> bool:
        """Return whether a node is a depthwise convolution of images behind a relu, whose channels fill groups."""
        channels, groups = int(node.get("num_filter") or 0), int(node.get("num_group") or 1)
        if node.op != "Convolution" or groups == 1 or channels != groups or channels % size:
            return False
        shape = self.layouts.shape(graph, node.inputs[0])
        is_plain = node.get("layout") in (None, "None", "NCHW") and shape is not None and shape[1:2] == (channels,)
        return is_plain and len(shape or ()) == 4 and graph.nodes[node.inputs[0].node].op == "Activation"

    def _is_followed(self, graph: Graph, position: int, readers: Mapping[Key, Sequence[Tuple[int, int]]]) -> bool:
        """Return whether a BatchNorm and a relu in bfloat16 follow a node, and nothing else."""
        for op in (BATCH_NORM, "Activation"):
            behind = readers.get((position, 0), ())
            if len(behind) != 1 or graph.nodes[behind[0][0]].op != op:
                return False
            position = behind[0][0]
            if not self.layouts.is_low(graph, Entry(position)):
                return False
        return True


def _mask(builder: GraphBuilder, node: Node, channels: int, size: int) -> Entry:
    """Add a constant of shape (channels, size, 1): in row c a one at c modulo size, else zeros."""
    eye = beside(builder, node, "_eye", "diagonal", N=str(size), M=str(size), dtype=dtypes.FLOAT32)
    tiled = beside(builder, node, "tile", "diagonals", eye, reps=f"({channels // size}, 1)")
    mask = beside(builder, node, "Reshape", "mask", tiled, shape=f"({channels}, {size}, 1)")
    return beside(builder, node, "BlockGrad", "mask_fixed", mask)
