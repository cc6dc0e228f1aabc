"""Bodies of control flow operators: which of their variables and heads are inputs and outputs of the node.

A body is a graph of its own, whose variables stand for the node's inputs by number; the attributes of the node say
which for which (``ForeachParam``, ``WhileLoopParam`` and ``CondParam`` in src/operator/control_flow.cc at tag 1.9.1).
"""

from __future__ import annotations

import ast
from typing import Callable, Dict, FrozenSet, NamedTuple, Tuple

from ..graph import Graph, Node


class Body(NamedTuple):
    """One body of a control flow node. Its heads are the outputs of the node, but for a condition's.

    Attributes:
        graph: The body.
        ports: For each of its variables, in order, the input of the node that it stands for.
        states: Pairs (variable, head) of a loop's state: what a head gives is what the variable
            holds in the next iteration.
        fixed_heads: Heads that keep their dtype: states, and those that another body gives too.
        sliced: Variables that hold a slice of what the node reads.
        is_condition: Whether it is a condition, which is left unchanged.
    """

    graph: Graph
    ports: Tuple[int, ...]
    states: Tuple[Tuple[int, int], ...] = ()
    fixed_heads: FrozenSet[int] = frozenset()
    sliced: FrozenSet[int] = frozenset()
    is_condition: bool = False

    def variables(self) -> Tuple[int, ...]:
        """Return the positions of the body's variables, in order."""
        return tuple(i for i, node in enumerate(self.graph.nodes) if node.is_variable)


def bodies_of(node: Node) -> Tuple[Body, ...]:
    """Return the bodies of a control flow node, none for any other."""
    reader = _READERS.get(node.op)
    return reader(node) if reader is not None and node.subgraphs else ()


def _foreach(node: Node) -> Tuple[Body, ...]:
    (graph,) = node.subgraphs
    data, states, remain = (_locs(node, key) for key in ("in_data_locs", "in_state_locs", "remain_locs"))
    ports = {variable: port for port, variable in enumerate(data + states + remain)}
    count = len(graph.heads)
    first = count - len(states)
    body = Body(
        graph,
        ports=tuple(ports[variable] for variable in range(len(ports))),
        states=tuple((variable, first + i) for i, variable in enumerate(states)),
        fixed_heads=frozenset(range(first, count)),
        sliced=frozenset(data),
    )
    return (body,)


def _while_loop(node: Node) -> Tuple[Body, ...]:
    condition, function = node.subgraphs
    variables = _locs(node, "func_var_locs")
    count = len(function.heads)
    first = count - len(variables)
    body = Body(
        function,
        ports=_locs(node, "func_input_locs"),
        states=tuple((variable, first + i) for i, variable in enumerate(variables)),
        fixed_heads=frozenset(range(first, count)),
    )
    return (Body(condition, _locs(node, "cond_input_locs"), is_condition=True), body)


def _cond(node: Node) -> Tuple[Body, ...]:
    condition, *branches = node.subgraphs
    locs = (_locs(node, key) for key in ("then_input_locs", "else_input_locs"))
    count = len(branches[0].heads)
    found = (Body(g, ports, (), frozenset(range(count))) for g, ports in zip(branches, locs))
    return (Body(condition, _locs(node, "cond_input_locs"), is_condition=True), *found)


def _locs(node: Node, key: str) -> Tuple[int, ...]:
    value = ast.literal_eval(node.get(key) or "()")
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


_READERS: Dict[str, Callable[[Node], Tuple[Body, ...]]] = {
    "_foreach": _foreach,
    "_while_loop": _while_loop,
    "_cond": _cond,
}
