"""The verdict on one node by itself: overrides, kernels, its rule's category and condition; what shapes change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, List, Optional, Tuple

from .. import dtypes
from ..errors import PolicyError
from ..graph import Entry, Graph, Node
from ..policy import Policy
from ..rules import ALLOW, CLEAR, DENY, RULES, Call, Rule, RuleSet
from ..rules.conditions import SHAPE_CONDITIONS, clamped_scalars, value_of
from .attributes import PRECISION_ATTR
from .exact_values import EXACT
from .facts import CAST_OPS, Facts
from .verdict import FLOAT32, FREE, KEEP, LOW, Verdict

NO_RULE = "no rule for this operator"
"""The reason given for an operator that the table does not have."""

CLAMPED = " clamped to "
"""Stands in the reason given for an operator with a scalar beyond the low precision dtype's range."""

_Wanted = Optional[Tuple[str, str]]  # the dtype that an override asks for, and what the override is

_SPARSE = ("1", "2")  # row_sparse and csr (include/mxnet/ndarray.h, NDArrayStorageType)

_BATCH_NORMS = ("BatchNorm", "_contrib_BatchNormWithReLU", "_contrib_SyncBatchNorm")


def decide(
    graph: Graph, position: int, policy: Policy, facts: Facts, rules: RuleSet, last: bool, exact: bool
) -> Verdict:
    """Return the verdict on one operator, whatever its neighbours run in.

    ``last`` says whether it is in a last layer that is to be float32, ``exact`` whether it carries values that must be
    exact. Raises PolicyError, naming the node, if an override asks for what MXNet has no kernel for.
    """
    node = graph.nodes[position]
    attrs = dict(node.attrs)
    rule = rules.find(node.op, attrs)
    wanted = _override(node, policy)
    if rule is None:
        return _without_rule(node, wanted)
    foreign = _foreign_dtype(graph, position, rule, facts)
    if foreign:
        return Verdict(KEEP, foreign, rule)
    if not policy.is_mixed and not wanted:
        return Verdict(FLOAT32, "the policy computes in float32", rule)
    call = Call(attrs, tuple(facts.shape(entry) for entry in node.inputs), policy.compute_dtype)
    return _by_rule(node, rule, call, wanted, policy, rules, last, exact)


def _by_rule(
    node: Node, rule: Rule, call: Call, wanted: _Wanted, policy: Policy, rules: RuleSet, last: bool, exact: bool
) -> Verdict:
    """Return the verdict on a node of float32 data: what is asked for first, then kernels, then the category."""
    low = call.dtype
    own, forbidden = low in rule.dtypes, rule.forbids(call)
    stand_in = rules.stand_in(rule, call) if forbidden or not own else ""
    has_kernel = own or stand_in != ""
    if wanted:
        verdict = _forced(node, rule, wanted, low, has_kernel)
    elif last:
        return Verdict(FLOAT32, "last layer", rule)
    elif not has_kernel:
        deny = rule.category == DENY and rule.reason
        reason = f"deny: {rule.reason}" if deny else f"MXNet has no sound {low} kernel for it"
        verdict = Verdict(FLOAT32, reason, rule, taints=rule.category == DENY)
        return _clamped(verdict, rule, call) if policy.pure and rule.category != ALLOW else verdict
    elif exact and (policy.pure or rule.category != DENY):
        return Verdict(FLOAT32, EXACT, rule, taints=False)
    elif policy.keep_batchnorm_fp32 and node.op in _BATCH_NORMS:
        return Verdict(FLOAT32, "keep_batchnorm_fp32", rule)
    else:
        verdict = _by_category(rule, call, policy.pure, "" if own and stand_in else forbidden)
    if verdict.label == LOW:
        verdict = _clamped(verdict, rule, call)
    if not stand_in or verdict.label == FLOAT32:
        return verdict
    return replace(verdict, reason=f"{verdict.reason}, as {stand_in}", stand_in=stand_in)


