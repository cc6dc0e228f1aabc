"""Comparisons as tables, lines and a plot."""

from __future__ import annotations

from statistics import median
from typing import Dict, List, Optional

import numpy as np
from matplotlib.figure import Figure
from rich.table import Table

from benchmarks import timing
from benchmarks.comparison import Column, Comparison, Found
from examples.common.plot import save

ROUNDING = 1e-5
"""An error in float32 that is no more than another order of its sums."""


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
        if names:
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
    speed = comparison.speed(column)
    if column is None:
        return "-"
    error = f" ({percent(column.error)})" if column.error and column.error > ROUNDING else ""
    shown = f"{1e3 * median(column.seconds):.1f} ms" if speed is None else f"{speed:.2f}"
    return shown + error


def percent(share: float) -> str:
    """Return a share in percent, with two digits."""
    return f"{float(f'{100 * share:.2g}'):g} %"


def _mean(found: Found, front: str, title: str) -> str:
    speeds = [_speed(comparison, front, title) for comparison in found.values()]
    known = [speed for speed in speeds if speed is not None]
    return f"{timing.geometric_mean(known):.2f}" if len(known) == len(speeds) else "-"
