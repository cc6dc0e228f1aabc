"""The verdicts on all nodes of a graph: pinned float32, pinned low precision, or free.

`classify` goes through the graph. On each node it decides first by itself: overrides, kernels, its rule's category and
condition. Then come its neighbours: taints, wide values, exact values, the last layer.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, FrozenSet, Iterable, List, Optional, Sequence, Set, Tuple

from .. import dtypes
from ..errors import PolicyError
from ..graph import Entry, Graph, Node
from ..policy import Policy
from ..rules import ALLOW, CLEAR, DENY, INFER, RULES, Call, Rule, RuleSet
from ..rules.conditions import SHAPE_CONDITIONS, clamped_scalars, unsafe_scalar, value_of
from .attributes import PRECISION_ATTR
from .control_flow import Body, bodies_of, carried
from .cpu.written_out import is_shaped, shape_choice
from .exact_values import ExactValues
from .facts import CAST_OPS, Facts
from .reasons import Reason

FLOAT32 = "float32"
LOW = "low"
FREE = "free"
KEEP = "keep"
"""The labels. A node that is kept is left unchanged, and so are its inputs."""


@dataclass(frozen=True)
class Verdict:
    """The precision that one node is to run in (``label``), and why (one phrase, for the report).

    Attributes:
        kinds: Of the reason; none where its text explains itself.
        taints: Whether, in float32, its values are unsafe for what follows in low precision.
        widens: Attribute with which this node reads low precision data and gives float32, so that
            its first input needs no cast; empty if it has none.
        stand_in: Operator to put in this one's place if it runs in low precision; empty if itself does.
        clamped: Pairs (attribute, text): the scalars that it is to compute with in place of some beyond the low
            precision dtype's range.
        bodies: Of a control flow node, the verdicts on the nodes of each of its bodies.
        positions: Numbers of the outputs that hold positions, which come in float32 as outputs of the network too.
        low_ports: Of a control flow node, the inputs that its bodies want in low precision.
        low_outputs: Likewise, the outputs that they give in low precision.
    """

    label: str
    reason: str
    rule: Optional[Rule] = None
    taints: bool = True
    widens: str = ""
    stand_in: str = ""
    clamped: Tuple[Tuple[str, str], ...] = ()
    bodies: Tuple[Tuple["Verdict", ...], ...] = ()
    positions: FrozenSet[int] = frozenset()
    low_ports: FrozenSet[int] = frozenset()
    low_outputs: FrozenSet[int] = frozenset()
    kinds: Tuple[Reason, ...] = ()

    def input_in_precision(self, port: int) -> bool:
        """Return whether an input is wanted in the precision that the node runs in."""
        return self.label != KEEP and self.rule is not None and self.rule.is_data(port)

    def accepts_any(self, port: int) -> bool:
        """Return whether an input may have either precision."""
        return self.rule is not None and (port in self.rule.any or (port == 0 and self.widens != ""))

    def output_in_precision(self, index: int) -> bool:
        """Return whether an output comes in the precision that the node runs in."""
        return self.label != KEEP and self.rule is not None and index not in self.rule.keep_outputs

    def reads_low(self, port: int, low: bool) -> bool:
        """Return whether an input is wanted in low precision, given whether the node runs in it."""
        return port in self.low_ports or (low and self.input_in_precision(port))


_Wanted = Optional[Tuple[str, str, Reason]]  # the dtype that an override asks for, the override, and its kind

_SPARSE = ("1", "2")  # row_sparse and csr (include/mxnet/ndarray.h, NDArrayStorageType)

_BATCH_NORMS = ("BatchNorm", "_contrib_BatchNormWithReLU", "_contrib_SyncBatchNorm")


def _clamped(verdict: Verdict, rule: Rule, call: Call) -> Verdict:
    """Return a verdict that keeps scalars within the low precision dtype's range, as parameters are: none is inf."""
    scalars = clamped_scalars(call, rule.scalars)
    if not scalars:
        return verdict
    texts = [f"{key}={value_of(call.attrs, key):g} clamped to {float(text):g}" for key, text in scalars.items()]
    reason, kinds = ", ".join([verdict.reason, *texts]), (*verdict.kinds, Reason.CLAMPED)
    return replace(verdict, reason=reason, kinds=kinds, clamped=tuple(scalars.items()))


