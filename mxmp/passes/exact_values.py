"""Values that must not be rounded to low precision: positions, and what is read as integers.

float16 has no odd integers above 2048 and bfloat16 none above 256. A counter that a network casts to int32, an index
that it computes, and what argmax or arange gives are exact in float32, and stay so here under every policy: what
carries or computes them is pinned. What a matrix product gave is rounded already; behind it the last step before the
integer is taken in float32, no more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import AbstractSet, Dict, FrozenSet, Mapping, Sequence, Set, Tuple

from .. import dtypes
from ..graph import Entry, Graph, Key, Node
from ..rules import ALLOW, CLEAR, EVERY, INFER, Rule, RuleSet
from .control_flow import Body, bodies_of
from .facts import CAST_OPS

EXACT = "carries exact values"
"""The reason given for an operator that is float32 for what it carries."""

_POSITIONS, _UNROUNDED, _INTEGER = 1, 2, 3
"""What is required of an entry: that positions in it stay exact, that what no product has rounded does, or that it
is taken for an integer, so that its last step is float32 too. The greater includes the smaller."""


@dataclass(frozen=True)
class ExactValues:
    """The values of a graph that must be exact, and the operators to run in float32 for them.

    ``pins`` are the positions of those operators, ``positions`` the nodes that give positions with the numbers of the
    outputs that hold them, ``bodies`` the same of the bodies of control flow nodes, by (node, number of the body).
    """

    pins: FrozenSet[int] = frozenset()
    positions: Mapping[int, FrozenSet[int]] = field(default_factory=dict)
    bodies: Mapping[Tuple[int, int], "ExactValues"] = field(default_factory=dict)


def find_exact_values(graph: Graph, rules: RuleSet) -> ExactValues:
    """Return the values of a graph that must be exact, those in bodies of control flow included."""
    sweep = _Sweep(graph, rules)
    sweep.forward(frozenset(), frozenset())
    sweep.backward({head.key: _POSITIONS for head in graph.heads})
    return sweep.result()


class _Sweep:
    """A sweep forward and one back over a graph or a body.

    ``rounded`` entries descend from a product, which has rounded them, ``positions`` hold positions; ``required`` is
    what is required of entries, ``strongest`` the most of a node's outputs, ``pins`` are the operators to run in
    float32, ``inner`` the sweeps over bodies.
    """

    def __init__(self, graph: Graph, rules: RuleSet) -> None:
        self.graph = graph
        self.found = [None if node.is_variable else rules.find(node.op, dict(node.attrs)) for node in graph.nodes]
        self.rules = rules
        self.rounded: Set[Key] = set()
        self.positions: Set[Key] = set()
        self.required: Dict[Key, int] = {}
        self.strongest: Dict[int, int] = {}
        self.pins: Set[int] = set()
        self.inner: Dict[Tuple[int, int], _Sweep] = {}

    def result(self) -> ExactValues:
        bodies = {key: sweep.result() for key, sweep in self.inner.items()}
        positions: Dict[int, FrozenSet[int]] = {}
        for position, index in self.positions:
            positions[position] = positions.get(position, frozenset()) | {index}
        return ExactValues(frozenset(self.pins), positions, bodies)

    def forward(self, rounded: AbstractSet[int], positions: AbstractSet[int]) -> None:
        """Find the entries that products have rounded and those that hold positions, given such variables."""
        self.rounded, self.positions = {(i, 0) for i in rounded}, {(i, 0) for i in positions}
        for position, node in enumerate(self.graph.nodes):
            if node.is_variable:
                continue
            rule = self.found[position]
            bodies = bodies_of(node)
            if bodies:
                self._enter(position, node, bodies)
            elif node.op in CAST_OPS or rule is None:
                self._pass_on(position, node, node.op in CAST_OPS and not _is_float(node))
            elif rule.positions:
                own = [i for i in range(node.num_outputs) if i in rule.keep_outputs]
                self.positions.update((position, i) for i in own or range(node.num_outputs))
            elif rule.category == ALLOW:
                self.rounded.update((position, i) for i in range(node.num_outputs))
            else:
                self._compute(position, node, rule)

    def _pass_on(self, position: int, node: Node, is_integer: bool) -> None:
        """Pass on what a cast, or an operator without a rule, reads; a cast to integers ends all rounding before it."""
        keys = [entry.key for entry in node.inputs]
        outputs = [(position, i) for i in range(node.num_outputs)]
        if not is_integer and any(key in self.rounded for key in keys):
            self.rounded.update(outputs)
        if node.op in CAST_OPS and not is_integer and keys[0] in self.positions:
            self.positions.update(outputs)

    def _compute(self, position: int, node: Node, rule: Rule) -> None:
        keys = [entry.key for port, entry in enumerate(node.inputs) if rule.reads(port)]
        outputs = [(position, i) for i in range(node.num_outputs) if i not in rule.keep_outputs]
        rounded = any(key in self.rounded for key in keys) and not rule.truth
        if rounded:
            self.rounded.update(outputs)
        carries = rule.category == CLEAR or (rule.category == INFER and not rounded and not rule.truth)
        if carries and any(key in self.positions for key in keys):
            self.positions.update(outputs)

    def _enter(self, position: int, node: Node, bodies: Sequence[Body]) -> None:
        for number, body in enumerate(bodies):
            sweep = self.inner[position, number] = _Sweep(body.graph, self.rules)
            keys = [node.inputs[port].key for port in body.ports]
            marks = [
                {v for v, key in zip(body.variables(), keys) if key in of} for of in (self.rounded, self.positions)
            ]
            heads = [head.key for head in body.graph.heads]
            while True:
                sweep.forward(*marks)
                states = [(body.variables()[variable], heads[head]) for variable, head in body.states]
                more = [{v for v, h in states if h in of} for of in (sweep.rounded, sweep.positions)]
                if all(new <= old for new, old in zip(more, marks)):
                    break
                marks = [old | new for old, new in zip(marks, more)]
            if not body.is_condition:
                self.rounded.update((position, i) for i, head in enumerate(heads) if head in sweep.rounded)
                self.positions.update((position, i) for i, head in enumerate(heads) if head in sweep.positions)

    def backward(self, wanted: Mapping[Key, int]) -> None:
        """Find the operators to pin, given what is required of entries."""
        for key, what in wanted.items():
            self._require(Entry(*key), what)
        for position in reversed(range(len(self.graph.nodes))):
            node, rule, what = self.graph.nodes[position], self.found[position], self.strongest.get(position, 0)
            if node.is_variable:
                continue
            bodies = bodies_of(node)
            if bodies:
                self._leave(position, node, bodies)
            elif node.op in CAST_OPS:
                self._require(node.inputs[0], what if _is_float(node) else _INTEGER)
            elif rule is not None:
                self._read(node, rule)
                self._pin(position, node, rule, what)

    def _require(self, entry: Entry, what: int) -> None:
        if what > _POSITIONS or (what and entry.key in self.positions):
            self.required[entry.key] = max(what, self.required.get(entry.key, 0))
            self.strongest[entry.node] = max(what, self.strongest.get(entry.node, 0))

    def _read(self, node: Node, rule: Rule) -> None:
        """Require exact indices, lengths and labels; samplers read shapes and parameters, which need not be."""
        if not rule.keep or (rule.keep is EVERY and rule.category == INFER):
            return
        for port, entry in enumerate(node.inputs):
            if port in rule.keep:
                self._require(entry, _INTEGER)

    def _pin(self, position: int, node: Node, rule: Rule, what: int) -> None:
        if rule.positions:
            self.pins.add(position)
        if rule.positions or rule.category == ALLOW or not (what or self.positions):
            return
        inputs = [entry for port, entry in enumerate(node.inputs) if rule.reads(port)]
        rounded = any(entry.key in self.rounded for entry in inputs)
        holds = any((position, i) in self.positions for i in range(node.num_outputs))
        holds |= rule.truth and any(entry.key in self.positions for entry in inputs)  # compares them
        if what < _INTEGER and rounded:
            what = _POSITIONS if what and holds else 0
        elif not what and holds:
            what = _POSITIONS
        if not what or (rule.truth and rounded):
            return
        self.pins.add(position)
        last_step = what == _INTEGER and rounded and rule.category != CLEAR and not rule.preserves_grid
        for entry in inputs:
            self._require(entry, _POSITIONS if last_step else what)

    def _leave(self, position: int, node: Node, bodies: Sequence[Body]) -> None:
        """Require what the bodies require; in loops counters stay exact in every iteration."""
        for number, body in enumerate(bodies):
            sweep = self.inner[position, number]
            heads = [head.key for head in body.graph.heads]
            outer = [self.required.get((position, i), 0) for i in range(len(heads))]
            wanted = [_UNROUNDED] * len(heads) if body.is_condition else outer
            while True:
                for variable, head in body.states:
                    held = sweep.required.get((body.variables()[variable], 0), 0)
                    wanted[head] = max(wanted[head], held, _UNROUNDED)
                before = dict(sweep.required)
                sweep.backward({key: max(w for other, w in zip(heads, wanted) if other == key) for key in heads})
                if sweep.required == before:
                    break
            for variable, port in zip(body.variables(), body.ports):
                self._require(node.inputs[port], sweep.required.get((variable, 0), 0))


def _is_float(node: Node) -> bool:
    return node.get("dtype") in (*dtypes.PRECISIONS, "float64")
