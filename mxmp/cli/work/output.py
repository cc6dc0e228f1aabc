"""What commands print: tables on stdout, progress on stderr."""

from __future__ import annotations

import contextlib
import os
import sys
from collections import Counter
from typing import TYPE_CHECKING, Callable, Iterator, List, Mapping, Sequence, Tuple

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from ...errors import visible

if TYPE_CHECKING:  # it imports MXNet, which `mxmp report` does without
    from ...symbol.params import Change

NARROW = 80
"""Columns of a terminal, below which names would be broken."""

_UNLIMITED = 10_000  # columns; a pipe has no width, and a name in one piece can be searched for


def stdout(width: int = _UNLIMITED) -> Console:
    """Return the console for results, as wide as the terminal or a variable COLUMNS says, else as given or as the text.

    What the terminal's encoding lacks is escaped, as Python does on stderr.
    """
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    columns = os.environ.get("COLUMNS", "")
    known = sys.stdout.isatty() or (columns.isdigit() and width < _UNLIMITED)
    return Console(width=None if known else width, highlight=False, markup=False, emoji=False)


def rounded_lines(widened: Mapping[str, str]) -> List[Tuple[str, str]]:
    """Return a line for each low precision dtype that parameters, now float32, were stored in."""
    return [
        ("note", f"{count} parameters were stored in {dtype}: their values were rounded to it, and stay so")
        for dtype, count in Counter(widened.values()).items()
    ]


def pairs_table(pairs: Sequence[Tuple[str, str]]) -> Table:
    """Return a table of things and what is to be said about them."""
    table = Table(show_header=False, box=box.SQUARE)
    for _ in range(2):
        table.add_column(overflow="fold")
    for pair in pairs:
        table.add_row(*(Text(visible(text)) for text in pair))
    return table


def value_lines(changes: Sequence[Change], out_of_range: Sequence[str], dtype: str) -> List[Tuple[str, str]]:
    """Return a line for each parameter whose values did not fit into low precision."""
    lines = [
        ("clamped", f"{each.name}: {_values(each.clamped)} beyond {dtype}'s range, the largest {each.largest:g}")
        for each in changes
        if each.clamped
    ]
    lines += [("became zero", f"{each.name}: {_values(each.underflowed)}") for each in changes if each.underflowed]
    return lines + [("kept in float32", f"{name}: values beyond {dtype}'s range") for name in out_of_range]


@contextlib.contextmanager
def progress(stages: int) -> Iterator[Callable[[str], None]]:
    """Yield a function to call with the name of each stage as it begins.

    A terminal shows a bar on stderr until the last stage is over; anything else shows nothing.
    """
    if not sys.stderr.isatty():
        yield lambda stage: None
        return
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True, markup=False), transient=True) as bar:
        task = bar.add_task("", total=stages)
        begun = 0

        def begin(stage: str) -> None:
            nonlocal begun
            bar.update(task, description=stage, completed=begun, refresh=True)
            begun += 1

        yield begin


def _values(count: int) -> str:
    return f"{count:,} value{'' if count == 1 else 's'}"
