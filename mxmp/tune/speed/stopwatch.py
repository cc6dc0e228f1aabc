"""How one run of a network is timed."""

from __future__ import annotations

import time
from typing import Callable

import mxnet as mx

from .race import Lap

Run = Callable[[], None]
"""Runs a network once, without waiting for its results."""

_SHORTEST = 0.02  # seconds of a lap: other programs disturb shorter ones by more
_MOST_RUNS = 100


class Stopwatch:
    """Times networks that race: each lap has as many runs as the first network needs for one that is long enough."""

    def __init__(self) -> None:
        self._runs = 0  # in a lap

    def lap_of(self, run: Run) -> Lap:
        """Return a function that runs a network and returns the seconds of one run, its results computed."""

        def lap() -> float:
            start = time.perf_counter()
            for _ in range(self._runs):
                run()
                mx.nd.waitall()
            return (time.perf_counter() - start) / self._runs

        if not self._runs:
            self._runs = 1
            self._runs = min(max(1, round(_SHORTEST / lap())), _MOST_RUNS)
        return lap
