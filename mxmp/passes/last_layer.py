"""The last layer of a network: for each output the nearest matrix product before it, and what lies between."""

from __future__ import annotations

from typing import FrozenSet, Set

from ..graph import Graph, Node
from ..rules import ALLOW, RuleSet
from .control_flow import bodies_of


def last_layer(graph: Graph, rules: RuleSet) -> FrozenSet[int]:
    """Return the operators of the last layer, by position.

    For each output these are the ``allow`` operators that are met first on the way back from it, on
    every path that values take, and all operators behind them. A loop or condition with one in a
    body ends the way too: the last layer is within it then, found from the outputs of the body.
    """
    found: Set[int] = set()
    waiting = [head.node for head in graph.heads]
    while waiting:
        position = waiting.pop()
        node = graph.nodes[position]
        if node.is_variable or position in found:
            continue
        found.add(position)
        if not _is_layer(node, rules):
            rule = rules.find(node.op, dict(node.attrs))
            waiting += [e.node for port, e in enumerate(node.inputs) if rule is None or rule.reads(port)]
    return frozenset(found)


def _is_layer(node: Node, rules: RuleSet) -> bool:
    """Return whether a node is an allow operator, or has one in a body."""
    rule = rules.find(node.op, dict(node.attrs))
    if rule is not None and rule.category == ALLOW:
        return True
    bodies = (body.graph for body in bodies_of(node) if not body.is_condition)
    return any(_is_layer(inner, rules) for body in bodies for inner in body.nodes)
