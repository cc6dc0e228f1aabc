"""What the groups of a network cost in each precision: estimates, which measurements correct, and the cut on them.

The estimates are those of a roofline, scaled to the time of the float32 network. oneDNN's own times of one step
replace them where they are known. What the clock says of whole choices then corrects them (`corrections`).

The minimum cut on the corrected costs is the best choice if costs add up. They do not, since layouts couple neighbours,
so it only proposes.
"""

from __future__ import annotations

from typing import AbstractSet, Any, Dict, FrozenSet, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np

from ...passes.decide import FLOAT32, LOW
from .choices import Choice, Choices, Group, Label
from .corrections import Corrections, Measurements, correct, no_corrections
from .graph_costs import GraphCosts, Part
from .roofline import Speeds

State = Tuple[FrozenSet[int], ...]
"""For each graph the nodes that run in low precision, and the parameters that are stored in it."""

_NOISE = 0.05  # of a time
_UNSEEN = 0.1  # of the mean time of a group: how far even an estimate of nothing may be off


class Observation(NamedTuple):
    """A measurement of two choices beside each other: the time of the second, and its ratio to that of the first."""

    before: State
    after: State
    seconds: float
    ratio: float


class NetworkCosts:
    """The costs of a network, and what changes of its groups should save.

    Args:
        parts: Its graphs.
        choices: What can be chosen for.
        speeds: The machine's.
        training: Whether it trains.
        float32_seconds: The measured time of the network in float32; None if it is not known.

    Attributes:
        neighbours: For each group those that read what it gives, or give what it reads.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        choices: Choices,
        speeds: Speeds,
        training: bool,
        float32_seconds: Optional[float] = None,
    ) -> None:
        self._parts = [GraphCosts(part, choices, speeds, training) for part in parts]
        self._groups = choices.groups
        self._sizes, self._estimates = np.zeros(len(self._groups)), np.zeros((len(self._groups), 2))
        for part in self._parts:
            for position, number in part.group_of.items():
                self._sizes[number] += 1
                self._estimates[number] += part.seconds[position]
        self._factors = np.ones_like(self._estimates)  # by which measured times differ from estimates
        total = sum(each.float32 for part in self._parts for each in part.seconds)
        self._scale = float32_seconds / total if float32_seconds and total else 1.0
        self._corrections = self._prior()
        self._shares: Dict[State, np.ndarray[Any, Any]] = {}  # of states that were asked for
        self.neighbours = self._find_neighbours()

    def set_times(self, state: State, times: Mapping[int, float]) -> None:
        """Take seconds of groups as they were measured in a network whose nodes run as the state says."""
        shares = self.low_shares(state)
        for number, seconds in times.items():
            label = int(shares[number])
            if shares[number] == label and self._estimates[number, label] > 0:
                self._factors[number, label] = seconds / (self._scale * self._estimates[number, label])
        self._corrections = self._prior()

    def correct(self, observations: Sequence[Observation]) -> None:
        """Correct the estimates by what was measured."""
        if not observations or not self._groups:
            return
        changes = np.array([self.low_shares(each.after) - self.low_shares(each.before) for each in observations])
        casts = np.array([self._changed_casts(each.before, each.after) for each in observations])
        seconds = np.array([each.seconds for each in observations])
        base = seconds / np.array([each.ratio for each in observations])
        missed = seconds - base + changes @ self._savings() - casts
        noise = _NOISE * np.maximum(seconds, base)
        self._corrections = correct(self._prior(), Measurements(changes, casts, missed, noise))

    def gain(self, before: State, after: State) -> Tuple[float, float]:
        """Return the seconds that a change should save, and the standard deviation of that."""
        change = self.low_shares(after) - self.low_shares(before)
        saving = float(change @ (self._savings() + self._corrections.saving))
        casts = self._corrections.casts * self._changed_casts(before, after)
        return saving - casts, self._corrections.deviation(change)

    def seconds_beside(self, state: State, groups: AbstractSet[int]) -> float:
        """Return the seconds of what stands beside some groups, and of all casts that may be there."""
        around = frozenset().union(*(self.neighbours[number] for number in groups)) - groups
        casts = sum(part.possible_casts(part.nodes_of(groups)) for part in self._parts)
        return float(self.group_seconds(state)[list(around)].sum()) + self._scale * casts

    def seconds(self, state: State) -> float:
        """Return the seconds of the groups of a state, and of the casts that it has more than float32."""
        nothing: State = tuple(frozenset() for _ in state)
        return float(self.group_seconds(state).sum()) + self._changed_casts(nothing, state)

    def cut(self, optimism: float = 0.0) -> State:
        """Return the cheapest state if costs add up: a minimum cut on the corrected ones.

        ``optimism`` says by how many standard deviations more low precision is taken to save than is expected.
        """
        deviation = np.sqrt(np.maximum(np.diag(self._corrections.covariance), 0.0))
        extra = (self._corrections.saving + optimism * deviation) / np.maximum(self._sizes, 1)
        found = []
        for part in self._parts:
            saving = {}
            for position, number in part.group_of.items():
                float32, low = self._scale * self._factors[number] * part.seconds[position]
                saving[position] = float(float32 - low + extra[number])
            found.append(part.cut(saving, self._scale * self._corrections.casts))
        return tuple(found)

    def labels(self, state: State) -> Choice:
        """Return the choice nearest to a state: of each group what the more of its nodes run in, float32 in a tie."""
        return tuple(
            low_label(group) if share > 0.5 else FLOAT32 for group, share in zip(self._groups, self.low_shares(state))
        )

    def low_shares(self, state: State) -> np.ndarray[Any, Any]:
        """Return the share of each group's nodes that runs in low precision; it cannot be written."""
        shares = self._shares.get(state)
        if shares is None:
            found = np.zeros(len(self._sizes))
            for part, low in zip(self._parts, state):
                for position in low & part.group_of.keys():
                    found[part.group_of[position]] += 1
            shares = self._shares[state] = found / np.maximum(self._sizes, 1)
            shares.flags.writeable = False
        return shares

    def group_seconds(self, state: State) -> np.ndarray[Any, Any]:
        """Return the seconds of each group as the state has it, without corrections."""
        shares, seconds = self.low_shares(state), self._seconds()
        found: np.ndarray[Any, Any] = (1 - shares) * seconds[:, 0] + shares * seconds[:, 1]
        return found

    def flipped(self, state: State, groups: AbstractSet[int], low: bool) -> State:
        """Return the state with the nodes of some groups in one precision, and all others as they were."""
        found = []
        for part, old in zip(self._parts, state):
            nodes = part.nodes_of(groups)
            found.append(old | nodes if low else old - nodes)
        return tuple(found)

    def _seconds(self) -> np.ndarray[Any, Any]:
        """Return the seconds of each group in float32 and in low precision, without corrections."""
        return self._scale * self._factors * self._estimates

    def _savings(self) -> np.ndarray[Any, Any]:
        seconds = self._seconds()
        found: np.ndarray[Any, Any] = seconds[:, 0] - seconds[:, 1]
        return found

    def _changed_casts(self, before: State, after: State) -> float:
        states = zip(self._parts, before, after)
        return self._scale * sum(part.changed_casts(old, new) for part, old, new in states)

    def _prior(self) -> Corrections:
        seconds = self._seconds().max(axis=1, initial=0.0)
        spread = seconds + _UNSEEN * (seconds.mean() if len(seconds) else 0.0)
        return no_corrections(spread, [(group.op, group.depthwise) for group in self._groups])

    def _find_neighbours(self) -> List[FrozenSet[int]]:
        found: List[Set[int]] = [set() for _ in self._groups]
        for part in self._parts:
            for position, number in part.group_of.items():
                for entry in part.graph.nodes[position].inputs:
                    other = part.group_of.get(entry.node, number)
                    found[number].add(other)
                    found[other].add(number)
        return [frozenset(each - {number}) for number, each in enumerate(found)]


def low_label(group: Group) -> Label:
    """Return the label that has a group in low precision: some are so unless they are chosen otherwise."""
    return None if group.gains or group.by_shapes else LOW
