"""The decision on one operator by itself, from overrides, kernels, and the category and condition of its rule.

A decision pins it to float32 or to low precision, or leaves it free. `dataflow.classify` goes through a graph, and lets
neighbours have their say.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import FrozenSet, Optional, Tuple

from .. import dtypes
from ..errors import PolicyError
from ..graph import Entry, Graph, Node
from ..policy import LOW as LOW
from ..policy import Policy
from ..rules import ALLOW, CLEAR, DENY, RULES, Call, Rule
from ..rules.conditions import clamped_scalars, value_of
from .base import PRECISION_ATTR, rule_of
from .facts import CAST_OPS, Facts


class Reason(enum.Enum):
    """A kind of reason; its value is how reports write it, and files keep it.

    A reason's text names more (the node, the dtype, the rule's own reason), and one text may be of several kinds:
    'allow, as softmax2' is ``ALLOW`` and ``STAND_IN``. Texts of no kind explain themselves. Legends have the order of
    this class.

    Attributes:
        meaning: Explains the word; '' where the text of the reason does.
    """

    def __new__(cls, word: str, meaning: str) -> Reason:
        """Make a member of its value and its meaning."""
        member = object.__new__(cls)
        member._value_, member.meaning = word, meaning
        return member

    meaning: str

    ALLOW = "allow", "gains from low precision: matrix products, convolutions"
    DENY = "deny", "needs float32, for the reason behind it"
    INFER = "infer", "as safe as what it reads"
    INFER_BEHIND = "infer behind X", "as safe as what it reads, and X, before it, needs float32"
    AFTER_OVERRIDE = "behind an override", "reads, on the way to the next layer, what an override keeps in float32"
    MANY_TERMS = "many terms", "a sum of sums or product of factors beyond the dtype's range, or a layer of one"
    DATA = "input values", "inputs and constants of the network, or computed only from these"
    CLEAR = "clear", "only moves or selects values, so that either precision is safe"
    CHEAPEST = "cheapest", "moves fewest bytes, or takes fewest casts if shapes are unknown; else float32"
    EXACT = "carries exact values", "counts, indices, values of a variable: never rounded"
    NEAR_ONE = "close to 1", "an output, or a logarithm, an arccos or the like, tells how far it is from 1"
    LAST_LAYER = "last layer", "the policy keeps it in float32 (last_layer_fp32)"
    PURE = "pure policy", "the policy takes low precision for all that MXNet has a kernel for"
    KEEP_BATCHNORM = "keep_batchnorm_fp32", "the policy keeps BatchNorm in float32"
    CLAMPED = "clamped", "a constant beyond the dtype's range, whose largest value it is now"
    OVERRIDE = "override", "the policy asks for it by name or block, or set_policy for its block"
    OPERATOR = "op override", "the policy asks for it by the operator"
    REGION = "region", "a region of the code asks for it"
    SUBSTITUTE = "as X", "MXNet computes it by its operator X, which has the kernel"
    AS_CONVERTED = "as converted", "a policy that is not known overruled the rule"
    NO_KERNEL = "no sound kernel", "MXNet's is missing, or what it gives is wrong or off on average"
    OWN_CAST = "explicit cast", "the network's own; left as it is"
    NO_RULE = "no rule", "mxmp does not know which inputs may be cast; left as it is"
    NAMED = "named outputs", ""  # its outputs have names that no cast can have


FLOAT32 = "float32"
FREE = "free"
KEEP = "keep"
"""The labels. A node that is kept is left unchanged, and so are its inputs."""


@dataclass(frozen=True)
class Decision:
    """The precision in which one node is to run (``label``), and the reason (one phrase, for the report).

    Attributes:
        kinds: The kinds of the reason. None where its text explains itself.
        taints: Whether its float32 values are unsafe for low precision operators that read them.
        float32_attr: Attribute that lets this node read low precision data and give float32. Its first input then needs
            no cast. Empty if there is none, as 'dtype' of ``_np_sum``.
        substitute: Operator that replaces this one if it runs in low precision. Empty if this operator runs itself.
        clamped: Pairs (attribute, text) that replace scalars beyond the low precision dtype's range.
        bodies: The decisions on the nodes of each body of a control flow node.
        index_outputs: Numbers of the outputs that hold positions. As outputs of the network they are float32 too.
        low_ports: The inputs of a control flow node that its bodies want in low precision.
        low_outputs: The outputs of a control flow node that its bodies give in low precision.
    """

    label: str
    reason: str
    rule: Optional[Rule] = None
    taints: bool = True
    float32_attr: str = ""
    substitute: str = ""
    clamped: Tuple[Tuple[str, str], ...] = ()
    bodies: Tuple[Tuple["Decision", ...], ...] = ()
    index_outputs: FrozenSet[int] = frozenset()
    low_ports: FrozenSet[int] = frozenset()
    low_outputs: FrozenSet[int] = frozenset()
    kinds: Tuple[Reason, ...] = ()

    def input_in_precision(self, port: int) -> bool:
        """Return whether an input is to have the precision that the node runs in."""
        return self.label != KEEP and self.rule is not None and self.rule.is_data(port)

    def accepts_any(self, port: int) -> bool:
        """Return whether an input may have either precision."""
        return self.rule is not None and (port in self.rule.any_dtype or (port == 0 and self.float32_attr != ""))

    def output_in_precision(self, index: int) -> bool:
        """Return whether an output comes in the precision that the node runs in."""
        return self.label != KEEP and self.rule is not None and index not in self.rule.keep_outputs

    def reads_low(self, port: int, low: bool) -> bool:
        """Return whether an input is to be in low precision, given whether the node runs in it (``low``)."""
        return port in self.low_ports or (low and self.input_in_precision(port))


_Wanted = Optional[Tuple[str, str, Reason]]  # the dtype that an override asks for, the override, and its kind

_SPARSE = ("1", "2")  # row_sparse and csr (include/mxnet/ndarray.h, NDArrayStorageType)

_BATCH_NORMS = ("BatchNorm", "_contrib_BatchNormWithReLU")  # the synchronized one has no kernel but float32's


def _clamped(decision: Decision, rule: Rule, call: Call) -> Decision:
    """Return a decision that clamps scalars to the low precision dtype's range, as parameters are."""
    scalars = clamped_scalars(call, rule.scalars)
    if not scalars:
        return decision
    texts = [f"{key}={value_of(call.attrs, key):g} clamped to {float(text):g}" for key, text in scalars.items()]
    reason, kinds = ", ".join([decision.reason, *texts]), (*decision.kinds, Reason.CLAMPED)
    return replace(decision, reason=reason, kinds=kinds, clamped=tuple(scalars.items()))