def _by_category(rule: Rule, call: Call, pure: bool, forbidden: Optional[str]) -> Verdict:
    if pure:
        return Verdict(LOW, "pure policy", rule, kinds=(Reason.PURE,))
    if rule.category == DENY:
        reason = f"deny: {rule.reason}" if rule.reason else "deny"
        return Verdict(FLOAT32, reason, rule, widens=_widens(rule, call), kinds=(Reason.DENY,))
    if forbidden:
        return Verdict(FLOAT32, forbidden, rule, taints=rule.taints, widens=_widens(rule, call))
    if rule.category == ALLOW:
        return Verdict(LOW, "allow", rule, kinds=(Reason.ALLOW,))
    kind = Reason.CLEAR if rule.category == CLEAR else Reason.INFER
    return Verdict(FREE, kind.value, rule, kinds=(kind,))


def _widens(rule: Rule, call: Call) -> str:
    """Return the attribute that saves a cast in front of a call, empty if the network sets it."""
    return rule.widens if call.attrs.get(rule.widens) in (None, "None") else ""


OF_REGION = "precision"
"""The first word of a PolicyError about a region that the network has, and not about the policy."""


def _override(node: Node, policy: Policy) -> _Wanted:
    region = node.get(PRECISION_ATTR)
    if region is not None and policy.is_mixed:
        dtype = policy.compute_dtype if region == LOW else region
        return dtype, f"{OF_REGION} {region!r} (region or set_policy)", Reason.REGION
    override = policy.override(node.op, node.name, node.attrs)
    return None if override is None else (*override, Reason.OVERRIDE)


def _without_rule(node: Node, wanted: _Wanted) -> Verdict:
    if node.op in CAST_OPS:
        return Verdict(KEEP, "explicit cast", kinds=(Reason.OWN_CAST,))
    if wanted and wanted[0] != dtypes.FLOAT32:
        raise PolicyError(
            f"{wanted[1]} asks for {wanted[0]} at node {node}, but mxmp has no rule for operator "
            f"{node.op!r}, so it does not know which of its inputs may be cast. Leave it in float32."
        )
    return Verdict(KEEP, "no rule for this operator", kinds=(Reason.NO_RULE,))


def _forced(node: Node, rule: Rule, wanted: Tuple[str, str, Reason], low: str, has_kernel: bool) -> Verdict:
    dtype, why, kind = wanted
    if dtype == dtypes.FLOAT32:
        return Verdict(FLOAT32, why, rule, kinds=(kind,))
    if dtype != low:
        raise PolicyError(
            f"{why} asks for {dtype} at node {node}, but the policy's compute_dtype is {low}; use {low} or float32."
        )
    if not has_kernel:
        raise PolicyError(
            f"{why} asks for {dtype} at node {node}, but MXNet 1.9.1 has no sound {dtype} kernel for "
            f"{node.op}. Leave it in float32."
        )
    return Verdict(LOW, why, rule, kinds=(kind,))


def _foreign_dtype(graph: Graph, position: int, rule: Rule, facts: Facts) -> Optional[str]:
    """Return the reason why a node's data is not known to be float32, or None."""
    node = graph.nodes[position]
    entries = [("input", port, entry) for port, entry in enumerate(node.inputs) if rule.is_data(port)]
    for index in range(node.num_outputs):
        if index not in rule.keep_outputs and (index == 0 or (position, index) in facts.dtypes):  # others are hidden
            entries.append(("output", index, Entry(position, index)))
    for word, number, entry in entries:
        dtype = facts.dtype(entry)
        if graph.nodes[entry.node].get("__storage_type__") in _SPARSE:
            return f"{word} {number} is sparse"
        if dtype != dtypes.FLOAT32:
            unknown = f"the dtype of {word} {number} is unknown"
            return unknown if dtype is None else f"{word} {number} is {dtype} already"
    return None


