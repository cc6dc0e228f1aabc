"""Takes out what mxmp put in: the inverse of insertion."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Dict, Optional, Tuple

from .. import dtypes
from ..graph import Entry, Graph, GraphBuilder, Node
from .base import Pass
from .insert_casts import ABSORBED_ATTR, HEAD_MARK, MARK_ATTR, STORED_ATTR


@dataclass(frozen=True)
class EraseCasts(Pass):
    """Removes every cast that ``InsertCasts`` inserted and restores names and declared dtypes.

    Casts that the network had by itself stay.
    """

    name: ClassVar[str] = "erase-casts"

    def run(self, graph: Graph) -> Graph:
        """Return the graph as it was before insertion."""
        names = _original_names(graph)
        builder = GraphBuilder(graph)
        for position, node in enumerate(graph.nodes):
            if node.get(MARK_ATTR) is not None:
                builder.redirect(Entry(position), builder.mapped(node.inputs[0]))
                continue
            inputs = tuple(builder.mapped(entry) for entry in _original_inputs(graph, node))
            node = _original_storage(node).with_attrs({ABSORBED_ATTR: None})
            builder.copy(position, replace(node, name=names.get(position, node.name), inputs=inputs))
        return builder.finish(builder.mapped(head) for head in graph.heads)


def _original_names(graph: Graph) -> Dict[int, str]:
    return {node.inputs[0].node: node.name for node in graph.nodes if node.get(MARK_ATTR) == HEAD_MARK}


def _original_inputs(graph: Graph, node: Node) -> Tuple[Entry, ...]:
    """Return a node's inputs, with what is cast in place of casts that were absorbed."""
    absorbed = (node.get(ABSORBED_ATTR) or "").split(",")
    return tuple(
        graph.nodes[entry.node].inputs[0] if str(port) in absorbed else entry for port, entry in enumerate(node.inputs)
    )


def _original_storage(node: Node) -> Node:
    stored: Optional[str] = node.get(STORED_ATTR)
    if stored is None:
        return node
    declared = dtypes.to_flag(stored) if stored in dtypes.ITEM_BYTES else None
    return node.with_attrs({"__dtype__": declared, STORED_ATTR: None})