def _by_category(rule: Rule, call: Call, pure: bool, forbidden: Optional[str]) -> Decision:
    if pure:
        return Decision(LOW, "pure policy", rule, kinds=(Reason.PURE,))
    if rule.category == DENY:
        reason = f"deny: {rule.reason}" if rule.reason else "deny"
        return Decision(FLOAT32, reason, rule, float32_attr=_float32_attr(rule, call), kinds=(Reason.DENY,))
    if forbidden:
        return Decision(FLOAT32, forbidden, rule, taints=rule.taints, float32_attr=_float32_attr(rule, call))
    if rule.category == ALLOW:
        return Decision(LOW, "allow", rule, kinds=(Reason.ALLOW,))
    kind = Reason.CLEAR if rule.category == CLEAR else Reason.INFER
    return Decision(FREE, kind.value, rule, kinds=(kind,))


def _float32_attr(rule: Rule, call: Call) -> str:
    """Return the attribute that saves a cast in front of a call, empty if the network sets it."""
    return rule.float32_attr if call.attrs.get(rule.float32_attr) in (None, "None") else ""


OF_REGION = "precision"
"""The first word of a PolicyError about a region that the network has, and not about the policy."""


def _override(node: Node, policy: Policy) -> _Wanted:
    region = node.get(PRECISION_ATTR)
    if region is not None and policy.is_mixed:
        dtype = policy.compute_dtype if region == LOW else region
        return dtype, f"{OF_REGION} {region!r} (region)", Reason.REGION
    override = policy.override(node.op, node.name, node.attrs)
    if override is None:
        return None
    return (*override, Reason.OPERATOR if override[1].startswith("op ") else Reason.OVERRIDE)


