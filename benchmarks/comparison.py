"""One network in several forms: their times beside those of float32, their errors, and how to show them."""

from __future__ import annotations

import os
from pathlib import Path
from statistics import median
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from benchmarks import timing
from examples.common.plot import save

FLOAT32, PEER, OWN = "float32", "contrib.amp", "mxmp"

NO_BFLOAT16 = "MXNet runs no bfloat16 on this processor, which lacks AVX-512"


class Column(NamedTuple):
    """What one form of a network gave.

    Attributes:
        front: Columns of one front are compared with each other, and share a table.
        who: `FLOAT32` (MXNet alone), `PEER` or `OWN`.
        title: What tells it from others of its front.
        dtype: What its products are computed in.
        seconds: Of each round; empty where it does not run.
        error: Of its result against float32, None where it is not known.
        missing: Why it does not run.
        notes: Further numbers for the file.
    """

    front: str
    who: str
    title: str
    dtype: str
    seconds: Sequence[float] = ()
    error: Optional[float] = None
    missing: str = ""
    notes: Optional[Dict[str, Any]] = None


class Comparison(NamedTuple):
    """All columns of a network that was measured in one go, round by round."""

    columns: Sequence[Column]

    def measured(self, front: str, who: str, dtype: Optional[str] = None) -> List[Column]:
        """Return the columns of a front that ran."""
        of_front = [column for column in self.columns if (column.front, column.who) == (front, who)]
        return [column for column in of_front if column.seconds and dtype in (None, column.dtype)]

    def best(self, front: str, who: str, dtype: Optional[str] = None) -> Optional[Column]:
        """Return the fastest column of a front, None if none ran."""
        return min(self.measured(front, who, dtype), key=lambda column: median(column.seconds), default=None)

    def base(self, front: str) -> Optional[Column]:
        """Return the column of float32 that others are compared with: MXNet's fastest."""
        return self.best(front, FLOAT32)

    def speed(self, column: Optional[Column]) -> Optional[float]:
        """Return how many times as fast as float32 of its front a column is; None if either did not run."""
        base = column and self.base(column.front)
        return timing.speed(base.seconds, column.seconds) if base and column and column.seconds else None

    def noisy(self, front: str) -> bool:
        """Return whether float32's own rounds scatter so much that nothing can be told."""
        base = self.base(front)
        return base is not None and timing.summarize(base.seconds).scatter > timing.NOISY


Found = Mapping[str, Comparison]
"""By network."""


def to_json(comparison: Comparison) -> List[Dict[str, Any]]:
    """Return the columns of a network as what JSON can hold."""
    result = []
    for column in comparison.columns:
        kept = {key: value for key, value in column._asdict().items() if value not in (None, "", ())}
        if column.seconds:
            summary = timing.summarize(column.seconds)
            kept.update(summary._asdict(), scatter=summary.scatter, speed=comparison.speed(column))
        kept["noisy"] = comparison.noisy(column.front)
        result.append(kept)
    return result


def fronts(found: Found) -> List[str]:
    """Return the fronts, in the order in which they were measured."""
    return list(dict.fromkeys(column.front for comparison in found.values() for column in comparison.columns))


def titles(found: Found, front: str) -> List[str]:
    """Return the titles of a front's columns."""
    columns = [column for comparison in found.values() for column in comparison.columns]
    return list(dict.fromkeys(column.title for column in columns if column.front == front))


def table(found: Found, front: str, title: str) -> Table:
    """Return a front's columns: how many times as fast as MXNet's fastest float32, with their errors."""
    names = [name for name in titles(found, front) if _cells(found, front, name)]
    result = Table("network", "float32, ms", *names, title=title, caption="times float32's speed (error)")
    for network, comparison in found.items():
        base = comparison.base(front)
        best = f"{1e3 * median(base.seconds):.1f}" if base else "-"
        noise = " (noisy)" if comparison.noisy(front) else ""
        result.add_row(network, best + noise, *(_cell(comparison, front, name) for name in names))
    if len(found) > 1:
        result.add_section()
        result.add_row("geometric mean", "", *(_mean(found, front, name) for name in names))
    return result


def show(found: Found, checks: Sequence[object], title: str, file: Path) -> None:
    """Print a table for each front, what did not run, and the requirements."""
    console = Console()
    for front in fronts(found):
        console.print(table(found, front, f"{title}, {front}"))
    for line in [*missing_lines(found), *map(str, checks)]:
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    console.print(f"Written: {os.path.relpath(file)} and {file.stem}.png beside it")


def missing_lines(found: Found) -> List[str]:
    """Return a line for each column that did not run somewhere, and why."""
    lines: Dict[str, List[str]] = {}
    for network, comparison in found.items():
        for column in comparison.columns:
            if column.missing:
                lines.setdefault(f"{column.front}, {column.title}: {column.missing}", []).append(network)
    return [line if len(where) == len(found) else f"{line} ({', '.join(where)})" for line, where in lines.items()]


def plot(found: Found, path: str, title: str) -> None:
    """Draw how many times as fast as float32 each column is, a panel for each front, bars for each network."""
    shown = fronts(found)
    figure = Figure(figsize=(11, 3.2 * len(shown)), tight_layout=True)
    for axes, front in zip(np.atleast_1d(figure.subplots(len(shown), 1)), shown):
        names = [name for name in titles(found, front) if _cells(found, front, name)]
        width = 0.8 / max(1, len(names))
        for number, name in enumerate(names):
            speeds = [_speed(comparison, front, name) or 0.0 for comparison in found.values()]
            axes.bar([place + width * number for place in range(len(found))], speeds, width, label=name)
        axes.axhline(1, color="black", linewidth=1)
        axes.set_xticks([place + 0.4 - width / 2 for place in range(len(found))], list(found))
        axes.set(ylabel="times float32's speed", title=f"{title}: {front}")
        axes.legend(fontsize="small", ncols=2)
    save(figure, path)


def _find(comparison: Comparison, front: str, title: str) -> Optional[Column]:
    found = (column for column in comparison.columns if (column.front, column.title) == (front, title))
    return next((column for column in found if column.seconds), None)


def _cells(found: Found, front: str, title: str) -> List[Column]:
    """Return a column over all networks, where it ran."""
    columns = (_find(comparison, front, title) for comparison in found.values())
    return [column for column in columns if column is not None]


def _speed(comparison: Comparison, front: str, title: str) -> Optional[float]:
    return comparison.speed(_find(comparison, front, title))


def _cell(comparison: Comparison, front: str, title: str) -> str:
    column = _find(comparison, front, title)
    if column is None:
        return "-"
    error = "" if column.error is None else f" ({percent(column.error)})"
    return f"{comparison.speed(column):.2f}{error}"


def percent(share: float) -> str:
    """Return a share in percent, with two digits; what is below rounding in float32 as 0."""
    return "0 %" if share < 1e-5 else f"{100 * share:.2g} %"


def _mean(found: Found, front: str, title: str) -> str:
    speeds = [_speed(comparison, front, title) for comparison in found.values()]
    known = [speed for speed in speeds if speed is not None]
    return f"{timing.geometric_mean(known):.2f}" if len(known) == len(speeds) else "-"
