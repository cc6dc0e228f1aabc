"""Rounds in which several runs take turns, and what their times say."""

from __future__ import annotations

import math
import time
from statistics import median
from typing import Callable, Dict, List, Mapping, NamedTuple, Sequence

import numpy as np

NOISY = 0.15
"""Scatter of the rounds of float32 beyond which a comparison with it says nothing."""

LEAST_ROUNDS = 3
"""So many are measured even where the time is spent: the median of two is no median."""

Clock = Callable[[], float]


class Summary(NamedTuple):
    """What is kept of the rounds of one run, in seconds."""

    median: float
    lower: float  # quartiles
    upper: float
    rounds: int

    @property
    def scatter(self) -> float:
        """The distance of the quartiles as a share of the median."""
        return (self.upper - self.lower) / self.median


def summarize(seconds: Sequence[float]) -> Summary:
    """Return the median and the quartiles of some rounds, at least one."""
    lower, middle, upper = (float(value) for value in np.percentile(seconds, (25, 50, 75)))
    return Summary(middle, lower, upper, len(seconds))


def speed(base: Sequence[float], other: Sequence[float]) -> float:
    """Return how many times as fast as its base something ran: the median over rounds, each with its own ratio.

    The two of one round are neighbours in time: what else the machine did hit both alike.

    Example:
        >>> speed([2.0, 4.0, 2.0], [1.0, 2.0, 4.0])
        2.0
    """
    return median(a / b for a, b in zip(base, other))


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean of ratios: that of the inverses is its inverse."""
    return math.exp(sum(map(math.log, values)) / len(values))


def timer(run: Callable[[], object], clock: Clock = time.perf_counter) -> Callable[[], float]:
    """Return a function that does the run, which waits for its own end, and returns the seconds it took."""

    def timed() -> float:
        start = clock()
        run()
        return clock() - start

    return timed


def take_turns(
    runs: Mapping[str, Callable[[], float]], rounds: int, until: float, clock: Clock = time.perf_counter
) -> Dict[str, List[float]]:
    """Return the seconds of each round of each run; every other round goes through them backwards.

    Args:
        runs: Functions that do their work once and return the seconds it took.
        rounds: Rounds to measure.
        until: Time after which no further round is begun, once `LEAST_ROUNDS` are there.
        clock: Tells the time, in seconds.
    """
    found: Dict[str, List[float]] = {name: [] for name in runs}
    for number in range(rounds):
        if number >= LEAST_ROUNDS and clock() > until:
            break
        for name in list(runs)[:: -1 if number % 2 else 1]:
            found[name].append(runs[name]())
    return found
