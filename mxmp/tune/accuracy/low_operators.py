"""The operators that a search by accuracy chooses among, and the policies that keep some of them in float32."""

from __future__ import annotations

from typing import Dict, FrozenSet, List, NamedTuple, Sequence, Set, Tuple

from ... import dtypes
from ...diagnose.networks.network import Network
from ...passes.reasons import Reason
from ...policy import Policy
from ...report import Row
from ..overrides import pattern_of, with_names


class Operators(NamedTuple):
    """The operators that one name override keeps in float32: those of one name, as a block's that is called twice.

    Attributes:
        pattern: The override's pattern, which stands for the name.
        numbers: The numbers of their rows in the network's report.
    """

    pattern: str
    numbers: Tuple[int, ...]


Kept = FrozenSet[Operators]


class LowOperators:
    """What a policy has in low precision of a network, and the policies that keep some of it in float32.

    Attributes:
        policy: The policy given.
        rows: What it decides about each operator.
        items: The operators that it has in low precision, and that a name can keep in float32.
        fixed: The numbers of those that no name can, because the policy or a region asks for low precision by name.
    """

    def __init__(self, network: Network, policy: Policy) -> None:
        self.policy, self._network = policy, network
        self.rows = network.rows(policy)
        found: Dict[str, List[int]] = {}
        fixed = []
        for number, row in enumerate(self.rows):
            if row.precision != policy.compute_dtype:
                continue
            pattern = pattern_of(row.name)
            override = with_names(policy, [pattern]).override(row.op, row.name)
            if Reason.REGION in row.kinds or override is None or override[0] != dtypes.FLOAT32:
                fixed.append(number)
            else:
                found.setdefault(pattern, []).append(number)
        self.items = tuple(Operators(pattern, tuple(numbers)) for pattern, numbers in found.items())
        self.fixed = tuple(fixed)
        # Patterns of names that the rules have in float32 elsewhere: these are not put in low precision.
        self._never_low = {pattern_of(row.name) for row in self.rows if row.precision == dtypes.FLOAT32}
        self._exact: Dict[Kept, Policy] = {}

    def keeping(self, kept: Kept) -> Policy:
        """Return the policy given with overrides that keep some operators in float32; others may follow."""
        return with_names(self.policy, (item.pattern for item in kept))

    def exactly(self, kept: Kept) -> Policy:
        """Return a policy with some operators in float32 and all other items in low precision, by name if need be.

        By the names of those kept alone others may follow: what the rules want in float32 behind them, and what saves
        casts there. What is found must not depend on these: for inputs of other shapes they may not follow.
        """
        if kept not in self._exact:
            low: Set[str] = set()
            policy = self.keeping(kept)
            while True:
                more = self._following(kept, self._network.rows(policy)) - low
                if not more:
                    break
                low |= more
                policy = with_names(policy, low, policy.compute_dtype)
            self._exact[kept] = policy
        return self._exact[kept]

    def _following(self, kept: Kept, rows: Sequence[Row]) -> Set[str]:
        """Return the patterns of items that are not kept, but in float32."""
        others = (item for item in self.items if item not in kept and item.pattern not in self._never_low)
        return {i.pattern for i in others if any(rows[number].precision == dtypes.FLOAT32 for number in i.numbers)}
