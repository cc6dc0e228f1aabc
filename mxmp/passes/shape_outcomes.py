"""What the shapes of a network's tensors change about its verdicts.

Gluon converts a net once per outcome, not once per shape of its inputs.
"""

from __future__ import annotations

from typing import Any, List, Tuple

from ..graph import Graph
from ..rules import RULES, Call, Rule, RuleSet
from ..rules.conditions import SHAPE_CONDITIONS
from .facts import Facts


def depends_on_shapes(graph: Graph, dtype: str, rules: RuleSet = RULES) -> bool:
    """Return whether the verdicts on a graph may change with the shapes of its inputs."""
    return bool(_shape_dependent(graph, dtype, rules)) or any(
        depends_on_shapes(body, dtype, rules) for node in graph.nodes for body in node.subgraphs
    )


def shape_outcome(graph: Graph, dtype: str, facts: Facts, rules: RuleSet = RULES) -> Tuple[Any, ...]:
    """Return a key of the decisions that depend on shapes: where it is equal, so are the verdicts on a graph.

    Args:
        graph: A graph without casts of mxmp.
        dtype: The low precision dtype in question.
        facts: Shapes, those in bodies included; dtypes are not looked at.
        rules: The table of operators.
    """
    found: List[Any] = []
    for position, rule in _shape_dependent(graph, dtype, rules):
        node = graph.nodes[position]
        call = Call(dict(node.attrs), tuple(facts.shape(entry) for entry in node.inputs), dtype)
        found.append((rule.forbids(call) is None, rules.stand_in(rule, call)))
    for position, node in enumerate(graph.nodes):
        for number, body in enumerate(node.subgraphs):
            if (position, number) in facts.bodies:
                found.append(shape_outcome(body, dtype, facts.bodies[position, number], rules))
    return tuple(found)


def _shape_dependent(graph: Graph, dtype: str, rules: RuleSet) -> List[Tuple[int, Rule]]:
    """Return position and rule of the operators for which shapes decide whether they run in a dtype."""
    found = ((position, rules.find(node.op, dict(node.attrs))) for position, node in enumerate(graph.nodes))
    return [(i, rule) for i, rule in found if rule and _reads_shapes(rule, dtype, rules)]


def _reads_shapes(rule: Rule, dtype: str, rules: RuleSet) -> bool:
    conditional = rule.condition is not None and dtype in SHAPE_CONDITIONS.get(rule.condition, ())
    return (conditional and dtype in rule.dtypes) or rules.has_stand_ins(rule, dtype)