def _clamped(verdict: Verdict, rule: Rule, call: Call) -> Verdict:
    """Return a verdict that keeps scalars within the low precision dtype's range, as parameters are: none is inf."""
    scalars = clamped_scalars(call, rule.scalars)
    if not scalars:
        return verdict
    texts = [f"{key}={value_of(call.attrs, key):g}{CLAMPED}{float(text):g}" for key, text in scalars.items()]
    return replace(verdict, reason=", ".join([verdict.reason, *texts]), clamped=tuple(scalars.items()))


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
    """Return the attribute that saves a cast in front of a call, empty if the network sets it."""
    return rule.widens if call.attrs.get(rule.widens) in (None, "None") else ""


def _override(node: Node, policy: Policy) -> _Wanted:
    region = node.get(PRECISION_ATTR)
    if region is not None and policy.is_mixed:
        return (policy.compute_dtype if region == LOW else region), f"precision {region!r} (region or set_policy)"
    return policy.override(node.op, node.name)


def _without_rule(node: Node, wanted: _Wanted) -> Verdict:
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
    """Return the reason why a node's data is not known to be float32, or None."""
    node = graph.nodes[position]
    for port, entry in enumerate(node.inputs):
        if rule.is_data(port):
            reason = _not_float32(graph, entry, facts)
            if reason:
                return reason.format(f"input {port}")
    for index in range(node.num_outputs):
        if index not in rule.keep_outputs and (index == 0 or (position, index) in facts.dtypes):  # others are hidden
            reason = _not_float32(graph, Entry(position, index), facts)
            if reason:
                return reason.format(f"output {index}")
    return None


def _not_float32(graph: Graph, entry: Entry, facts: Facts) -> Optional[str]:
    """Return what an entry is if it is not known to be float32, with braces for its name, or None."""
    dtype = facts.dtype(entry)
    if graph.nodes[entry.node].get("__storage_type__") in _SPARSE:
        return "{} is sparse"
    if dtype == dtypes.FLOAT32:
        return None
    return "the dtype of {} is unknown" if dtype is None else f"{{}} is {dtype} already"


def depends_on_shapes(graph: Graph, dtype: str, rules: RuleSet = RULES) -> bool:
    """Return whether the verdicts on a graph may change with the shapes of its inputs."""
    return bool(shape_dependent(graph, dtype, rules)) or any(
        depends_on_shapes(body, dtype, rules) for node in graph.nodes for body in node.subgraphs
    )


def shape_outcome(graph: Graph, dtype: str, facts: Facts, rules: RuleSet = RULES) -> Tuple[Any, ...]:
    """Return a key of the decisions that depend on shapes: where it is equal, so are the verdicts on a graph.

    Gluon converts a net once per outcome, not once per shape of its inputs. The graph is one without casts of mxmp; of
    the facts, those on bodies included, only shapes are looked at.
    """
    found: List[Any] = []
    for position, rule in shape_dependent(graph, dtype, rules):
        node = graph.nodes[position]
        call = Call(dict(node.attrs), tuple(facts.shape(entry) for entry in node.inputs), dtype)
        found.append((rule.forbids(call) is None, rules.stand_in(rule, call)))
    for position, node in enumerate(graph.nodes):
        for number, body in enumerate(node.subgraphs):
            if (position, number) in facts.bodies:
                found.append(shape_outcome(body, dtype, facts.bodies[position, number], rules))
    return tuple(found)


def shape_dependent(graph: Graph, dtype: str, rules: RuleSet = RULES) -> List[Tuple[int, Rule]]:
    """Return position and rule of the operators for which shapes decide whether they run in a dtype."""
    found = []
    for position, node in enumerate(graph.nodes):
        rule = rules.find(node.op, dict(node.attrs))
        if rule is not None:
            conditional = rule.condition is not None and dtype in SHAPE_CONDITIONS.get(rule.condition, ())
            if (conditional and dtype in rule.dtypes) or rules.has_stand_ins(rule, dtype):
                found.append((position, rule))
    return found
