"""The blocks that a terminal, a page and a notebook draw, each in its own way.

A `Section` has blocks. `Figures`, `Facts`, `Notes` and `Table` are shown everywhere. `Lines`, `Histogram` and `Network`
are shown on pages and in notebooks. Texts are plain, because the code that draws them escapes them.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Tuple, Union

UNKNOWN = "–"  # Shown for a value that is not known.

# Kinds of a table's columns: text, a number, a share of 1, the name of a dtype, a number that is drawn too, and counts
# by exponent of two, drawn against a dtype's range.
TEXT, NUMBER, SHARE, PRECISION, BAR, SPARK = "text", "number", "share", "precision", "bar", "spark"

_UNITS = ("bytes", "kB", "MB", "GB", "TB")


@dataclass(frozen=True)
class Figures:
    """The figures that matter most, each (its name, the figure, a remark or '')."""

    figures: Sequence[Tuple[str, str, str]]


@dataclass(frozen=True)
class Facts:
    """Pairs of a name and a text."""

    pairs: Sequence[Tuple[str, str]]


@dataclass(frozen=True)
class Notes:
    """Sentences to be noticed.

    Attributes:
        sentences: One to a line; if there is none, nothing is shown.
        kind: 'Warning', 'Advice', 'Error' or another word, which is put before each sentence.
    """

    sentences: Sequence[str]
    kind: str = "Note"


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        title: Its heading.
        kind: One of the kinds of this module.
        help: Its meaning, in a sentence; shown where the pointer rests.
        dtype: The dtype whose range a 'spark' is drawn against.
    """

    title: str
    kind: str = TEXT
    help: str = ""
    dtype: str = "float16"

    @property
    def is_numeric(self) -> bool:
        """Whether its values are numbers, which are aligned at the right."""
        return self.kind in _FORMATS

    def text(self, value: Any) -> str:
        """Return a value as it is written in the column."""
        return _FORMATS[self.kind](value) if self.is_numeric else "" if value is None else str(value)


@dataclass(frozen=True)
class Table:
    """Rows of values, which a page sorts and filters.

    Attributes:
        caption: Its title.
        columns: The first names the row. Other columns in which no row has a value are left out.
        rows: A value for each column: text, a number, None if it is not known, or a mapping for a 'spark'.
        unit: The noun for its rows, in the plural.
        most: How many rows a terminal shows, of all that a page has; None for all.
        legend: Words in the cells, each with its meaning.
    """

    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]
    unit: str = "rows"
    most: Optional[int] = None
    legend: Sequence[Tuple[str, str]] = ()

    def without_empty_columns(self) -> Table:
        """Return the table without the columns in which no row has a value."""
        has_values = [any(row[i] not in (None, "", {}) for row in self.rows) for i in range(len(self.columns))]
        kept = [i for i, has_value in enumerate(has_values) if i == 0 or has_value or not self.rows]
        rows = [[row[i] for i in kept] for row in self.rows]
        return replace(self, columns=[self.columns[i] for i in kept], rows=rows)


@dataclass(frozen=True)
class Line:
    """One line of a chart.

    Attributes:
        name: For the legend.
        values: One for each place on ``x`` of the chart; None if it was not measured.
        dots: Whether values are drawn as dots, without a line from one to the next.
    """

    name: str
    values: Sequence[Optional[float]]
    dots: bool = False


