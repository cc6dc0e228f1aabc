"""The size of values, as far as a graph tells it: sums of sums, and products of scalars."""

from __future__ import annotations

import math
from typing import AbstractSet, Dict, NamedTuple, Optional, Sequence

from .. import dtypes
from ..graph import Graph, Key, Node
from ..rules import ADDS, ALLOW, MULTIPLIES, OVER, RESTARTS, TIMES, Call, Rule
from ..rules.conditions import MAX_REDUCTION, value_of
from .facts import Facts


class _Size(NamedTuple):
    """How large values are, where those of a layer count as 1.

    Attributes:
        terms: How many values each is the sum of.
        factor: The product of the scalars that each was multiplied by.
    """

    terms: float = 1.0
    factor: float = 1.0


_ONE = _Size()

_MOVES = frozenset("Reshape transpose expand_dims squeeze Flatten SwapAxis Cast amp_cast _np_transpose".split())
"""What may stand between a weight and its product."""


def find_sizes(graph: Graph, found: Sequence[Optional[Rule]], facts: Facts, dtype: str) -> Dict[int, str]:
    """Return the operators whose results are too large or too small for a dtype, with the reason.

    Terms multiply along sums and products, whatever way these are written, and so do scalars. Both start anew behind a
    layer or a norm. A mean is as large as what it reads. A matrix product without a weight is a sum, and no layer.
    """
    sizes: Dict[Key, _Size] = {}
    reasons: Dict[int, str] = {}
    limits = dtypes.limits(dtype) if dtype in dtypes.LOW_PRECISION else None
    for position, (node, rule) in enumerate(zip(graph.nodes, found)):
        if rule is None or rule.size == RESTARTS:
            continue
        if rule.category == ALLOW and is_layer(graph, node, rule, facts.inputs):
            continue
        read = [sizes.get(entry[:2], _ONE) for port, entry in enumerate(node.inputs) if rule.reads(port)]
        if not read or (not rule.size and rule.sums is None and all(size is _ONE for size in read)):
            continue
        size = _size(node, rule, read, facts)
        if size != _ONE:
            sizes.update(((position, index), size) for index in range(node.num_outputs))
        if limits is None or not (rule.size or rule.sums):
            continue
        if size.terms > MAX_REDUCTION:
            reasons[position] = f"it sums {size.terms:g} terms in all, more than {MAX_REDUCTION}"
        elif not limits.tiny <= size.factor <= limits.max:
            reasons[position] = f"with the scalars before it, it multiplies by {size.factor:g}: out of {dtype}'s range"
    return reasons


def _size(node: Node, rule: Rule, read: Sequence[_Size], facts: Facts) -> _Size:
    """Return the size of what an operator gives."""
    if rule.size == ADDS:
        return _Size(sum(size.terms for size in read), max(size.factor for size in read))
    if rule.size == MULTIPLIES or rule.category == ALLOW:
        length = _length(node, rule, facts) if rule.category == ALLOW else 1
        return _Size(length * math.prod(size.terms for size in read), math.prod(size.factor for size in read))
    terms, factor = max(size.terms for size in read), max(size.factor for size in read)
    if rule.size in (TIMES, OVER):
        scalar = value_of(dict(node.attrs), "scalar")
        size = abs(scalar) if isinstance(scalar, (int, float)) and scalar and math.isfinite(scalar) else 1.0
        return _Size(terms, factor * size if rule.size == TIMES else factor / size)
    return _Size(terms * _length(node, rule, facts), factor)


def _length(node: Node, rule: Rule, facts: Facts) -> float:
    """Return of how many values each result is the sum."""
    length = rule.sums(Call(dict(node.attrs), tuple(map(facts.shape, node.inputs)), "")) if rule.sums else 1
    unknown = 1.0 if rule.category == ALLOW else math.inf  # a sum of unknown length is in float32 anyhow
    return unknown if length is None else length


def is_layer(graph: Graph, node: Node, rule: Rule, data: AbstractSet[str] = frozenset()) -> bool:
    """Return whether an allow operator multiplies by a weight: a variable that is no data, moved perhaps."""
    if rule.sums is None:
        return True
    for entry in (entry for port, entry in enumerate(node.inputs) if rule.reads(port)):
        source = graph.nodes[entry.node]
        while not source.is_variable and len(source.inputs) == 1 and source.op in _MOVES:
            source = graph.nodes[source.inputs[0].node]
        if source.is_variable and source.name not in data:
            return True
    return False