def depends_on_shapes(graph: Graph, dtype: str, rules: RuleSet = RULES) -> bool:
    """Return whether the verdicts on a graph, or the operators that run it, may change with shapes of its inputs."""
    return bool(shape_dependent(graph, dtype, rules) or _written_by_shape(graph, dtype)) or any(
        depends_on_shapes(body, dtype, rules) for node in graph.nodes for body in node.subgraphs
    )


def shape_outcome(graph: Graph, dtype: str, facts: Facts, rules: RuleSet = RULES) -> Tuple[Any, ...]:
    """Return a key of the decisions that depend on shapes: where it is equal, one converted graph runs both.

    Gluon converts a net once per outcome, not once per shape of its inputs. The graph is one without casts of mxmp; of
    the facts, those on bodies included, only shapes are looked at.
    """
    found: List[Any] = []
    for position, rule in shape_dependent(graph, dtype, rules):
        node = graph.nodes[position]
        call = Call(dict(node.attrs), tuple(facts.shape(entry) for entry in node.inputs), dtype)
        found.append((rule.forbids(call) is None, rules.stand_in(rule, call)))
    for node in _written_by_shape(graph, dtype):
        found.append(shape_choice(node, tuple(facts.shape(entry) for entry in node.inputs)))
    keys = ((position, number) for position, node in enumerate(graph.nodes) for number in range(len(node.subgraphs)))
    inner = ((graph.nodes[key[0]].subgraphs[key[1]], facts.bodies[key]) for key in keys if key in facts.bodies)
    return (*found, *(shape_outcome(body, dtype, body_facts, rules) for body, body_facts in inner))


def shape_dependent(graph: Graph, dtype: str, rules: RuleSet = RULES) -> List[Tuple[int, Rule]]:
    """Return position and rule of the operators for which shapes decide whether they run in a dtype."""

    def depends(rule: Rule) -> bool:
        conditional = rule.condition is not None and dtype in SHAPE_CONDITIONS.get(rule.condition, ())
        return (conditional and dtype in rule.dtypes) or rules.has_stand_ins(rule, dtype)

    found = ((position, rules.find(node.op, dict(node.attrs))) for position, node in enumerate(graph.nodes))
    return [(position, rule) for position, rule in found if rule is not None and depends(rule)]


def _written_by_shape(graph: Graph, dtype: str) -> List[Node]:
    """Return the operators that `WriteOut` writes by their shapes in a bfloat16 network."""
    return [node for node in graph.nodes if is_shaped(node)] if dtype == dtypes.BFLOAT16 else []


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
    values are wide, and so is all that infer and clear operators compute from wide values alone, and from 0 and 1 where
    those compare wide values: an infer operator that reads some is pinned to float32. From wide and other values
    together it computes something that may be narrowed again, if an allow operator is still to come: else a network
    that adds its input to a layer would be float32 as a whole.

    Clear operators that carry a variable's own values, or wide ones, to where float32 is wanted are pinned too (a
    detector's anchor boxes, sliced and concatenated): rounding them would gain nothing and lose half pixels. Positions
    and what is read as integers are exact under every policy (`ExactValues`). With ``policy.last_layer_fp32`` the
    last layer is pinned to float32, unless an override says otherwise.

    Raises PolicyError, naming the node, if an override asks for what MXNet has no kernel for.
    """
    last = last_layer(graph, rules) if policy.last_layer_fp32 else frozenset()
    exact, leading = ExactValues.of(graph, rules), _before_layers(graph, rules)
    classifier = _Classifier(graph, policy, facts, rules, last, exact, leading, _unnameable(graph, facts))
    variables = ((i, node.name) for i, node in enumerate(graph.nodes) if node.is_variable)
    inputs = ((name in facts.inputs, facts.dtype(Entry(i))) for i, name in variables)
    classifier.run([_WIDE if wide and dtype not in dtypes.LOW_PRECISION else 0 for wide, dtype in inputs])
    return tuple(classifier.verdicts)


_TAINTED, _WIDE, _OWN, _BEYOND, _TRUTH = 1, 2, 4, 8, 16
"""Marks of nodes: a deny operator taints them; their values are wide; they carry a variable's own values; may be beyond
the low precision dtype's range; or are answers, 0 and 1, about wide values."""


