"""Charts as inline SVG: lines over steps or layers, and histograms of magnitudes against the range of a dtype.

A chart's plane is an SVG of 1000 by 1000 units that stretches with the page. Its labels are HTML outside of the SVG, so
that they keep their size on a phone and in print. This module turns blocks into the numbers and texts of the template.
"""

from __future__ import annotations

import math
from itertools import groupby
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from .blocks import Histogram, Line, Lines, figure, power, share

# Exponents of two by dtype: magnitudes up to 2**first round to 0, those below 2**second are subnormal, those from
# 2**third on overflow (IEEE 754, binary16; bfloat16 has float32's exponents and 7 bits of fraction).
RANGES: Dict[str, Tuple[int, int, int]] = {
    "float16": (-25, -14, 16),
    "bfloat16": (-134, -126, 128),
}

_SIZE = 1000.0  # The sides of the plane, in its own units.
_ROOM = 0.05  # The share of the plane's height that is free above and below lines.
_LARGEST = 1e300  # Larger values are not drawn, because their differences overflow.
_MOST = 400  # The number of places along a line that the eye can tell apart.
_BESIDE_ZERO = 8  # The percent of a histogram's axis that the label of its zeros needs.
_TALLEST = 3  # The bar of the zeros is cut off at this many times the tallest other bar.

Label = Tuple[float, str]  # percent of a side, and the text there

# The values of the template, by name: caption, label (the same for those who do not see it), legend (class of the key
# and text), x_labels, y_labels, x_title; in the plane's units shades (class, x, width, text), bars (x, y, width, height
# and text), lines (number, whether dots, path), marks (upright lines); beyond (number of a line, percent,
# edge) for values that are not finite; said, the text in the middle of a chart that cannot be drawn.
Chart = Dict[str, Any]
_NOTHING: Chart = dict(shades=(), bars=(), lines=(), marks=(), beyond=(), said="")


class Axis(NamedTuple):
    """An axis of a chart: its first and last value, or their logarithms if it has a base."""

    low: float
    high: float
    base: int = 0

    def place(self, value: Optional[float]) -> Optional[float]:
        """Return the place of a value on the axis, from 0 to 1; None if it has none."""
        if value is None or not abs(value) < _LARGEST or (self.base and value <= 0):  # NaN is not less than anything.
            return None
        at = math.log(value, self.base) if self.base else value
        return (at - self.low) / (self.high - self.low)

    def labels(self, as_share: bool = False, least: float = 0.0) -> List[Label]:
        """Return the labels of the axis, at least ``least`` from each other; powers have whole exponents."""
        places = _ticks(self.low, self.high, 6 if self.base else 5, max(least, float(self.base > 0)))
        texts = [f"{self.base}^{at:.0f}" if self.base else share(at) if as_share else figure(at) for at in places]
        if len(set(texts)) < len(texts):  # Neighbours differ only in later digits.
            texts = [f"{at:,.10g}" for at in places]
        return [(100 * (at - self.low) / (self.high - self.low), text) for at, text in zip(places, texts)]


