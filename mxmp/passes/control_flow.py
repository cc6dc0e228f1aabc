"""Bodies of control flow operators: which of their variables and heads are inputs and outputs of the node.

A body is a graph of its own, whose variables stand for the node's inputs by number; the attributes of the node say
which for which (``ForeachParam``, ``WhileLoopParam`` and ``CondParam`` in src/operator/control_flow.cc at tag 1.9.1).
"""

from __future__ import annotations

import ast
from typing import FrozenSet, NamedTuple, Tuple

from ..graph import Graph, Node

_Locs = Tuple[int, ...]


class Body(NamedTuple):
    """One body of a control flow node. Its heads are the outputs of the node, but for a condition's.

    ``ports`` are the inputs of the node that its variables stand for, in order, and ``sliced`` the variables that hold
    a slice of one. ``states`` are pairs (variable, head) of a loop's state: what the head gives is what the variable
    holds in the next iteration. ``fixed_heads`` keep their dtype: states, and those that another body gives too. A
    condition is left unchanged.
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
    if not node.subgraphs:
        return ()
    reader = _READERS.get(node.op)
    return () if reader is None else reader(node)


def _foreach(node: Node) -> Tuple[Body, ...]:
    (graph,) = node.subgraphs
    data, states, remain = (_locs(node, key) for key in ("in_data_locs", "in_state_locs", "remain_locs"))
    ports = {variable: port for port, variable in enumerate(data + states + remain)}
    return (_loop(graph, tuple(ports[variable] for variable in range(len(ports))), states, frozenset(data)),)


def _while_loop(node: Node) -> Tuple[Body, ...]:
    condition, function = node.subgraphs
    body = _loop(function, _locs(node, "func_input_locs"), _locs(node, "func_var_locs"))
    return (Body(condition, _locs(node, "cond_input_locs"), is_condition=True), body)


def _loop(graph: Graph, ports: _Locs, variables: _Locs, sliced: FrozenSet[int] = frozenset()) -> Body:
    """Return the body of a loop, whose last heads are the next values of the variables that hold its state."""
    state_heads = range(len(graph.heads) - len(variables), len(graph.heads))
    return Body(graph, ports, tuple(zip(variables, state_heads)), frozenset(state_heads), sliced)


def _cond(node: Node) -> Tuple[Body, ...]:
    condition, *branches = node.subgraphs
    locs = (_locs(node, key) for key in ("then_input_locs", "else_input_locs"))
    fixed = frozenset(range(len(branches[0].heads)))
    found = (Body(graph, ports, fixed_heads=fixed) for graph, ports in zip(branches, locs))
    return (Body(condition, _locs(node, "cond_input_locs"), is_condition=True), *found)


def _locs(node: Node, key: str) -> _Locs:
    value = ast.literal_eval(node.get(key) or "()")
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


_READERS = {"_foreach": _foreach, "_while_loop": _while_loop, "_cond": _cond}
