"""Shows blocks on a terminal by rich: tables, facts and sentences; and how far long work is.

Only pages have charts and pictures.

The last section comes first, and tables come before other blocks, so that the most important facts are next to the
prompt. Other modules import rich only after this one. ``rich.style`` draws one of Python's random numbers when it is
imported, which would change a seeded run. This module puts the random state back.
"""

from __future__ import annotations

import contextlib
import io
import random
from dataclasses import replace
from typing import Any, Callable, Iterator, List, Optional, Sequence

from ..errors import visible
from . import blocks

_STATE = random.getstate()
import rich.style  # noqa: E402, F401

random.setstate(_STATE)
from rich.console import Console  # noqa: E402
from rich.padding import Padding  # noqa: E402
from rich.table import Table  # noqa: E402
from rich.text import Text  # noqa: E402

WIDTH = 120  # The columns if there is no terminal.
NARROW = 80  # With fewer columns two text columns share one.
TEXT = 25  # If a column of longer texts would get fewer columns, two text columns share one too.
NAMES = 40  # If numbers leave fewer columns to text, two columns of numbers share one too.


def text(shown: Any, width: int = WIDTH) -> str:
    """Return a record, or another value that rich can print, as text with so many columns."""
    console = Console(file=io.StringIO(), width=width)
    console.print(shown)
    output: Any = console.file
    return str(output.getvalue())


def parts(shown: Any, width: int = WIDTH, most: Optional[int] = None) -> Iterator[Any]:
    """Yield the parts of a record, for rich.

    Args:
        shown: The record, a `Shown`.
        width: Columns of the terminal.
        most: The number of rows in tables that are cut; the tables' own unless given.
    """
    title, lead = shown._title, shown._lead
    yield _sentence(f"{title}: {blocks.wrappable(lead)}" if lead else title, style="bold")
    for section in reversed(shown._sections()):
        for block in sorted(section.blocks, key=lambda block: not isinstance(block, blocks.Table)):
            if isinstance(block, blocks.Table) and most is not None and block.most is not None:
                block = replace(block, most=most)
            yield from _drawn(block, width)


def _drawn(block: blocks.Block, width: int) -> Iterator[Any]:
    if isinstance(block, blocks.Table):
        yield table(block, width)
    elif isinstance(block, blocks.Facts):
        yield pairs(block.pairs)
    elif isinstance(block, blocks.Figures):
        yield pairs([(name, f"{each} ({remark})" if remark else each) for name, each, remark in block.figures])
    elif isinstance(block, blocks.Notes):
        yield from (_sentence(f"{block.kind}: {sentence}") for sentence in block.sentences)


def pairs(lines: Sequence[Sequence[str]]) -> Any:
    """Return a grid for rich with a line for each pair, such as a name and a text."""
    grid = Table.grid(padding=(0, 2))
    for name, line in lines:
        grid.add_row(Text(visible(name), style="dim"), Text(visible(line), overflow="fold"))
    return Padding(grid, (0, 0, 0, 1), expand=False)


def table(block: blocks.Table, width: int = WIDTH) -> Table:
    """Return a table for rich, for so many columns. With few, two columns share one, in several lines."""
    block = block.without_empty_columns()
    columns = [i for i, column in enumerate(block.columns) if column.kind != blocks.SPARK]
    numbers = sum(_width(block, i) + 3 for i in columns if block.columns[i].is_numeric)
    is_crowded = width - numbers < NAMES
    texts = [i for i in columns if not block.columns[i].is_numeric]
    room = width - numbers - sum(min(_longest(block, i), TEXT) + 3 for i in texts)
    is_narrow = is_crowded or width < NARROW or room < 0
    groups: List[List[int]] = []
    for i in columns:
        before = groups[-1] if groups else []
        numeric = {block.columns[k].is_numeric for k in (*before, i)}
        if len(before) == 1 and ((is_narrow and numeric == {False}) or (is_crowded and numeric == {True})):
            before.append(i)
        else:
            groups.append([i])
    is_cut = block.most is not None and block.most < len(block.rows)
    below = [f"{block.most:,} of {len(block.rows):,} {block.unit}"] if is_cut else []
    below += [f"{word}: {meaning}" for word, meaning in block.legend]
    caption = Text("\n".join(map(visible, below))) if below else None
    drawn = Table(title=Text(visible(block.caption)), caption=caption, caption_justify="left")
    # Names in the first column are not broken if they leave enough of the width to others.
    longest = _longest(block, 0)
    keeps_names = not is_narrow and len(groups) <= 3 and longest < 0.55 * width
    titles = [", ".join(block.columns[i].title for i in group) for group in groups]
    is_wide = longest + sum(len(title) + 3 for title in titles) > width
    for group, title in zip(groups, titles):
        right = block.columns[group[0]].is_numeric
        if right and is_wide:  # Columns of numbers do not shrink, so that their titles leave no width to names.
            title = title.replace(" ", "\n")
        whole = right or (keeps_names and not drawn.columns)
        drawn.add_column(title, justify="right" if right else "left", overflow="fold", no_wrap=whole)
    for row in block.rows[: block.most]:
        cells = ["\n  ".join(visible(block.columns[i].text(row[i])) for i in group) for group in groups]
        drawn.add_row(*map(Text, cells))  # Not plain strings: a name may look like rich's markup.
    return drawn


def _longest(block: blocks.Table, column: int) -> int:
    """Return the length of the longest text in a column."""
    return max((len(visible(block.columns[column].text(row[column]))) for row in block.rows), default=0)


def _width(block: blocks.Table, column: int) -> int:
    """Return the width of a column, if its title has a line for each word."""
    texts = [block.columns[column].text(row[column]) for row in block.rows[: block.most]]
    return max(map(len, [*block.columns[column].title.split(), *texts]), default=0)


def _sentence(line: str, style: str = "") -> Text:
    return Text(visible(line), style=style)


# ---------------------------------------------------------------------- how far long work is


@contextlib.contextmanager
def showing_progress(shown: bool) -> Iterator[Callable[[str, Optional[float]], None]]:
    """Yield a function of the next task and the share that is done, which a bar on stderr shows if asked to."""
    # rich would write control sequences into a file or a pipe.
    if not shown:
        yield lambda name, share: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True, markup=False), transient=True) as bar:
        task = bar.add_task("", total=None)

        def show(name: str, share: Optional[float]) -> None:
            bar.update(task, description=name, total=share and 1.0, completed=min(share or 0.0, 1.0), refresh=True)

        yield show
