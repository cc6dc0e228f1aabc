"""The casts in a converted graph: what they read, where they are, and the tensors with many readers."""

from __future__ import annotations

from typing import Dict, List, Mapping, Sequence, Tuple

from .. import dtypes
from ..graph import Graph, Node
from ..passes.attributes import CAST_MARK, FACTOR_MARK, HEAD_MARK, MARK_ATTR, replaced
from ..passes.facts import Facts

MANY_READERS = 32
"""Readers of one cast beyond which a report warns: the gradients of 64 have overflowed float16."""

CAST_MARKS = (CAST_MARK, HEAD_MARK)
"""The marks of casts."""


def inserted_casts(graph: Graph) -> List[Node]:
    """Return the node that each inserted cast reads, bodies included."""
    found = []
    for node in graph.nodes:
        if node.get(MARK_ATTR) in CAST_MARKS:
            found.append(graph.nodes[node.inputs[0].node])
        for body in node.subgraphs:
            found.extend(inserted_casts(body))
    return found


def count_activations(inserted: Sequence[Node], facts: Facts) -> int:
    """Return how many inserted casts read an activation or input, no parameter."""
    return sum(1 for source in inserted if not (source.is_variable and source.name in facts.params))


def widely_read(graph: Graph) -> Tuple[Tuple[str, int], ...]:
    """Return name and number of readers of each tensor that is cast once for more than ``MANY_READERS``."""
    consumers = graph.consumers()
    found = []
    for position, node in enumerate(graph.nodes):
        if node.get(MARK_ATTR) == CAST_MARK and node.get("dtype") in dtypes.LOW_PRECISION:
            readers = len(consumers.get((position, 0), ()))
            if readers > MANY_READERS:
                found.append((graph.entry_name(node.inputs[0]), readers))
    return tuple(found)


def positions(before: Graph, after: Graph) -> Dict[int, int]:
    """Return the position of each node of a graph in the converted graph.

    Names need not be unique, but both graphs are in the order in which MXNet writes them.
    """
    original = {node.inputs[0].node: node.name for node in after.nodes if node.get(MARK_ATTR) == HEAD_MARK}
    waiting: Dict[Tuple[str, str], List[int]] = {}
    for position in reversed(range(len(after.nodes))):
        node = after.nodes[position]
        if node.get(MARK_ATTR) is None:
            waiting.setdefault((replaced(node)[0], original.get(position, node.name)), []).append(position)
    found = {}
    for position, node in enumerate(before.nodes):
        if waiting.get((node.op, node.name)):  # not a cast of the network's own that nothing reads any more
            found[position] = waiting[node.op, node.name].pop()
    return found


def casts_at(before: Graph, facts: Facts, after: Graph, where: Mapping[int, int]) -> Dict[int, Tuple[str, ...]]:
    """Return the casts at each node of a graph, by its position before the conversion."""
    source = original_positions(where)
    for position, node in enumerate(after.nodes):
        for entry in node.inputs:
            if after.nodes[entry.node].get(MARK_ATTR) == FACTOR_MARK and position in source:
                source[entry.node] = source[position]
    pairs = [(i, entry) for i, node in enumerate(after.nodes) for entry in node.inputs]
    pairs += [(after.nodes[head.node].inputs[0].node, head) for head in after.heads if after.nodes[head.node].inputs]
    found: Dict[int, Dict[str, None]] = {}
    for position, entry in pairs:
        cast = after.nodes[entry.node]
        if cast.get(MARK_ATTR) in CAST_MARKS and position in source:
            tensor = cast.inputs[0]
            name = facts.output_name(before, tensor._replace(node=source[tensor.node]))
            found.setdefault(source[position], {})[f"{name} to {cast.get('dtype')}"] = None
    return {position: tuple(casts) for position, casts in found.items()}


def original_positions(where: Mapping[int, int]) -> Dict[int, int]:
    """Return the position of each node before the conversion, by its position after it."""
    return {new: old for old, new in where.items()}
