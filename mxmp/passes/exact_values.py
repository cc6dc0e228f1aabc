"""Values that must not be rounded to low precision: positions, and what is read as integers.

float16 has no odd integers above 2048 and bfloat16 none above 256. A counter that a network casts to int32, an index
that it computes, and what argmax or arange gives are exact in float32, and stay so here under every policy: what
carries or computes them is pinned. What a matrix product gave is rounded already; behind it the last step before the
integer is taken in float32, no more.
"""

from __future__ import annotations

from collections import Counter
from typing import Dict, FrozenSet, List, Optional, Sequence, Set, Tuple

from .. import dtypes
from ..graph import Entry, Graph, Key, Node
from ..rules import ALLOW, CLEAR, EVERY, INFER, Rule, RuleSet
from .control_flow import Body, bodies_of, carried
from .facts import CAST_OPS

_ROUNDED, _HOLDS = 1, 2
"""Marks of entries: that a product has rounded what they descend from, and that they hold positions."""

_POSITIONS, _UNROUNDED, _INTEGER = 0b1, 0b11, 0b111
"""What is required of an entry: that positions in it stay exact, that what no product has rounded does, or that it
is taken for an integer, so that its last step is float32 too. The greater includes the smaller."""


class ExactValues:
    """The values of a graph that must be exact, those in bodies of control flow included: a sweep forward and one back.

    Attributes:
        pins: Positions of the operators to run in float32 for them.
        bodies: The same of the bodies of control flow nodes, by (node, number of the body).
    """

    def __init__(self, graph: Graph, rules: RuleSet) -> None:
        self._nodes = graph.nodes
        self._heads = graph.heads
        self._rules = rules
        self._found = [None if n.is_variable else rules.find(n.op, dict(n.attrs)) for n in graph.nodes]
        self._marks: Counter[Key] = Counter()  # without any where a key is missing
        self._required: Counter[Key] = Counter()
        self.pins: Set[int] = set()
        self.bodies: Dict[Key, ExactValues] = {}

    @classmethod
    def of(cls, graph: Graph, rules: RuleSet) -> ExactValues:
        """Return those of a whole graph, of whose outputs positions are to be exact."""
        values = cls(graph, rules)
        values.forward(())
        values.backward([_POSITIONS] * len(graph.heads))
        return values

    def positions(self) -> Dict[int, FrozenSet[int]]:
        """Return the nodes that give positions, with the numbers of the outputs that hold them."""
        numbers: Dict[int, FrozenSet[int]] = {}
        for (position, index), mark in self._marks.items():
            if mark & _HOLDS:
                numbers[position] = numbers.get(position, frozenset()) | {index}
        return numbers

    def forward(self, entering: Sequence[int]) -> List[int]:
        """Mark entries, and return the marks of the graph's outputs, given those of its variables if there are any."""
        variables = (i for i, node in enumerate(self._nodes) if node.is_variable)
        self._marks = Counter({(variable, 0): mark for variable, mark in zip(variables, entering)})
        for position, node in enumerate(self._nodes):
            bodies = bodies_of(node)
            if bodies:
                self._enter(position, node, bodies)
            elif not node.is_variable:
                mark, outputs = self._given(node, self._found[position])
                for index in outputs if mark else ():
                    self._marks[position, index] = mark
        return [self._marks[head.key] for head in self._heads]

    def _read(self, node: Node, rule: Optional[Rule]) -> int:
        """Return the marks of all values that an operator reads."""
        read = 0
        for port, entry in enumerate(node.inputs):
            if rule is None or rule.reads(port):
                read |= self._marks[entry.key]
        return read

    def _given(self, node: Node, rule: Optional[Rule]) -> Tuple[int, Sequence[int]]:
        """Return the mark that an operator gives, and the numbers of the outputs that have it."""
        outputs = range(node.num_outputs)
        if node.op in CAST_OPS:  # one to integers ends all rounding before it
            return self._read(node, None) if _is_float(node) else 0, outputs
        if rule is None or rule.category == ALLOW:
            return _ROUNDED if rule is not None else self._read(node, rule) & _ROUNDED, outputs
        if rule.positions:
            return _HOLDS, [i for i in outputs if i in rule.keep_outputs] or outputs
        read = self._read(node, rule)
        rounded = read & _ROUNDED and not rule.truth
        carries = rule.category == CLEAR or (rule.category == INFER and not rounded and not rule.truth)
        mark = (_ROUNDED if rounded else 0) | (read & _HOLDS if carries else 0)
        return mark, [i for i in outputs if i not in rule.keep_outputs]

    def _enter(self, position: int, node: Node, bodies: Sequence[Body]) -> None:
        for number, body in enumerate(bodies):
            inner = self.bodies[position, number] = ExactValues(body.graph, self._rules)
            entering = [self._marks[node.inputs[port].key] for port in body.ports]
            leaving = carried(entering, body.states, inner.forward)
            for index, mark in enumerate(() if body.is_condition else leaving):
                self._marks[position, index] |= mark

    def backward(self, wanted: Sequence[int]) -> List[int]:
        """Find the operators to pin, and return what is required of the variables, given that of the outputs."""
        for head, level in zip(self._heads, wanted):
            self._require(head, level)
        for position in reversed(range(len(self._nodes))):
            node, rule = self._nodes[position], self._found[position]
            bodies = bodies_of(node)
            if bodies:
                self._leave(position, node, bodies)
            elif node.op in CAST_OPS:
                self._require(node.inputs[0], self._required[position, 0] if _is_float(node) else _INTEGER)
            elif rule is not None:
                # Indices, lengths and labels; samplers read shapes and parameters, which need not be exact.
                if rule.keep and not (rule.keep is EVERY and rule.category == INFER):
                    for entry in (entry for port, entry in enumerate(node.inputs) if port in rule.keep):
                        self._require(entry, _INTEGER)
                self._pin(position, node, rule)
        return [self._required[i, 0] for i, node in enumerate(self._nodes) if node.is_variable]

    def _require(self, entry: Entry, level: int) -> None:
        if level > _POSITIONS or (level and self._marks[entry.key] & _HOLDS):
            self._required[entry.key] |= level

    def _pin(self, position: int, node: Node, rule: Rule) -> None:
        """Pin an operator whose outputs must be exact, and require the same of what it reads."""
        if rule.positions:
            self.pins.add(position)
        if rule.positions or rule.category == ALLOW:
            return
        keys = [(position, i) for i in range(node.num_outputs)]
        level, read = max(self._required[key] for key in keys), self._read(node, rule)
        holds = any(self._marks[key] & _HOLDS for key in keys)
        holds |= rule.truth and read & _HOLDS != 0  # compares them
        if level < _INTEGER and read & _ROUNDED:
            level = _POSITIONS if level and holds else 0
        elif not level and holds:
            level = _POSITIONS
        if not level or (rule.truth and read & _ROUNDED):
            return
        self.pins.add(position)
        last_step = level == _INTEGER and read & _ROUNDED and rule.category != CLEAR and not rule.preserves_grid
        for entry in (entry for port, entry in enumerate(node.inputs) if rule.reads(port)):
            self._require(entry, _POSITIONS if last_step else level)

    def _leave(self, position: int, node: Node, bodies: Sequence[Body]) -> None:
        """Require what the bodies require; in loops counters stay exact in every iteration."""
        for number, body in enumerate(bodies):
            wanted = [
                _UNROUNDED if body.is_condition else self._required[position, i]
                for i in range(len(body.graph.heads))
            ]
            for _, head in body.states:
                wanted[head] |= _UNROUNDED
            links = [(head, variable) for variable, head in body.states]
            held = carried(wanted, links, self.bodies[position, number].backward)
            for level, port in zip(held, body.ports):
                self._require(node.inputs[port], level)


def _is_float(node: Node) -> bool:
    return node.get("dtype") in (*dtypes.PRECISIONS, "float64")
