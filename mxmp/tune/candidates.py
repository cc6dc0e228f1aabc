"""The candidates of a race: policies by name, of different kinds, that have operators in float32 for speed's sake.

Layouts couple neighbours: in ResNet-20 the activations in float32 take BatchNorm's backward pass from 1,713 to 40 ms
without touching a BatchNorm. Changing one operator after the other does not lead there. So what helped in one network
or another is tried in each.

Safety is not for sale: what a candidate changes is put in float32, never in low precision, and only operators that the
rules leave free, or that gain from low precision. What needs float32, and what the user's own overrides name, stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import AbstractSet, Any, Callable, Dict, FrozenSet, Iterable, List, NamedTuple, Sequence, Set, Tuple

from .. import dtypes
from ..graph import Entry
from ..passes.attributes import PRECISION_ATTR
from ..passes.decide import FREE, LOW
from ..passes.plan import Plan, make_plan
from ..policy import Policy, pattern_of
from ..report import Decisions

FLOAT32, UNTUNED = "float32", "untuned"
NOT_FUSED = "{}, not fused"

_SUMS = ("elemwise_add", "broadcast_add", "_plus", "add_n", "_npi_add")
_NORMS = ("BatchNorm", "_contrib_BatchNormWithReLU", "_contrib_SyncBatchNorm", "LayerNorm", "InstanceNorm", "GroupNorm")
_ACTIVATIONS = ("Activation", "relu", "LeakyReLU", "clip", "sigmoid", "tanh")
_POOLS = ("Pooling", "_contrib_AdaptiveAvgPooling2D")
_CONVOLUTIONS = ("Convolution", "Deconvolution")

Shape = Tuple[int, ...]


class Operator(NamedTuple):
    """An operator that a candidate may put in float32.

    ``gains`` says whether it is of those that gain from low precision: the policy has them there unless an override
    says otherwise. ``depthwise`` are convolutions of each channel by itself. The shape is that of its first output.
    """

    op: str
    name: str
    shape: Shape
    depthwise: bool
    gains: bool


class Candidate(NamedTuple):
    """A policy with a name.

    Attributes:
        name: What it is in words.
        policy: The policy.
        low: What it has in low precision: of each graph the positions of nodes and of parameters, and those in bodies.
        fused: Of a frozen network, whether oneDNN fuses it.
    """

    name: str
    policy: Policy
    low: Tuple[Any, ...] = ()
    fused: bool = True


@dataclass(frozen=True)
class Change:
    """Operators of one kind whose precision is not the untuned policy's.

    Attributes:
        op: The operator.
        dtype: The dtype in which they compute.
        names: Their names.
    """

    op: str
    dtype: str
    names: Tuple[str, ...]


_Picks = Callable[[Operator, AbstractSet[Shape]], bool]
"""Whether a start has an operator in float32, given the shapes that depthwise convolutions write."""


def _is_around_depthwise(operator: Operator, depthwise: AbstractSet[Shape]) -> bool:
    return operator.depthwise or (operator.op in (*_NORMS, *_ACTIVATIONS) and operator.shape in depthwise)


# Measured on an Intel Xeon with AMX and without; the names are those of a plan.
_STARTS: Tuple[Tuple[str, _Picks], ...] = (
    # What gains by itself; all else keeps float32's kernels and layouts.
    ("only convolutions and products in low precision", lambda operator, _: not operator.gains),
    # ResNet-20's training: 2.1 to 2.3 times float32's speed, where the policy itself is at 0.55.
    ("activations in float32", lambda operator, _: operator.op in _ACTIVATIONS),
    ("normalisations in float32", lambda operator, _: operator.op in _NORMS),
    ("sums in float32", lambda operator, _: operator.op in _SUMS),
    # MobileNet's training: 3.6 s a step in bfloat16, 0.2 s in float32, by reference code of BatchNorm's backward pass.
    ("depthwise convolutions in float32", lambda operator, _: operator.depthwise),
    ("depthwise convolutions and what follows them in float32", _is_around_depthwise),
    ("only convolutions in low precision", lambda operator, _: operator.op not in _CONVOLUTIONS or operator.depthwise),
    ("only products in low precision", lambda operator, _: not operator.gains or operator.op in _CONVOLUTIONS),
    ("pooling in float32", lambda operator, _: operator.op in _POOLS),
)


def find_candidates(decisions: Sequence[Decisions], policy: Policy, unfused: bool = False) -> List[Candidate]:
    """Return the candidates of a network: float32 first, then the policy itself, no two with the same graphs.

    Args:
        decisions: What the conversion of each of its graphs decides under the policy; nothing where that does not run.
        policy: The untuned policy.
        unfused: Whether the two are also to run without oneDNN's fusion.
    """
    policies = {FLOAT32: Policy()}
    if decisions:
        operators = find_operators(decisions, policy)
        depthwise = {operator.shape for operator in operators if operator.depthwise}
        policies[UNTUNED] = policy
        for name, picks in _STARTS:
            chosen = [operator for operator in operators if picks(operator, depthwise)]
            policies[name] = _in_float32(policy, operators, chosen)
    candidates: Dict[Any, Candidate] = {}
    for name, of_name in policies.items():
        low = tuple(_low_nodes(make_plan(part.before, of_name, part.facts)) for part in decisions)
        # By the nodes that it has low: a cast more or less is what the minimum cut made of these.
        candidates.setdefault(low, Candidate(name, of_name, low))
    race = list(candidates.values())
    if unfused:
        first = [candidate for candidate in race if candidate.name in (FLOAT32, UNTUNED)]
        race[2:2] = [one._replace(name=NOT_FUSED.format(one.name), fused=False) for one in first]
    return race


def find_operators(decisions: Sequence[Decisions], policy: Policy) -> List[Operator]:
    """Return the operators that may be chosen for.

    Those in bodies of control flow are left to the policy, and so are those that a region or an override decides about.
    A block that is called twice has two of a name.
    """
    operators = []
    for part in decisions:
        for position, node in enumerate(part.before.nodes):
            verdict = part.plan.verdicts[position]
            if node.is_variable or verdict.rule is None or verdict.label not in (LOW, FREE):
                continue
            if node.get(PRECISION_ATTR) is None and policy.override(node.op, node.name, node.attrs) is None:
                shape = part.facts.shape(Entry(position)) or ()
                depthwise = node.op in _CONVOLUTIONS and node.get("num_group", "1") != "1"
                operators.append(Operator(node.op, node.name, shape, depthwise, verdict.label == LOW))
    return operators


def changes_of(candidate: Candidate, decisions: Sequence[Decisions], policy: Policy) -> Tuple[Change, ...]:
    """Return the operators whose precision a candidate changes; those in bodies of loops are left out."""
    names: Dict[Tuple[str, bool], List[str]] = {}
    for part, (low, *_) in zip(decisions, candidate.low):
        for position in sorted(low ^ part.plan.placement.low):
            node = part.before.nodes[position]
            if not node.is_variable:
                names.setdefault((node.op, position in low), []).append(node.name)
    dtype = {True: policy.compute_dtype, False: dtypes.FLOAT32}
    return tuple(Change(op, dtype[is_low], tuple(own)) for (op, is_low), own in names.items())


def _in_float32(policy: Policy, operators: Sequence[Operator], chosen: Sequence[Operator]) -> Policy:
    """Return a policy that has some operators in float32 too, with as few overrides as name them."""
    rest: Set[str] = {operator.op for operator in set(operators) - set(chosen)}
    # Of an operator of which some stay in low precision each node is named: `op:` would take all of them along.
    whole = {operator.op for operator in chosen} - rest
    ops = {**dict(policy.ops), **dict.fromkeys(sorted(whole), dtypes.FLOAT32)}
    return with_names(policy.replace(ops=ops), (pattern_of(o.name) for o in chosen if o.op not in whole))


def _low_nodes(plan: Plan) -> Tuple[FrozenSet[int], FrozenSet[int], Tuple[Any, ...]]:
    bodies = sorted((where, _low_nodes(body)) for where, body in plan.bodies.items())
    return plan.placement.low, plan.low_params, tuple(bodies)


# ------------------------------------------------------------------ overrides by name


def with_names(policy: Policy, patterns: Iterable[str], dtype: str = dtypes.FLOAT32) -> Policy:
    """Return a policy that has the operators of some patterns of names in a precision, and is the same otherwise."""
    return policy.replace(names={**dict(policy.names), **dict.fromkeys(patterns, dtype)})
