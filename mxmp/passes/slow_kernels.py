"""Operators that run in float32 on a CPU, between two casts, where their bfloat16 kernel is slow."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Dict, FrozenSet, Set

from .. import dtypes
from ..graph import Entry, Graph, GraphBuilder, Key, Node
from ..rules.conditions import VECTOR, value_of
from .attributes import device_attrs
from .base import Pass
from .facts import Named
from .layouts import BATCH_NORM, DEFAULT, OWN, Layouts


@dataclass(frozen=True)
class WidenSlowKernels(Pass):
    """Runs in float32 what computes in float32 anyway, but takes longer from bfloat16 to bfloat16 than with two casts.

    That is clip, as MobileNetV2's relu6: MXNet's bfloat16 kernel converts element by element, which no compiler has
    made vectors of, and takes five times as long as float32's. And BatchNorm of data that do not lie in blocks of 16
    channels: oneDNN's kernel for them (ncsp_bnorm) takes 1.3 to 1.5 times as long to infer as one in float32 with the
    casts, and 1.7 to 2.5 times to train; MXNet's own, for other axes and for data of two dimensions, 3 to 7 times
    (AMD EPYC with AVX512-BF16, two threads).

    It is for graphs whose operators MXNet does not fuse. Values stay as they are, but for the order in which another
    kernel of BatchNorm sums. An output of the network keeps its operator, and so do BatchNorms within bodies of control
    flow, where layouts are not known.

    Attributes:
        entries: The bfloat16 entries of the graph and of its bodies, as ``bfloat16_entries`` finds them.
        layouts: Those of the graph.
    """

    name: ClassVar[str] = "widen-slow-kernels"
    entries: FrozenSet[Named] = frozenset()
    layouts: Layouts = field(default_factory=Layouts)

    def run(self, graph: Graph) -> Graph:
        """Return the graph with casts around slow operators."""
        slow = self._find(graph)
        builder = GraphBuilder(graph)
        for position, node in enumerate(graph.nodes):
            inputs, bodies = builder.inputs(node), tuple(map(self.run, node.subgraphs))
            if position in slow:
                inputs = (_cast(builder, node, dtypes.FLOAT32, inputs[0]), *inputs[1:])
            new = builder.copy(position, node.rewired(inputs, bodies))
            if position in slow:
                builder.redirect(Entry(position), _cast(builder, node, dtypes.BFLOAT16, Entry(new)))
        return builder.finish()

    def _find(self, graph: Graph) -> Set[int]:
        """Return the bfloat16 operators that are slow, but for those that are outputs of the network."""
        heads = {head.node for head in graph.heads}
        outputs = self.layouts.outputs(graph)
        low = (i for i, node in enumerate(graph.nodes) if (node.name, 0) in self.entries and i not in heads)
        ops = ((i, graph.nodes[i].op) for i in low)
        return {i for i, op in ops if op == "clip" or op == BATCH_NORM and self._is_slow(graph, i, outputs)}

    def _is_slow(self, graph: Graph, position: int, outputs: Dict[Key, str]) -> bool:
        """Return whether a BatchNorm is known to have data that oneDNN has no fast kernel for."""
        node = graph.nodes[position]
        shape = self.layouts.shape(graph, node.inputs[0])
        if not shape:
            return False
        axis = value_of(dict(node.attrs), "axis")
        if len(shape) == 2 or (1 if axis is None else axis) % len(shape) != 1 or shape[1] % VECTOR:
            return True
        return len(shape) == 4 and outputs.get(node.inputs[0].key, DEFAULT) in (DEFAULT, OWN)


def _cast(builder: GraphBuilder, node: Node, dtype: str, entry: Entry) -> Entry:
    return builder.insert("amp_cast", f"{node.name}_wide_{dtype}", entry, dtype=dtype, **device_attrs(node))
