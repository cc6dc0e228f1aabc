"""The verdicts on all nodes of a graph: pinned float32, pinned low precision, or free."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import AbstractSet, FrozenSet, List, Optional, Sequence, Set, Tuple

from .. import dtypes
from ..graph import Entry, Graph, Node
from ..policy import Policy
from ..rules import ALLOW, CLEAR, DENY, INFER, Call, RuleSet
from ..rules.conditions import unsafe_scalar
from .control_flow import Body, bodies_of
from .decide import decide
from .exact_values import EXACT, ExactValues, find_exact_values
from .facts import CAST_OPS, Facts
from .verdict import FLOAT32, FREE, KEEP, LOW, Verdict

VARIABLE = Verdict(KEEP, "variable")
"""The verdict on every variable: a graph has more of them than operators."""

NAMED = "its outputs have names of their own"
"""The reason given for an operator that gives outputs of the network under names that no cast can have."""


def classify(graph: Graph, policy: Policy, facts: Facts, rules: RuleSet) -> Tuple[Verdict, ...]:
    """Return a verdict for every node of a graph, the bodies of control flow included.

    Deny operators taint what reads them: an infer operator that reads, directly or through clear operators, the output
    of a deny operator (or of another tainted one) is pinned to float32. Operators that are pinned and have an unsafe
    scalar taint as deny operators do. Within a loop its state carries the taint into the next iteration. What is
    float32 only because MXNet has no other kernel for it passes a taint on, and taints nothing itself.

    No float32 input of the network (data, labels, states) is narrowed to save bytes, only for an allow operator. Such
    values are wide, and so is all that infer and clear operators compute from wide values alone: an infer operator that
    reads some is pinned to float32. From wide and other values together it computes something that may be narrowed
    again, if an allow operator is still to come: else a network that adds its input to a layer would be float32 as a
    whole.

    Clear operators that carry a variable's own values, or wide ones, to where float32 is wanted are pinned too (a
    detector's anchor boxes, sliced and concatenated): rounding them would gain nothing and lose half pixels. Positions
    and what is read as integers are exact under every policy (``exact_values``). With ``policy.last_layer_fp32`` the
    last layer is pinned to float32, unless an override says otherwise.

    Raises PolicyError, naming the node, if an override asks for what MXNet has no kernel for.
    """
    last = last_layer(graph, rules) if policy.last_layer_fp32 else frozenset()
    exact = find_exact_values(graph, rules)
    inputs = (i for i, node in enumerate(graph.nodes) if node.is_variable and node.name in facts.inputs)
    wide = {i for i in inputs if facts.dtype(Entry(i)) not in dtypes.LOW_PRECISION}
    leading = _before_layers(graph, rules)
    named = _unnameable(graph, facts)
    return _Classifier(graph, policy, facts, rules, last, exact, named, leading, wide=wide).run()


@dataclass
class _Classifier:
    """One forward sweep over a graph or a body.

    Attributes:
        last: Positions of the operators of the last layer, if that is to be float32.
        named: Positions of nodes whose outputs have names that no cast can have.
        leading: Positions of nodes that an allow operator comes behind; None if one may come behind each of them.
        wide: Positions of nodes with wide values; at first of variables.
        tainted: Positions of nodes that a deny operator has tainted; at first, of a body, those of the
            variables that stand for something tainted.
        out_of_range: Positions of nodes whose values may be beyond the low precision dtype's range.
    """

    graph: Graph
    policy: Policy
    facts: Facts
    rules: RuleSet
    last: FrozenSet[int]
    exact: ExactValues
    named: FrozenSet[int] = frozenset()
    leading: Optional[FrozenSet[int]] = None
    wide: Set[int] = field(default_factory=set)
    tainted: Set[int] = field(default_factory=set)
    out_of_range: Set[int] = field(init=False)

    def __post_init__(self) -> None:
        self.out_of_range = self.facts.nodes_out_of_range(self.graph)

    def run(self) -> Tuple[Verdict, ...]:
        verdicts = [self._verdict(position, node) for position, node in enumerate(self.graph.nodes)]
        if not self.policy.pure:
            for position in _carriers(self.graph, verdicts, self.facts, self.wide):
                verdicts[position] = Verdict(FLOAT32, EXACT, verdicts[position].rule)
        for position, outputs in self.exact.positions.items():
            verdicts[position] = replace(verdicts[position], positions=outputs)
        return tuple(verdicts)

    def _verdict(self, position: int, node: Node) -> Verdict:
        if node.is_variable:
            return VARIABLE
        bodies = bodies_of(node)
        if bodies:
            return self._enter(position, node, bodies)
        last, exact = position in self.last, position in self.exact.pins
        verdict = decide(self.graph, position, self.policy, self.facts, self.rules, last, exact)
        if position in self.named and self.policy.output_dtype == dtypes.FLOAT32 and verdict.label in (LOW, FREE):
            verdict = Verdict(FLOAT32, NAMED, verdict.rule)
        verdict = self._pin_out_of_range(position, node, verdict)
        verdict = self._pin_tainted(position, node, verdict)
        if verdict.label == FREE and position in self.named:
            return Verdict(LOW, NAMED, verdict.rule)
        return verdict if self.policy.pure else self._keep_wide(position, node, verdict)

    def _keep_wide(self, position: int, node: Node, verdict: Verdict) -> Verdict:
        """Pin an infer operator that reads wide values, and pass these on."""
        rule = verdict.rule
        if not self.wide or verdict.label == LOW or (rule is not None and rule.category not in (INFER, CLEAR)):
            return verdict
        if rule is None and (node.op not in CAST_OPS or node.get("dtype") in dtypes.LOW_PRECISION):
            return verdict
        read = [entry.node for port, entry in enumerate(node.inputs) if rule is None or rule.reads(port)]
        wide = [source for source in read if source in self.wide]
        if not wide:
            return verdict
        if (not self._leads(position) or len(wide) == len(read)) and not (rule is not None and rule.truth):
            self.wide.add(position)
        if rule is not None and rule.category == INFER and verdict.label == FREE:
            return Verdict(FLOAT32, f"wide values of '{self.graph.nodes[wide[0]].name}'", rule, taints=False)
        return verdict

    def _leads(self, position: int) -> bool:
        """Return whether an allow operator may come behind a node."""
        return self.leading is None or position in self.leading

    def _pin_out_of_range(self, position: int, node: Node, verdict: Verdict) -> Verdict:
        """Pin what gives or reads values beyond the low precision dtype's range."""
        if not self.out_of_range or verdict.label not in (LOW, FREE) or verdict.rule is None:
            return verdict
        beyond = f"beyond {self.policy.compute_dtype}'s range"
        if position in self.out_of_range:
            return Verdict(FLOAT32, f"its values are {beyond}", verdict.rule)
        sources = [entry.node for entry in _data_inputs(node, verdict) if entry.node in self.out_of_range]
        if not sources:
            return verdict
        if verdict.rule.category == CLEAR:
            self.out_of_range.add(position)
        return Verdict(FLOAT32, f"'{self.graph.nodes[sources[0]].name}' has values {beyond}", verdict.rule)

    def _pin_tainted(self, position: int, node: Node, verdict: Verdict) -> Verdict:
        """Pin an infer operator behind a deny operator, and pass the taint on."""
        if verdict.rule is None or verdict.label not in (FREE, FLOAT32):
            return verdict
        category, scalars = verdict.rule.category, verdict.rule.scalars
        inputs = _data_inputs(node, verdict) if self.tainted else []
        source = next((entry.node for entry in inputs if entry.node in self.tainted), None)
        if source is not None and category == INFER and verdict.label == FREE:
            verdict = Verdict(FLOAT32, f"infer behind {self.graph.nodes[source]}", verdict.rule)
        own = verdict.taints and category in (DENY, INFER)
        if scalars and not own:  # 1 - clip(x, 0, 0.9999) in float16 would still be 0
            own = unsafe_scalar(Call(dict(node.attrs), (), self.policy.compute_dtype), scalars) is not None
        if (own and verdict.label == FLOAT32) or (source is not None and category != ALLOW):
            self.tainted.add(position)
        return verdict

    def _enter(self, position: int, node: Node, bodies: Sequence[Body]) -> Verdict:
        """Return the verdict on a control flow node, with those on the nodes of its bodies."""
        ports, wide = (
            {port for port, entry in enumerate(node.inputs) if entry.node in of} for of in (self.tainted, self.wide)
        )
        found: List[Tuple[Verdict, ...]] = []
        for number, body in enumerate(bodies):
            facts = self.facts.bodies.get((position, number))
            if body.is_condition or facts is None:
                found.append(())
                continue
            last = last_layer(body.graph, self.rules) if position in self.last else frozenset()
            exact = self.exact.bodies.get((position, number), ExactValues())
            leads = self._leads(position) or _is_layer(node, self.rules)
            inner, verdicts = self._enter_body(body, facts, ports, wide, last, exact, leads)
            found.append(verdicts)
            heads = {head.node for head in body.graph.heads}
            if heads & inner.tainted:
                self.tainted.add(position)
            if heads & inner.wide:
                self.wide.add(position)
        return Verdict(KEEP, "control flow, its bodies are converted", bodies=tuple(found))

    def _enter_body(
        self,
        body: Body,
        facts: Facts,
        ports: Set[int],
        wide: Set[int],
        last: FrozenSet[int],
        exact: ExactValues,
        leads: bool,
    ) -> Tuple[_Classifier, Tuple[Verdict, ...]]:
        """Return the classifier of a body and its verdicts.

        Tainted and wide values enter by ``ports`` and ``wide``; ``leads`` says whether an allow operator may come.
        """
        variables, heads = body.variables(), [head.node for head in body.graph.heads]
        states = [(variables[variable], heads[head]) for variable, head in body.states]
        tainted, wide = ({v for v, port in zip(variables, body.ports) if port in of} for of in (ports, wide))
        while True:
            inner = _Classifier(
                body.graph,
                self.policy,
                facts,
                self.rules,
                last,
                exact,
                leading=None if leads else frozenset(),
                wide=set(wide),
                tainted=set(tainted),
            )
            verdicts = inner.run()
            more = [{v for v, head in states if head in of} for of in (inner.tainted, inner.wide)]
            if more[0] <= tainted and more[1] <= wide:
                return inner, verdicts
            tainted, wide = tainted | more[0], wide | more[1]


