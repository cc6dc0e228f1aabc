"""Tables, which the page's script sorts and filters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence

from ..errors import visible
from .histograms import spark
from .numbers import figure, finite, share, size, to_float
from .templating import render

if TYPE_CHECKING:
    from markupsafe import Markup

TEXT, NUMBER, SHARE, BYTES, PRECISION, BAR, HISTOGRAM = "text", "number", "share", "bytes", "precision", "bar", "spark"
"""Kinds of columns: what their cells are."""

_FORMATS: Dict[str, Callable[[Any], str]] = {NUMBER: figure, SHARE: share, BYTES: size, BAR: share}


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        title: Its heading.
        kind: 'text', 'number', 'share' (of 1), 'bytes', 'precision' (the name of a dtype), 'bar' (a share, drawn
            too), or 'spark' (a dict of counts by exponent of two, drawn against a dtype's range).
        help: What it holds, in a sentence; shown where the pointer rests.
        dtype: The dtype whose range a 'spark' is drawn against.
    """

    title: str
    kind: str = TEXT
    help: str = ""
    dtype: str = "float16"


@dataclass(frozen=True)
class Cell:
    """What a template needs of a cell: its text, what it is sorted by, and what is drawn in it."""

    text: str
    kind: str
    key: Optional[str] = None
    drawn: Optional[Markup] = None
    part: float = 0.0


def table(columns: Sequence[Column], rows: Sequence[Sequence[Any]], caption: str, unit: str = "rows") -> Markup:
    """Return a table that sorts by each of its columns and filters by text.

    Args:
        columns: Its columns; the first names the row. Others in which no row has anything are left out.
        rows: A value for each column: text, a number, None where it is not known, or a histogram.
        caption: What it holds.
        unit: What its rows are, in the plural.
    """
    kept = [i for i in range(len(columns)) if i == 0 or not rows or any(row[i] not in (None, "", {}) for row in rows)]
    columns, rows = [columns[i] for i in kept], [[row[i] for i in kept] for row in rows]
    largest = [_largest([row[i] for row in rows]) if c.kind == BAR else 0.0 for i, c in enumerate(columns)]
    span = _span([row[i] for row in rows for i, c in enumerate(columns) if c.kind == HISTOGRAM])
    cells: List[List[Cell]] = [
        [_cell(column, value, most, span) for column, value, most in zip(columns, row, largest)] for row in rows
    ]
    return render("table", columns=columns, rows=cells, caption=caption, unit=unit)


def _cell(column: Column, value: Any, most: float, span: Sequence[int]) -> Cell:
    if column.kind == HISTOGRAM:
        return Cell("", column.kind, drawn=spark(value or {}, span, column.dtype))
    if column.kind not in _FORMATS:
        return Cell("" if value is None else visible(str(value)), column.kind)
    number = to_float(value)
    key = "" if number is None or number != number else repr(number)  # NaN has no place in an order
    part = 0.0
    if column.kind == BAR and number is not None and number > 0 and most > 0:
        part = round(min(number / most, 1.0), 3)
    return Cell(_FORMATS[column.kind](value), column.kind, key, part=part)


def _largest(values: Sequence[Any]) -> float:
    """Return the largest of the values that are finite numbers, 0 if there is none."""
    return max((each for each in map(finite, map(to_float, values)) if each is not None), default=0.0)


def _span(histograms: Sequence[Any]) -> List[int]:
    """Return the smallest and the largest exponent of some histograms."""
    found = [int(key) for each in histograms for key in each or {}]
    return [min(found), max(found)] if found else [0, 0]
