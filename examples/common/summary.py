"""The table at the end of a run."""

from __future__ import annotations

from statistics import median
from typing import Iterable, List, Sequence, Tuple

from rich import box
from rich.table import Table
from rich.text import Text

from examples.common.history import History

LAST = 12  # epochs shown; the history file has all of them


def epochs_table(history: History, title: str) -> Table:
    """Return a row for each of the last epochs: means over its steps, and what was measured at its end.

    Args:
        history: The run.
        title: Stands above.
    """
    measured = _in_order(history.epochs, without=("step",))
    table = Table(title=title, box=box.SIMPLE, padding=(0, 1, 0, 0))
    trained = [name for name in history.steps if name not in ("seconds", "loss scale")]
    for column in ("epoch", *trained, *(f"test {name}" for name in measured), "loss scale", "ms/step"):
        table.add_column(column, justify="right")
    for number in range(max(0, len(history.epochs) - LAST), len(history.epochs)):
        means, epoch = history.means(number), history.epochs[number]
        stop = int(epoch["step"])
        seconds = history.steps["seconds"][int(history.epochs[number - 1]["step"]) if number else 0 : stop]
        cells = [f"{means[name]:.4f}" for name in trained]
        cells += [f"{epoch[name]:.4f}" if name in epoch else "" for name in measured]
        scale = history.steps["loss scale"][stop - 1]
        table.add_row(str(number + 1), *cells, f"{scale:g}", f"{1000 * median(seconds):.1f}")
    return table


def pairs_table(pairs: Sequence[Tuple[str, object]]) -> Table:
    """Return a table of things and what is to be said about them."""
    table = Table(show_header=False, box=box.SIMPLE, padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in pairs:
        table.add_row(Text(name), Text(str(value)))
    return table


def _in_order(dicts: Iterable[dict], without: Sequence[str]) -> List[str]:
    """Return the keys of all dicts, each once, as they first appear."""
    return list(dict.fromkeys(key for each in dicts for key in each if key not in without))
