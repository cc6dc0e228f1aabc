"""The precision of each operator of a graph, decided by how values flow through the graph.

`classify` gives a decision for each node. `decide.decide` first decides on each operator by itself. One sweep forward
then marks the values of entries: tainted, input data, positions, close to 1 and others. One sweep back finds which
values must be exact. The rule of an operator says how it changes marks.

An example: float16 has no odd integers above 2048, and bfloat16 has none above 256. A counter that a network casts to
int32 is exact in float32. So are a computed index and the output of argmax or arange. They stay exact under every
policy. A matrix product has rounded its results already. Behind it only the last operator before the integer runs in
float32.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Dict, FrozenSet, List, Mapping, Optional, Sequence, Set, Tuple

from .. import dtypes
from ..errors import PolicyError
from ..graph import Entry, Graph, Key, Node
from ..policy import Policy
from ..rules import ALLOW, CLEAR, DENY, EVERY, INFER, Call, Rule
from ..rules.conditions import unsafe_scalar
from ..rules.core import DIVIDES, ENDS, LENGTHS, MAGNIFIES, NORMALIZES, RESTARTS, SATURATES, SHIFTS, SUBTRACTS
from .base import rule_of
from .control_flow import Body, bodies_of, marks_through_body
from .decide import FLOAT32, FREE, KEEP, LOW, VARIABLE, Decision, Reason, decide, moves
from .facts import CAST_OPS, Facts
from .sizes import Sizes, find_sizes


class Mark:
    """Facts about the values of an entry, as bits. An entry has each mark that applies to some of its values."""

    TAINTED = 1 << 0  # An operator that needs float32 gave them. Infer operators that read them need float32 too.
    FORCED = 1 << 1  # An override keeps them in float32. All their readers run in float32, except layers.
    DATA = 1 << 2  # They are inputs of the network, or constants. They are not narrowed to save bytes.
    VARIABLE = 1 << 3  # They are a variable's values, unchanged.
    OUT_OF_RANGE = 1 << 4  # They may be beyond the low precision dtype's range.
    BOOLEAN = 1 << 5  # They are 0 and 1: results of comparisons of data.
    ROUNDED = 1 << 6  # They are computed from results of a product, which are rounded.
    INDICES = 1 << 7  # Some are positions.
    NEAR_ONE = 1 << 8  # They are so close to 1 that their distance from 1 needs float32.
    OF_NEAR_ONE = 1 << 9  # They are computed from such values. They may depend on that distance.
    LENGTH = 1 << 10  # They are lengths of vectors.


class Need:
    """Requirements on the values of an entry, as bits. INTEGER includes UNROUNDED, which includes POSITIONS."""

    POSITIONS = 0b1  # Positions among them must be exact.
    UNROUNDED = 0b11  # All values that no product has rounded must be exact.
    INTEGER = 0b111  # They become integers, so the last operator before runs in float32 too.
    DISTANCE = 0b1000  # Their distance from 1 must be exact.
    OF_DISTANCE = 0b10000  # So must the distance from 1 of the values that they are computed from.
    FLOAT32 = 0b100000  # A reader wants them in float32.
    CLOSE = 0b1000000  # They are close to 1 by the domain of a reader, and their distance from 1 must be exact.


_NEAR = Mark.NEAR_ONE | Mark.OF_NEAR_ONE

_THROUGH_BODIES = Mark.TAINTED | Mark.FORCED | Mark.DATA | Mark.ROUNDED | Mark.INDICES | Mark.LENGTH | _NEAR
"""The marks that enter bodies of control flow, and leave them."""

_BY_USER = {Reason.OVERRIDE, Reason.OPERATOR, Reason.REGION}
"""The kinds of reasons that are a user's wish."""

NAMED = "its outputs have names of their own"
"""The reason given for an operator that gives outputs of the network under names that no cast can have."""


