"""A race of named candidates: they take turns on the clock, and the fastest beyond the noise is returned.

Two runs of the same training step differ by 4 to 6 % on a machine with other work, single ones by 20 %. So times are
compared within rounds, never between them, and a difference counts only if it is larger than that and if so many
rounds agree on it that it is hardly chance. What wins is measured once more, on networks that are built anew.

A race knows names and a clock, no networks::

    names -> trials, each against the best so far -> last measurement: reference, rivals, best -> Outcome
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from statistics import median
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import mxnet as mx

Run = Callable[[], Any]
"""Runs a network once, without waiting for its results, which it may return."""

Lap = Callable[[], float]
"""Runs a network once and returns the seconds that it took, its results computed."""

MARGIN = 0.05
"""A difference below this share of the time is noise."""

FINAL_MARGIN = 0.03
"""The same in the last measurement: it has more rounds than a trial, and no one of many that is lucky in it."""

FEWEST = 5
"""Rounds without which nothing is said to be faster: five that agree are chance once in 32 times."""

CHANCE = 1 / 16
"""Where two are equally fast, at most this share of races has so many rounds that agree: of 7 rounds 6, of 18 13."""

NOISY = 0.15
"""Rounds of one network that scatter by more than this around their median are those of a noisy machine."""

ROUNDS, FINAL_ROUNDS = 7, 9

_SINGLE = 0.15  # how far a single round may be off
_DECISIVE = 0.8  # below this share of the best's time in two rounds, there is no doubt
_FAR_BEHIND = 1.5  # times as long as the reference: no last measurement puts such a rival in front
_LAST_SHARE = 0.5  # of the time, what the last measurement gets at most
_SHORTEST = 0.02  # seconds of a lap: other programs disturb shorter ones by more
_MOST_RUNS = 100  # in a lap


class NotRunnable(Exception):
    """MXNet cannot run a network; the message says why."""


@dataclass(frozen=True)
class Measured:
    """One candidate that was measured.

    Attributes:
        name: Its name.
        seconds: The median of its times; None if MXNet cannot run it.
        ratio: Its time divided by that of the best candidate before it.
        won: Whether it became the best.
    """

    name: str
    seconds: Optional[float]
    ratio: Optional[float]
    won: bool


@dataclass(frozen=True)
class Outcome:
    """What a race says.

    Attributes:
        fastest: The candidate that was faster than the reference and its rivals by more than the noise, or one of them.
        seconds: Medians of the last measurement, by name; of a rival far behind the reference those of its trial.
        scatter: How far single rounds of the reference were from their median, as a share of it.
        trials: What was measured before, in this order.
        interrupted: Whether the user ended the race.
        proved: Whether the last measurement was made; if not, the fastest is the best of the trials.
        untried: Candidates for which there was no time.
    """

    fastest: str
    seconds: Dict[str, float]
    scatter: float
    trials: Tuple[Measured, ...]
    interrupted: bool
    proved: bool
    untried: Tuple[str, ...] = ()


class Stopwatch:
    """Times networks that race: each lap has as many runs as the first network needs for one that is long enough."""

    def __init__(self) -> None:
        self._runs = 0  # in a lap

    def lap_of(self, run: Run) -> Lap:
        """Return a function that runs a network and returns the seconds of one run, its results computed."""

        def lap() -> float:
            start = time.perf_counter()
            for _ in range(self._runs or 1):
                run()
                mx.nd.waitall()
            seconds = (time.perf_counter() - start) / (self._runs or 1)
            if not self._runs:
                self._runs = min(max(1, round(_SHORTEST / seconds)), _MOST_RUNS)
                return lap() if self._runs > 1 else seconds
            return seconds

        return lap


class Rounds:
    """The times of contenders, round by round: a dict of seconds by name each, the oldest first."""

    def __init__(self) -> None:
        self.times: List[Dict[str, float]] = []

    def run(self, laps: Mapping[str, Lap]) -> None:
        """Let contenders take one turn each, in the reverse order of the round before."""
        order = list(laps) if len(self.times) % 2 == 0 else list(laps)[::-1]
        self.times.append({name: laps[name]() for name in order})

    def seconds(self, name: str) -> Optional[float]:
        """Return the median of a contender's times, None if it has none."""
        times = [times[name] for times in self.times if name in times]
        return median(times) if times else None

    def ratio(self, name: str, other: str) -> Optional[float]:
        """Return the time of one contender divided by that of another: the median over rounds that both ran in."""
        ratios = self._ratios(name, other)
        return median(ratios) if ratios else None

    def is_faster(self, name: str, other: str, margin: float = MARGIN) -> bool:
        """Return whether one contender was faster than another by more than the noise."""
        return is_faster(self._ratios(name, other), margin)

    def scatter(self, name: str) -> float:
        """Return how far the times of a contender are from their median: the median distance divided by the median."""
        middle = self.seconds(name)
        if not middle:
            return 0.0
        return median(abs(times[name] - middle) for times in self.times if name in times) / middle

    def _ratios(self, name: str, other: str) -> List[float]:
        both = (times for times in self.times if name in times and times.get(other, 0) > 0)
        return [times[name] / times[other] for times in both]


