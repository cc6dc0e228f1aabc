"""The search for the fastest choice: starts of different kinds, then changes of groups, judged by a clock alone.

It knows neither MXNet nor graphs, but a `Problem`: what can be chosen, which choices give the same network, and how
one is built and run. What it returns was measured once more, on networks that are built anew.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Callable, Dict, Hashable, Iterable, List, NamedTuple, Optional, Protocol, Sequence

from .choices import Choice, Choices
from .race import FEWEST, FINAL_MARGIN, MARGIN, Lap, Race
from .starts import ALL_FLOAT32, UNTUNED, find_starts

TUNED = "tuned"

ROUNDS, FINAL_ROUNDS = 7, 9

_SINGLE = 0.15  # how far a single round may be off
_DECISIVE = 0.8  # below this share of the best's time in two rounds, there is no doubt
_ALIVE = 4  # networks in memory at a time
_LAST_SHARE = 0.5  # of the time, what the last measurement gets at most


class Proposal(NamedTuple):
    """A choice to measure, and what it is in words."""

    name: str
    choice: Choice


@dataclass(frozen=True)
class Trial:
    """One choice that was measured against the best one before it.

    Attributes:
        best: The best one before it.
        seconds: The median of its times; None if MXNet cannot run it.
        ratio: Its time divided by the best one's.
        won: Whether it became the best.
    """

    name: str
    choice: Choice
    best: Choice
    seconds: Optional[float]
    ratio: Optional[float]
    won: bool


class NotRunnable(Exception):
    """MXNet cannot run the network of a choice; the message says why."""


class Problem(Protocol):
    """What a search needs to know of a network."""

    @property
    def choices(self) -> Choices:
        """What can be chosen."""

    def key(self, choice: Choice) -> Optional[Hashable]:
        """Return what is equal for choices that give the same network; None for a choice that is not allowed."""

    def build(self, choice: Choice) -> Lap:
        """Return a function that runs the network of a choice, built anew, and returns its seconds.

        Raises NotRunnable if MXNet cannot run it.
        """

    def allows(self, choice: Choice) -> bool:
        """Return whether a choice that is faster may be taken: whether its results are good enough."""

    def moves(self, choice: Choice, trials: Sequence[Trial]) -> Iterable[Proposal]:
        """Return choices near one, and what the trials so far suggest, the most promising first."""


@dataclass
class Found:
    """What a search has found.

    Attributes:
        choice: Faster than float32 and than the untuned choice by more than the noise, or one of these two.
        seconds: Medians of the last measurement, by name: 'float32', 'untuned' and, if it is another, 'tuned'.
        scatter: How far single rounds of float32 were from their median, as a share of it.
        trials: What was measured before, in this order.
        interrupted: Whether the user ended the search.
        proved: Whether the last measurement was made; if not, the choice is the best so far.
    """

    choice: Choice
    seconds: Dict[str, float]
    scatter: float
    trials: List[Trial] = field(default_factory=list)
    interrupted: bool = False
    proved: bool = True


class PlanSearch:
    """One search for the fastest choice.

    Args:
        problem: The network.
        seconds: How long it may take, building networks included; it is kept to as far as single runs allow.
        now: A clock, in seconds.
        on_trial: Called with the name of what is measured next, and the share of the time that has passed.
        start: When the time began, by that clock; by default now.
    """

    def __init__(
        self,
        problem: Problem,
        seconds: float,
        now: Callable[[], float] = time.perf_counter,
        on_trial: Callable[[str, float], None] = lambda name, share: None,
        start: Optional[float] = None,
    ) -> None:
        self.problem = problem
        self.trials: List[Trial] = []
        self._now, self._on_trial = now, on_trial
        self._limit, self._start = seconds, now() if start is None else start
        self._race: Race[Hashable] = Race()
        self._met: Dict[Hashable, Proposal] = {}
        self._laps: Dict[Hashable, Lap] = {}  # of the networks that are built
        self._building = 0.0  # seconds of the network that took longest to build
        self._float32 = self._best = self._meet(Proposal(ALL_FLOAT32, problem.choices.float32))

    def run(self) -> Found:
        """Search until nothing near the best is faster, or the time is over; then measure once more what was found.

        An interrupt (Ctrl-C) ends the search early, another one the last measurement.
        """
        interrupted = False
        try:
            self._build(self._float32)
            for name, choice in find_starts(self.problem.choices):
                self._meet(Proposal(name, choice))
            self._challenge([key for key in self._met if key != self._float32])
            self._improve()
        except KeyboardInterrupt:
            interrupted = True
        self._laps.clear()
        try:
            found = self._prove()
        except KeyboardInterrupt:
            found = self._unproved()
        found.trials, found.interrupted = self.trials, interrupted or not found.proved
        return found

    def _meet(self, proposal: Proposal) -> Optional[Hashable]:
        """Return the key of a proposal, None if it is not allowed or its network was met before."""
        key = self.problem.key(proposal.choice)
        if key is None or key in self._met:
            return None
        self._met[key] = proposal
        return key

    def _build(self, key: Hashable) -> bool:
        """Build the network with a key, if it is not built; return whether MXNet can run it."""
        if key in self._laps:
            return True
        start = self._now()
        try:
            self._laps[key] = self.problem.build(self._met[key].choice)
        except NotRunnable:
            if key == self._float32:
                raise
            return False
        self._building = max(self._building, self._now() - start)
        return True

    def _improve(self) -> None:
        """Measure what is near the best until nothing of it is faster."""
        best = None
        while best != self._best and self._has_time():
            best = self._best
            waiting: List[Hashable] = []
            for proposal in self.problem.moves(self._met[best].choice, self.trials):
                key = self._meet(proposal)
                waiting += [] if key is None else [key]
                if len(waiting) == _ALIVE - 1:
                    self._challenge(waiting)
                    waiting = []
                if self._best != best or not self._has_time():
                    break
            self._challenge(waiting)

    def _challenge(self, keys: Sequence[Hashable]) -> None:
        """Let networks run against the best one, a few at a time; one that is faster takes its place."""
        for first in range(0, len(keys), _ALIVE - 1):
            if not self._has_time():
                return
            some, alive = keys[first : first + _ALIVE - 1], []
            for number, key in enumerate(some):
                if number > 0 and not self._has_time():
                    some = some[:number]
                    break
                alive += [key] if self._build(key) else []
            best, winner = self._best, self._run_against_best(alive)
            for key in some:
                name, choice = self._met[key]
                times = self._race.seconds(key), self._race.ratio(key, best)
                self.trials.append(Trial(name, choice, self._met[best].choice, *times, won=key == winner))
            if winner is not None:
                self._best = winner
            self._laps = {self._best: self._laps[self._best]}

    def _run_against_best(self, alive: List[Hashable]) -> Optional[Hashable]:
        """Return which of some networks is faster than the best one, None if none is."""
        for number in range(ROUNDS):
            if not alive or (number > 0 and not self._has_time(alive)):
                return None
            self._on_trial(self._met[alive[0]].name, (self._now() - self._start) / self._limit)
            self._race.run({key: self._laps[key] for key in (self._best, *alive)})
            limit = 1 - MARGIN + _SINGLE / (number + 1)
            alive = sorted((key for key in alive if self._ratio(key) < limit), key=self._ratio)
            if number > 0:
                while alive and (self._ratio(alive[0]) < _DECISIVE or self._race.is_faster(alive[0], self._best)):
                    if self.problem.allows(self._met[alive[0]].choice):
                        return alive[0]
                    del alive[0]
                alive = alive[: (len(alive) + 1) // 2]
        return None

    def _ratio(self, key: Hashable) -> float:
        ratio = self._race.ratio(key, self._best)
        return 1.0 if ratio is None else ratio

    def _has_time(self, alive: Sequence[Hashable] = ()) -> bool:
        """Return whether there is time before the last measurement must begin.

        It is for one network more, built and run, or for one more round of the best with others that are built.
        """
        times = [self._race.seconds(key) or 0.0 for key in self._contenders().values()]
        last = min(len(times) * self._building + FINAL_ROUNDS * sum(times), _LAST_SHARE * self._limit)
        one = self._building + 2 * max(times)
        if alive:
            one = sum(self._race.seconds(key) or 0.0 for key in (self._best, *alive))
        return self._now() + one + last < self._start + self._limit

    def _contenders(self) -> Dict[str, Hashable]:
        """Return the networks of the last measurement by name, none twice."""
        untuned = self.problem.key(self.problem.choices.untuned)
        named = {ALL_FLOAT32: self._float32, UNTUNED: untuned, TUNED: self._best}
        found: Dict[Hashable, str] = {}
        for name, key in named.items():
            if key is not None:
                found.setdefault(key, name)
        return {name: key for key, name in found.items()}

    def _prove(self) -> Found:
        """Measure float32, the untuned choice and the best one on networks that are built anew."""
        named = {name: key for name, key in self._contenders().items() if self._build(key)}
        laps = {key: self._laps[key] for key in named.values()}
        race: Race[Hashable] = Race()
        rounds, took, end = FINAL_ROUNDS if len(laps) > 1 else FEWEST, 0.0, self._start + self._limit
        while len(race.rounds) < rounds and (len(race.rounds) < FEWEST or self._now() + took < end):
            start = self._now()
            self._on_trial("the last measurement", (start - self._start) / self._limit)
            race.run(laps)
            took = self._now() - start
            if len(race.rounds) == FINAL_ROUNDS and self._is_close(race, named):
                rounds = 2 * FINAL_ROUNDS
        return self._found(self._fastest(race, named), race, named)

    def _fastest(self, race: Race[Hashable], named: Dict[str, Hashable]) -> Hashable:
        """Return which contender was faster than all before it by more than the noise: float32 if none was."""
        fastest, rivals = self._float32, [self._float32]
        for key in self._allowed(named):
            if all(race.is_faster(key, rival, FINAL_MARGIN) for rival in rivals):
                fastest = key
            rivals.append(key)
        return fastest

    def _is_close(self, race: Race[Hashable], named: Dict[str, Hashable]) -> bool:
        """Return whether a contender seems to be faster than the fastest one, but rounds disagree too often."""
        fastest = self._fastest(race, named)
        ratios = (race.ratio(key, fastest) for key in self._allowed(named))
        return any(ratio is not None and ratio < 1 - FINAL_MARGIN for ratio in ratios)

    def _allowed(self, named: Dict[str, Hashable]) -> List[Hashable]:
        """Return the untuned choice and the best one, as far as they are contenders and may be taken."""
        found = [named[name] for name in (UNTUNED, TUNED) if name in named]
        return [key for key in found if self.problem.allows(self._met[key].choice)]

    def _unproved(self) -> Found:
        """Return what the search alone says."""
        times = self._race.seconds(self._best), self._race.seconds(self._float32)
        faster = None not in times and (times[0] or 0.0) < (1 - MARGIN) * (times[1] or 0.0)
        found = self._found(self._best if faster else self._float32, self._race, self._contenders())
        found.proved = False
        return found

    def _found(self, fastest: Hashable, race: Race[Hashable], named: Dict[str, Hashable]) -> Found:
        seconds = {name: race.seconds(key) for name, key in named.items()}
        known = {name: value for name, value in seconds.items() if value is not None}
        return Found(self._met[fastest].choice, known, race.scatter(self._float32))
