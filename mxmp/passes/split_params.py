"""Splits a graph in two: what is computed of parameters alone, once for as long as they stay, and all the rest.

Under a policy that stores parameters in float32 every call casts every weight. The casts depend on nothing that changes
from call to call. This splits them off, for running only; nothing of it is saved.
"""

from __future__ import annotations

from typing import AbstractSet, Dict, List, NamedTuple, Optional, Set, Tuple

from ..graph import Entry, Graph, GraphBuilder, Key, Node
from ..graph.core import VARIABLE, in_written_order
from ..rules import CLEAR, RULES
from .emulate import ROUND
from .facts import CAST_OPS

_CASTS = frozenset({*CAST_OPS, ROUND})
_RANDOM = frozenset({"_shuffle"})


class SplitGraph(NamedTuple):
    """A graph in two parts.

    Attributes:
        prepare: Computes values from parameters, its outputs; None if there is nothing to compute.
        main: The graph with variables in their place.
        names: The names of these variables, in the order of the outputs of ``prepare``.
    """

    prepare: Optional[Graph]
    main: Graph
    names: List[str]


def split_params(graph: Graph, params: AbstractSet[str]) -> SplitGraph:
    """Split off what a graph computes from parameters by casts and by operators that move values.

    What only moves values, without any cast, stays where it is: MXNet moves most of them in place.

    Args:
        graph: The graph that is run.
        params: Names of the variables that are parameters, no graph writing to them.
    """
    constant, cast = _constant_nodes(graph, params)
    readers = [entry for i, node in enumerate(graph.nodes) if i not in constant for entry in node.inputs]
    heads = {head.key for head in graph.heads}
    wanted = {entry.key: entry for entry in readers if entry.node in cast and entry.key not in heads}
    if not wanted:
        return SplitGraph(None, graph, [])
    names: Dict[Key, str] = {}
    main = _with_variables(graph, wanted, names)
    prepare = in_written_order(Graph(graph.nodes, tuple(wanted.values()), graph.metadata))
    return SplitGraph(prepare, main, [names[key] for key in wanted])


def _constant_nodes(graph: Graph, params: AbstractSet[str]) -> Tuple[Set[int], Set[int]]:
    """Return the nodes that depend on parameters alone, and those of them with a cast on the way."""
    constant: Set[int] = set()
    cast: Set[int] = set()
    for position, node in enumerate(graph.nodes):
        inputs = {entry.node for entry in node.inputs}
        if node.name in params if node.is_variable else inputs and inputs <= constant and _is_steady(node):
            constant.add(position)
            if node.op in _CASTS or inputs & cast:
                cast.add(position)
    return constant, cast


def _is_steady(node: Node) -> bool:
    """Return whether an operator gives the same for the same inputs, and is a cast or moves values."""
    if node.subgraphs or node.control_deps or node.op in _RANDOM:
        return False
    rule = RULES.find(node.op, dict(node.attrs))
    return node.op in _CASTS or (rule is not None and rule.category == CLEAR)


def _with_variables(graph: Graph, wanted: Dict[Key, Entry], names: Dict[Key, str]) -> Graph:
    """Return a graph that reads variables in place of the wanted entries, whose names are filled in."""
    builder = GraphBuilder(graph)
    for position, node in enumerate(graph.nodes):
        builder.copy(position, node.rewired(builder.inputs(node), node.subgraphs))
        for entry in (Entry(position, index) for index in range(node.num_outputs)):
            if entry.key in wanted:
                names[entry.key] = builder.unique(f"{graph.entry_name(entry)}_prepared")
                builder.redirect(entry, Entry(builder.add(Node(VARIABLE, names[entry.key]))))
    return in_written_order(builder.finish())
