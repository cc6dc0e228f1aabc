"""Builds a graph of copies of nodes of a network, in float32 or converted, and of operators between them."""

from __future__ import annotations

from dataclasses import replace
from typing import Dict, FrozenSet, List, Mapping, Optional, Sequence, Set

from .. import dtypes
from ..graph import VARIABLE, Entry, Graph, Key, Node, in_written_order
from ..graph.core import make_attrs
from ..passes import InsertCasts
from ..passes.decide import FLOAT32, KEEP, Verdict
from ..passes.facts import Facts
from ..passes.plan import Plan
from ..report import Decisions

_DROPOUTS = ("Dropout", "RNN")
_PROBE = Verdict(FLOAT32, "probe")


class Building:
    """A graph before its casts, which are planned along: what is copied runs as the conversion has it.

    Dropout drops nothing in it. Parameters that the conversion stores in low precision are cast instead, which gives
    the same values but for those beyond its range.

    Attributes:
        variables: The network's variables, by their positions in it.
    """

    def __init__(self, decisions: Decisions) -> None:
        self._decisions = decisions
        self._nodes: List[Node] = []
        self._verdicts: List[Verdict] = []
        self._low: Set[int] = set()
        self._sources: Dict[int, int] = {}  # positions in the network, by those of what is copied or added
        self._added: Dict[int, str] = {}
        variables = (i for i, node in enumerate(decisions.before.nodes) if node.is_variable)
        self.variables = {position: self._add(position) for position in variables}

    def copy(self, position: int, inputs: Sequence[Entry], converted: bool) -> int:
        """Add a node of the network that reads other entries, in float32 or ``converted``; return its position."""
        node = without_dropout(self._decisions.before.nodes[position])
        name = f"{node.name}_copy{len(self._nodes)}"
        new = self._add(position, node._replace(name=name, inputs=tuple(inputs), control_deps=()), converted)
        if converted and position in self._decisions.plan.placement.low:
            self._low.add(new)
        return new

    def insert(self, op: str, *inputs: Entry, **attrs: str) -> Entry:
        """Add an operator that computes in float32, and return its output."""
        name = f"{op.strip('_').lower()}_probe{len(self._nodes)}"
        return self._insert(Node(op, name, make_attrs(attrs), tuple(inputs)))

    def variable(self, name: str, dtype: Optional[str] = dtypes.FLOAT32) -> Entry:
        """Add a variable of a dtype, None if it is not known; no other may have its name."""
        attrs = {} if dtype is None else {"__dtype__": dtypes.to_flag(dtype)}
        return self._insert(Node(VARIABLE, name, make_attrs(attrs)), dtype)

    def finish(self, heads: Sequence[Entry]) -> Graph:
        """Return the graph, with casts; its heads are in float32."""
        graph = replace(self._decisions.before, nodes=tuple(self._nodes), heads=tuple(heads))
        policy = self._decisions.policy.replace(output_dtype=dtypes.FLOAT32)
        return in_written_order(InsertCasts(policy, self._facts(), plan=self._plan())(graph).graph)

    def _add(self, position: int, node: Optional[Node] = None, converted: bool = False) -> int:
        verdict = self._decisions.plan.verdicts[position]
        self._nodes.append(node or self._decisions.before.nodes[position])
        self._verdicts.append(verdict if converted else _in_float32(verdict))
        self._sources[len(self._nodes) - 1] = position
        return len(self._nodes) - 1

    def _insert(self, node: Node, dtype: Optional[str] = dtypes.FLOAT32) -> Entry:
        self._nodes.append(node)
        self._verdicts.append(_PROBE)
        if dtype is not None:
            self._added[len(self._nodes) - 1] = dtype
        return Entry(len(self._nodes) - 1)

    def _plan(self) -> Plan:
        plan = self._decisions.plan
        placement = replace(plan.placement, low=frozenset(self._low))
        copies = ((new, old, body) for new, old in self._sources.items() for i, body in plan.bodies if i == old)
        bodies = {(new, body): plan.bodies[old, body] for new, old, body in copies if self._verdicts[new].bodies}
        return Plan(tuple(self._verdicts), placement, frozenset(), bodies)

    def _facts(self) -> Facts:
        facts = self._decisions.facts
        types = {(new, 0): dtype for new, dtype in self._added.items()}
        bodies = {}
        for new, old in self._sources.items():
            for index in range(self._nodes[new].num_outputs):
                if (old, index) in facts.dtypes:
                    types[new, index] = facts.dtypes[old, index]
            numbers = range(len(self._nodes[new].subgraphs))
            bodies.update({(new, n): facts.bodies[old, n] for n in numbers if (old, n) in facts.bodies})
        return replace(facts, dtypes=types, shapes={}, bodies=bodies, output_names={})


def in_low_precision(decisions: Decisions) -> List[int]:
    """Return the positions of the nodes that have low precision in them, those with such a body included."""
    plan, nodes = decisions.plan, decisions.before.nodes
    with_bodies = {position for position, _ in plan.bodies}
    return [i for i, node in enumerate(nodes) if not node.is_variable and (i in plan.placement.low or i in with_bodies)]


def float32_outputs(decisions: Decisions) -> List[Key]:
    """Return the outputs of operators that hold float32 in the network; hidden ones are not known, and left out."""
    nodes, facts = decisions.before.nodes, decisions.facts
    known = ((i, index) for i, node in enumerate(nodes) if not node.is_variable for index in range(node.num_outputs))
    return [key for key in known if facts.dtypes.get(key) == dtypes.FLOAT32]


def moved(inputs: Sequence[Entry], where: Mapping[int, int]) -> List[Entry]:
    """Return what a node reads, where its nodes are found at other positions."""
    return [entry._replace(node=where[entry.node]) for entry in inputs]


def without_dropout(node: Node) -> Node:
    """Return a node that drops nothing, in its bodies neither: two networks could not be compared."""
    if node.op in _DROPOUTS and node.get("p"):
        node = node.with_attrs({"p": "0"})
    if not node.subgraphs:
        return node
    bodies = (replace(body, nodes=tuple(map(without_dropout, body.nodes))) for body in node.subgraphs)
    return node.rewired(node.inputs, tuple(bodies))


def _in_float32(verdict: Verdict) -> Verdict:
    """Return the verdict that leaves a node in float32."""
    nothing: FrozenSet[int] = frozenset()
    label = KEEP if verdict.label == KEEP else FLOAT32
    return replace(verdict, label=label, widens="", stand_in="", bodies=(), low_ports=nothing, low_outputs=nothing)
