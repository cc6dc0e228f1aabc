"""Which choices are tried next, and in which order: the first of them should be those that win.

1. What the minimum cut proposes, whenever measurements have changed its mind.
2. What oneDNN runs in reference code, and what stands beside it, whose layouts may be why.
3. All groups of an operator; all of a shape; single groups; each kind by what it is expected to save.

What cannot save more than the noise is not tried: that is what its estimate, its uncertainty and the time of all that
stands beside it say.
"""

from __future__ import annotations

from typing import Callable, Dict, FrozenSet, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from ...passes.decide import FLOAT32
from .choices import Choice, Choices
from .costs import NetworkCosts, Observation, State
from .graph_costs import Part
from .plan_search import Proposal, Trial
from .race import MARGIN
from .roofline import Speeds
from .suspects import Account

MOST = 48
"""Choices that are proposed beside one best choice."""

_MOST_CUTS = 6  # of them by the minimum cut
_CUTS = ("the least by estimated costs", 0.0), ("the least by hopeful estimates of low precision", 1.0)
_BESIDE = 0.25  # share of the time beside a change that may go with it

_TRIES = 3  # to say the same in fewer words

_SUSPECT, _OPERATOR, _SHAPE, _SINGLE = range(4)


class _Candidate(NamedTuple):
    """A change of some groups to one precision; the lowest kind is tried first."""

    kind: int
    name: str
    groups: FrozenSet[int]
    low: bool


