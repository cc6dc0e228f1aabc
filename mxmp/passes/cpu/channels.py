"""Channels of zeros around bfloat16 convolutions on a CPU, whose fast kernels want certain numbers of them.

oneDNN 2.4.4 has one kernel for bfloat16 convolutions with an odd number of input channels, or with output channels that
are no multiple of 16. It unrolls the image in front of a matrix product (``x64:gemm:jit``), and gives the plain layout.
All operators up to the next convolution keep that layout. The table has milliseconds of a
3 x 3 kernel forward by the number of channels, batch 8 of 56 x 56. The machine is an AMD EPYC of family 26
(AVX512-BF16, no AMX), two threads.

    in, 64 out    1     2     3     4     7     8     9     10    15    17    18    31
                  0.33  0.08  0.39  0.14  0.62  0.32  0.79  0.30  1.24  1.40  0.51  2.59
    out, 64 in    1     8     16    20    24    28    32    40    48    63    72    100   126
                  2.86  3.64  0.53  4.18  4.15  4.24  0.86  4.94  1.38  5.48  5.74  7.08  8.79

Forward and backward: 24 out 14.7, as 32 4.1; 63 out 18.3, as 64 7.2; 1 out 11.7, as 16 2.6; kernels of 5 and 7, 24 out
41 and 89, as 32 9 and 17. 1 x 1 loses (64 in, 24 out: 0.80, as 32 1.38). In one and three axes it is the same (24 out:
1.6, as 32 0.8; 10.3, as 32 2.6). These are times of the convolutions, without the copies that make and cut channels.

Zeros change no value and no gradient, except through the order of sums. A fourth channel was added by hand in front of
three networks on that machine. DenseNet-121's folded inference went from 116 ms to 65, ResNet-18's training step from
157 to 132, MobileNet's from 85 to 71. This pass has not been timed.

Depthwise convolutions that train with AMX become convolutions of groups of channels (`GroupDepthwise`). The kernels of
oneDNN for AMX give channels last. Its kernels of depthwise convolutions give blocks of 16 channels. Each BatchNorm of a
MobileNet reads both layouts. The copies that keep them apart (`layouts.SeparateLayouts`) take 143 of 254 ms of a step
(MobileNet 1.0, Intel Xeon, 2 threads). A convolution of groups, whose weight is zero except on a diagonal, runs on AMX
in channels last. It loses where the activation is in float32. `kernels.GROUPS` has the figures. Outputs and gradients
are those of the depthwise layer. The weight is spread by a product with a constant. The gradient of that product is a
sum of one term. The spread weight takes as many times the memory as a group has channels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Dict, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from ... import dtypes
from ...graph import Entry, Graph, GraphBuilder, Key, Node
from ...processors import AMX
from ...rules.conditions import VECTOR, sizes_of
from ..base import Pass, insert_next_to, sweep
from ..facts import OutputRef, Shape
from .guards import FUSED
from .kernels import GROUPS
from .layouts import BATCH_NORM, Layouts

_MOST = 15  # input channels: at 17, the next odd number, training is slower with one more

# Output channels are added where copies cost little. The copies of the weight take as long as the gain with some 60 to
# 400 pixels of a batch. Those of the output take as long as the gain with a few hundred products for each element.
_PIXELS = 2**10
_DEPTH = 576  # the products of 64 channels of 3 x 3


def pad_channels(graph: Graph, layouts: Layouts, fused: bool) -> Tuple[Graph, Layouts]:
    """Return the graph with channels of zeros around convolutions, and its layouts.

    Data gets a channel where it is cast from float32: data and weight get it in front of their casts. Weights get more
    output channels, which are cut off behind the layer. Layers that are outputs of the graph keep theirs. If MXNet's
    subgraph backend partitions the graph (``fused``), layers that may be fused with the next operator keep theirs too.
    Kernels of 1 x 1 gain nothing. With AMX nothing gains in training. In inference only a lone channel gains there,
    before a kernel of 3 x 3 (2.02 ms, 0.72 with two: Intel Xeon, batch 8, 2 threads); a fourth channel loses. Graphs
    with bodies, whose names this does not know, stay as they are.

    Args:
        graph: The graph.
        layouts: Those of the graph.
        fused: Whether MXNet partitions it.
    """
    has_bodies, amx = any(node.subgraphs for node in graph.nodes), layouts.kind == AMX
    if (amx and not fused) or has_bodies or all(node.op != "Convolution" for node in graph.nodes):
        return graph, layouts
    shapes: Dict[OutputRef, Optional[Shape]] = dict(layouts.shapes)
    keep = {head.node for head in graph.heads}
    if fused:
        keep |= {entry.node for node in graph.nodes if node.op in FUSED for entry in node.inputs}

    def visit(builder: GraphBuilder, position: int, node: Node) -> Union[Node, Entry]:
        old = graph.nodes[position]
        data, weight = (layouts.shape(graph, entry) for entry in old.inputs[:2]) if _is_plain(old) else (None, None)
        if data is None or weight is None:
            return node
        is_padded = data[1] == 1 and weight[2:] == (3, 3) if amx else data[1] % 2 and data[1] <= _MOST
        source = layouts.source(graph, old.inputs[0]) if is_padded else None
        extra_channels = -weight[0] % VECTOR if position not in keep and not amx and _is_large(data, weight) else 0
        if source is None and not extra_channels:
            return node
        layer, inputs, in_channels = _Layer(builder, node), list(node.inputs), weight[1]
        if source is not None:
            inputs[0], in_channels = layer.low("data", layer.with_channel(builder.mapped(source))), weight[1] + 1
            shapes[builder.nodes[inputs[0].node].name, 0] = (data[0], in_channels, *data[2:])
        for port, word in enumerate(("weight", "bias")[: len(inputs) - 1 if extra_channels else 1], 1):
            param = layouts.source(graph, old.inputs[port])
            entry = layer.float32(word, inputs[port]) if param is None else builder.mapped(param)
            if in_channels > weight[1] and port == 1:
                entry = layer.joined(word, entry, layer.zeros(word, weight[0], 1, *weight[2:]), 1)
            if extra_channels:
                rest = (in_channels, *weight[2:]) if port == 1 else ()
                entry = layer.joined(word, entry, layer.zeros(word, extra_channels, *rest), 0)
            inputs[port] = layer.low(word, entry)
        new = node.rewired(tuple(inputs))
        if not extra_channels:
            return new
        longer = Entry(builder.copy(position, new.with_attrs({"num_filter": str(weight[0] + extra_channels)})))
        kept = layer.add("slice_axis", "units", longer, axis="1", begin="0", end=str(weight[0]))
        output = shapes.get((node.name, 0))
        shapes[builder.nodes[kept.node].name, 0] = output
        shapes[node.name, 0] = (output[0], weight[0] + extra_channels, *output[2:]) if output is not None else None
        return kept

    after = sweep(graph, visit)
    return after if len(after.nodes) > len(graph.nodes) else graph, replace(layouts, shapes=shapes)


class _Layer(NamedTuple):
    """Adds operators in front of and behind a convolution of the new graph."""

    builder: GraphBuilder
    node: Node

    def add(self, op: str, word: str, *inputs: Entry, **attrs: str) -> Entry:
        return insert_next_to(self.builder, self.node, op, word, *inputs, **attrs)

    def float32(self, word: str, entry: Entry) -> Entry:
        return self.add("amp_cast", f"{word}_float32", entry, dtype=dtypes.FLOAT32)

    def low(self, word: str, entry: Entry) -> Entry:
        return self.add("amp_cast", f"{word}_bfloat16", entry, dtype=dtypes.BFLOAT16)

    def zeros(self, word: str, *shape: int) -> Entry:
        """Add zeros of a fixed shape for a parameter."""
        return self.add("_zeros", f"{word}_zeros", shape=str(shape), dtype=dtypes.FLOAT32)

    def joined(self, word: str, entry: Entry, zeros: Entry, axis: int) -> Entry:
        return self.add("Concat", f"{word}_padded", entry, zeros, dim=str(axis), num_args="2")

    def with_channel(self, data: Entry) -> Entry:
        """Add a channel of zeros to data, of any batch and size of images."""
        fixed = self.add("BlockGrad", "data_fixed", data)
        first = self.add("slice_axis", "data_first", fixed, axis="1", begin="0", end="1")
        return self.joined("data", data, self.add("zeros_like", "data_zeros", first), 1)


def _is_plain(node: Node) -> bool:
    """Return whether a node is a convolution that may gain by more channels."""
    if node.op != "Convolution" or int(node.get("num_group") or 1) > 1:
        return False
    is_window = math.prod(sizes_of(dict(node.attrs), "kernel")) > 1
    return is_window and node.get("layout") in (None, "None", "NCW", "NCHW", "NCDHW")


def _is_large(data: Shape, weight: Shape) -> bool:
    """Return whether more output channels gain more than the copies of weight and output cost."""
    return data[0] * math.prod(data[2:]) >= _PIXELS and math.prod(weight[1:]) >= _DEPTH


@dataclass(frozen=True)
class GroupDepthwise(Pass):
    """Runs depthwise convolutions between BatchNorms and relus as convolutions of groups, where these are faster."""

    layouts: Layouts = field(default_factory=Layouts)

    def run(self, graph: Graph) -> Graph:
        """Return the graph with spread weights; bodies of control flow stay as they are."""
        size = GROUPS.get(self.layouts.kind)
        if size is None:
            return graph
        readers = graph.consumers()
        masks: Dict[int, Entry] = {}  # by the number of channels

        def visit(builder: GraphBuilder, position: int, node: Node) -> Node:
            old = graph.nodes[position]
            channels = int(old.get("num_filter") or 0) if self._is_depthwise(graph, old, size) else 0
            source = self.layouts.source(graph, old.inputs[1]) if channels else None
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
            copied = insert_next_to(builder, node, "_copy", "weight_copy", builder.mapped(source))
            rows = insert_next_to(builder, node, "Reshape", "weight_rows", copied, shape=f"({channels}, 1, {pixels})")
            spread = insert_next_to(builder, node, "batch_dot", "weight_spread", masks[channels], rows)
            whole = f"({channels}, {size}, {', '.join(map(str, shape[2:]))})"
            weight = insert_next_to(builder, node, "Reshape", "weight_groups", spread, shape=whole)
            low = insert_next_to(builder, node, "amp_cast", "weight_bfloat16", weight, dtype=dtypes.BFLOAT16)
            grouped = node.rewired((node.inputs[0], low, *node.inputs[2:]))
            return grouped.with_attrs({"num_group": str(channels // size)})

        return sweep(graph, visit)

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
    """Add a constant of shape (channels, size, 1). Row c has a one at c modulo size, and zeros elsewhere."""
    eye = insert_next_to(builder, node, "_eye", "diagonal", N=str(size), M=str(size), dtype=dtypes.FLOAT32)
    tiled = insert_next_to(builder, node, "tile", "diagonals", eye, reps=f"({channels // size}, 1)")
    mask = insert_next_to(builder, node, "Reshape", "mask", tiled, shape=f"({channels}, {size}, 1)")
    return insert_next_to(builder, node, "BlockGrad", "mask_fixed", mask)
