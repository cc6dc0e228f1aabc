"""What a graph's entries are computed from, and the order in which MXNet writes its nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import AbstractSet, Dict, Iterable, List, Set, Tuple

from .core import Entry, Graph, Key, Node


def ancestors(graph: Graph, entries: Iterable[Entry], given: AbstractSet[Key] = frozenset()) -> Set[int]:
    """Return the positions of the nodes that are needed to compute some entries of a graph from ``given`` ones."""
    found: Set[int] = set()
    waiting = [entry.node for entry in entries if entry.key not in given]
    while waiting:
        position = waiting.pop()
        if position not in found:
            found.add(position)
            node = graph.nodes[position]
            waiting += [entry.node for entry in node.inputs if entry[:2] not in given]
            waiting += node.control_deps
    return found


def in_written_order(graph: Graph) -> Graph:
    """Return a graph with its nodes in the order in which MXNet writes them.

    That is the order of a depth first search from the outputs (PostOrderDFSVisit in
    3rdparty/tvm/nnvm/include/nnvm/graph.h at tag 1.9.1); what no output needs is left out.
    """
    positions = written_positions(graph)
    if list(positions) == list(range(len(graph.nodes))) and not any(node.subgraphs for node in graph.nodes):
        return graph

    def moved(entries: Tuple[Entry, ...]) -> Tuple[Entry, ...]:
        return tuple([Entry(positions[number], index, version) for number, index, version in entries])

    nodes = []
    for position in positions:
        node = graph.nodes[position]
        if node.inputs or node.subgraphs:
            node = node.rewired(moved(node.inputs), tuple(map(in_written_order, node.subgraphs)))
        if node.control_deps:
            node = node._replace(control_deps=tuple(positions[dep] for dep in node.control_deps))
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes), heads=moved(graph.heads))


def written_positions(graph: Graph) -> Dict[int, int]:
    """Return the places of the nodes that the outputs need, in the order in which MXNet writes them."""
    places: Dict[int, int] = {}
    for head in graph.heads:
        stack = [] if head.node in places else [head.node]
        while stack:
            for position in _needed(graph.nodes[stack[-1]]):
                if position in places:
                    continue
                if _needed(graph.nodes[position]):
                    stack.append(position)
                    break
                places[position] = len(places)
            else:
                places[stack.pop()] = len(places)
    return places


def _needed(node: Node) -> List[int]:
    """Return the nodes that must come before one."""
    needed = [number for number, _, _ in node.inputs]
    return needed + [*node.control_deps] if node.control_deps else needed