class Moves:
    """What is tried next in one network.

    Args:
        parts: Its graphs.
        choices: What can be chosen for.
        state_of: Returns the nodes that a choice has in low precision; None if it is not allowed.
        speeds: The machine's.
        training: Whether the network trains.
        accounts_of: Returns oneDNN's accounts of a step of some choices, given the seconds of the first; fewer or
            empty ones if that cannot be done in time. It is asked once, if anything is to be tried.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        choices: Choices,
        state_of: Callable[[Choice], Optional[State]],
        speeds: Callable[[], Speeds] = Speeds,
        training: bool = True,
        accounts_of: Callable[[Sequence[Choice], Optional[float]], Sequence[Account]] = lambda choices, seconds: (),
    ) -> None:
        self._parts, self._choices, self._state_of = parts, choices, state_of
        self._speeds, self._training, self._accounts_of = speeds, training, accounts_of
        self._costs: Optional[NetworkCosts] = None
        self._slow: List[Tuple[State, FrozenSet[int]]] = []  # what ran in reference code as a state has it
        self._tried: Set[State] = set()

    def near(self, choice: Choice, trials: Sequence[Trial]) -> Iterator[Proposal]:
        """Yield choices to try beside one that is the best so far.

        Args:
            choice: The best one.
            trials: What was measured; what is added between two proposals changes those that follow.
        """
        state = self._state_of(choice)
        if state is None or not self._choices.groups:
            return
        costs = self._costs or self._begin(choice, trials)
        self._tried.update(filter(None, (self._state_of(each.choice) for each in trials)), [state])
        candidates = self._candidates(costs, state)
        learned, cuts = -1, 0
        for _ in range(MOST):
            proposal = None
            if learned != len(trials):
                learned = len(trials)
                self._learn(costs, trials)
                if cuts < _MOST_CUTS:
                    cuts += 1
                    proposal = self._by_cut(costs)
            proposal = proposal or self._next(costs, choice, state, candidates, _seconds_of(choice, trials))
            if proposal is None:
                return
            yield proposal

    def _begin(self, choice: Choice, trials: Sequence[Trial]) -> NetworkCosts:
        """Return the estimates, with the times of oneDNN's accounts, if there are any."""
        float32 = _seconds_of(self._choices.float32, trials)
        self._costs = costs = NetworkCosts(self._parts, self._choices, self._speeds(), self._training, float32)
        wanted = list(dict.fromkeys((self._choices.float32, self._choices.untuned, choice)))
        for each, account in zip(wanted, self._accounts_of(wanted, float32)):
            state = self._state_of(each)
            if state is not None and account.seconds:
                costs.set_times(state, account.seconds)
                self._slow.append((state, self._ran_in_reference_code(account)))
        return costs

    def _ran_in_reference_code(self, account: Account) -> FrozenSet[int]:
        """Return the groups that did, of the operators for which it took more than noise."""
        slow: Dict[Tuple[str, bool], float] = {}
        for number, seconds in account.reference.items():
            kind = self._kind(number)
            slow[kind] = slow.get(kind, 0.0) + seconds
        least = MARGIN * sum(account.seconds.values())
        return frozenset(number for number in account.reference if slow[self._kind(number)] > least)

    def _learn(self, costs: NetworkCosts, trials: Sequence[Trial]) -> None:
        found = []
        for each in trials:
            states = self._state_of(each.best), self._state_of(each.choice)
            if None not in states and each.seconds and each.ratio:
                found.append(Observation(states[0] or (), states[1] or (), each.seconds, each.ratio))
        costs.correct(found)

    def _by_cut(self, costs: NetworkCosts) -> Optional[Proposal]:
        """Return what the minimum cut proposes, on expected or hopeful costs; None if that was tried."""
        for name, optimism in _CUTS:
            wanted = costs.labels(costs.cut(optimism))
            state = self._state_of(wanted)
            if state is not None and state not in self._tried:
                self._tried.add(state)
                return Proposal(name, self._in_few_words(costs, wanted, state))
        return None

    def _in_few_words(self, costs: NetworkCosts, choice: Choice, state: State) -> Choice:
        """Return a choice that leaves to the placement by bytes what comes out the same by it."""
        shares = costs.low_shares(state)
        shorter = tuple(label if group.gains else None for group, label in zip(self._choices.groups, choice))
        for _ in range(_TRIES):
            found = self._state_of(shorter)
            if found is None:
                break
            if found == state:
                return shorter
            differs = costs.low_shares(found) != shares
            shorter = tuple(label if wrong else old for label, wrong, old in zip(choice, differs, shorter))
        return choice

    def _next(
        self, costs: NetworkCosts, choice: Choice, state: State, candidates: List[_Candidate], seconds: Optional[float]
    ) -> Optional[Proposal]:
        """Take from the candidates the first that is new and can win, and return it."""
        base = costs.seconds(state) if seconds is None else seconds
        merits = {each: self._merit(costs, state, each) for each in candidates}
        for each in sorted(candidates, key=lambda each: (each.kind, -merits[each][0])):
            if merits[each][1] < MARGIN * base:
                continue
            candidates.remove(each)
            changed = self._changed(costs, choice, state, each)
            after = self._state_of(changed)
            if after is not None and after not in self._tried:
                self._tried.add(after)
                return Proposal(each.name, changed)
        return None

    def _changed(self, costs: NetworkCosts, choice: Choice, state: State, candidate: _Candidate) -> Choice:
        """Return a choice with a change: others follow it by bytes, or stay as they are where that should save more."""
        groups, wanted = self._choices.groups, costs.flipped(state, candidate.groups, candidate.low)
        labels = costs.labels(wanted)
        following = tuple(
            labels[number] if number in candidate.groups else label for number, label in enumerate(choice)
        )
        after = self._state_of(following)
        if after is not None and costs.gain(after, wanted)[0] <= 0:
            return following
        return tuple(label if group.gains else new for group, label, new in zip(groups, following, labels))

    def _merit(self, costs: NetworkCosts, state: State, candidate: _Candidate) -> Tuple[float, float]:
        """Return the seconds that a change should save, and those that it may save if all goes well."""
        expected, deviation = costs.gain(state, costs.flipped(state, candidate.groups, candidate.low))
        beside = _BESIDE * costs.seconds_beside(state, candidate.groups)
        return expected + deviation + beside, expected + 2 * deviation + 2 * beside

    def _candidates(self, costs: NetworkCosts, state: State) -> List[_Candidate]:
        """Return all changes that may be tried beside a state."""
        groups = self._choices.groups
        by_operator: Dict[Tuple[str, bool], Set[int]] = {}
        by_shape: Dict[Tuple[int, ...], Set[int]] = {}
        for number, group in enumerate(groups):
            by_operator.setdefault(self._kind(number), set()).add(number)
            by_shape.setdefault(group.shape, set()).add(number)
        sets = [(_SUSPECT, name, members) for name, members in self._suspects(costs, state)]
        sets += [(_OPERATOR, f"every {_words(kind)}", members) for kind, members in by_operator.items()]
        sets += [(_SHAPE, f"all of {'x'.join(map(str, shape))}", members) for shape, members in by_shape.items()]
        sets += [(_SINGLE, str(group), {number}) for number, group in enumerate(groups)]
        shares = costs.low_shares(state)
        found: Dict[Tuple[FrozenSet[int], bool], _Candidate] = {}
        for kind, name, members in sets:
            for low in (False, True):
                numbers = frozenset(number for number in members if shares[number] != float(low))
                if numbers:
                    dtype = self._choices.policy.compute_dtype if low else FLOAT32
                    found.setdefault((numbers, low), _Candidate(kind, f"{name}: {dtype}", numbers, low))
        return list(found.values())

    def _suspects(self, costs: NetworkCosts, state: State) -> List[Tuple[str, Set[int]]]:
        """Return what ran in reference code as the state has it, by operator, and what stands beside it."""
        shares = costs.low_shares(state)
        slow: Dict[str, Set[int]] = {}
        for measured, numbers in self._slow:
            same = costs.low_shares(measured) == shares
            for number in numbers:
                if same[number]:
                    slow.setdefault(_words(self._kind(number)), set()).add(number)
        found = []
        for name, members in slow.items():
            found.append((f"{name} that ran in reference code", members))
            beside: Dict[str, Set[int]] = {}
            for number in frozenset().union(*(costs.neighbours[member] for member in members)) - members:
                beside.setdefault(_words(self._kind(number)), set()).add(number)
            found += [(f"{other} beside {name} that ran in reference code", them) for other, them in beside.items()]
        return found

    def _kind(self, number: int) -> Tuple[str, bool]:
        group = self._choices.groups[number]
        return group.op, group.depthwise


def _words(kind: Tuple[str, bool]) -> str:
    op, depthwise = kind
    return f"depthwise {op}" if depthwise else op


def _seconds_of(choice: Choice, trials: Sequence[Trial]) -> Optional[float]:
    """Return the last known time of a choice, None if it was not measured."""
    for each in reversed(trials):
        if each.seconds and each.ratio and choice in (each.choice, each.best):
            return each.seconds if choice == each.choice else each.seconds / each.ratio
    return None
