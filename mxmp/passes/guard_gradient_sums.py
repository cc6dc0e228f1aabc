"""Workaround for sums of bfloat16 gradients, which MXNet truncates on CPU.

A tensor's gradient is the sum of those of its readers. MXNet 1.9.1 adds up to seven with one add_n, which sums in
float32 and rounds once. From eight on it chains additions of two (AggregateGradient in src/executor/graph_executor.cc),
whose bfloat16 kernel truncates at every step: the weights of an LSTM that is unrolled over 35 steps get gradients that
are 4 % too small. To be removed when MXNet's ``_grad_add`` rounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Dict, FrozenSet, Iterator, List, Tuple

from .. import dtypes
from ..graph import Entry, Graph, GraphBuilder, Node
from ..graph.core import make_attrs
from .attributes import device_attrs
from .base import Pass
from .facts import Facts

Named = Tuple[str, int]
"""A node's name and the number of an output."""

_SHARE_ATTR = "__mxmp_share__"

_MOST_SUMMED = 7  # one less than MXNET_EXEC_INPLACE_GRAD_SUM_CAP


@dataclass(frozen=True)
class GuardGradientSums(Pass):
    """Lets no more than seven readers share a bfloat16 tensor: each seven read an identity of it.

    Gradients are then summed by sevens, and those sums by sevens, each rounded once. Like emulation
    this is for running on CPU only, and never saved.

    Attributes:
        entries: The bfloat16 entries of the graph and of its bodies, as ``bfloat16_entries`` finds them.
    """

    name: ClassVar[str] = "guard-gradient-sums"
    entries: FrozenSet[Named] = frozenset()

    def run(self, graph: Graph) -> Graph:
        """Return the graph with identities."""
        counts = self._crowded(graph)
        builder = GraphBuilder(graph)
        shares: Dict[Tuple[int, int], Iterator[Entry]] = {}
        for position, node in enumerate(graph.nodes):
            inputs = tuple(
                next(shares[entry.node, entry.index]) if (entry.node, entry.index) in shares else builder.mapped(entry)
                for entry in node.inputs
            )
            bodies = tuple(self.run(body) for body in node.subgraphs)
            new = builder.copy(position, node.rewired(inputs, bodies))
            for key in ((position, index) for index in range(node.num_outputs)):
                if key in counts:
                    shares[key] = iter(_share(builder, Entry(new, key[1]), *counts[key]))
        return builder.finish(builder.mapped(head) for head in graph.heads)

    def _crowded(self, graph: Graph) -> Dict[Tuple[int, int], Tuple[int, int]]:
        """Return how many inputs and heads read each bfloat16 entry whose gradients MXNet would chain."""
        found = {}
        for key, readers in graph.consumers().items():
            heads = sum((head.node, head.index) == key for head in graph.heads)
            is_low = (graph.nodes[key[0]].name, key[1]) in self.entries
            if is_low and len(readers) + heads > _MOST_SUMMED:
                found[key] = len(readers), heads
        return found


def bfloat16_entries(graph: Graph, facts: Facts) -> FrozenSet[Named]:
    """Return the names of a graph's bfloat16 entries, those within bodies of control flow included."""
    found = {(graph.nodes[i].name, index) for (i, index), dtype in facts.dtypes.items() if dtype == dtypes.BFLOAT16}
    for (position, number), body in facts.bodies.items():
        found |= bfloat16_entries(graph.nodes[position].subgraphs[number], body)
    return frozenset(found)


def _share(builder: GraphBuilder, entry: Entry, readers: int, heads: int = 0) -> List[Entry]:
    """Return the entry that each reader is to read in place of a shared one; heads keep the shared one and its name."""
    if readers + heads <= _MOST_SUMMED:
        return [entry] * readers
    sources = _share(builder, entry, -(-readers // _MOST_SUMMED), heads)
    node = builder.nodes[entry.node]
    copies = [_identity(builder, node, source) for source in sources]
    return [copies[reader // _MOST_SUMMED] for reader in range(readers)]


def _identity(builder: GraphBuilder, node: Node, entry: Entry) -> Entry:
    """Add an identity that differs from the others in an attribute, or MXNet would make them one (CSE)."""
    name = builder.unique(f"{node.name}_share")
    attrs = make_attrs({_SHARE_ATTR: name, **device_attrs(node)})
    return Entry(builder.add(Node("_copy", name, attrs, (entry,))))
