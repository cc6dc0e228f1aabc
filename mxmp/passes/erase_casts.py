"""The inverse of inserting casts: the graph as it was before mxmp changed it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import ClassVar, Dict, Optional, Set, Tuple

from .. import dtypes
from ..errors import PassError
from ..graph import Entry, Graph, GraphBuilder, Node
from ..graph.core import make_attrs
from .attributes import ABSORBED_ATTR, DECLARED_ATTR, HEAD_MARK, MARK_ATTR, REPLACED_ATTR, WIDENED_ATTR, replaced
from .base import Pass
from .facts import CAST_OPS

_WIDENS = make_attrs({"dtype": dtypes.FLOAT32})
_Widening = Tuple[str, str, Entry]  # operator, name, what is widened


@dataclass(frozen=True)
class EraseCasts(Pass):
    """Removes the casts that ``InsertCasts`` inserted, not the network's own; restores names and declared dtypes."""

    name: ClassVar[str] = "erase-casts"

    def run(self, graph: Graph) -> Graph:
        """Return the graph as it was before insertion."""
        if not is_converted(graph):
            return graph
        names = {node.inputs[0].node: node.name for node in graph.nodes if node.get(MARK_ATTR) == HEAD_MARK}
        builder = GraphBuilder(graph)
        widenings: Dict[_Widening, Entry] = {}
        early: Set[_Widening] = set()  # those restored for a reader that comes before them
        for position, node in enumerate(graph.nodes):
            _check_attrs(node)
            if node.get(MARK_ATTR) is not None:
                (read, *_) = self._original_inputs(graph, node, builder, widenings, early)
                builder.redirect(Entry(position), read)
                continue
            widening = _widening(node, builder)
            if widening in early:
                early.remove(widening)
                builder.redirect(Entry(position), widenings[widening])
                continue
            inputs = self._original_inputs(graph, node, builder, widenings, early)
            node = _original_attrs(node)._replace(name=names.get(position, node.name))
            new = builder.copy(position, node.rewired(inputs, tuple(map(self.run, node.subgraphs))))
            if widening is not None:
                widenings.setdefault(widening, Entry(new))
        return builder.finish()

    @staticmethod
    def _original_inputs(
        graph: Graph, node: Node, builder: GraphBuilder, widenings: Dict[_Widening, Entry], early: Set[_Widening]
    ) -> Tuple[Entry, ...]:
        """Return the inputs that a node had before casts were inserted and folded."""
        inputs = [*builder.inputs(node)]
        for port, *widening in json.loads(node.get(ABSORBED_ATTR) or "[]"):
            if not widening:
                inputs[port] = builder.mapped(graph.nodes[node.inputs[port].node].inputs[0])
                continue
            op, name = widening
            key = (op, name, inputs[port])
            if key not in widenings:
                widenings[key] = Entry(builder.add(Node(op, name, _WIDENS, (inputs[port],))))
                early.add(key)
            inputs[port] = widenings[key]
        return tuple(inputs)


def _widening(node: Node, builder: GraphBuilder) -> Optional[_Widening]:
    """Return operator, name and input of a cast to float32, which FoldCasts may have taken back; None for others."""
    if node.op not in CAST_OPS or node.attrs != _WIDENS:
        return None
    return node.op, node.name, builder.mapped(node.inputs[0])


def _check_attrs(node: Node) -> None:
    """Raise PassError if an attribute of mxmp is not as mxmp wrote it."""
    absorbed, swapped = node.get(ABSORBED_ATTR), node.get(REPLACED_ATTR)
    try:
        ports = [port for port, *_ in json.loads(absorbed)] if absorbed else []
        fine = all(type(port) is int and 0 <= port < len(node.inputs) for port in ports)
        if swapped:
            op, attrs = json.loads(swapped)
            fine = fine and isinstance(op, str) and isinstance(attrs, dict)
    except (ValueError, TypeError):
        fine = False
    if not fine or (node.get(MARK_ATTR) is not None and not node.inputs):
        raise PassError(
            f"node {node}: its attributes that begin with '__mxmp' were changed; convert the original again."
        )


def is_converted(graph: Graph) -> bool:
    """Return whether a node of a graph or of its bodies has an attribute of mxmp."""
    for node in graph.nodes:  # loops, because every conversion begins with this
        for key, _ in node.attrs:
            if key.startswith("__mxmp"):
                return True
    return any(is_converted(body) for node in graph.nodes for body in node.subgraphs)


def _original_attrs(node: Node) -> Node:
    """Return a node with the attributes that it had before insertion."""
    changes: Dict[str, Optional[str]] = {ABSORBED_ATTR: None, DECLARED_ATTR: None, WIDENED_ATTR: None}
    if node.get(REPLACED_ATTR) is not None:
        op, attrs = replaced(node)
        changes = {**changes, "transpose_a": None, "transpose_b": None, **attrs, REPLACED_ATTR: None}
        node = node._replace(op=op)
    declared, widened = node.get(DECLARED_ATTR), node.get(WIDENED_ATTR)
    if declared is not None:
        changes["__dtype__"] = dtypes.to_flag(declared) if declared in dtypes.ITEM_BYTES else None
    if widened is not None:
        key, equals, before = widened.partition("=")
        changes[key] = before if equals else None
    return node.with_attrs(changes) if any(node.get(key) is not None for key in changes) else node
