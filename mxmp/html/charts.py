"""Charts as inline SVG: lines over steps or layers.

A chart's plane is an SVG that stretches with the page; its labels are HTML beside it, so that they keep their size on
a phone and in print.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Dict, List, Optional, Sequence, Tuple

from .axes import Axis, drawable, linear_axis, value_axis
from .numbers import figure
from .templating import render

if TYPE_CHECKING:
    from markupsafe import Markup

_MOST = 400  # columns of a line: beyond it the extremes of each column are drawn
_FEW_MARKS = 60  # beyond it they are short, so as not to hide the lines
_SIZE = 1000  # of the plane, in its own units

Points = Sequence[Tuple[float, Optional[float]]]


@dataclass(frozen=True)
class Line:
    """A series of a chart: a name for the legend, and its values, None where there is none, for a step not sampled.

    ``dots`` draws each value by itself, with no line from one to the next.
    """

    name: str
    values: Sequence[Optional[float]]
    dots: bool = False


def lines(
    caption: str,
    x: Sequence[float],
    series: Sequence[Line],
    x_title: str = "step",
    scale: str = "linear",
    marks: Sequence[float] = (),
    mark_name: str = "",
) -> Markup:
    """Return a chart of lines.

    Args:
        caption: What is shown.
        x: Where the values are, growing; as many as each line has values.
        series: Up to four lines. Values that are None are passed over; infinite ones and NaN are gaps, marked at the
            upper edge (at the lower one for minus infinity). A chart without a finite value says so.
        x_title: What ``x`` counts.
        scale: Of the values: 'linear', 'share' (of 1), 'log2', 'log10', or 'auto', which is 'log10' for positive values
            that span more than three powers of ten, else 'linear'.
        marks: Places on ``x`` to be marked by an upright line, such as skipped steps.
        mark_name: What they are, for the legend.
    """
    along, up = linear_axis([*x, *marks]), value_axis([v for line in series for v in line.values], scale)
    drawn = [(i + 1, line.dots, _path(_points(x, line, along, up), line.dots)) for i, line in enumerate(series)]
    at = sorted({round(_SIZE * (along.place(each) or 0.0)) for each in marks})
    beyond = [(i + 1, *each) for i, line in enumerate(series) for each in _beyond(x, line, along)]
    said = _nothing_drawn(series)
    legend = [(f"s{i + 1}", line.name) for i, line in enumerate(series) if len(series) > 1 or marks or beyond]
    return render(
        "chart",
        caption=caption,
        label=_described(caption, series, marks, mark_name),
        legend=legend
        + ([("mark", f"{mark_name} ({len(marks):,})")] if marks else [])
        + ([("beyond", f"not finite ({_count_not_finite(series):,})")] if beyond else []),
        x_labels=along.labels(),
        y_labels=[] if said else up.labels(scale == "share"),
        x_title=x_title,
        shades=[],
        bars=[],
        marks=at,
        mark_top=0 if len(at) <= _FEW_MARKS else 930,
        lines=drawn,
        beyond=beyond,
        said=said,
    )


def _not_finite(value: Optional[float]) -> bool:
    return value is not None and not math.isfinite(value)


def _beyond(x: Sequence[float], line: Line, along: Axis) -> List[Tuple[float, str]]:
    """Return where along the axis a line is not finite, in percent, each with the edge of the plane to be marked."""
    found: Dict[Tuple[float, str], None] = {}
    for at, value in zip(x, line.values):
        if value is not None and not math.isfinite(value):
            place = round(_MOST * (along.place(at) or 0.0))  # no more of them than can be seen
            found[100 * place / _MOST, "lower" if value < 0 else "upper"] = None
    return list(found)


def _count_not_finite(series: Sequence[Line]) -> int:
    return sum(_not_finite(value) for line in series for value in line.values)


def _nothing_drawn(series: Sequence[Line]) -> str:
    """Return what a chart says that has values, but none that can be drawn; '' for others."""
    values = [value for line in series for value in line.values if value is not None]
    if not values or any(drawable(value) is not None for value in values):
        return ""
    kinds = Counter(map(figure, values))
    return f"Nothing to draw: {', '.join(f'{count:,} × {kind}' for kind, count in kinds.items())}"


def _points(x: Sequence[float], line: Line, along: Axis, up: Axis) -> Points:
    """Return a line's points in the plane, no more of them than can be seen."""
    known = [(at, value) for at, value in zip(x, line.values) if value is not None]
    points = [(_SIZE * (along.place(at) or 0.0), up.place(value)) for at, value in known]
    placed = [(at, None if y is None else _SIZE * (1 - y)) for at, y in points]
    if len(placed) <= 4 * _MOST or line.dots:
        return placed
    columns: Dict[int, List[Tuple[float, Optional[float]]]] = {}
    for at, y in placed:
        columns.setdefault(int(at * _MOST / _SIZE), []).append((at, y))
    return [point for column in columns.values() for point in _extremes(column)]


def _extremes(column: Points) -> Points:
    """Return the first, the lowest, the highest and the last of some points in their order."""
    known = [(at, y) for at, y in column if y is not None]
    if not known:
        return column[:1]
    ends = {known[0], known[-1], min(known, key=lambda each: each[1]), max(known, key=lambda each: each[1])}
    return sorted(ends)


def _path(points: Points, dots: bool) -> str:
    """Return the path of a line with gaps; a point between two gaps is a dot."""
    parts, pen_down = [], False
    for i, (at, y) in enumerate(points):
        if y is None:
            pen_down = False
            continue
        alone = dots or (not pen_down and (i + 1 == len(points) or points[i + 1][1] is None))
        parts.append(f"{'L' if pen_down and not dots else 'M'}{at:.1f} {y:.1f}" + ("h0" if alone else ""))
        pen_down = True
    return "".join(parts)


def _described(caption: str, series: Sequence[Line], marks: Sequence[float], mark_name: str) -> str:
    """Return what a chart shows, for those who do not see it."""
    parts = []
    for line in series:
        known = [each for each in map(drawable, line.values) if each is not None]
        if known:
            parts.append(f"{line.name} from {figure(min(known))} to {figure(max(known))}, last {figure(known[-1])}")
    if _count_not_finite(series):
        parts.append(f"not finite: {_count_not_finite(series)}")
    if marks:
        parts.append(f"{mark_name}: {len(marks)}")
    return f"{caption}: " + ("; ".join(parts) or "no values")