def classify(graph: Graph, policy: Policy, facts: Facts) -> Tuple[Decision, ...]:
    """Return the decision for every node of a graph, the bodies of control flow included.

    - Taint: an infer operator that reads the output of a deny operator is pinned to float32. It may read it directly,
      or through clear operators. Its own output is tainted too. So is the output of a pinned operator with an unsafe
      scalar. An operator that is float32 only because MXNet has no other kernel passes a taint on. It adds none.
    - Overrides: values that an override by name or block keeps in float32 stay so up to the next layer.
    - Sizes: a sum of sums with more than ``MAX_REDUCTION`` terms is pinned. So is a product of scalars that leaves the
      dtype's range (`find_sizes`).
    - Input data: data, labels, states and constants in float32 are narrowed only for allow operators, never to save
      bytes. Values that are computed only from such data count as data. An infer operator that reads data is pinned.
      Its results count as data too, unless it also reads other values in front of a layer. Otherwise a network that
      adds its input to a layer would be float32 as a whole.
    - Variables: a clear operator that moves a variable's values, or data, to a float32 reader is pinned. An example is
      a detector's anchor boxes, sliced and concatenated: rounding them would lose half pixels.
    - Exact values: positions, and values that become integers, are exact under every policy.
    - Distance from 1: a sigmoid that is an output, or that a logarithm reads, is float32.
    - With ``policy.last_layer_fp32`` the last layer is pinned to float32, unless an override says otherwise.

    Raises:
        PolicyError: If MXNet has no kernel for an override. Also if an override asks for another precision of outputs
            that have names of their own. The message names the node.
    """
    last = last_layer(graph) if policy.last_layer_fp32 else frozenset()
    flow = Dataflow(graph, policy, facts, last, _before_layers(graph), _unnameable(graph, facts))
    variables = ((i, node.name) for i, node in enumerate(graph.nodes) if node.is_variable)
    inputs = ((name in facts.inputs, facts.dtype(Entry(i))) for i, name in variables)
    flow.forward([Mark.DATA if is_data and dtype not in dtypes.LOW_PRECISION else 0 for is_data, dtype in inputs])
    tells = policy.output_dtype == dtypes.FLOAT32 and not policy.pure
    flow.backward([Need.POSITIONS | (Need.DISTANCE if tells else 0)] * len(graph.heads))
    return tuple(flow.decisions)