def _unnameable(graph: Graph, facts: Facts) -> FrozenSet[int]:
    """Return the nodes that give an output of the graph under a name that no cast can have.

    A cast's output is called ``<name>_output``; what some operators call theirs (SliceChannel's
    ``<name>_output0``) can be kept only by giving that output in the dtype that is wanted.
    """
    heads = (head for head in graph.heads if not graph.nodes[head.node].is_variable)
    names = {head: facts.output_names.get(head.key, "_output") for head in heads}  # unknown: taken for the common one
    return frozenset(head.node for head, name in names.items() if not name.endswith("_output"))


def _carriers(graph: Graph, verdicts: Sequence[Verdict], facts: Facts, wide: AbstractSet[int]) -> Set[int]:
    """Return the free clear operators between a float32 variable, or wide values, and a reader of float32."""
    exact = {i for i, node in enumerate(graph.nodes) if node.is_variable and facts.dtype(Entry(i)) == dtypes.FLOAT32}
    exact |= wide
    for position, node in enumerate(graph.nodes):
        verdict = verdicts[position]
        if verdict.label == FREE and verdict.rule and verdict.rule.category == CLEAR:
            if any(entry.node in exact for entry in _data_inputs(node, verdict)):
                exact.add(position)
    wanted = {head.node for head in graph.heads}
    for position in reversed(range(len(graph.nodes))):
        node, verdict = graph.nodes[position], verdicts[position]
        if node.inputs and (verdict.label in (FLOAT32, KEEP) or (position in wanted and position in exact)):
            wanted.update([entry.node for port, entry in enumerate(node.inputs) if not verdict.accepts_any(port)])
    return {i for i in exact & wanted if verdicts[i].label == FREE}


