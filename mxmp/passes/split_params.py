"""Splits a graph in two: what is computed of parameters alone, once for as long as they stay, and all the rest.

Under a policy that stores parameters in float32 every call casts every weight. The casts depend on nothing that changes
from call to call. This splits them off, for running only; nothing of it is saved.
"""

from __future__ import annotations

from typing import AbstractSet, List, NamedTuple, Optional, Set, Tuple

from ..graph import VARIABLE, Entry, Graph, GraphBuilder, Key, Node, ancestors
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
    wanted = _read_by_others(graph, *_constant_nodes(graph, params))
    if not wanted:
        return SplitGraph(None, graph, [])
    heads = [Entry(*key) for key in sorted(wanted)]
    builder = GraphBuilder(graph)
    for position in sorted(ancestors(graph, heads)):
        builder.copy(position, graph.nodes[position].rewired(builder.inputs(graph.nodes[position])))
    main, names = _with_variables(graph, wanted)
    return SplitGraph(builder.finish(map(builder.mapped, heads)), main, names)


def _read_by_others(graph: Graph, constant: AbstractSet[int], cast: AbstractSet[int]) -> Set[Key]:
    """Return the entries of ``cast`` nodes that nodes which are not ``constant`` read on the way to the outputs."""
    heads = {head.key for head in graph.heads}
    needed = {head.node for head in graph.heads}
    found: Set[Key] = set()
    for position in range(len(graph.nodes) - 1, -1, -1):
        if position in needed:
            node = graph.nodes[position]
            needed.update(node.control_deps)
            for entry in node.inputs:
                needed.add(entry.node)
                if entry.node in cast and position not in constant and entry.key not in heads:
                    found.add(entry.key)
    return found


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


def _with_variables(graph: Graph, wanted: AbstractSet[Key]) -> Tuple[Graph, List[str]]:
    """Return a graph that reads variables in place of the wanted entries, and the names of these in order."""
    needed = ancestors(graph, graph.heads, wanted)
    sources = {position for position, _ in wanted}
    builder = GraphBuilder(graph)
    names: List[str] = []
    for position, node in enumerate(graph.nodes):
        if position in needed:
            bare = Node(VARIABLE, node.name)  # arrays are given for all: what else a variable says is not read
            builder.copy(position, bare if node.is_variable else node.rewired(builder.inputs(node)))
        for index in range(node.num_outputs if position in sources else 0):
            if (position, index) in wanted:
                entry = Entry(position, index)
                names.append(builder.unique(f"{graph.entry_name(entry)}_prepared"))
                builder.redirect(entry, Entry(builder.add(Node(VARIABLE, names[-1]))))
    return builder.finish(), names
