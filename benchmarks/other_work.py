"""The work of other programs on this machine, as Linux counts it, while something is timed."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Sequence

MOST = 0.15
"""Cores: a round in which other programs took more tells of them too."""


class OtherWork:
    """Tells how many cores other programs have used since it was made.

    Args:
        processes: The ids of the processes that are timed; this one's is added.
    """

    def __init__(self, processes: Sequence[int] = ()) -> None:
        self._processes = [os.getpid(), *processes]
        self._begin, self._before = time.perf_counter(), self._seconds()

    def cores(self) -> float:
        """Return how many cores that was, on average; 0 where the system does not count it."""
        error = 2 / _UNITS  # seconds, of two counts
        seconds = self._seconds() - self._before - error
        return max(0.0, seconds) / max(time.perf_counter() - self._begin, error)

    def _seconds(self) -> float:
        return (_busy() - sum(map(_used, self._processes))) / _UNITS


_UNITS = os.sysconf("SC_CLK_TCK")  # a second, in what Linux counts


def _busy() -> int:
    """Return the time of all cores that were not idle."""
    with contextlib.suppress(OSError):
        line = Path("/proc/stat").read_text("utf-8").partition("\n")[0]
        user, nice, system, _, _, irq, softirq, steal, *_ = map(int, line.split()[1:])
        return user + nice + system + irq + softirq + steal
    return 0


def _used(process: int) -> int:
    """Return the time of a process with all its threads."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{process}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])  # utime and stime, behind the name in brackets
    return 0