def _ticks(low: float, high: float, most: int, least: float = 0.0) -> List[float]:
    """Return round numbers within a range, about ``most`` of them: multiples of 1, 2 or 5 times a power of ten."""
    rough = max((high - low) / most, least)
    if rough < 1e-300:  # Powers of ten are not exact there, or 0.
        return [low]
    scale = 10.0 ** math.floor(math.log10(rough))
    step = next(each * scale for each in (1, 2, 5, 10) if each * scale >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [at for at in (round(i * step, 12) for i in range(first, last + 1)) if low <= at <= high]


def _drawables(values: Sequence[Optional[float]]) -> List[float]:
    """Return the numbers that have a place on an axis: finite numbers, except for the very largest."""
    return [value for value in values if value is not None and abs(value) < _LARGEST]


def _axis(values: Sequence[Optional[float]], scale: str = "linear", room: float = 0.0, whole: bool = False) -> Axis:
    """Return an axis from the smallest value to the largest. A single value gets room around it.

    Args:
        values: The values on the axis.
        scale: See `Lines`. An axis of logarithms begins and ends at powers of its base. An axis of shares begins at 0.
        room: The share of the length that is free at an end that is not 0.
        whole: Whether the values are whole numbers, such as steps. Then a single value gets half a unit on each side.
    """
    drawn = _drawables(values)
    positive = [value for value in drawn if value > 0]
    if scale == "auto" and positive and len(positive) == len(drawn) and max(drawn) > 1e3 * min(drawn):
        scale = "log10"
    if scale.startswith("log"):
        base = int(scale[3:])
        logs = [math.log(value, base) for value in positive or [1.0]]
        return Axis(math.floor(min(logs) - 0.01), math.ceil(max(logs) + 0.01), base)
    drawn = [0.0, 1e-4, *drawn] if scale == "share" else drawn or [0.0]
    alone = min(drawn) == max(drawn)
    around = 0.0 if not alone else 0.5 if whole else 0.1 * abs(drawn[0]) or 0.5
    low, high = min(drawn) - around, max(drawn) + around
    room *= high - low
    return Axis(low - room if low else 0.0, high + room)


# ---------------------------------------------------------------------- lines


def draw_lines(block: Lines) -> Chart:
    """Return the chart of some lines."""
    x, lines = block.x, block.lines
    values = [value for line in lines for value in line.values if value is not None]
    along, up = _axis([*x, *block.marks], whole=True), _axis(values, block.scale, _ROOM)
    beyond = [(i + 1, *place) for i, line in enumerate(lines) for place in _beyond(x, line, along)]
    others = ("mark", block.mark_name, len(block.marks)), ("beyond", "not finite", sum(map(_is_beyond, values)))
    counts = [(kind, f"{name} ({count:,})") for kind, name, count in others if count]
    said = "" if _drawables(values) or not values else "Nothing to draw: no value is finite"
    described = [*filter(None, map(_described, lines)), *(text for _, text in counts)]
    return dict(
        _NOTHING,
        caption=block.caption,
        label=f"{block.caption}: {'; '.join(described) or 'no values'}",
        legend=[(f"s{i + 1}", line.name) for i, line in enumerate(lines) if counts or len(lines) > 1] + counts,
        x_labels=along.labels(least=1.0),
        y_labels=[] if said else up.labels(block.scale == "share"),
        x_title=block.x_title,
        lines=[
            (i + 1, *path) for i, line in enumerate(lines) for path in _paths(_points(x, line, along, up), line.dots)
        ],
        marks=sorted({round(_SIZE * (along.place(at) or 0.0)) for at in block.marks}),
        beyond=beyond,
        said=said,
    )


def _is_beyond(value: Optional[float]) -> bool:
    """Return whether a value is drawn at the edge, because it is not finite."""
    return value is not None and not math.isfinite(value)


def _described(line: Line) -> str:
    drawn = _drawables(line.values)
    return f"{line.name} from {figure(min(drawn))} to {figure(max(drawn))}, last {figure(drawn[-1])}" if drawn else ""


def _beyond(x: Sequence[float], line: Line, along: Axis) -> List[Tuple[float, str]]:
    """Return (percent, edge) for the values of a line that are not finite, each visible place once."""
    values = [(at, value) for at, value in zip(x, line.values) if _is_beyond(value)]
    places = dict.fromkeys((round(_MOST * (along.place(at) or 0.0)), value == -math.inf) for at, value in values)
    return [(100 * place / _MOST, "lower" if is_low else "upper") for place, is_low in places]


def _points(x: Sequence[float], line: Line, along: Axis, up: Axis) -> List[Tuple[float, Optional[float]]]:
    """Return a line's points in the plane, None for gaps. If there are many, only the extremes are left."""
    points = [(along.place(at) or 0.0, up.place(value)) for at, value in zip(x, line.values) if value is not None]
    if len(points) > 4 * _MOST and not line.dots:
        length = len(points) // _MOST
        points = [p for i in range(0, len(points), length) for p in _extremes(points[i : i + length])]
    return [(_SIZE * at, None if y is None else _SIZE * (1 - y)) for at, y in points]


def _extremes(points: Sequence[Tuple[float, Optional[float]]]) -> Sequence[Tuple[float, Optional[float]]]:
    """Return the first, the lowest, the highest and the last point, in their order."""
    drawn = [point for point in points if point[1] is not None]
    if not drawn:
        return points[:1]
    return sorted({drawn[0], drawn[-1], *(pick(drawn, key=lambda p: p[1] or 0.0) for pick in (min, max))})


def _paths(points: Sequence[Tuple[float, Optional[float]]], dots: bool) -> List[Tuple[bool, str]]:
    """Return the paths of a line with gaps: (False, the path of its strokes), (True, the path of its dots).

    A point between two gaps is a dot.
    """
    strokes = [list(run) for is_gap, run in groupby(points, key=lambda point: point[1] is None) if not is_gap]
    if dots:
        strokes = [[point] for stroke in strokes for point in stroke]
    paths = {False: "", True: ""}
    for stroke in strokes:
        is_dot = len(stroke) == 1
        paths[is_dot] += "M" + "L".join(f"{at:.1f} {y:.1f}" for at, y in stroke) + "h0" * is_dot
    return [(is_dot, path) for is_dot, path in paths.items() if path]


# ---------------------------------------------------------------------- histograms


def draw_histogram(block: Histogram) -> Chart:
    """Return the chart of a histogram, with the ranges of its dtype as shades."""
    dtype, zeros = block.dtype, block.zeros
    zero, subnormal, overflow = RANGES[dtype]
    counts = {exponent: count for exponent, count in block.counts.items() if count > 0}
    total = sum(counts.values()) + zeros or 1.0
    # All of float16's range is shown; bfloat16's is far wider than any values.
    ends = [*counts, zero - 1, overflow] if dtype == "float16" else list(counts) or [subnormal]
    low, high = min(ends) - (2 if zeros else 1), max(ends) + 2
    along, top = Axis(low, high, 2), max(counts.values(), default=0.0) / total
    up = Axis(0.0, 1.05 * (max(top, min(zeros / total, _TALLEST * top)) or 1.0))
    named = [(low, zeros, "0")] + [(e, counts[e], f"{power(e)} to {power(e + 1)}") for e in sorted(counts)]
    bars = [
        (*_bar(along, at, min(count / total / up.high, 1.0)), f"{name}: {figure(count)}, {share(count / total)}")
        for at, count, name in named
        if count
    ]
    shades = _shades(along, dtype, low + 1 if zeros else low)
    zeros_share = f" ({share(zeros / total)} are 0)" if zeros else ""
    most = power(max(counts, key=lambda e: counts[e])) if counts else power(subnormal)
    exponents = along.labels()
    if zeros:
        exponents = [(50 / (high - low), "0"), *(each for each in exponents if each[0] > _BESIDE_ZERO)]
    return dict(
        _NOTHING,
        caption=block.caption,
        label=f"{block.caption}: most values are from {most} on{zeros_share}",
        legend=[(kind, f"{name} in {dtype}{zeros_share if kind == 'zero' else ''}") for kind, _, _, name in shades],
        x_labels=exponents,
        y_labels=up.labels(as_share=True),
        x_title="magnitude",
        shades=shades,
        bars=bars,
    )


def draw_spark(counts: Mapping[Any, float], span: Tuple[int, int], dtype: str = "float16") -> Chart:
    """Return a histogram as high as a line of text, over a span of exponents (smallest, largest)."""
    _, subnormal, overflow = RANGES[dtype]
    drawn = {int(key): float(count) for key, count in counts.items() if count > 0}
    along = Axis(min(span[0], subnormal) - 1, max(span[1], overflow if dtype == "float16" else span[1]) + 1)
    most = max(drawn, key=lambda each: drawn[each]) if drawn else 0
    label = f"{power(min(drawn))} to {power(max(drawn) + 1)}, most from {power(most)}" if drawn else "no values"
    bars = [(*_bar(along, e, max(math.sqrt(count / drawn[most]), 0.06)), "") for e, count in drawn.items()]
    return {"label": label, "y_labels": (), "shades": _shades(along, dtype, along.low), "bars": bars}


def _bar(along: Axis, exponent: int, height: float) -> Tuple[float, float, float, float]:
    """Return (x, y, width, height) of the bar of an exponent; ``height`` is a share of the plane."""
    width = _SIZE / (along.high - along.low)
    return width * (exponent - along.low), _SIZE * (1 - height), 0.92 * width, _SIZE * height


def _shades(along: Axis, dtype: str, zeros_end: float) -> List[Tuple[str, float, float, str]]:
    """Return the regions of a dtype on an axis, whose part up to ``zeros_end`` is for the value 0."""
    zero, subnormal, overflow = RANGES[dtype]
    smallest, width = max(zero, zeros_end), _SIZE / (along.high - along.low)
    regions = [
        ("zero", along.low, smallest, "becomes 0"),
        ("subnormal", smallest, subnormal, "subnormal"),
        ("overflow", max(overflow, along.low), along.high, "overflows"),
    ]
    ends = ((kind, a, min(b, along.high), name) for kind, a, b, name in regions)
    return [(kind, width * (a - along.low), width * (b - a), name) for kind, a, b, name in ends if b > a]