class Dataflow:
    """The marks of the entries of a graph or of a body, and the decisions on its nodes.

    Args:
        last: Positions of the operators of the last layer, if that is to be float32.
        ahead_of_layers: Positions of nodes with an allow operator behind them. For nodes of a body it may be behind the
            loop.
        named: Positions of nodes whose outputs have names that no cast can have.
        is_condition: Whether the graph stays unchanged: the condition of a loop or branch, or a body without facts.
        sizes: The result of `find_sizes` for a body.

    Attributes:
        marks: Marks by entry. An entry without marks is missing.
        decisions: Decisions by position of the node. `backward` completes them with those on bodies.
    """

    def __init__(
        self,
        graph: Graph,
        policy: Policy,
        facts: Facts,
        last: FrozenSet[int] = frozenset(),
        ahead_of_layers: FrozenSet[int] = frozenset(),
        named: FrozenSet[int] = frozenset(),
        is_condition: bool = False,
        sizes: Optional[Sizes] = None,
    ) -> None:
        self._graph, self._policy, self._facts = graph, policy, facts
        self._last, self._ahead_of_layers, self._named = last, ahead_of_layers, named
        self._is_condition = is_condition
        self._found = [rule_of(node) for node in graph.nodes]
        self._sizes = sizes or find_sizes(graph, facts, self._policy.compute_dtype)
        self._bodies: Dict[Key, Dataflow] = {}
        self._required: Dict[Key, int] = {}
        self.marks: Dict[Key, int] = {}
        self.decisions: List[Decision] = []

    # ------------------------------------------------------------------ forward: marks of values

    def forward(self, entering: Sequence[int]) -> List[int]:
        """Mark entries and decide on each node, given the marks of variables. Return the marks of the outputs."""
        self.decisions, self.marks = [], {}
        variables = [i for i, node in enumerate(self._graph.nodes) if node.is_variable]
        for variable, mark in zip(variables, entering):
            variable_mark = Mark.VARIABLE if self._facts.dtype(Entry(variable)) == dtypes.FLOAT32 else 0
            self._mark((variable, 0), mark | variable_mark)
        beyond = self._facts.nodes_out_of_range(self._graph)
        for position, node in enumerate(self._graph.nodes):
            if position in beyond:
                self._mark_all(position, node, Mark.OUT_OF_RANGE)
            bodies = bodies_of(node)
            if bodies:
                decision = self._mark_by_bodies(position, node, bodies)
            elif node.is_variable:
                decision = VARIABLE
            else:
                decision = self._decide(position, node)
            self.decisions.append(decision)
        return [self.marks.get(head.key, 0) & _THROUGH_BODIES for head in self._graph.heads]

    def _mark(self, key: Key, mark: int) -> None:
        if mark:
            self.marks[key] = self.marks.get(key, 0) | mark

    def _mark_all(self, position: int, node: Node, mark: int) -> None:
        for index in range(node.num_outputs) if mark else ():
            self._mark((position, index), mark)

    def _source(self, entries: Sequence[Entry], mark: int) -> Node:
        """Return the node that gives the first entry with a mark."""
        return self._graph.nodes[next(e.node for e in entries if self.marks.get(e.key, 0) & mark)]

    def _decide(self, position: int, node: Node) -> Decision:
        """Return the decision on an operator, and mark its outputs."""
        rule = self._found[position]
        read = self._read(node, rule)
        self._mark_numbers(position, node, rule, read)
        if self._is_condition:
            return Decision(KEEP, "the condition of a loop", rule)
        decision = decide(self._graph, position, self._facts, self._policy, is_last=position in self._last)
        if position in self._named and self._policy.output_dtype == dtypes.FLOAT32 and decision.label in (LOW, FREE):
            if decision.label == LOW and _BY_USER & set(decision.kinds):
                low = self._policy.compute_dtype
                raise PolicyError(
                    f"{decision.reason} asks for {low} at node {node}, but {NAMED}, so that the outputs come in "
                    f"float32. Leave it in float32, or set output_dtype={low!r}."
                )
            decision = Decision(FLOAT32, NAMED, decision.rule, kinds=(Reason.NAMED,))
        data = [entry for port, entry in enumerate(node.inputs) if decision.input_in_precision(port)]
        marks = 0
        for entry in data:
            marks |= self.marks.get(entry[:2], 0)
        decision = self._pin_out_of_range(position, node, data, marks, decision)
        decision = self._pin_mapped(position, node, decision)
        if not self._policy.pure:
            decision = self._pin_forced(position, node, data, marks, decision)
        is_free = decision.label == FREE or (decision.label == LOW and Reason.ALLOW in decision.kinds)
        if is_free and position in self._sizes.reasons:
            decision = Decision(FLOAT32, self._sizes.reasons[position], decision.rule, kinds=(Reason.MANY_TERMS,))
        decision = self._pin_tainted(position, node, data, marks, decision)
        if decision.label == FREE and position in self._named:
            return Decision(LOW, NAMED, decision.rule, kinds=(Reason.NAMED,))
        if not self._policy.pure:
            decision = self._keep_data(position, node, read, decision)
            if moves(decision) and marks & (Mark.VARIABLE | Mark.DATA):
                self._mark_all(position, node, Mark.VARIABLE)
        return decision

    def _read(self, node: Node, rule: Optional[Rule]) -> int:
        """Return the marks of all values that an operator reads."""
        read = 0
        for port, entry in enumerate(node.inputs):
            mark = self.marks.get(entry[:2], 0)
            if mark and (rule is None or rule.reads(port)):
                read |= mark
        return read

    def _mark_numbers(self, position: int, node: Node, rule: Optional[Rule], read: int) -> None:
        """Mark the outputs of an operator that are positions, rounded, or close to 1."""
        outputs: Sequence[int] = range(node.num_outputs)
        numbers = read & (Mark.ROUNDED | Mark.INDICES | Mark.LENGTH | _NEAR)
        if node.op in CAST_OPS:  # one to integers ends all rounding before it
            mark = numbers if _is_float(node) else 0
        elif rule is None:
            mark = numbers & Mark.ROUNDED
        elif rule.category == ALLOW:
            mark = 0 if self._maps_indices(node, rule) else Mark.ROUNDED
            near = [self.marks.get(e.key, 0) & _NEAR for port, e in enumerate(node.inputs) if rule.reads(port)]
            mark |= Mark.OF_NEAR_ONE if all(near) or (any(near) and position in self._sizes.products) else 0
        elif rule.gives_indices:
            mark, outputs = Mark.INDICES, [i for i in outputs if i in rule.keep_outputs] or outputs
        else:
            rounded = numbers & Mark.ROUNDED and not rule.is_boolean
            carries = rule.category == CLEAR or (rule.category == INFER and not rounded and not rule.is_boolean)
            mark = (Mark.ROUNDED if rounded else 0) | (numbers & Mark.INDICES if carries else 0)
            mark |= Mark.INDICES if rule.counts and not rounded else 0
            normalizes = rule.distance == DIVIDES and self.marks.get(node.inputs[1].key, 0) & Mark.LENGTH
            subtracts = rule.distance == SUBTRACTS and numbers & _NEAR
            if rule.distance in (SATURATES, NORMALIZES) or normalizes or subtracts:
                mark |= Mark.NEAR_ONE
            elif rule.distance == LENGTHS:
                mark |= Mark.LENGTH
            elif rule.category == CLEAR or rule.distance == SHIFTS:
                mark |= numbers & (Mark.LENGTH | _NEAR)
            elif numbers & _NEAR and rule.size != RESTARTS and not rule.is_boolean:
                mark |= Mark.OF_NEAR_ONE
            outputs = outputs if rule.counts else [i for i in outputs if i not in rule.keep_outputs]
        for index in outputs if mark else ():
            self._mark((position, index), mark)

    def _maps_indices(self, node: Node, rule: Rule) -> bool:
        """Return whether a product reads positions that nothing has rounded."""
        marks = (self.marks.get(entry[:2], 0) for port, entry in enumerate(node.inputs) if rule.reads(port))
        return rule.maps_indices and any(mark & Mark.INDICES and not mark & Mark.ROUNDED for mark in marks)

    def _pin_out_of_range(
        self, position: int, node: Node, data: Sequence[Entry], read: int, decision: Decision
    ) -> Decision:
        """Pin an operator that gives or reads values beyond the low precision dtype's range."""
        output_marks = self.marks.get((position, 0), 0)
        if not (read | output_marks) & Mark.OUT_OF_RANGE or decision.label not in (LOW, FREE) or decision.rule is None:
            return decision
        beyond = f"beyond {self._policy.compute_dtype}'s range"
        if output_marks & Mark.OUT_OF_RANGE:
            return Decision(FLOAT32, f"its values are {beyond}", decision.rule)
        if decision.rule.category == CLEAR:
            self._mark_all(position, node, Mark.OUT_OF_RANGE)
        return Decision(FLOAT32, f"'{self._source(data, Mark.OUT_OF_RANGE).name}' has values {beyond}", decision.rule)

    def _pin_forced(self, position: int, node: Node, data: Sequence[Entry], read: int, decision: Decision) -> Decision:
        """Pin an operator, but no layer, that reads values which an override keeps in float32, and mark its outputs."""
        rule = decision.rule
        if rule is None or decision.label not in (FREE, FLOAT32):
            return decision
        if decision.label == FLOAT32 and {Reason.OVERRIDE, Reason.REGION} & set(decision.kinds):
            self._mark_all(position, node, Mark.FORCED | Mark.TAINTED)
        elif read & Mark.FORCED and rule.category != ALLOW:
            self._mark_all(position, node, Mark.FORCED)
            if decision.label == FREE:
                reason = f"behind {self._source(data, Mark.FORCED)}, which an override keeps in float32"
                return Decision(FLOAT32, reason, rule, kinds=(Reason.AFTER_OVERRIDE,))
        return decision

    def _pin_mapped(self, position: int, node: Node, decision: Decision) -> Decision:
        """Pin a product of positions. Its results are tainted."""
        rule = decision.rule
        if rule is None or decision.label == KEEP or not self._maps_indices(node, rule):
            return decision
        if decision.label == LOW and _BY_USER & set(decision.kinds):
            return decision
        self._mark_all(position, node, Mark.TAINTED)
        if decision.label == FLOAT32:
            return decision
        return Decision(FLOAT32, Reason.EXACT.value, rule, kinds=(Reason.EXACT,))

    def _pin_tainted(self, position: int, node: Node, data: Sequence[Entry], read: int, decision: Decision) -> Decision:
        """Pin an infer operator behind a deny operator, and pass the taint on."""
        if decision.rule is None or decision.label not in (FREE, FLOAT32):
            return decision
        category, scalars = decision.rule.category, decision.rule.scalars
        if read & Mark.TAINTED and category == INFER and decision.label == FREE:
            reason = f"infer behind {self._source(data, Mark.TAINTED)}"
            decision = Decision(FLOAT32, reason, decision.rule, kinds=(Reason.INFER_BEHIND,))
        is_sum = Reason.MANY_TERMS in decision.kinds or (category == ALLOW and not decision.kinds)  # too long
        taints = decision.taints and (category in (DENY, INFER) or is_sum)
        if scalars and not taints:  # 1 - clip(x, 0, 0.9999) in float16 would still be 0
            call = Call(dict(node.attrs), (), self._policy.compute_dtype)
            taints = unsafe_scalar(call, scalars) is not None
        if (taints and decision.label == FLOAT32) or (read & Mark.TAINTED and category != ALLOW):
            self._mark_all(position, node, Mark.TAINTED)
        return decision

    def _keep_data(self, position: int, node: Node, read: int, decision: Decision) -> Decision:
        """Pin an infer operator that reads input data, and mark its outputs as data."""
        rule = decision.rule
        if not read & Mark.DATA or decision.label == LOW or (rule is not None and rule.category not in (INFER, CLEAR)):
            return decision
        if rule is None and (node.op not in CAST_OPS or node.get("dtype") in dtypes.LOW_PRECISION):
            return decision
        entries = [entry for port, entry in enumerate(node.inputs) if rule is None or rule.reads(port)]
        only = all(self.marks.get(entry.key, 0) & (Mark.DATA | Mark.BOOLEAN) for entry in entries)
        if only or position not in self._ahead_of_layers:
            self._mark_all(position, node, Mark.BOOLEAN if rule is not None and rule.is_boolean else Mark.DATA)
        if rule is not None and rule.category == INFER and decision.label == FREE:
            reason = f"input values of '{self._source(entries, Mark.DATA).name}'"
            return Decision(FLOAT32, reason, rule, taints=False, kinds=(Reason.DATA,))
        return decision

    def _mark_by_bodies(self, position: int, node: Node, bodies: Sequence[Body]) -> Decision:
        """Mark the outputs of a control flow node by its bodies, and return the decision on the node."""
        leads = position in self._ahead_of_layers or _is_layer(node)
        for number, body in enumerate(bodies):
            facts = self._facts.bodies.get((position, number))
            is_left = body.is_condition or facts is None
            last = last_layer(body.graph) if position in self._last else frozenset()
            ahead_of_layers = frozenset(range(len(body.graph.nodes)) if leads else ())
            inner = Dataflow(
                body.graph,
                self._policy,
                facts or Facts({}),
                last,
                ahead_of_layers,
                is_condition=is_left,
                sizes=self._sizes.bodies.get((position, number)),
            )
            self._bodies[position, number] = inner
            entering = [self.marks.get(node.inputs[port].key, 0) & _THROUGH_BODIES for port in body.ports]
            leaving = marks_through_body(entering, body.states, inner.forward)
            for index, mark in enumerate(() if body.is_condition else leaving):
                self._mark((position, index), mark)
        return Decision(KEEP, "control flow, its bodies are converted")

    # ------------------------------------------------------------------ back: requirements on values

    def backward(self, wanted: Sequence[int]) -> List[int]:
        """Pin operators whose readers need float32, given the needs of outputs. Return the needs of variables."""
        self._required = {}
        for head, need in zip(self._graph.heads, wanted):
            self._require(head, need | Need.FLOAT32)
        for position in reversed(range(len(self._graph.nodes))):
            node, rule = self._graph.nodes[position], self._found[position]
            bodies = bodies_of(node)
            if node.is_variable:
                continue
            if bodies:
                self._require_by_bodies(position, node, bodies)
            elif node.op in CAST_OPS:
                need = self._of_outputs(self._required, position)
                self._require(node.inputs[0], need & ~Need.FLOAT32 if _is_float(node) else Need.INTEGER)
            elif rule is not None:
                self._require_kept(node, rule)
                self._require_exact_inputs(position, node, rule)
            self._pin_movers(position, node)
        return [self._required.get((i, 0), 0) for i, node in enumerate(self._graph.nodes) if node.is_variable]

    def _require(self, entry: Entry, need: int) -> None:
        """Note a requirement on an entry, as far as its marks say that it has such values."""
        mark, key = self.marks.get(entry[:2], 0), entry[:2]
        exact = need & Need.INTEGER
        if exact == Need.POSITIONS and not mark & Mark.INDICES:
            exact = 0
        distance = need & (Need.DISTANCE if mark & Mark.NEAR_ONE else 0)
        distance |= need & (Need.OF_DISTANCE if mark & _NEAR else 0)
        need = exact | distance | (need & (Need.FLOAT32 | Need.CLOSE))
        if need:
            self._required[key] = self._required.get(key, 0) | need

    def _of_outputs(self, bits: Mapping[Key, int], position: int) -> int:
        """Return the marks or the needs of all outputs of a node."""
        found = 0
        for index in range(self._graph.nodes[position].num_outputs):
            found |= bits.get((position, index), 0)
        return found

    def _require_kept(self, node: Node, rule: Rule) -> None:
        """Require integers of inputs that are never cast: indices, lengths and labels.

        Samplers are an exception. Their inputs are shapes and parameters, which need not be exact.
        """
        if rule.keep and not (rule.keep is EVERY and rule.category == INFER):
            for entry in (entry for port, entry in enumerate(node.inputs) if port in rule.keep):
                self._require(entry, Need.INTEGER)

    def _require_exact_inputs(self, position: int, node: Node, rule: Rule) -> None:
        """Pin an operator whose results must be exact, and require the same of its inputs."""
        needed, output_marks = self._of_outputs(self._required, position), self._of_outputs(self.marks, position)
        read = self._read(node, rule)
        data = [entry for port, entry in enumerate(node.inputs) if rule.reads(port)]
        distance = needed & (Need.DISTANCE | Need.OF_DISTANCE | Need.CLOSE)
        if distance and (rule.distance == SATURATES or read & _NEAR or distance & Need.CLOSE):
            self._pin(position, Reason.NEAR_ONE)
        if rule.size == RESTARTS:
            distance = 0
        elif rule.category == ALLOW:
            distance &= Need.OF_DISTANCE
        elif rule.distance == SUBTRACTS:
            distance |= Need.OF_DISTANCE if distance else 0
        elif rule.category != CLEAR and rule.distance != SHIFTS:
            distance &= ~Need.DISTANCE
        divides = rule.distance == DIVIDES and self.marks.get(data[1].key, 0) & _NEAR
        if not self._policy.pure and (divides or rule.distance in (MAGNIFIES, NORMALIZES, ENDS)):
            distance |= Need.OF_DISTANCE | (Need.CLOSE if rule.distance == ENDS else 0)
        for entry in data if distance else ():
            self._require(entry, distance)
        if rule.gives_indices:
            self._pin(position, Reason.EXACT)
        if rule.gives_indices or rule.category == ALLOW:
            return
        need, rounded = needed & Need.INTEGER, read & Mark.ROUNDED
        holds = output_marks & Mark.INDICES or (rule.is_boolean and read & Mark.INDICES)  # compares them
        if need < Need.INTEGER and rounded:
            need = Need.POSITIONS if need and holds else 0
        elif not need and holds:
            need = Need.POSITIONS
        if not need or (rule.is_boolean and rounded):
            return
        self._pin(position, Reason.EXACT)
        last_step = need == Need.INTEGER and rounded and rule.category != CLEAR and not rule.preserves_grid
        for entry in data:
            self._require(entry, Need.POSITIONS if last_step else need)

    def _pin(self, position: int, reason: Reason) -> None:
        """Pin an operator to float32, unless the user asks for another precision."""
        decision = self.decisions[position]
        if decision.label in (FREE, LOW) and not _BY_USER & set(decision.kinds):
            self.decisions[position] = Decision(FLOAT32, reason.value, decision.rule, taints=False, kinds=(reason,))

    def _pin_movers(self, position: int, node: Node) -> None:
        """Pin a free operator that moves a float32 variable, or input data, to a reader in float32."""
        outputs = [i for i in range(node.num_outputs) if self.marks.get((position, i), 0) & Mark.INDICES]
        decision = self.decisions[position]
        if not self._policy.pure:
            holds_values = self._of_outputs(self.marks, position) & (Mark.VARIABLE | Mark.DATA)
            if decision.label == FREE and holds_values and self._of_outputs(self._required, position) & Need.FLOAT32:
                decision = Decision(FLOAT32, Reason.EXACT.value, decision.rule, kinds=(Reason.EXACT,))
            for port, entry in enumerate(node.inputs) if decision.label in (FLOAT32, KEEP) else ():
                if not decision.accepts_any(port):
                    self._require(entry, Need.FLOAT32)
        self.decisions[position] = replace(decision, index_outputs=frozenset(outputs)) if outputs else decision

    def _require_by_bodies(self, position: int, node: Node, bodies: Sequence[Body]) -> None:
        """Require of a control flow node's inputs all that its bodies require. Loop states stay exact in each round."""
        decisions: List[Tuple[Decision, ...]] = []
        for number, body in enumerate(bodies):
            inner = self._bodies[position, number]
            wanted = [
                Need.UNROUNDED if body.is_condition else self._required.get((position, i), 0)
                for i in range(len(body.graph.heads))
            ]
            for _, head in body.states:
                wanted[head] |= Need.UNROUNDED
            links = [(head, variable) for variable, head in body.states]
            held = marks_through_body(wanted, links, inner.backward)
            for need, port in zip(held, body.ports):
                self._require(node.inputs[port], need)
            decisions.append(() if inner._is_condition else tuple(inner.decisions))
        self.decisions[position] = replace(self.decisions[position], bodies=tuple(decisions))


