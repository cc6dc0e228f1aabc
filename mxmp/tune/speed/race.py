"""Rounds in which contenders take turns on the clock, and what such rounds say: who is faster by more than the noise.

Two runs of the same training step differ by 4 to 6 % on a machine with other work, single ones by 20 %. So times are
compared within rounds, never between them, and a difference counts only if it is larger than that and if so many
rounds agree on it that it is hardly chance.
"""

from __future__ import annotations

import math
from statistics import median
from typing import Callable, Dict, Generic, Hashable, List, Mapping, Optional, Sequence, TypeVar

Lap = Callable[[], float]
"""Runs a network once and returns the seconds that it took, its results computed."""

MARGIN = 0.05
"""A difference below this share of the time is noise."""

FINAL_MARGIN = 0.03
"""The same in the last measurement: it has more rounds than a trial, and no choice of many that one is lucky in."""

FEWEST = 5
"""Rounds without which nothing is said to be faster: five that agree are chance once in 32 times."""

CHANCE = 1 / 16
"""Where two are equally fast, at most this share of races has so many rounds that agree: of 7 rounds 6, of 18 13."""

NOISY = 0.15
"""Rounds of one network that scatter by more than this around their median are those of a noisy machine."""

K = TypeVar("K", bound=Hashable)


class Race(Generic[K]):
    """The times of contenders, round by round.

    Attributes:
        rounds: The seconds of each contender that took part, oldest round first.
    """

    def __init__(self) -> None:
        self.rounds: List[Dict[K, float]] = []

    def run(self, laps: Mapping[K, Lap]) -> Dict[K, float]:
        """Let contenders take one turn each, in the reverse order of the round before, and return their seconds."""
        order = list(laps) if len(self.rounds) % 2 == 0 else list(laps)[::-1]
        found = {key: laps[key]() for key in order}
        self.rounds.append(found)
        return found

    def seconds(self, key: K) -> Optional[float]:
        """Return the median of a contender's times, None if it has none."""
        times = self._times(key)
        return median(times) if times else None

    def ratio(self, key: K, other: K) -> Optional[float]:
        """Return the time of one contender divided by that of another: the median over rounds that both ran in."""
        ratios = self._ratios(key, other)
        return median(ratios) if ratios else None

    def is_faster(self, key: K, other: K, margin: float = MARGIN) -> bool:
        """Return whether one contender was faster than another by more than the noise."""
        return is_faster(self._ratios(key, other), margin)

    def scatter(self, key: K) -> float:
        """Return how far the times of a contender are from their median: the median distance divided by the median."""
        times = self._times(key)
        if not times:
            return 0.0
        middle = median(times)
        return median(abs(time - middle) for time in times) / middle if middle else 0.0

    def _times(self, key: K) -> List[float]:
        return [each[key] for each in self.rounds if key in each]

    def _ratios(self, key: K, other: K) -> List[float]:
        return [each[key] / each[other] for each in self.rounds if key in each and other in each and each[other] > 0]


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
