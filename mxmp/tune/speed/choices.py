"""What may be chosen for the sake of speed in one network under a policy, and the policy of each choice.

Safety is not for sale: only operators that the rules leave free, and those that gain from low precision, can be
chosen for. Operators that need float32, and what the user's own overrides name, stay as they are.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from ... import dtypes
from ...graph import Entry, Graph
from ...passes.attributes import PRECISION_ATTR
from ...passes.decide import FLOAT32, FREE, LOW, shape_dependent
from ...passes.facts import Facts
from ...passes.plan import Plan
from ...policy import Policy
from ...rules import INFER
from ..overrides import pattern_of

Label = Optional[str]
"""FLOAT32 or LOW; None leaves it to the policy's rules and the minimum cut on bytes."""

Choice = Tuple[Label, ...]
"""A label for each group."""


class Group(NamedTuple):
    """Operators that are chosen for together, since they do the same on the same shapes.

    ``gains`` says whether they are of those that gain from low precision (`allow`): the policy has them in it unless
    they are chosen otherwise. ``depthwise`` are convolutions of each channel by itself. ``by_shapes`` are those that
    may need float32 for inputs of other shapes, as long sums do: none is put in low precision by its name.
    """

    op: str
    shape: Tuple[int, ...]
    depthwise: bool
    gains: bool
    names: Tuple[str, ...]
    by_shapes: bool = False

    def __str__(self) -> str:
        """Return it in words."""
        kind = f"depthwise {self.op}" if self.depthwise else self.op
        return f"{len(self.names)} {kind} of {'x'.join(map(str, self.shape)) or 'a number'}"


@dataclass(frozen=True)
class Choices:
    """The groups of a network, and what is chosen for them.

    Attributes:
        policy: The untuned policy.
        groups: What can be chosen for.
        fixed: How many of the network's operators of each kind are in no group.
    """

    policy: Policy
    groups: Tuple[Group, ...]
    fixed: Dict[str, int]

    @property
    def untuned(self) -> Choice:
        """The choice of the policy itself."""
        return (None,) * len(self.groups)

    @property
    def float32(self) -> Choice:
        """The choice of a network in float32; one of its own where there is no group."""
        return (FLOAT32,) * len(self.groups) or (FLOAT32,)

    def labels(self, number: int) -> Tuple[Label, ...]:
        """Return what a group can be."""
        group = self.groups[number]
        return (None, FLOAT32) if group.gains or group.by_shapes else (None, FLOAT32, LOW)

    def policy_of(self, choice: Choice) -> Policy:
        """Return the policy of a choice: the untuned one with overrides, as few as name it; float32 if all are that."""
        if choice == self.float32:
            return Policy()
        ops, names = dict(self.policy.ops), dict(self.policy.names)
        for op in self._wholly_float32(choice):
            ops[op] = dtypes.FLOAT32
        low = self.policy.compute_dtype
        for group, label in zip(self.groups, choice):
            if label is None or (label == FLOAT32 and ops.get(group.op) == dtypes.FLOAT32):
                continue
            if label == LOW and group.by_shapes:
                continue
            names.update((pattern_of(name), dtypes.FLOAT32 if label == FLOAT32 else low) for name in group.names)
        return self.policy.replace(ops=ops, names=names)

    def _wholly_float32(self, choice: Choice) -> List[str]:
        """Return the operators all of whose groups are chosen to be float32."""
        labels: Dict[str, Set[Label]] = defaultdict(set)
        for group, label in zip(self.groups, choice):
            labels[group.op].add(label)
        asked = {op for op, _ in self.policy.ops}
        return [op for op, found in labels.items() if found == {FLOAT32} and op not in asked]


def find_choices(parts: Sequence[Tuple[Graph, Facts, Plan]], policy: Policy) -> Choices:
    """Return what can be chosen for in a network of one or several graphs under a policy.

    The operators in bodies of control flow are left to the policy, and so are those that a region, an override by name
    or block, or one by operator decides about.
    """
    names: Dict[Group, Dict[str, None]] = {}
    fixed: Dict[str, int] = defaultdict(int)
    for graph, facts, plan in parts:
        by_shapes = _decided_by_shapes(graph, plan, policy.compute_dtype)
        for position, node in enumerate(graph.nodes):
            if node.is_variable:
                continue
            verdict = plan.verdicts[position]
            override = policy.override(node.op, node.name, node.attrs)
            decided = node.get(PRECISION_ATTR) is not None or override is not None
            if verdict.label not in (LOW, FREE) or decided or verdict.rule is None:
                fixed[node.op] += 1
                continue
            shape = facts.shape(Entry(position)) or ()
            depthwise, gains = is_depthwise(graph, position, facts), verdict.label == LOW
            kind = Group(node.op, shape, depthwise, gains, (), position in by_shapes)
            names.setdefault(kind, {})[node.name] = None
    groups = tuple(kind._replace(names=tuple(found)) for kind, found in names.items())
    return Choices(policy, _disjoint(groups), dict(fixed))


def _decided_by_shapes(graph: Graph, plan: Plan, dtype: str) -> Set[int]:
    """Return the operators of which other shapes may require float32, directly or since what they follow needs it."""
    conditional = shape_dependent(graph, dtype)
    own = {position for position, _ in conditional}
    behind = {position for position, rule in conditional if rule.category == INFER}
    for position, node in enumerate(graph.nodes):
        if plan.verdicts[position].label != LOW and any(entry.node in behind for entry in node.inputs):
            behind.add(position)
    rules = {position: plan.verdicts[position].rule for position in behind - own}
    return own | {position for position, rule in rules.items() if rule is not None and rule.category == INFER}


def _disjoint(groups: Sequence[Group]) -> Tuple[Group, ...]:
    """Return groups without the names that an earlier one has: a block that is called twice gives each name twice."""
    seen: Set[str] = set()
    found = []
    for group in groups:
        names = tuple(name for name in group.names if name not in seen)
        seen.update(names)
        if names:
            found.append(group._replace(names=names))
    return tuple(found)


def is_depthwise(graph: Graph, position: int, facts: Facts) -> bool:
    """Return whether a node is a convolution in more than one group."""
    node = graph.nodes[position]
    return node.op in ("Convolution", "Deconvolution") and node.get("num_group", "1") not in ("1", None)