def _data_inputs(node: Node, verdict: Verdict) -> List[Entry]:
    """Return the inputs that are wanted in the precision that the node runs in."""
    if verdict.label == KEEP or verdict.rule is None:
        return []
    is_data = verdict.rule.is_data
    return [entry for port, entry in enumerate(node.inputs) if is_data(port)]


def last_layer(graph: Graph, rules: RuleSet) -> FrozenSet[int]:
    """Return the operators of the last layer, by position.

    For each output these are the ``allow`` operators that are met first on the way back from it, on every path that
    values take, and all operators behind them. A loop or condition with one in a body ends the way too: the last layer
    is within it then, found from the outputs of the body.
    """
    found: Set[int] = set()
    waiting = [head.node for head in graph.heads]
    while waiting:
        position = waiting.pop()
        node = graph.nodes[position]
        if node.is_variable or position in found:
            continue
        found.add(position)
        if not _is_layer(node, rules):
            rule = rules.find(node.op, dict(node.attrs))
            waiting += [e.node for port, e in enumerate(node.inputs) if rule is None or rule.reads(port)]
    return frozenset(found)


def _before_layers(graph: Graph, rules: RuleSet) -> FrozenSet[int]:
    """Return the nodes whose values reach an allow operator, by position."""
    found: Set[int] = set()
    for position in reversed(range(len(graph.nodes))):
        node = graph.nodes[position]
        if position in found or _is_layer(node, rules):
            found.update(entry.node for entry in node.inputs)
    return frozenset(found)


def _is_layer(node: Node, rules: RuleSet) -> bool:
    """Return whether a node is an allow operator, or has one in a body."""
    rule = rules.find(node.op, dict(node.attrs))
    if rule is not None and rule.category == ALLOW:
        return True
    bodies = (body.graph for body in bodies_of(node) if not body.is_condition)
    return any(_is_layer(inner, rules) for body in bodies for inner in body.nodes)
