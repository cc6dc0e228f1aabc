"""Finds BatchNorms that would read two different layouts of oneDNN in bfloat16 training, and inserts copies.

The convolutions of oneDNN choose the layout of their output and of the gradient that they compute. It is channels last,
blocks of sixteen channels, or the default one. The operators behind keep the layout of the output. The operators before
keep the layout of the gradient. BatchNorm's backward pass reads both: its data as the convolution before it gave them,
and their gradient as the one behind it did. With two different layouts it runs a loop over single elements (bnorm_ref),
some fifty times as slow as its kernels. If one of the two is the default layout, MXNet reorders it
(MKLDNNBatchNormBackwardImpl). The copies cost two casts each way, which bring the gradient into the default layout, and
change no value.

The choices are those of oneDNN 2.4.4, commit 5818c40f (src/cpu/x64/jit_avx512_core_amx_*.cpp, jit_brgemm_conv*.cpp,
jit_avx512_core_bf16_*.cpp). Its dispatch was recorded for every pair of 3 to 160 channels, with AMX and without.
Kernels were 1, 3 and 5 pixels wide, with strides, dilation and groups. They depend on no size of an image.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, List, Mapping, NamedTuple, Optional

from ... import dtypes
from ...graph import Entry, Graph, GraphBuilder, Key, Node
from ...processors import AMX, EMULATED, Kind
from ...rules.conditions import sizes_of
from ..base import Copy, Pass, insert_next_to, is_inserted, with_copies
from ..facts import Facts, OutputRef, Shape, declared_dtype

DEFAULT = "default"
BLOCKED = "blocks of 16 channels"
LAST = "channels last"
OWN = "another"
UNKNOWN = "unknown"
"""The layouts. BatchNorm has no kernel for `OWN`, which convolutions with 4 or 8 channels in a group choose."""

BATCH_NORM = "BatchNorm"

# Operators of oneDNN that give their output in the layout of their first input, and its gradient in that of their own.
_KEEP = frozenset({BATCH_NORM, "Activation", "LeakyReLU", "elemwise_add", "add_n", "_copy", "Concat", "Pooling"})


class Convolution(NamedTuple):
    """The properties of a convolution that decide its layouts: channels of one group in and out, and its kernel."""

    in_channels: int
    out_channels: int
    groups: int = 1
    pointwise: bool = False
    dilated: bool = False

    def output(self, amx: bool) -> str:
        """Return the layout of its output."""
        if self.in_channels == self.out_channels == 1:
            return BLOCKED if self.groups % 16 == 0 else DEFAULT
        if self.groups > 1 and (self.in_channels % 16 or self.out_channels % 16):
            return OWN if min(self.in_channels, self.out_channels) in (4, 8) else DEFAULT
        if self.out_channels % 16:
            return DEFAULT
        windowed = self.in_channels < 32 and not (self.pointwise or self.dilated)
        if amx and (self.in_channels % 32 == 0 or windowed):
            return LAST
        return BLOCKED if self.in_channels % 16 == 0 or 3 < self.in_channels < 16 else DEFAULT

    def gradient(self, amx: bool) -> str:
        """Return the layout of the gradient of its input."""
        fills_blocks = self.in_channels % 16 == 0 and self.out_channels % 16 == 0
        if self.in_channels == self.out_channels == 1 or (self.groups > 1 and not fills_blocks):
            return self.output(amx)
        if not fills_blocks:
            return DEFAULT
        return LAST if amx and self.out_channels % 32 == 0 else BLOCKED


@dataclass(frozen=True)
class Layouts:
    """Follows the layouts of bfloat16 tensors through a graph that runs on a CPU.

    Attributes:
        shapes: Those of the bfloat16 entries by name.
        kind: The kind of processor that the graph runs on.
        float32: The shapes of the float32 entries by name.
    """

    shapes: Mapping[OutputRef, Optional[Shape]] = field(default_factory=dict)
    kind: Kind = EMULATED
    float32: Mapping[OutputRef, Optional[Shape]] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: Graph, facts: Facts, kind: Kind) -> Layouts:
        """Return the layouts of a graph on a kind of processor."""
        return cls(facts.by_name(graph, dtypes.BFLOAT16), kind, facts.by_name(graph, dtypes.FLOAT32))

    def shape(self, graph: Graph, entry: Entry) -> Optional[Shape]:
        """Return the shape of a bfloat16 entry, or of one cast from or to bfloat16; None where it is not known."""
        node = graph.nodes[entry.node]
        shape = self.shapes.get((node.name, entry.index))
        # A cast that another pass has put there is not among them.
        return self.shape(graph, node.inputs[0]) if shape is None and node.op == "amp_cast" else shape

    def is_low(self, graph: Graph, entry: Entry) -> bool:
        """Return whether an entry is in bfloat16."""
        node = graph.nodes[entry.node]
        return (node.name, entry.index) in self.shapes or declared_dtype(node) == dtypes.BFLOAT16

    def source(self, graph: Graph, entry: Entry) -> Optional[Entry]:
        """Return the float32 entry that mxmp casts to give an entry; None if the entry is no such cast."""
        cast = graph.nodes[entry.node]
        if cast.op != "amp_cast" or not is_inserted(cast):
            return None
        source = cast.inputs[0]
        return source if (graph.nodes[source.node].name, source.index) in self.float32 else None

    def outputs(self, graph: Graph) -> Dict[Key, str]:
        """Return the layouts of the bfloat16 entries that do not have the default one."""
        layouts: Dict[Key, str] = {}
        for position, node in enumerate(graph.nodes):
            if not self.is_low(graph, Entry(position)) or not node.inputs:
                continue
            layout = DEFAULT if self.pools_all(graph, position) else layouts.get(node.inputs[0].key, DEFAULT)
            if node.op == "Convolution":
                convolution = self._convolution(graph, node)
                layouts[position, 0] = convolution.output(self.kind == AMX) if convolution else UNKNOWN
            elif node.op == BATCH_NORM and layout == OWN:
                continue
            elif node.op in _KEEP and layout != DEFAULT:
                layouts[position, 0] = layout
        return layouts

    def gradients(self, graph: Graph, outputs: Mapping[Key, str]) -> List[str]:
        """Return the layout of the gradient of each node's first output; OWN where it is not known."""
        layouts = [DEFAULT] * len(graph.nodes)
        readers = graph.consumers()
        for position in reversed(range(len(graph.nodes))):
            ways = {self._passed(graph, reader, outputs, layouts) for reader, _ in readers.get((position, 0), ())}
            layouts[position] = ways.pop() if len(ways) == 1 else OWN if ways else DEFAULT
        return layouts

    def _passed(self, graph: Graph, position: int, outputs: Mapping[Key, str], gradients: List[str]) -> str:
        """Return the layout of the gradient that a node gives for its data."""
        node = graph.nodes[position]
        if not self.is_low(graph, Entry(position)) or self.pools_all(graph, position):
            return DEFAULT
        convolution = self._convolution(graph, node)
        if convolution:
            return convolution.gradient(self.kind == AMX)
        if node.op == BATCH_NORM and outputs.get((position, 0), UNKNOWN) != UNKNOWN:
            return outputs[position, 0]  # of two layouts one is the default, and is reordered to this
        return gradients[position] if node.op in _KEEP else DEFAULT

    def pools_all(self, graph: Graph, position: int) -> bool:
        """Return whether a node pools whole images, by its name or by its window."""
        shape = self.shape(graph, Entry(position))
        return graph.nodes[position].op == "Pooling" and shape is not None and shape[2:] == (1, 1)

    def _convolution(self, graph: Graph, node: Node) -> Optional[Convolution]:
        """Return the properties that decide a convolution's layouts; None for other nodes, and if unknown."""
        if node.op != "Convolution":
            return None
        shape, attrs = self.shape(graph, node.inputs[0]), dict(node.attrs)
        if shape is None or len(shape) != 4 or node.get("layout") not in (None, "None", "NCHW"):
            return None
        groups, out_channels = int(node.get("num_group") or 1), int(node.get("num_filter") or 0)
        pointwise, dilated = sizes_of(attrs, "kernel") == (1, 1), sizes_of(attrs, "dilate") not in ((), (1, 1))
        return Convolution(shape[1] // groups, out_channels // groups, groups, pointwise, dilated)


@dataclass(frozen=True)
class SeparateLayouts(Pass):
    """Inserts copies if a BatchNorm's data and its gradient have different layouts, and before pooling of whole maps.

    The gradient of such pooling has an order of axes that no other kernel has, because axes of size one have no order.
    A whole stage of a ResNet would get that order.
    """

    layouts: Layouts = Layouts()

    def run(self, graph: Graph) -> Graph:
        """Return the graph with copies; bodies of control flow stay as they are."""
        outputs, readers = self.layouts.outputs(graph), graph.consumers()
        gradients = self.layouts.gradients(graph, outputs)
        copies: Dict[Key, Copy] = {}
        for position, node in enumerate(graph.nodes):
            if not node.inputs or not self.layouts.is_low(graph, node.inputs[0]):
                continue
            if self.layouts.pools_all(graph, position):
                copies[position, 0] = position, "input_layout"
            elif node.op == BATCH_NORM and gradients[position] not in (DEFAULT, outputs.get((position, 0), DEFAULT)):
                copies.update((port, (position, "output_layout")) for port in readers[position, 0])
        return with_copies(graph, copies, _reordered) if copies else graph


def _reordered(builder: GraphBuilder, node: Node, word: str, entry: Entry) -> Entry:
    """Return a bfloat16 entry in the default layout, and its gradient too, by casts to float32 and back."""
    in_float32 = insert_next_to(builder, node, "amp_cast", f"{word}_float32", entry, dtype=dtypes.FLOAT32)
    return insert_next_to(builder, node, "amp_cast", f"{word}_bfloat16", in_float32, dtype=dtypes.BFLOAT16)
