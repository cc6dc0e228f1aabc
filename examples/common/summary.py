"""The tables at the end of a run."""

from __future__ import annotations

from statistics import median
from typing import Sequence, Tuple

from rich import box
from rich.table import Table
from rich.text import Text

from examples.common.history import History, Number

LAST = 12  # epochs shown; the history file has all of them


def epochs_table(history: History, title: str) -> Table:
    """Return a row for each of the last epochs: means over its steps, and what was measured at its end."""
    measured = list(dict.fromkeys(name for epoch in history.epochs for name in epoch if name != "step"))
    trained = [name for name in history.steps if name not in ("seconds", "loss scale")]
    table = Table(title=title, box=box.SIMPLE, padding=(0, 1, 0, 0))
    for column in ("epoch", *trained, *(f"test {name}" for name in measured), "loss scale", "ms/step"):
        table.add_column(column, justify="right")
    for number, epoch in list(enumerate(history.epochs))[-LAST:]:
        means, part = history.means(number), history.steps_of(number)
        cells = [f"{means[name]:.4f}" for name in trained]
        cells += [_figure(epoch[name]) if name in epoch else "" for name in measured]
        seconds = median(history.steps["seconds"][part])
        table.add_row(str(number + 1), *cells, f"{history.steps['loss scale'][part][-1]:g}", f"{1000 * seconds:.1f}")
    return table


def pairs_table(pairs: Sequence[Tuple[str, object]]) -> Table:
    """Return a table of things and what is to be said about them."""
    table = Table(show_header=False, box=box.SIMPLE, padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in pairs:
        table.add_row(Text(name), Text(str(value)))
    return table


def _figure(value: Number) -> str:
    return "nan" if value is None else f"{value:.4f}"
