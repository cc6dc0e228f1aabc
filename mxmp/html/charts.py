"""Charts as inline SVG: lines over steps or layers, and histograms of magnitudes against a dtype's range.

A chart's plane is an SVG that stretches with the page; its labels are HTML beside it, so that they keep their size on
a phone and in print.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from .numbers import figure, finite, power_ticks, share, ticks
from .templating import render

if TYPE_CHECKING:
    from markupsafe import Markup

RANGES: Dict[str, Tuple[int, int, int]] = {
    "float16": (-25, -14, 16),
    "bfloat16": (-134, -126, 128),
    "float32": (-150, -126, 128),
}
"""Exponents of two by dtype: magnitudes up to 2**first round to 0, those below 2**second are subnormal, those from
2**third on overflow (IEEE 754, binary16 and binary32; bfloat16 has float32's exponents and 7 bits of fraction)."""

_MOST = 400  # columns of a line: beyond it the extremes of each column are drawn
_FEW_MARKS = 60  # beyond it they are short, so as not to hide the lines
_LARGEST = 1e300  # of what is drawn
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


class _Axis(NamedTuple):
    """A range of values, or of their logarithms to a base, that a side of the plane stands for."""

    low: float
    high: float
    base: Optional[int] = None

    def place(self, value: Optional[float]) -> Optional[float]:
        """Return where a value is, from 0 to 1; None where it has no place."""
        value = _drawable(value)
        if value is None or (self.base and value <= 0):
            return None
        at = math.log(value, self.base) if self.base else value
        return (at - self.low) / (self.high - self.low)

    def labels(self, as_share: bool = False) -> List[Tuple[float, str]]:
        """Return percents of its length, each with what stands there."""
        marks = power_ticks(self.low, self.high) if self.base else ticks(self.low, self.high)
        inside = [each for each in marks if self.low <= each <= self.high]
        name = share if as_share else figure
        return [
            (100 * (each - self.low) / (self.high - self.low), f"{self.base}^{each:.0f}" if self.base else name(each))
            for each in inside
        ]


def power(exponent: int, base: int = 2) -> str:
    """Return a power as it is written.

    Example:
        >>> power(-14)
        '2⁻¹⁴'
    """
    return f"{base}{str(exponent).translate(str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'))}"


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
        series: Up to four lines. Values that are None are passed over; infinite ones and NaN are gaps.
        x_title: What ``x`` counts.
        scale: Of the values: 'linear', 'share' (of 1), 'log2', 'log10', or 'auto', which is 'log10' for positive values
            that span more than three powers of ten, else 'linear'.
        marks: Places on ``x`` to be marked by an upright line, such as skipped steps.
        mark_name: What they are, for the legend.
    """
    along, up = _linear([*x, *marks]), _value_axis([v for line in series for v in line.values], scale)
    drawn = [(i + 1, line.dots, _path(_points(x, line, along, up), line.dots)) for i, line in enumerate(series)]
    at = sorted({round(_SIZE * (along.place(each) or 0.0)) for each in marks})
    legend = [(f"s{i + 1}", line.name) for i, line in enumerate(series) if len(series) > 1 or marks]
    return render(
        "chart",
        caption=caption,
        label=_described(caption, series, marks, mark_name),
        legend=legend + ([("mark", f"{mark_name} ({len(marks):,})")] if marks else []),
        x_labels=along.labels(),
        y_labels=up.labels(scale == "share"),
        x_title=x_title,
        shades=[],
        bars=[],
        marks=at,
        mark_top=0 if len(at) <= _FEW_MARKS else 930,
        lines=drawn,
    )


def histogram(caption: str, counts: Mapping[int, float], dtype: str = "float16") -> Markup:
    """Return a histogram of magnitudes against what a dtype can hold.

    Args:
        caption: What is shown.
        counts: Number of values by exponent of two: ``counts[e]`` are those from ``2**e`` up to ``2**(e + 1)``.
        dtype: The dtype whose ranges are shaded: what becomes 0, what is subnormal, what overflows.
    """
    zero, subnormal, overflow = RANGES[dtype]
    total = sum(counts.values()) or 1.0
    present = [each for each in counts if counts[each]] or [subnormal]
    whole = dtype == "float16"  # the others' ranges are far wider than what is ever seen
    low = min(present + ([zero - 1] if whole else [])) - 1
    high = max(present + ([overflow] if whole else [])) + 2
    along, top = _Axis(low, high), max(counts.values(), default=0.0) / total or 1.0
    up = _Axis(0.0, 1.05 * top)
    bars = [
        (
            *_bar(along, up, each, counts[each] / total),
            f"{power(each)} to {power(each + 1)}: {figure(counts[each])}, {share(counts[each] / total)}",
        )
        for each in sorted(present)
        if counts.get(each)
    ]
    regions = [
        ("zero", low, zero, "becomes 0"),
        ("subnormal", zero, subnormal, "subnormal"),
        ("overflow", overflow, high, "overflows"),
    ]
    shades = _shades(along, regions)
    return render(
        "chart",
        caption=caption,
        label=f"{caption}: most values are from {power(max(present, key=lambda e: counts.get(e, 0)))} on",
        legend=[(kind, f"{name} in {dtype}") for kind, _, _, name in shades],
        x_labels=[(at, f"2^{each:.0f}") for at, each in _whole(along)],
        y_labels=up.labels(as_share=True),
        x_title="magnitude",
        shades=shades,
        bars=bars,
        marks=[],
        mark_top=0,
        lines=[],
    )


def spark(counts: Mapping[Any, float], span: Sequence[int], dtype: str = "float16") -> Markup:
    """Return a histogram of the height of a line of text, over a span of exponents (smallest, largest)."""
    zero, subnormal, overflow = RANGES.get(dtype, RANGES["float16"])
    known = {int(key): float(count) for key, count in counts.items() if count}
    low, high = min(span[0], subnormal) - 1, max(span[1] + 1, overflow + 1 if dtype == "float16" else span[1] + 1)
    along, most = _Axis(low, high), max(known.values(), default=1.0)
    regions = [("zero", low, zero, ""), ("subnormal", zero, subnormal, ""), ("overflow", overflow, high, "")]
    peak = max(known, key=lambda each: known[each]) if known else 0
    span_named = f"{power(min(known))} to {power(max(known) + 1)}, most from {power(peak)}" if known else "no values"
    return render(
        "spark",
        bars=[_bar(along, _Axis(0.0, 1.0), each, max(math.sqrt(count / most), 0.06)) for each, count in known.items()],
        shades=_shades(along, regions),
        label=span_named,
    )


def _drawable(value: Optional[float]) -> Optional[float]:
    """Return a number that has a place on an axis, None for all others; differences of larger ones overflow."""
    value = finite(value)
    return value if value is not None and abs(value) < _LARGEST else None


def _linear(values: Sequence[Optional[float]]) -> _Axis:
    known = [each for each in map(_drawable, values) if each is not None] or [0.0]
    low, high = min(known), max(known)
    room = max(0.5, 1e-9 * abs(low))  # beside large numbers 0.5 is nothing
    return _Axis(low, high) if high > low else _Axis(low - room, low + room)


def _value_axis(values: Sequence[Optional[float]], scale: str) -> _Axis:
    known = [each for each in map(_drawable, values) if each is not None]
    positive = [each for each in known if each > 0]
    if scale == "auto":
        scale = "log10" if positive and len(positive) == len(known) and max(known) > 1e3 * min(known) else "linear"
    if scale.startswith("log"):
        base = int(scale[3:])
        logs = [math.log(each, base) for each in positive or [1.0]]
        low, high = math.floor(min(logs) - 0.01), math.ceil(max(logs) + 0.01)
        return _Axis(low, high if high > low else low + 1, base)
    if scale == "share":
        return _Axis(0.0, 1.05 * max([*known, 1e-4]))
    axis = _linear(known)
    room = 0.05 * (axis.high - axis.low)
    return _Axis(0.0 if axis.low == 0 else axis.low - room, axis.high + room)


def _points(x: Sequence[float], line: Line, along: _Axis, up: _Axis) -> Points:
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


def _bar(along: _Axis, up: _Axis, exponent: int, height: float) -> Tuple[float, float, float, float]:
    """Return x, y, width and height of the bar of an exponent."""
    left, right = along.place(exponent) or 0.0, along.place(exponent + 1) or 0.0
    tall = up.place(height) or 0.0
    edges = _SIZE * left, _SIZE * (1 - tall), 0.92 * _SIZE * (right - left), _SIZE * tall
    return edges[0], edges[1], edges[2], edges[3]


def _shades(along: _Axis, regions: Sequence[Tuple[str, float, float, str]]) -> List[Tuple[str, float, float, str]]:
    """Return (kind, left, width, name) of the regions that reach into an axis, in the plane's units."""
    found = []
    for kind, low, high, name in regions:
        left, right = max(low, along.low), min(high, along.high)
        if right > left:
            at = _SIZE * (along.place(left) or 0.0)
            found.append((kind, at, _SIZE * (along.place(right) or 0.0) - at, name))
    return found


def _whole(axis: _Axis) -> List[Tuple[float, float]]:
    """Return percents of an axis of exponents, each with the exponent that stands there."""
    return [(100 * (axis.place(each) or 0.0), each) for each in power_ticks(axis.low, axis.high, 7)]


def _described(caption: str, series: Sequence[Line], marks: Sequence[float], mark_name: str) -> str:
    """Return what a chart shows, for those who do not see it."""
    parts = []
    for line in series:
        known = [each for each in map(_drawable, line.values) if each is not None]
        if known:
            parts.append(f"{line.name} from {figure(min(known))} to {figure(max(known))}, last {figure(known[-1])}")
    if marks:
        parts.append(f"{mark_name}: {len(marks)}")
    return f"{caption}: " + ("; ".join(parts) or "no values")