def _without_rule(node: Node, wanted: _Wanted) -> Decision:
    if node.op in CAST_OPS:
        return Decision(KEEP, "explicit cast", kinds=(Reason.OWN_CAST,))
    if wanted and wanted[0] != dtypes.FLOAT32:
        raise PolicyError(
            f"{wanted[1]} asks for {wanted[0]} at node {node}, but mxmp has no rule for operator "
            f"{node.op!r}, so it does not know which of its inputs may be cast. Leave it in float32."
        )
    return Decision(KEEP, "no rule for this operator", kinds=(Reason.NO_RULE,))


def _forced(node: Node, rule: Rule, wanted: Tuple[str, str, Reason], low: str, has_kernel: bool) -> Decision:
    dtype, why, kind = wanted
    if dtype == dtypes.FLOAT32:
        return Decision(FLOAT32, why, rule, kinds=(kind,))
    if dtype != low:
        raise PolicyError(
            f"{why} asks for {dtype} at node {node}, but the policy's compute_dtype is {low}; use {low} or float32."
        )
    if not has_kernel:
        raise PolicyError(
            f"{why} asks for {dtype} at node {node}, but MXNet 1.9.1 has no sound {dtype} kernel for "
            f"{node.op}. Leave it in float32."
        )
    return Decision(LOW, why, rule, kinds=(kind,))


def _foreign_dtype(graph: Graph, position: int, rule: Rule, facts: Facts) -> Optional[str]:
    """Return the reason why some data of a node is not float32 for certain, or None."""
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


VARIABLE = Decision(KEEP, "variable")
"""The decision on every variable: a graph has more of them than operators."""


def moves(decision: Decision) -> bool:
    """Return whether a free operator only moves or selects values."""
    return decision.label == FREE and decision.rule is not None and decision.rule.category == CLEAR


def decide(graph: Graph, position: int, facts: Facts, policy: Policy, is_last: bool = False) -> Decision:
    """Return the decision on an operator by itself, without its neighbours.

    ``is_last`` says whether the policy wants it in float32 as a last layer.

    Raises:
        PolicyError: If MXNet has no kernel for an override.
    """
    node = graph.nodes[position]
    rule, wanted = rule_of(node), _override(node, policy)
    if rule is None:
        return _without_rule(node, wanted)
    foreign = _foreign_dtype(graph, position, rule, facts)
    if foreign:
        return Decision(KEEP, foreign, rule)
    if not policy.is_mixed and not wanted:
        return Decision(FLOAT32, "the policy computes in float32", rule)
    call = Call(dict(node.attrs), tuple(facts.shape(entry) for entry in node.inputs), policy.compute_dtype)
    return _by_rule(node, rule, call, policy, wanted, is_last)


def _by_rule(node: Node, rule: Rule, call: Call, policy: Policy, wanted: _Wanted, is_last: bool) -> Decision:
    """Return the decision on a node of float32 data: by overrides first, then by kernels, then by its category."""
    low, pure = call.dtype, policy.pure
    has_kernel, forbidden = low in rule.dtypes, rule.forbids(call)
    substitute = RULES.substitute(rule, call) if forbidden or not has_kernel else ""
    if wanted:
        decision = _forced(node, rule, wanted, low, has_kernel or substitute != "")
    elif is_last:
        return Decision(FLOAT32, "last layer", rule, kinds=(Reason.LAST_LAYER,))
    elif not has_kernel and not substitute:
        deny = rule.category == DENY and rule.reason
        reason = f"deny: {rule.reason}" if deny else f"MXNet has no sound {low} kernel for it"
        kind = Reason.DENY if deny else Reason.NO_KERNEL
        decision = Decision(FLOAT32, reason, rule, taints=rule.category == DENY, kinds=(kind,))
        return _clamped(decision, rule, call) if pure and rule.category != ALLOW else decision
    elif policy.keep_batchnorm_fp32 and node.op in _BATCH_NORMS:
        return Decision(FLOAT32, "keep_batchnorm_fp32", rule, kinds=(Reason.KEEP_BATCHNORM,))
    else:
        decision = _by_category(rule, call, pure, "" if has_kernel and substitute else forbidden)
    if decision.label == LOW:
        decision = _clamped(decision, rule, call)
    if not substitute or decision.label == FLOAT32:
        return decision
    reason, kinds = f"{decision.reason}, as {substitute}", (*decision.kinds, Reason.SUBSTITUTE)
    return replace(decision, reason=reason, kinds=kinds, substitute=substitute)