@dataclass
class _Classifier:
    """A forward sweep over a graph or a body, and one back.

    Attributes:
        last: Positions of the operators of the last layer, if that is to be float32.
        leading: Positions of nodes that an allow operator comes behind, or may come.
        named: Positions of nodes whose outputs have names that no cast can have.
        marks: By position.
        seen: All marks that any node has: most networks have few, and most nodes none.
    """

    graph: Graph
    policy: Policy
    facts: Facts
    rules: RuleSet
    last: FrozenSet[int]
    exact: ExactValues
    leading: FrozenSet[int]
    named: FrozenSet[int] = frozenset()
    verdicts: List[Verdict] = field(init=False, default_factory=list)
    marks: List[int] = field(init=False, default_factory=list)
    seen: int = 0

    def run(self, entering: Sequence[int]) -> List[int]:
        """Give a verdict on each node, and return the marks of the outputs, given those of the variables."""
        self.verdicts, self.marks = [], [0] * len(self.graph.nodes)
        variables = [i for i, node in enumerate(self.graph.nodes) if node.is_variable]
        for variable, mark in zip(variables, entering):
            is_float32 = self.facts.dtype(Entry(variable)) == dtypes.FLOAT32
            self._mark(variable, mark | (_OWN if is_float32 else 0))
        for position in self.facts.nodes_out_of_range(self.graph):
            self._mark(position, _BEYOND)
        for position, node in enumerate(self.graph.nodes):
            self.verdicts.append(VARIABLE if node.is_variable else self._verdict(position, node))
        if not self.policy.pure:
            self._pin_carriers()
        for position, outputs in self.exact.positions().items():
            self.verdicts[position] = replace(self.verdicts[position], positions=outputs)
        return [self.marks[head.node] & (_TAINTED | _WIDE) for head in self.graph.heads]

    def _mark(self, position: int, mark: int) -> None:
        self.marks[position] |= mark
        self.seen |= mark

    def _marked(self, entries: Iterable[Entry], mark: int) -> List[int]:
        """Return the nodes that give some entries and have a mark."""
        return [entry.node for entry in entries if self.marks[entry.node] & mark] if self.seen & mark else []

    def _verdict(self, position: int, node: Node) -> Verdict:
        bodies = bodies_of(node)
        if bodies:
            return self._enter(position, node, bodies)
        verdict = self._decide(position, node)
        if position in self.named and self.policy.output_dtype == dtypes.FLOAT32 and verdict.label in (LOW, FREE):
            verdict = Verdict(FLOAT32, NAMED, verdict.rule, kinds=(Reason.NAMED,))
        data = [entry for port, entry in enumerate(node.inputs) if verdict.input_in_precision(port)]
        verdict = self._pin_tainted(position, data, self._pin_out_of_range(position, data, verdict))
        if verdict.label == FREE and position in self.named:
            return Verdict(LOW, NAMED, verdict.rule, kinds=(Reason.NAMED,))
        if not self.policy.pure:
            verdict = self._keep_wide(position, node, verdict)
            if moves(verdict) and self._marked(data, _OWN | _WIDE):
                self._mark(position, _OWN)
        return verdict

    def _decide(self, position: int, node: Node) -> Verdict:
        """Return the verdict on one operator, whatever its neighbours run in."""
        attrs, policy = dict(node.attrs), self.policy
        rule, wanted = self.rules.find(node.op, attrs), _override(node, policy)
        if rule is None:
            return _without_rule(node, wanted)
        foreign = _foreign_dtype(self.graph, position, rule, self.facts)
        if foreign:
            return Verdict(KEEP, foreign, rule)
        if not policy.is_mixed and not wanted:
            return Verdict(FLOAT32, "the policy computes in float32", rule)
        call = Call(attrs, tuple(self.facts.shape(entry) for entry in node.inputs), policy.compute_dtype)
        return self._by_rule(position, node, rule, call, wanted)

    def _by_rule(self, position: int, node: Node, rule: Rule, call: Call, wanted: _Wanted) -> Verdict:
        """Return the verdict on a node of float32 data: what is asked for first, then kernels, then the category."""
        low, pure = call.dtype, self.policy.pure
        own, forbidden = low in rule.dtypes, rule.forbids(call)
        stand_in = self.rules.stand_in(rule, call) if forbidden or not own else ""
        if wanted:
            verdict = _forced(node, rule, wanted, low, own or stand_in != "")
        elif position in self.last:
            return Verdict(FLOAT32, "last layer", rule, kinds=(Reason.LAST_LAYER,))
        elif not own and not stand_in:
            deny = rule.category == DENY and rule.reason
            reason = f"deny: {rule.reason}" if deny else f"MXNet has no sound {low} kernel for it"
            kind = Reason.DENY if deny else Reason.NO_KERNEL
            verdict = Verdict(FLOAT32, reason, rule, taints=rule.category == DENY, kinds=(kind,))
            return _clamped(verdict, rule, call) if pure and rule.category != ALLOW else verdict
        elif position in self.exact.pins and (pure or rule.category != DENY):
            return Verdict(FLOAT32, Reason.EXACT.value, rule, taints=False, kinds=(Reason.EXACT,))
        elif self.policy.keep_batchnorm_fp32 and node.op in _BATCH_NORMS:
            return Verdict(FLOAT32, "keep_batchnorm_fp32", rule, kinds=(Reason.KEEP_BATCHNORM,))
        else:
            verdict = _by_category(rule, call, pure, "" if own and stand_in else forbidden)
        if verdict.label == LOW:
            verdict = _clamped(verdict, rule, call)
        if not stand_in or verdict.label == FLOAT32:
            return verdict
        reason, kinds = f"{verdict.reason}, as {stand_in}", (*verdict.kinds, Reason.STAND_IN)
        return replace(verdict, reason=reason, kinds=kinds, stand_in=stand_in)

    def _keep_wide(self, position: int, node: Node, verdict: Verdict) -> Verdict:
        """Pin an infer operator that reads wide values, and pass these on."""
        rule = verdict.rule
        if verdict.label == LOW or (rule is not None and rule.category not in (INFER, CLEAR)):
            return verdict
        if rule is None and (node.op not in CAST_OPS or node.get("dtype") in dtypes.LOW_PRECISION):
            return verdict
        read = [entry for port, entry in enumerate(node.inputs) if rule is None or rule.reads(port)]
        wide = self._marked(read, _WIDE)
        if not wide:
            return verdict
        narrows = position in self.leading and len(self._marked(read, _WIDE | _TRUTH)) < len(read)
        if not narrows:
            self._mark(position, _TRUTH if rule is not None and rule.truth else _WIDE)
        if rule is not None and rule.category == INFER and verdict.label == FREE:
            reason = f"wide values of '{self.graph.nodes[wide[0]].name}'"
            return Verdict(FLOAT32, reason, rule, taints=False, kinds=(Reason.WIDE,))
        return verdict

    def _pin_out_of_range(self, position: int, data: Sequence[Entry], verdict: Verdict) -> Verdict:
        """Pin what gives or reads values beyond the low precision dtype's range."""
        if not self.seen & _BEYOND or verdict.label not in (LOW, FREE) or verdict.rule is None:
            return verdict
        beyond = f"beyond {self.policy.compute_dtype}'s range"
        if self.marks[position] & _BEYOND:
            return Verdict(FLOAT32, f"its values are {beyond}", verdict.rule)
        sources = self._marked(data, _BEYOND)
        if not sources:
            return verdict
        if verdict.rule.category == CLEAR:
            self._mark(position, _BEYOND)
        return Verdict(FLOAT32, f"'{self.graph.nodes[sources[0]].name}' has values {beyond}", verdict.rule)

    def _pin_tainted(self, position: int, data: Sequence[Entry], verdict: Verdict) -> Verdict:
        """Pin an infer operator behind a deny operator, and pass the taint on."""
        if verdict.rule is None or verdict.label not in (FREE, FLOAT32):
            return verdict
        category, scalars = verdict.rule.category, verdict.rule.scalars
        sources = self._marked(data, _TAINTED)
        if sources and category == INFER and verdict.label == FREE:
            reason = f"infer behind {self.graph.nodes[sources[0]]}"
            verdict = Verdict(FLOAT32, reason, verdict.rule, kinds=(Reason.INFER_BEHIND,))
        own = verdict.taints and category in (DENY, INFER)
        if scalars and not own:  # 1 - clip(x, 0, 0.9999) in float16 would still be 0
            call = Call(dict(self.graph.nodes[position].attrs), (), self.policy.compute_dtype)
            own = unsafe_scalar(call, scalars) is not None
        if (own and verdict.label == FLOAT32) or (sources and category != ALLOW):
            self._mark(position, _TAINTED)
        return verdict

    def _enter(self, position: int, node: Node, bodies: Sequence[Body]) -> Verdict:
        """Return the verdict on a control flow node, with those on the nodes of its bodies."""
        verdicts: List[Tuple[Verdict, ...]] = [()] * len(bodies)
        leads = position in self.leading or _is_layer(node, self.rules)
        for number, body in enumerate(bodies):
            facts, exact = self.facts.bodies.get((position, number)), self.exact.bodies[position, number]
            if body.is_condition or facts is None:
                continue
            last = last_layer(body.graph, self.rules) if position in self.last else frozenset()
            leading = frozenset(range(len(body.graph.nodes)) if leads else ())
            inner = _Classifier(body.graph, self.policy, facts, self.rules, last, exact, leading)
            entering = [self.marks[node.inputs[port].node] & (_TAINTED | _WIDE) for port in body.ports]
            for mark in carried(entering, body.states, inner.run):
                self._mark(position, mark)
            verdicts[number] = tuple(inner.verdicts)
        return Verdict(KEEP, "control flow, its bodies are converted", bodies=tuple(verdicts))

    def _pin_carriers(self) -> None:
        """Pin the free clear operators between a float32 variable, or wide values, and a reader of float32."""
        wanted = {head.node for head in self.graph.heads}
        for position in reversed(range(len(self.graph.nodes))):
            node, verdict = self.graph.nodes[position], self.verdicts[position]
            if verdict.label == FREE and position in wanted and self.marks[position] & (_OWN | _WIDE):
                verdict = Verdict(FLOAT32, Reason.EXACT.value, verdict.rule, kinds=(Reason.EXACT,))
                self.verdicts[position] = verdict
            if verdict.label in (FLOAT32, KEEP):
                wanted.update([entry.node for port, entry in enumerate(node.inputs) if not verdict.accepts_any(port)])


def _unnameable(graph: Graph, facts: Facts) -> FrozenSet[int]:
    """Return the nodes that give an output of the graph under a name that no cast can have.

    A cast's output is called ``<name>_output``; what some operators call theirs (SliceChannel's
    ``<name>_output0``) can be kept only by giving that output in the dtype that is wanted.
    """
    heads = (head for head in graph.heads if not graph.nodes[head.node].is_variable)
    names = {head: facts.output_names.get(head.key, "_output") for head in heads}  # unknown: taken for the common one
    return frozenset(head.node for head, name in names.items() if not name.endswith("_output"))


def moves(verdict: Verdict) -> bool:
    """Return whether a free operator moves values."""
    return verdict.label == FREE and verdict.rule is not None and verdict.rule.category == CLEAR


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
