"""Bytes of a graph's variables, activations and casts, as far as shapes are known."""

from __future__ import annotations

from typing import Iterable, Mapping, Optional

from .. import dtypes
from ..graph import Entry, Graph
from ..passes.attributes import MARK_ATTR
from ..passes.facts import Facts
from ..passes.plan import Plan
from .casts import CAST_MARKS, inserted_casts, original_positions

_LOW_BYTES = dtypes.ITEM_BYTES[dtypes.FLOAT16]  # bfloat16 is as small


def variable_bytes(graph: Graph, facts: Facts, names: Iterable[str]) -> Optional[int]:
    """Return the bytes of the variables of these names, None if one's shape or dtype is unknown."""
    wanted = frozenset(names)
    found = (Entry(i) for i, node in enumerate(graph.nodes) if node.is_variable and node.name in wanted)
    return total(_entry_bytes(facts, entry) for entry in found)


def _entry_bytes(facts: Facts, entry: Entry, low: bool = False) -> Optional[int]:
    """Return the bytes of one tensor, None if its shape or dtype is unknown."""
    size, dtype = facts.size(entry), facts.dtype(entry)
    return None if size is None or dtype is None else size * (_LOW_BYTES if low else dtypes.ITEM_BYTES[dtype])


def total(values: Iterable[Optional[int]]) -> Optional[int]:
    """Return the sum, None if one of the values is unknown."""
    found = 0
    for value in values:
        if value is None:
            return None
        found += value
    return found


def activation_bytes(graph: Graph, facts: Facts, plan: Optional[Plan] = None) -> Optional[int]:
    """Return the bytes of all activations but the casts of mxmp, None if a shape or dtype is unknown.

    Args:
        graph: A graph.
        facts: What MXNet infers about it.
        plan: What is to be in low precision, where that is not in the graph yet.
    """
    read = set(graph.consumers()) | {(head.node, head.index) for head in graph.heads}
    sizes = []
    for position, index in read:
        node = graph.nodes[position]
        if not node.is_variable and node.get(MARK_ATTR) is None:
            low = plan is not None and plan.gives_low(position, index)
            sizes.append(_entry_bytes(facts, Entry(position, index), low))
    return total(sizes)


def cast_bytes(facts: Facts, after: Graph, where: Mapping[int, int]) -> Optional[int]:
    """Return the bytes that the casts of a converted graph read and write.

    Args:
        facts: What MXNet infers about the graph before its conversion.
        after: The converted graph.
        where: As ``positions`` gives it.

    Returns:
        The bytes; None if a shape is unknown, or if some stand in a body, which may run any number of times.
    """
    if any(inserted_casts(body) for node in after.nodes for body in node.subgraphs):
        return None
    source = original_positions(where)
    tensors = (node.inputs[0] for node in after.nodes if node.get(MARK_ATTR) in CAST_MARKS)
    sizes = [facts.size(tensor._replace(node=source[tensor.node])) for tensor in tensors]
    return total(None if size is None else size * (dtypes.ITEM_BYTES[dtypes.FLOAT32] + _LOW_BYTES) for size in sizes)
