"""The counts of a report: casts, where they are, and the bytes of variables, activations and casts."""

from __future__ import annotations

from typing import Dict, Iterable, List, Mapping, Optional, Tuple

from .. import dtypes
from ..graph import Entry, Graph, Node
from ..passes.base import CAST_MARK, FACTOR_MARK, MARK_ATTR, OUTPUT_MARK, is_inserted
from ..passes.facts import Facts
from ..passes.plan import Plan
from ..rules import RULES
from .report import Cast, total

MANY_READERS = 32  # of one cast, beyond which a report warns: the gradients of 64 have overflowed float16

_LOW_BYTES = dtypes.ITEM_BYTES[dtypes.FLOAT16]  # bfloat16 is as small


def _is_cast(node: Node) -> bool:
    return node.get(MARK_ATTR) in (CAST_MARK, OUTPUT_MARK)


def inserted_casts(graph: Graph) -> List[Node]:
    """Return the node that each inserted cast reads, bodies included."""
    sources = [graph.nodes[node.inputs[0].node] for node in graph.nodes if _is_cast(node)]
    bodies = (body for node in graph.nodes for body in node.subgraphs)
    return sources + [source for body in bodies for source in inserted_casts(body)]


def widely_read(graph: Graph) -> Tuple[Tuple[str, int], ...]:
    """Return name and number of readers of each tensor that is cast once for more than ``MANY_READERS``."""
    consumers = graph.consumers()
    casts = ((i, node) for i, node in enumerate(graph.nodes) if _is_cast(node))
    readers = (
        (graph.entry_name(node.inputs[0]), len(consumers.get((i, 0), ())))
        for i, node in casts
        if node.get("dtype") in dtypes.LOW_PRECISION
    )
    return tuple((name, count) for name, count in readers if count > MANY_READERS)


def positions(before: Graph, after: Graph) -> Dict[int, int]:
    """Return the position of each node of a graph in the converted graph; both are in the order that MXNet writes."""
    waiting: Dict[Tuple[str, str], List[int]] = {}
    casts = (node for node in after.nodes if node.get(MARK_ATTR) == OUTPUT_MARK)
    names = {cast.inputs[0].node: cast.name for cast in casts}
    for position in reversed(range(len(after.nodes))):
        node = after.nodes[position]
        if not is_inserted(node):
            waiting.setdefault((node.op, names.get(position, node.name)), []).append(position)
    found = {}
    for position, node in enumerate(before.nodes):
        ops = (node.op, *(op for rule in RULES.variants(node.op) for _, op in rule.stand_ins))
        places = [waiting[op, node.name] for op in ops if waiting.get((op, node.name))]
        if places:
            found[position] = places[0].pop()
    return found


def casts_at(before: Graph, facts: Facts, after: Graph, where: Mapping[int, int]) -> Dict[int, Tuple[Cast, ...]]:
    """Return the casts at each node of a graph, by its position before the conversion."""
    source = {new: old for old, new in where.items()}
    for position, node in enumerate(after.nodes):
        for entry in node.inputs:
            if after.nodes[entry.node].get(MARK_ATTR) == FACTOR_MARK and position in source:
                source[entry.node] = source[position]
    pairs = [(i, entry) for i, node in enumerate(after.nodes) for entry in node.inputs]
    pairs += [(after.nodes[head.node].inputs[0].node, head) for head in after.heads if after.nodes[head.node].inputs]
    casts: Dict[int, Dict[Cast, None]] = {}
    for position, entry in pairs:
        cast = after.nodes[entry.node]
        if _is_cast(cast) and position in source and cast.inputs[0].node in source:
            tensor = cast.inputs[0]._replace(node=source[cast.inputs[0].node])
            giver = before.nodes[tensor.node]
            name = "" if giver.is_variable else giver.name
            shown = Cast(facts.output_name(before, tensor), str(cast.get("dtype")), name)
            casts.setdefault(source[position], {})[shown] = None  # in the order of the inputs, each once
    return {position: tuple(shown) for position, shown in casts.items()}


def variable_bytes(graph: Graph, facts: Facts, names: Iterable[str]) -> Optional[int]:
    """Return the bytes of the variables of these names, None if one's shape or dtype is unknown."""
    wanted = frozenset(names)
    variables = (Entry(i) for i, node in enumerate(graph.nodes) if node.is_variable and node.name in wanted)
    return total(_entry_bytes(facts, entry) for entry in variables)


def _entry_bytes(facts: Facts, entry: Entry, low: bool = False) -> Optional[int]:
    """Return the bytes of one tensor, None if its shape or dtype is unknown."""
    size, dtype = facts.size(entry), facts.dtype(entry)
    return None if size is None or dtype is None else size * (_LOW_BYTES if low else dtypes.ITEM_BYTES[dtype])


def activation_bytes(graph: Graph, facts: Facts, plan: Optional[Plan] = None) -> Optional[int]:
    """Return the bytes of all activations but the casts of mxmp, None if a shape or dtype is unknown.

    ``plan`` says what is to be in low precision, where that is not in the graph yet.
    """
    read = set(graph.consumers()) | {(head.node, head.index) for head in graph.heads}
    kept = (key for key in read if not graph.nodes[key[0]].is_variable and not is_inserted(graph.nodes[key[0]]))
    return total(_entry_bytes(facts, Entry(*key), plan is not None and plan.gives_low(*key)) for key in kept)


def cast_bytes(facts: Facts, after: Graph, where: Mapping[int, int]) -> Optional[int]:
    """Return the bytes that the casts of a converted graph read and write; ``facts`` are on the graph before.

    None if a shape is unknown, or if some stand in a body, which may run any number of times.
    """
    if any(inserted_casts(body) for node in after.nodes for body in node.subgraphs):
        return None
    source = {new: old for old, new in where.items()}
    tensors = (node.inputs[0] for node in after.nodes if _is_cast(node))
    read = [tensor._replace(node=source[tensor.node]) if tensor.node in source else None for tensor in tensors]
    sizes = [None if tensor is None else facts.size(tensor) for tensor in read]
    return total(None if size is None else size * (dtypes.ITEM_BYTES[dtypes.FLOAT32] + _LOW_BYTES) for size in sizes)