def _is_float(node: Node) -> bool:
    return node.get("dtype") in (*dtypes.PRECISIONS, "float64")


# ------------------------------------------------------------------ the nodes behind a node


def _unnameable(graph: Graph, facts: Facts) -> FrozenSet[int]:
    """Return the nodes that give an output of the graph under a name that no cast can have.

    A cast's output is called ``<name>_output``. SliceChannel calls its first output ``<name>_output0``. To keep that
    name, SliceChannel itself must give the output in the wanted dtype.
    """
    heads = (head for head in graph.heads if not graph.nodes[head.node].is_variable)
    names = {head: facts.output_names.get(head.key, "_output") for head in heads}  # unknown: taken for the common one
    return frozenset(head.node for head, name in names.items() if not name.endswith("_output"))


def last_layer(graph: Graph) -> FrozenSet[int]:
    """Return the operators of the last layer, by position.

    The search goes back from each output, on every path of values, to the first ``allow`` operator on it. That operator
    and all operators behind it are the last layer. The search also ends at a loop or condition with an ``allow``
    operator in a body. The last layer of the body then counts.
    """
    positions: Set[int] = set()
    waiting = [head.node for head in graph.heads]
    while waiting:
        position = waiting.pop()
        node = graph.nodes[position]
        if node.is_variable or position in positions:
            continue
        positions.add(position)
        if not _is_layer(node):
            rule = rule_of(node)
            waiting += [e.node for port, e in enumerate(node.inputs) if rule is None or rule.reads(port)]
    return frozenset(positions)


def _before_layers(graph: Graph) -> FrozenSet[int]:
    """Return the nodes whose values reach an allow operator, by position."""
    positions: Set[int] = set()
    for position in reversed(range(len(graph.nodes))):
        node = graph.nodes[position]
        if position in positions or _is_layer(node):
            positions.update(entry.node for entry in node.inputs)
    return frozenset(positions)


def _is_layer(node: Node) -> bool:
    """Return whether a node is an allow operator, or has one in a body."""
    rule = rule_of(node)
    if rule is not None and rule.category == ALLOW:
        return True
    bodies = (body.graph for body in bodies_of(node) if not body.is_condition)
    return any(_is_layer(inner) for body in bodies for inner in body.nodes)
