"""One graph that runs a network in float32 and, on the same inputs, in low precision: as a whole, and node by node."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Dict, FrozenSet, List, NamedTuple, Set, Tuple

from .. import dtypes
from ..graph import Entry, Graph, Key, Node, in_written_order
from ..passes import FoldCasts, InsertCasts, Sequential
from ..passes.facts import Facts
from ..passes.plan import Plan
from ..passes.verdict import FLOAT32, KEEP, Verdict
from ..report import Decisions


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
    precision, reading the first one's values; and the conversion. Parameters that the conversion stores in low
    precision are cast instead, which gives the same values but for those beyond its range.
    """
    building = _Building(decisions)
    own = {position: building.copy(position, building.exact) for position in _in_low_precision(decisions)}
    carried = dict(building.exact)
    for position, node in enumerate(decisions.before.nodes):
        if not node.is_variable:
            carried[position] = building.copy(position, carried)
    return building.finish(own, carried)


def _in_low_precision(decisions: Decisions) -> List[int]:
    """Return the positions of the nodes that have low precision in them, those with such a body included."""
    plan, nodes = decisions.plan, decisions.before.nodes
    with_bodies = {position for position, _ in plan.bodies}
    return [i for i, node in enumerate(nodes) if not node.is_variable and (i in plan.placement.low or i in with_bodies)]


@dataclass
class _Building:
    """The graph before its casts, which are planned along: what is copied runs as the conversion has it."""

    decisions: Decisions
    nodes: List[Node] = field(init=False)
    verdicts: List[Verdict] = field(init=False)
    exact: Dict[int, int] = field(init=False)  # positions of the float32 nodes, by those of the network
    low: Set[int] = field(default_factory=set)
    sources: Dict[int, int] = field(default_factory=dict)  # positions in the network, by those of copies

    def __post_init__(self) -> None:
        self.nodes = list(self.decisions.before.nodes)
        self.verdicts = [_in_float32(verdict) for verdict in self.decisions.plan.verdicts]
        self.exact = {position: position for position in range(len(self.nodes))}

    def copy(self, position: int, where: Dict[int, int]) -> int:
        """Add a node of the network that reads nodes found in ``where``, and return its position."""
        node = self.decisions.before.nodes[position]
        inputs = tuple(entry._replace(node=where[entry.node]) for entry in node.inputs)
        new = len(self.nodes)
        self.nodes.append(replace(node, name=f"{node.name}_copy{new}", inputs=inputs, control_deps=()))
        self.verdicts.append(self.decisions.plan.verdicts[position])
        self.sources[new] = position
        if position in self.decisions.plan.placement.low:
            self.low.add(new)
        return new

    def finish(self, own: Dict[int, int], carried: Dict[int, int]) -> SideBySide:
        """Return the graph, given the positions of the copies."""
        heads: List[Entry] = []
        compared = []
        for position, index in _float32_outputs(self.decisions):
            places = self.exact[position], own.get(position), carried[position]
            found = []
            for place in places:
                if place is not None:
                    heads.append(Entry(place, index))
                found.append(len(heads) - 1)
            compared.append(Compared(position, index, *found))
        graph = replace(self.decisions.before, nodes=tuple(self.nodes), heads=tuple(heads))
        policy = self.decisions.policy.replace(output_dtype=dtypes.FLOAT32)
        casts = InsertCasts(policy, self._facts(), plan=self._plan()), FoldCasts()
        return SideBySide(in_written_order(Sequential(casts)(graph).graph), tuple(compared))

    def _plan(self) -> Plan:
        plan = self.decisions.plan
        placement = replace(plan.placement, low=frozenset(self.low))
        copies = ((new, old, body) for new, old in self.sources.items() for i, body in plan.bodies if i == old)
        bodies = {(new, body): plan.bodies[old, body] for new, old, body in copies}
        return Plan(tuple(self.verdicts), placement, frozenset(), bodies)

    def _facts(self) -> Facts:
        facts = self.decisions.facts
        types, bodies = dict(facts.dtypes), dict(facts.bodies)
        for new, old in self.sources.items():
            for index in range(self.nodes[new].num_outputs):
                if (old, index) in facts.dtypes:
                    types[new, index] = facts.dtypes[old, index]
            numbers = range(len(self.nodes[new].subgraphs))
            bodies.update({(new, n): facts.bodies[old, n] for n in numbers if (old, n) in facts.bodies})
        return replace(facts, dtypes=types, bodies=bodies, output_names={})


def _in_float32(verdict: Verdict) -> Verdict:
    """Return the verdict that leaves a node in float32."""
    nothing: FrozenSet[int] = frozenset()
    label = KEEP if verdict.label == KEEP else FLOAT32
    return replace(verdict, label=label, widens="", stand_in="", bodies=(), low_ports=nothing, low_outputs=nothing)


def _float32_outputs(decisions: Decisions) -> List[Key]:
    """Return the outputs of operators that hold float32 in the network; hidden ones are not known, and left out."""
    nodes, facts = decisions.before.nodes, decisions.facts
    known = ((i, index) for i, node in enumerate(nodes) if not node.is_variable for index in range(node.num_outputs))
    return [key for key in known if facts.dtypes.get(key) == dtypes.FLOAT32]
