"""Policy, rules and facts to one verdict per node: pinned float32, pinned low, or free."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, FrozenSet, List, Optional, Sequence, Set, Tuple

from .. import dtypes
from ..errors import PolicyError
from ..graph import Entry, Graph, Node
from ..policy import Policy
from ..rules import ALLOW, CLEAR, DENY, INFER, RULES, Call, Rule, RuleSet
from ..rules.conditions import SHAPE_CONDITIONS
from .attributes import PRECISION_ATTR
from .control_flow import Body, bodies_of
from .exact import EXACT, NOTHING, Exact, find_exact
from .facts import CAST_OPS, Facts
from .last_layer import last_layer
from .verdict import FLOAT32, FREE, KEEP, LOW, Verdict

NO_RULE = "no rule for this operator"
"""The reason given for an operator that does not stand in the table."""

NAMED = "its outputs have names of their own"
"""The reason given for an operator that gives outputs of the network under names that no cast can take."""

FLOAT32_POLICY = "the policy computes in float32"
"""The reason given for every operator under such a policy."""

LAST_LAYER = "last layer"
"""The reason given for an operator of the last layer, where the policy wants that in float32."""

_SPARSE = ("1", "2")  # row_sparse and csr (include/mxnet/ndarray.h, NDArrayStorageType)

BATCH_NORMS = ("BatchNorm", "_contrib_BatchNormWithReLU", "_contrib_SyncBatchNorm")


def classify(graph: Graph, policy: Policy, facts: Facts, rules: RuleSet) -> Tuple[Verdict, ...]:
    """Return a verdict for every node of a graph, the bodies of control flow included.

    Deny operators taint what follows: an infer operator that reads, directly or through clear
    operators, what a deny operator (or another tainted one) wrote, is pinned to float32. Within a
    loop its state carries the taint into the next iteration. What is float32 only because MXNet
    has no other kernel for it passes a taint on, and taints nothing itself.

    Clear operators that carry a variable's own values to where float32 is wanted are pinned too
    (a detector's anchor boxes, sliced and concatenated): rounding them would gain nothing and
    lose half pixels.

    Positions and what is read as integers are exact under every policy (``exact``).

    With ``policy.last_layer_fp32`` the last layer is pinned to float32, unless an override says
    otherwise.

    Raises:
        PolicyError: If an override asks for what MXNet has no kernel for; it names the node.
    """
    last = last_layer(graph, rules) if policy.last_layer_fp32 else frozenset()
    return _Classifier(
        graph, policy, facts, rules, _unnameable(graph, facts), last=last, exact=find_exact(graph, rules)
    ).run()


class _Classifier:
    """One forward sweep over a graph or a body.

    Attributes:
        last: Positions of the operators of the last layer, if that is to be float32.
        exact: What of the graph must be exact.
        tainted: Positions of nodes that a deny operator has tainted; at first those of a body's
            variables that bring a taint with them.
        unfit: Positions of nodes whose values may be beyond the low precision dtype's range.
        named: Positions of nodes whose outputs have names that no cast can take.
    """

    def __init__(
        self,
        graph: Graph,
        policy: Policy,
        facts: Facts,
        rules: RuleSet,
        named: FrozenSet[int] = frozenset(),
        tainted: FrozenSet[int] = frozenset(),
        last: FrozenSet[int] = frozenset(),
        exact: Exact = NOTHING,
    ) -> None:
        self.graph, self.policy, self.facts, self.rules = graph, policy, facts, rules
        self.named, self.last, self.exact = named, last, exact
        self.tainted: Set[int] = set(tainted)
        self.unfit = {i for i in range(len(graph.nodes)) if facts.is_unfit(graph, i)}

    def run(self) -> Tuple[Verdict, ...]:
        verdicts = [self._verdict(position, node) for position, node in enumerate(self.graph.nodes)]
        if not self.policy.pure:
            for position in _carriers(self.graph, verdicts, self.facts):
                verdicts[position] = Verdict(FLOAT32, EXACT, verdicts[position].rule)
        for position, outputs in self.exact.positions.items():
            verdicts[position] = replace(verdicts[position], positions=outputs)
        return tuple(verdicts)

    def _verdict(self, position: int, node: Node) -> Verdict:
        bodies = bodies_of(node)
        if bodies:
            return self._enter(position, node, bodies)
        last, exact = position in self.last, position in self.exact.pins
        verdict = _verdict(self.graph, position, self.policy, self.facts, self.rules, last, exact)
        verdict = self._taint(position, node, self._fit(position, node, self._named(position, verdict)))
        if verdict.label == FREE and position in self.named:
            return Verdict(LOW, NAMED, verdict.rule)
        return verdict

    def _named(self, position: int, verdict: Verdict) -> Verdict:
        """Pin what gives float32 outputs of the network under names that no cast can take."""
        float32 = position in self.named and self.policy.output_dtype == dtypes.FLOAT32
        return Verdict(FLOAT32, NAMED, verdict.rule) if float32 and verdict.label in (LOW, FREE) else verdict

    def _fit(self, position: int, node: Node, verdict: Verdict) -> Verdict:
        """Pin what gives or reads values beyond the low precision dtype's range."""
        sources = [e.node for _, e in _data_inputs(node, verdict) if e.node in self.unfit]
        if verdict.label not in (LOW, FREE) or verdict.rule is None:
            return verdict
        if position in self.unfit:
            return Verdict(FLOAT32, f"its values are beyond {self.policy.compute_dtype}'s range", verdict.rule)
        if not sources:
            return verdict
        if verdict.rule.category == CLEAR:
            self.unfit.add(position)
        name = self.graph.nodes[sources[0]].name
        return Verdict(FLOAT32, f"'{name}' has values beyond {self.policy.compute_dtype}'s range", verdict.rule)

    def _taint(self, position: int, node: Node, verdict: Verdict) -> Verdict:
        if verdict.rule is None or verdict.label not in (FREE, FLOAT32):
            return verdict
        category = verdict.rule.category
        source = next((e.node for _, e in _data_inputs(node, verdict) if e.node in self.tainted), None)
        if source is not None and category == INFER and verdict.label == FREE:
            verdict = Verdict(FLOAT32, f"infer behind {self.graph.nodes[source]}", verdict.rule)
        own = verdict.label == FLOAT32 and verdict.taints and category in (DENY, INFER)
        if own or (source is not None and category != ALLOW):
            self.tainted.add(position)
        return verdict

    def _enter(self, position: int, node: Node, bodies: Sequence[Body]) -> Verdict:
        """Return the verdict on a control flow node, with those on the nodes of its bodies."""
        ports = {port for port, entry in enumerate(node.inputs) if entry.node in self.tainted}
        found: List[Tuple[Verdict, ...]] = []
        for number, body in enumerate(bodies):
            facts = self.facts.bodies.get((position, number))
            if body.decides or facts is None:
                found.append(())
                continue
            last = last_layer(body.graph, self.rules) if position in self.last else frozenset()
            exact = self.exact.bodies.get((position, number), NOTHING)
            verdicts, taints = self._enter_body(body, facts, ports, last, exact)
            found.append(verdicts)
            if taints:
                self.tainted.add(position)
        return Verdict(KEEP, "control flow, its bodies are converted", bodies=tuple(found))

    def _enter_body(
        self, body: Body, facts: Facts, ports: Set[int], last: FrozenSet[int], exact: Exact
    ) -> Tuple[Tuple[Verdict, ...], bool]:
        """Return the verdicts on a body's nodes, and whether what it gives is tainted."""
        variables, heads = body.variables(), [head.node for head in body.graph.heads]
        seeds = frozenset(variable for variable, port in zip(variables, body.ports) if port in ports)
        while True:
            inner = _Classifier(body.graph, self.policy, facts, self.rules, tainted=seeds, last=last, exact=exact)
            verdicts = inner.run()
            carried = {variables[variable] for variable, head in body.states if heads[head] in inner.tainted}
            if carried <= seeds:
                return verdicts, any(head in inner.tainted for head in heads)
            seeds |= carried


def _unnameable(graph: Graph, facts: Facts) -> FrozenSet[int]:
    """Return the nodes with an output of the graph whose name no cast can take.

    A cast's output is called ``<name>_output``; what some operators call theirs (SliceChannel's
    ``<name>_output0``) can be kept only by giving that output in the dtype that is wanted.
    """
    found = set()
    for head in graph.heads:
        if not graph.nodes[head.node].is_variable:
            name = facts.output_names.get((head.node, head.index), "_output")  # unknown: taken for the common one
            if not name.endswith("_output"):
                found.add(head.node)
    return frozenset(found)


def _carriers(graph: Graph, verdicts: Sequence[Verdict], facts: Facts) -> Set[int]:
    """Return the free clear operators between a float32 variable and a reader of float32."""
    exact = {i for i, node in enumerate(graph.nodes) if node.is_variable and facts.dtype(Entry(i)) == dtypes.FLOAT32}
    for position, node in enumerate(graph.nodes):
        verdict = verdicts[position]
        if verdict.label == FREE and verdict.rule and verdict.rule.category == CLEAR:
            if any(entry.node in exact for _, entry in _data_inputs(node, verdict)):
                exact.add(position)
    wanted = {head.node for head in graph.heads}
    for position in reversed(range(len(graph.nodes))):
        verdict = verdicts[position]
        if verdict.label in (FLOAT32, KEEP) or (position in wanted and position in exact):
            wanted.update(e.node for p, e in enumerate(graph.nodes[position].inputs) if not verdict.accepts_any(p))
    return {i for i in exact & wanted if verdicts[i].label == FREE}


def _data_inputs(node: Node, verdict: Verdict) -> List[Tuple[int, Entry]]:
    return [(port, entry) for port, entry in enumerate(node.inputs) if verdict.follows(port)]


def _verdict(
    graph: Graph, position: int, policy: Policy, facts: Facts, rules: RuleSet, last: bool, exact: bool
) -> Verdict:
    node = graph.nodes[position]
    if node.is_variable:
        return Verdict(KEEP, "variable")
    attrs = dict(node.attrs)
    rule = rules.find(node.op, attrs)
    wanted = _override(node, policy)
    if rule is None:
        return _without_rule(node, wanted)
    foreign = _foreign_dtype(graph, position, rule, facts)
    if foreign:
        return Verdict(KEEP, foreign, rule)
    low = policy.compute_dtype
    if low == dtypes.FLOAT32 and not wanted:
        return Verdict(FLOAT32, FLOAT32_POLICY, rule)
    call = Call(attrs, tuple(facts.shape(entry) for entry in node.inputs), low)
    own, forbidden = low in rule.dtypes, rule.forbids(call)
    stand_in = rules.stand_in(rule, call) if forbidden or not own else ""
    has_kernel = own or stand_in != ""
    if wanted:
        verdict = _forced(node, rule, wanted, low, has_kernel)
    elif last:
        return Verdict(FLOAT32, LAST_LAYER, rule)
    elif not has_kernel:
        deny = rule.category == DENY and rule.reason
        reason = f"deny: {rule.reason}" if deny else f"MXNet has no sound {low} kernel for it"
        return Verdict(FLOAT32, reason, rule, taints=rule.category == DENY)
    elif exact and (policy.pure or rule.category != DENY):
        return Verdict(FLOAT32, EXACT, rule, taints=False)
    elif policy.keep_batchnorm_fp32 and node.op in BATCH_NORMS:
        return Verdict(FLOAT32, "keep_batchnorm_fp32", rule)
    else:
        verdict = _by_category(rule, call, policy.pure, "" if own and stand_in else forbidden)
    if not stand_in or verdict.label == FLOAT32:
        return verdict
    return replace(verdict, reason=f"{verdict.reason}, as {stand_in}", stand_in=stand_in)


def _by_category(rule: Rule, call: Call, pure: bool, forbidden: Optional[str]) -> Verdict:
    if pure:
        return Verdict(LOW, "pure policy", rule)
    if rule.category == DENY:
        return Verdict(FLOAT32, f"deny: {rule.reason}" if rule.reason else "deny", rule, widens=_widens(rule, call))
    if forbidden:
        return Verdict(FLOAT32, forbidden, rule, taints=rule.taints, widens=_widens(rule, call))
    if rule.category == ALLOW:
        return Verdict(LOW, "allow", rule)
    return Verdict(FREE, "clear" if rule.category == CLEAR else "infer", rule)


def _widens(rule: Rule, call: Call) -> str:
    """Return the attribute that saves a cast in front of a call, empty if it is taken already."""
    return rule.widens if call.attrs.get(rule.widens) in (None, "None") else ""


def _override(node: Node, policy: Policy) -> Optional[Tuple[str, str]]:
    region = node.get(PRECISION_ATTR)
    if region is not None and policy.is_mixed:
        return (policy.compute_dtype if region == LOW else region), f"precision {region!r} (region or set_policy)"
    return policy.override(node.op, node.name)


def _without_rule(node: Node, wanted: Optional[Tuple[str, str]]) -> Verdict:
    if node.op in CAST_OPS:
        return Verdict(KEEP, "explicit cast")
    if wanted and wanted[0] != dtypes.FLOAT32:
        raise PolicyError(
            f"{wanted[1]} asks for {wanted[0]} at node {node}, but mxmp has no rule for operator "
            f"{node.op!r}, so it does not know which of its inputs may be cast. Leave it in float32."
        )
    return Verdict(KEEP, NO_RULE)


def _forced(node: Node, rule: Rule, wanted: Tuple[str, str], low: str, has_kernel: bool) -> Verdict:
    dtype, why = wanted
    if dtype == dtypes.FLOAT32:
        return Verdict(FLOAT32, why, rule)
    if dtype != low:
        raise PolicyError(
            f"{why} asks for {dtype} at node {node}, but the policy's compute_dtype is {low}; use {low} or float32."
        )
    if not has_kernel:
        raise PolicyError(
            f"{why} asks for {dtype} at node {node}, but MXNet 1.9.1 has no sound {dtype} kernel for "
            f"{node.op}. Leave it in float32."
        )
    return Verdict(LOW, why, rule)


def _foreign_dtype(graph: Graph, position: int, rule: Rule, facts: Facts) -> Optional[str]:
    """Return why a node's data is not float32 to begin with, or None."""
    node = graph.nodes[position]
    entries = [("input", p, entry) for p, entry in enumerate(node.inputs) if rule.is_data(p)]
    entries += [
        ("output", i, Entry(position, i))
        for i in range(node.num_outputs)
        if i not in rule.keep_outputs and (i == 0 or (position, i) in facts.dtypes)  # others are hidden
    ]
    for kind, number, entry in entries:
        dtype = facts.dtype(entry)
        if graph.nodes[entry.node].get("__storage_type__") in _SPARSE:
            return f"{kind} {number} is sparse"
        if dtype is None:
            return f"the dtype of {kind} {number} is unknown"
        if dtype != dtypes.FLOAT32:
            return f"{kind} {number} is {dtype} already"
    return None


def depends_on_shapes(graph: Graph, dtype: str, rules: RuleSet = RULES) -> bool:
    """Return whether a verdict on this graph, for a low precision dtype, may change with the shapes of its inputs."""
    return bool(_shape_dependent(graph, dtype, rules)) or any(
        depends_on_shapes(body, dtype, rules) for node in graph.nodes for body in node.subgraphs
    )


def shape_outcome(graph: Graph, dtype: str, facts: Facts, rules: RuleSet = RULES) -> Tuple[Any, ...]:
    """Return all that shapes decide about the verdicts on a graph: where it is equal, so are they.

    Args:
        graph: A graph without casts of mxmp.
        dtype: The low precision dtype in question.
        facts: Shapes, those in bodies included; dtypes are not looked at.
        rules: The table of operators.
    """
    found: List[Any] = []
    for position, rule in _shape_dependent(graph, dtype, rules):
        node = graph.nodes[position]
        call = Call(dict(node.attrs), tuple(facts.shape(entry) for entry in node.inputs), dtype)
        found.append((rule.forbids(call) is None, rules.stand_in(rule, call)))
    for position, node in enumerate(graph.nodes):
        for number, body in enumerate(node.subgraphs):
            if (position, number) in facts.bodies:
                found.append(shape_outcome(body, dtype, facts.bodies[position, number], rules))
    return tuple(found)


def _shape_dependent(graph: Graph, dtype: str, rules: RuleSet) -> List[Tuple[int, Rule]]:
    """Return the operators for which shapes decide whether they run in a dtype: their positions, with the rules."""
    found = ((position, rules.find(node.op, dict(node.attrs))) for position, node in enumerate(graph.nodes))
    return [(i, rule) for i, rule in found if rule and _reads_shapes(rule, dtype, rules)]


def _reads_shapes(rule: Rule, dtype: str, rules: RuleSet) -> bool:
    conditional = rule.condition is not None and dtype in SHAPE_CONDITIONS.get(rule.condition, ())
    return (conditional and dtype in rule.dtypes) or rules.has_stand_ins(rule, dtype)
