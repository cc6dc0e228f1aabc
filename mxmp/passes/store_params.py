"""Stores parameters in the low precision that all their readers cast them to, for what runs but is never saved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Dict, FrozenSet, Optional, Set, Union

from .. import dtypes
from ..graph import Entry, Graph, GraphBuilder, Node
from .base import Pass, rewritten
from .facts import CAST_OPS, Facts
from .fold import uses


@dataclass(frozen=True)
class StoreParams(Pass):
    """Takes out casts of parameters that are read in low precision alone; the parameters then have that dtype.

    What is computed stays the same if they are rounded as the casts did. A cast that gives an output of the network
    stays, since the output has its name.
    """

    name: ClassVar[str] = "store-params"
    facts: Facts = Facts({})
    params: FrozenSet[str] = frozenset()

    def run(self, graph: Graph) -> Graph:
        """Return the graph without these casts."""
        found = self.find(graph)
        stored = {i: found[node.name] for i, node in enumerate(graph.nodes) if node.is_variable and node.name in found}

        def visit(_: GraphBuilder, position: int, node: Node) -> Union[Node, Entry]:
            read = graph.nodes[position].inputs
            if read and read[0].node in stored and node.op in CAST_OPS:
                return node.inputs[0]
            return node.with_attrs({"__dtype__": dtypes.to_flag(stored[position])}) if position in stored else node

        return rewritten(graph, visit)

    def find(self, graph: Graph) -> Dict[str, str]:
        """Return the dtypes of the parameters that are stored, by name."""
        consumers, (_, ordered) = graph.consumers(), uses(graph)
        kept = {head.node for head in graph.heads} | ordered
        kept |= {position for position, node in enumerate(graph.nodes) if node.control_deps}
        found: Dict[str, str] = {}
        for position, node in enumerate(graph.nodes):
            is_dense = node.get("__storage_type__") in (None, "0")
            if node.is_variable and node.name in self.params and is_dense and position not in kept:
                readers = {reader for reader, _ in consumers.get((position, 0), [])}
                dtype = None if readers & kept else _common_cast(graph, readers)
                if dtype is not None and self.facts.dtype(Entry(position)) == dtypes.FLOAT32:
                    found[node.name] = dtype
        return found


def _common_cast(graph: Graph, readers: Set[int]) -> Optional[str]:
    """Return the low precision dtype that all of these nodes cast to, None if there is none."""
    casts = {graph.nodes[reader].get("dtype") if graph.nodes[reader].op in CAST_OPS else None for reader in readers}
    dtype = casts.pop() if len(casts) == 1 else None
    return dtype if dtype in dtypes.LOW_PRECISION else None