def is_faster(ratios: Sequence[float], margin: float = MARGIN) -> bool:
    """Return whether ratios of times, a round each, say that the first is faster by more than the noise.

    Their median is below 1 by more than the margin, and so many of them are below 1 that chance alone gives that at
    most once in 16 times (the sign test), and with that margin far less often.
    """
    if len(ratios) < FEWEST:
        return False
    agreeing = sum(ratio < 1 for ratio in ratios)
    chance = sum(math.comb(len(ratios), count) for count in range(agreeing, len(ratios) + 1)) / 2 ** len(ratios)
    return median(ratios) < 1 - margin and chance <= CHANCE


class Race:
    """One race.

    Args:
        names: The candidates: the reference first, which has to run; the most promising ones early.
        build: Returns a lap of a candidate's network, built anew; NotRunnable if MXNet cannot run it.
        seconds: How long it may take, building networks included; it is kept to as far as single runs allow.
        rivals: Candidates that have to be beaten too, and are in the last measurement.
        allows: Whether the results of a candidate are good enough; the reference's are. It is asked of a candidate
            that is faster, so that it may be slow.
        on_turn: Called with the name of the next candidate, and the share of the time that has passed.
        now: A clock, in seconds.
        start: When the time began, by that clock; by default now.
    """

    def __init__(
        self,
        names: Sequence[str],
        build: Callable[[str], Lap],
        seconds: float,
        *,
        rivals: Sequence[str] = (),
        allows: Callable[[str], bool] = lambda name: True,
        on_turn: Callable[[str, float], None] = lambda name, share: None,
        now: Callable[[], float] = time.perf_counter,
        start: Optional[float] = None,
    ) -> None:
        self._reference, self._waiting = names[0], list(names[1:])
        self._rivals, self._best = rivals, names[0]
        self._make, self._allows, self._on_turn, self._now = build, allows, on_turn, now
        self._limit, self._start = seconds, now() if start is None else start
        self._rounds = Rounds()
        self._trials: List[Measured] = []
        self._laps: Dict[str, Lap] = {}  # of the networks that are in memory
        self._building = 0.0  # seconds of the network that took longest to build

    def run(self) -> Outcome:
        """Return the fastest candidate. An interrupt (Ctrl-C) ends the trials early, another one the last measurement.

        Raises:
            NotRunnable: If the reference does not run.
        """
        interrupted = False
        try:
            if self._waiting:
                self._build(self._reference)
            while self._waiting and self._has_time():
                self._challenge(self._waiting.pop(0))
        except KeyboardInterrupt:
            interrupted = True
        self._laps.clear()
        try:
            return self._measure_last(interrupted)
        except KeyboardInterrupt:
            return self._unproved()

    def _build(self, name: str) -> bool:
        """Build a candidate's network, if it is not in memory; return whether MXNet can run it."""
        if name not in self._laps:
            start = self._now()
            try:
                self._laps[name] = self._make(name)
            except NotRunnable:
                if name == self._reference:
                    raise
                return False
            self._building = max(self._building, self._now() - start)
        return True

    def _challenge(self, name: str) -> None:
        """Let a candidate run against the best one, whose place it takes if it is faster.

        It leaves as soon as it can hardly win any more.
        """
        best, won = self._best, False
        for number in range(ROUNDS if self._build(name) else 0):
            if number > 0 and not self._has_time(name):
                break
            self._take_turns({best: self._laps[best], name: self._laps[name]}, self._rounds, name)
            ratio = self._rounds.ratio(name, best) or 1.0
            if number > 0 and (ratio < _DECISIVE or self._rounds.is_faster(name, best)):
                won = self._allows(name)
                break
            if ratio > 1 - MARGIN + _SINGLE / (number + 1):
                break
        times = self._rounds.seconds(name), self._rounds.ratio(name, best)
        self._trials.append(Measured(name, *times, won))
        self._best = name if won else best
        self._laps = {self._best: self._laps[self._best]}  # the other's memory is needed

    def _take_turns(self, laps: Mapping[str, Lap], rounds: Rounds, shown: str) -> None:
        self._on_turn(shown, (self._now() - self._start) / self._limit)
        rounds.run(laps)

    def _has_time(self, challenger: Optional[str] = None) -> bool:
        """Return whether there is time before the last measurement must begin.

        It is for one network more, built and run, or for one more round of the best with a challenger.
        """
        times = [self._rounds.seconds(name) or 0.0 for name in self._contenders()]
        last = min(len(times) * self._building + FINAL_ROUNDS * sum(times), _LAST_SHARE * self._limit)
        one = self._building + 2 * max(times)
        if challenger is not None:
            one = sum(self._rounds.seconds(name) or 0.0 for name in (self._best, challenger))
        return self._now() + one + last < self._start + self._limit

    def _contenders(self) -> List[str]:
        """Return the candidates of the last measurement, none twice: no rival that is far behind the reference."""
        ratios = {name: self._rounds.ratio(name, self._reference) or 1.0 for name in self._rivals}
        near = [name for name, ratio in ratios.items() if ratio < _FAR_BEHIND]
        return list(dict.fromkeys([self._reference, *near, self._best]))

    def _measure_last(self, interrupted: bool) -> Outcome:
        """Measure the contenders on networks that are built anew.

        They get more rounds if one seems to be faster, but rounds disagree too often.
        """
        laps = {name: self._laps[name] for name in self._contenders() if self._build(name)}
        names = [name for name in laps if name != self._reference and self._allows(name)]
        least, most = (FEWEST, FINAL_ROUNDS) if len(laps) > 1 else (1, FEWEST)
        last, took, end = Rounds(), 0.0, self._start + self._limit
        while len(last.times) < most and (len(last.times) < least or self._now() + took < end):
            start = self._now()
            self._take_turns(laps, last, "the last measurement")
            took = self._now() - start
            if len(last.times) == FINAL_ROUNDS:
                ratios = (last.ratio(name, self._fastest(last, names)) or 1.0 for name in names)
                most = 2 * FINAL_ROUNDS if any(ratio < 1 - FINAL_MARGIN for ratio in ratios) else most
        return self._outcome(self._fastest(last, names), last, interrupted, proved=True)

    def _fastest(self, rounds: Rounds, names: Sequence[str]) -> str:
        """Return which candidate was faster than all before it by more than the noise: the reference if none was."""
        fastest, beaten = self._reference, [self._reference]
        for name in names:
            if all(rounds.is_faster(name, rival, FINAL_MARGIN) for rival in beaten):
                fastest = name
            beaten.append(name)
        return fastest

    def _unproved(self) -> Outcome:
        """Return what the trials alone say."""
        times = self._rounds.seconds(self._best), self._rounds.seconds(self._reference)
        is_faster = None not in times and (times[0] or 0.0) < (1 - MARGIN) * (times[1] or 0.0)
        return self._outcome(self._best if is_faster else self._reference, self._rounds, True, proved=False)

    def _outcome(self, fastest: str, rounds: Rounds, interrupted: bool, proved: bool) -> Outcome:
        names = dict.fromkeys([self._reference, *self._rivals, self._best])
        seconds = {name: rounds.seconds(name) or self._rounds.seconds(name) for name in names}
        medians = {name: value for name, value in seconds.items() if value is not None}
        scatter = rounds.scatter(self._reference)
        return Outcome(fastest, medians, scatter, tuple(self._trials), interrupted, proved, tuple(self._waiting))
