"""One graph that runs a network in float32 and, on the same inputs, in low precision: as a whole, and node by node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, NamedTuple, Tuple

from ..graph import Entry, Graph
from ..report import Decisions
from .building import Building, float32_outputs, in_low_precision, moved


class Compared(NamedTuple):
    """An output of a node of the network, with the numbers of the heads that hold it.

    ``exact`` is what float32 gives. ``own`` is what the node gives in low precision of float32's inputs, the same head
    as ``exact`` for a node in float32. ``carried`` is what the converted network gives there.
    """

    node: int
    output: int
    exact: int
    own: int
    carried: int


@dataclass(frozen=True)
class SideBySide:
    """The graph, with casts, whose heads are all in float32, and what its heads are."""

    graph: Graph
    compared: Tuple[Compared, ...]


def side_by_side(decisions: Decisions) -> SideBySide:
    """Return the graph that compares a network with its conversion.

    It holds the network three times, on the same variables: in float32; each node that the conversion has in low
    precision, reading the first one's values; and the conversion.
    """
    building, low = Building(decisions), frozenset(in_low_precision(decisions))
    exact, carried, own = dict(building.variables), dict(building.variables), {}
    for position, node in enumerate(decisions.before.nodes):
        if node.is_variable:
            continue
        read = moved(node.inputs, exact)
        exact[position] = building.copy(position, read, converted=False)
        if position in low:
            own[position] = building.copy(position, read, converted=True)
        carried[position] = building.copy(position, moved(node.inputs, carried), converted=True)
    heads: List[Entry] = []
    compared = []
    for position, index in float32_outputs(decisions):
        found = []
        for place in (exact[position], own.get(position), carried[position]):
            if place is not None:
                heads.append(Entry(place, index))
            found.append(len(heads) - 1)
        compared.append(Compared(position, index, *found))
    return SideBySide(building.finish(heads), tuple(compared))