@dataclass(frozen=True)
class Lines:
    """A chart of up to four lines.

    Attributes:
        caption: Its title.
        x: The places of the values, in growing order; as many as each line has values.
        lines: The lines. Values that are None are passed over. Infinite values and NaN are gaps that are marked at the
            upper edge, minus infinity at the lower edge. A chart without a finite value says so.
        x_title: The noun for ``x``.
        scale: Of the values: 'linear', 'share' (of 1), 'log2', 'log10', or 'auto': 'log10' for positive values that
            span more than three powers of ten, else 'linear'.
        marks: Places on ``x`` that an upright line marks, such as skipped steps.
        mark_name: The noun for marks, in the legend.
    """

    caption: str
    x: Sequence[float]
    lines: Sequence[Line]
    x_title: str = "step"
    scale: str = "linear"
    marks: Sequence[float] = ()
    mark_name: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether the chart has no value."""
        return all(value is None for line in self.lines for value in line.values)


@dataclass(frozen=True)
class Histogram:
    """A histogram of magnitudes, against the range of a dtype.

    Attributes:
        caption: Its title.
        counts: Number of values by exponent of two: ``counts[e]`` are those from ``2**e`` up to ``2**(e + 1)``.
        dtype: The dtype whose ranges are shaded: numbers that become 0, are subnormal, or overflow.
        zeros: The number of values that are 0, drawn as a bar at the left end. The bar is cut off if it would make the
            others too small. Shares are those of all values, zeros included.
    """

    caption: str
    counts: Mapping[int, float]
    dtype: str = "float16"
    zeros: float = 0


@dataclass(frozen=True)
class Network:
    """The picture of a network.

    Attributes:
        operators: Rows of a report, in the order in which they run. Their ``name``, ``op``, ``precision`` and
            ``reason`` are shown. ``inputs`` are the names of operators before a row. ``casts`` have a text and a
            ``source``: the name of the operator that gives the tensor, or '' for a variable.
        caption: Its title.
    """

    operators: Sequence[Any]
    caption: str = "The network, from its inputs down to its outputs"


Block = Union[Figures, Facts, Notes, Table, Lines, Histogram, Network]


@dataclass(frozen=True)
class Section:
    """A part of a page, under a heading of its own.

    Attributes:
        title: The heading.
        blocks: From top to bottom. Charts that follow each other are placed side by side if there is room.
        lead: A sentence or two below the heading.
    """

    title: str
    blocks: Sequence[Block]
    lead: str = ""


# ---------------------------------------------------------------------- numbers and texts as they are read


def wrappable(text: str) -> str:
    """Return a text with a space between a comma and a letter, as in a policy, so that it can wrap there.

    Example:
        >>> wrappable("param=float32,compute=float16; 1,000 steps")
        'param=float32, compute=float16; 1,000 steps'
    """
    return re.sub(r",(?=[a-z])", ", ", text)


def figure(value: Optional[float]) -> str:
    """Return a number with three significant digits; all digits of an integer; a large power of two as a power.

    Example:
        >>> [figure(each) for each in (None, 65504, 0.000123, 1.5, 2.0**20, float("inf"))]
        ['–', '65,504', '0.000123', '1.5', '2²⁰', '∞']
    """
    if value is None:
        return UNKNOWN
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞" if value > 0 else "−∞"
    if isinstance(value, int) or 999.5 <= abs(value) < 999_999.5 or (value == int(value) and abs(value) < 1e6):
        return f"{value or 0:,.0f}"  # Zero has no sign.
    mantissa, exponent = math.frexp(value)
    if mantissa == 0.5 and value > 1:  # Loss scales are powers of two.
        return power(exponent - 1)
    return f"{value:.3g}"


def share(value: Optional[float]) -> str:
    """Return a share of 1 as percent.

    Example:
        >>> [share(each) for each in (0, 0.00001234, 0.034, 0.5, 1)]
        ['0 %', '0.00123 %', '3.4 %', '50 %', '100 %']
    """
    return figure(value) if value is None or not math.isfinite(value) else f"{figure(100.0 * value)} %"


def size(count: Optional[float]) -> str:
    """Return a number of bytes with a unit.

    Example:
        >>> size(102_400_000), size(999_999)
        ('102 MB', '1 MB')
    """
    if count is None or not math.isfinite(count):
        return figure(count)
    power = sum(abs(count) >= 999.5 * 1000**each for each in range(len(_UNITS) - 1))  # 999.5 rounds to 1,000.
    return f"{figure(count / 1000**power)} {_UNITS[power]}"


def power(exponent: int, base: int = 2) -> str:
    """Return a power with its exponent in superscript.

    Example:
        >>> power(-14)
        '2⁻¹⁴'
    """
    return f"{base}{str(exponent).translate(str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'))}"


_FORMATS: Dict[str, Callable[[Any], str]] = {NUMBER: figure, SHARE: share, BAR: figure}
