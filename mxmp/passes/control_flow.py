"""The bodies of control flow operators, and how their variables and heads belong to inputs and outputs of the node.

A body is a graph of its own. Each of its variables is one of the node's inputs. Attributes of the node say which:
``ForeachParam``, ``WhileLoopParam`` and ``CondParam`` in src/operator/control_flow.cc at tag 1.9.1. An example:
``in_data_locs='[1]'`` says that variable 1 of the body is input 0 of the node.
"""

from __future__ import annotations

import ast
from typing import Callable, FrozenSet, List, NamedTuple, NoReturn, Sequence, Tuple

from ..errors import GraphError
from ..graph import HINT, Graph, Node

_Locs = Tuple[int, ...]
_Links = Sequence[Tuple[int, int]]


class Body(NamedTuple):
    """One body of a control flow node. Its heads are the outputs of the node, unless it is a condition.

    ``ports`` are the inputs of the node that its variables are, in order. ``sliced`` are the variables that hold a
    slice of their input. ``states`` are pairs (variable, head) of a loop's state. The value of the head in one
    iteration is the value of the variable in the next. ``fixed_heads`` keep their dtype: states, and the heads of
    ``cond``, which both branches give. A condition is left unchanged.
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

    def entries(self) -> Tuple[Tuple[int, int], ...]:
        """Return the pairs (position of a variable, input of the node that it is), in order."""
        return tuple(zip(self.variables(), self.ports))


def bodies_of(node: Node) -> Tuple[Body, ...]:
    """Return the bodies of a control flow node, none for any other.

    Raises:
        GraphError: If the attributes of the node do not fit it. MXNet's own inference trusts them: `_foreach` with a
            wrong ``num_out_data`` makes it write beyond an array (``ForeachShape`` in src/operator/control_flow.cc).
    """
    if not node.subgraphs:
        return ()
    reader = _READERS.get(node.op)
    bodies = () if reader is None else reader(node)
    for body in bodies:
        count = len(body.variables())
        if len(body.ports) != count or not all(0 <= port < len(node.inputs) for port in body.ports):
            _refuse(node, f"which of its {len(node.inputs)} inputs each of the {count} variables of a body is")
    return bodies


def marks_through_body(
    entering: Sequence[int], links: _Links, sweep: Callable[[Sequence[int]], List[int]]
) -> List[int]:
    """Return the marks that leave a body, given those that enter it; a loop's state carries marks into the next round.

    Marks are sets of bits. An example: the body rounds a state. Then the state is rounded in the next iteration, and
    all values computed from it are too.

    Args:
        entering: The marks at the body's one end, its variables for a forward sweep, its heads for a backward one.
        links: Pairs of numbers, (one that enters, one that leaves): ``states``, or these the other way round.
        sweep: From the marks at that end to those at the other; more marks at one give more at the other, or as many.
    """
    while True:
        leaving, grown = sweep(entering), list(entering)
        for one, other in links:
            grown[one] |= leaving[other]
        if grown == list(entering):
            return leaving
        entering = grown  # bits are never taken away, so this ends


def check_bodies(graph: Graph) -> None:
    """Raise a GraphError, which names the node, unless all control flow nodes fit their bodies, inner ones too."""
    for node in graph.nodes:
        for body in bodies_of(node):
            check_bodies(body.graph)


def _refuse(node: Node, what: str) -> NoReturn:
    attrs = ", ".join(f"{key}='{value}'" for key, value in node.attrs if key.endswith("_locs") or key == "num_out_data")
    raise GraphError(f"node {node}: its attributes do not say {what}: {attrs}. {HINT}")


def _foreach(node: Node) -> Tuple[Body, ...]:
    (graph,) = node.subgraphs
    data, states, remain = (_locs(node, key) for key in ("in_data_locs", "in_state_locs", "remain_locs"))
    variables = data + states + remain
    if sorted(variables) != list(range(len(node.inputs))):
        _refuse(node, f"which variable of its body each of its {len(node.inputs)} inputs is")
    ports = tuple(variables.index(variable) for variable in range(len(variables)))
    return (_loop(node, graph, ports, states, frozenset(data)),)


def _while_loop(node: Node) -> Tuple[Body, ...]:
    condition, function = node.subgraphs
    body = _loop(node, function, _locs(node, "func_input_locs"), _locs(node, "func_var_locs"))
    return (Body(condition, _locs(node, "cond_input_locs"), is_condition=True), body)


def _loop(node: Node, graph: Graph, ports: _Locs, variables: _Locs, sliced: FrozenSet[int] = frozenset()) -> Body:
    """Return the body of a loop, whose last heads are the next values of the variables that hold its state."""
    outputs = node.get("num_out_data")
    if outputs != str(len(graph.heads) - len(variables)) or not all(0 <= v < len(ports) for v in variables):
        _refuse(node, f"which of the {len(graph.heads)} outputs of its body are states")
    state_heads = range(len(graph.heads) - len(variables), len(graph.heads))
    return Body(graph, ports, tuple(zip(variables, state_heads)), frozenset(state_heads), sliced)


def _cond(node: Node) -> Tuple[Body, ...]:
    condition, *branches = node.subgraphs
    locs = (_locs(node, key) for key in ("then_input_locs", "else_input_locs"))
    fixed = frozenset(range(len(branches[0].heads)))
    bodies = (Body(graph, ports, fixed_heads=fixed) for graph, ports in zip(branches, locs))
    return (Body(condition, _locs(node, "cond_input_locs"), is_condition=True), *bodies)


def _locs(node: Node, key: str) -> _Locs:
    value = ast.literal_eval(node.get(key) or "()")
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


_READERS = {"_foreach": _foreach, "_while_loop": _while_loop, "_cond": _cond}
