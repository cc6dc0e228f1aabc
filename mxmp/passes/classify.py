"""Policy, rules and facts to one verdict per node: pinned float32, pinned low, or free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Optional, Sequence, Set, Tuple

from .. import dtypes
from ..errors import PolicyError
from ..graph import Entry, Graph, Node
from ..policy import Policy
from ..rules import ALLOW, CLEAR, DENY, INFER, RULES, Call, Rule, RuleSet
from ..rules.conditions import SHAPE_CONDITIONS
from .facts import CAST_OPS, Facts

FLOAT32 = "float32"
LOW = "low"
FREE = "free"
KEEP = "keep"
"""The labels. A node that is kept is none of the engine's business: its inputs stay as they are."""

NO_RULE = "no rule for this operator"
"""The reason given for an operator that does not stand in the table."""

PRECISION_ATTR = "__mxmp_precision__"
"""Attribute that ``mxmp.gluon.precision`` puts on the operators of a region."""

BATCH_NORMS = ("BatchNorm", "_contrib_SyncBatchNorm")


@dataclass(frozen=True)
class Verdict:
    """What was decided about one node, and why.

    Attributes:
        label: ``FLOAT32``, ``LOW``, ``FREE`` or ``KEEP``.
        reason: One phrase, for the report.
        rule: The operator's rule, if it has one.
    """

    label: str
    reason: str
    rule: Optional[Rule] = None

    def follows(self, port: int) -> bool:
        """Return whether an input is cast to the node's precision."""
        return self.label != KEEP and self.rule is not None and self.rule.is_data(port)

    def accepts_any(self, port: int) -> bool:
        """Return whether an input may have either precision."""
        return self.rule is not None and port in self.rule.any

    def moves(self, index: int) -> bool:
        """Return whether an output has the node's precision."""
        return self.label != KEEP and self.rule is not None and index not in self.rule.keep_outputs


def classify(graph: Graph, policy: Policy, facts: Facts, rules: RuleSet) -> Tuple[Verdict, ...]:
    """Return a verdict for every node of a graph.

    Deny operators taint what follows: an infer operator that reads, directly or through clear
    operators, what a deny operator (or another tainted one) wrote, is pinned to float32.

    Clear operators that carry a variable's own values to where float32 is wanted are pinned too
    (a detector's anchor boxes, sliced and concatenated): rounding them would gain nothing and
    lose half pixels.

    Raises:
        PolicyError: If an override asks for what MXNet has no kernel for; it names the node.
    """
    verdicts: List[Verdict] = []
    tainted: Set[int] = set()
    for position, node in enumerate(graph.nodes):
        verdict = _verdict(graph, position, policy, facts, rules)
        if verdict.label == FREE and verdict.rule and not policy.pure:
            source = next((e.node for p, e in _data_inputs(node, verdict) if e.node in tainted), None)
            if source is not None and verdict.rule.category == INFER:
                verdict = Verdict(FLOAT32, f"infer behind {graph.nodes[source]}", verdict.rule)
            if source is not None:
                tainted.add(position)
        if verdict.label == FLOAT32 and verdict.rule and verdict.rule.category in (DENY, INFER):
            tainted.add(position)
        verdicts.append(verdict)
    if not policy.pure:
        for position in _carriers(graph, verdicts, facts):
            verdicts[position] = Verdict(FLOAT32, "carries exact values", verdicts[position].rule)
    return tuple(verdicts)


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


def _verdict(graph: Graph, position: int, policy: Policy, facts: Facts, rules: RuleSet) -> Verdict:
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
    if wanted:
        return _forced(node, rule, wanted, low)
    if low not in rule.dtypes:
        return Verdict(FLOAT32, f"MXNet has no {low} kernel for it", rule)
    if policy.keep_batchnorm_fp32 and node.op in BATCH_NORMS:
        return Verdict(FLOAT32, "keep_batchnorm_fp32", rule)
    call = Call(attrs, tuple(facts.shape(entry) for entry in node.inputs), low)
    return _by_category(rule, call, policy.pure)


def _by_category(rule: Rule, call: Call, pure: bool) -> Verdict:
    if pure:
        return Verdict(LOW, "pure policy", rule)
    if rule.category == DENY:
        return Verdict(FLOAT32, f"deny: {rule.reason}" if rule.reason else "deny", rule)
    forbidden = rule.forbids(call)
    if forbidden:
        return Verdict(FLOAT32, forbidden, rule)
    if rule.category == ALLOW:
        return Verdict(LOW, "allow", rule)
    return Verdict(FREE, "clear" if rule.category == CLEAR else "infer", rule)


def _override(node: Node, policy: Policy) -> Optional[Tuple[str, str]]:
    region = node.get(PRECISION_ATTR)
    if region is not None and policy.is_mixed:
        return (policy.compute_dtype if region == LOW else region), f"precision({region!r}) region"
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


def _forced(node: Node, rule: Rule, wanted: Tuple[str, str], low: str) -> Verdict:
    dtype, why = wanted
    if dtype == dtypes.FLOAT32:
        return Verdict(FLOAT32, why, rule)
    if dtype != low:
        raise PolicyError(
            f"{why} asks for {dtype} at node {node}, but the policy's compute_dtype is {low}; use {low} or float32."
        )
    if low not in rule.dtypes:
        raise PolicyError(
            f"{why} asks for {dtype} at node {node}, but MXNet 1.9.1 has no {dtype} kernel for {node.op}. "
            f"Leave it in float32."
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
        if dtype is None:
            return f"the dtype of {kind} {number} is unknown"
        if dtype != dtypes.FLOAT32:
            return f"{kind} {number} is {dtype} already"
    return None


def depends_on_shapes(graph: Graph, rules: RuleSet = RULES) -> bool:
    """Return whether a verdict on this graph may change with the shapes of its inputs."""
    found = (rules.find(node.op, dict(node.attrs)) for node in graph.nodes)
    return any(rule is not None and rule.condition in SHAPE_CONDITIONS for rule in found)
