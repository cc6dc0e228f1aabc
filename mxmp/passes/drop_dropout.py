"""Removal of dropout, which does nothing in inference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Dict, List, Set, Tuple

from ..graph import Entry, Graph, GraphBuilder, Key, Node
from .attributes import device_attrs
from .base import Pass
from .control_flow import bodies_of


@dataclass(frozen=True)
class DropDropout(Pass):
    """Removes ``Dropout`` nodes, in bodies of control flow too; those that drop always stay.

    An output of the network keeps its name: an identity of that name stands there, BlockGrad, as
    MXNet's subgraph backend would take out another.
    """

    name: ClassVar[str] = "drop-dropout"

    def run(self, graph: Graph) -> Graph:
        """Return the graph without dropout."""
        dropped = set(_positions(graph))
        builder = GraphBuilder(graph)
        for position, node in enumerate(graph.nodes):
            if position in dropped:
                builder.redirect(Entry(position), builder.mapped(node.inputs[0]))
                continue
            bodies = tuple(map(self.run, node.subgraphs)) if bodies_of(node) else node.subgraphs
            builder.copy(position, node.rewired(builder.inputs(node), bodies))
        return builder.finish(name_heads(graph, builder, dropped))


def find_dropouts(graph: Graph) -> Tuple[Node, ...]:
    """Return the nodes that `DropDropout` removes, those in bodies too."""
    found: List[Node] = [graph.nodes[position] for position in _positions(graph)]
    for node in graph.nodes:
        for body in bodies_of(node):
            found.extend(find_dropouts(body.graph))
    return tuple(found)


def _positions(graph: Graph) -> List[int]:
    """Return the positions of dropouts whose one use is their output, not their mask or their order."""
    candidates = [i for i, node in enumerate(graph.nodes) if node.op == "Dropout" and node.get("mode") != "always"]
    if not candidates:
        return []
    read, ordered = uses(graph)
    return [i for i in candidates if (i, 1) not in read and i not in ordered and not graph.nodes[i].control_deps]


def uses(graph: Graph) -> Tuple[Set[Key], Set[int]]:
    """Return the entries that nodes read or that are outputs, and the nodes that others must run after."""
    read = {entry.key for node in graph.nodes for entry in node.inputs} | {head.key for head in graph.heads}
    return read, {dep for node in graph.nodes for dep in node.control_deps}


def name_heads(graph: Graph, builder: GraphBuilder, removed: Set[int]) -> List[Entry]:
    """Return the new outputs of a graph; those that removed nodes gave are identities of their names."""
    named: Dict[int, Entry] = {}
    for head in graph.heads:
        if head.node in removed and head.node not in named:
            node = graph.nodes[head.node]
            same = Node("BlockGrad", node.name, tuple(device_attrs(node).items()), (builder.mapped(head),))
            named[head.node] = Entry(builder.add(same))
    return [named[head.node] if head.node in named else builder.mapped(head) for head in graph.heads]
