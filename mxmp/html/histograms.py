"""Histograms of magnitudes, by powers of two, against the range of a dtype."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Sequence, Tuple

from .axes import Axis
from .numbers import figure, share
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

_SIZE = 1000  # of the plane, in its own units
_BESIDE_ZERO = 8  # percent of the axis that the label of the zeros takes
_TALLEST = 3  # times the tallest other bar: that of the zeros is cut off there

_Bar = Tuple[float, float, float, float]
_Shade = Tuple[str, float, float, str]


def power(exponent: int, base: int = 2) -> str:
    """Return a power as it is written.

    Example:
        >>> power(-14)
        '2⁻¹⁴'
    """
    return f"{base}{str(exponent).translate(str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'))}"


def histogram(caption: str, counts: Mapping[int, float], dtype: str = "float16", zeros: float = 0) -> Markup:
    """Return a histogram of magnitudes against what a dtype can hold.

    Args:
        caption: What is shown.
        counts: Number of values by exponent of two: ``counts[e]`` are those from ``2**e`` up to ``2**(e + 1)``.
        dtype: The dtype whose ranges are shaded: what becomes 0, what is subnormal, what overflows.
        zeros: Number of values that are 0: a bar at the left end, cut off where it would dwarf all others; the legend
            has their share. All shares are of the sum of both.
    """
    zero, subnormal, overflow = RANGES[dtype]
    total = sum(counts.values()) + zeros or 1.0
    present = sorted(each for each in counts if counts[each]) or [subnormal]
    whole = dtype == "float16"  # the others' ranges are far wider than what is ever seen
    low = min(present + ([zero - 1] if whole else [])) - (2 if zeros else 1)
    high = max(present + ([overflow] if whole else [])) + 2
    along, top = Axis(low, high), max(counts.values(), default=0.0) / total
    up = Axis(0.0, 1.05 * (max(top, min(zeros / total, _TALLEST * top)) or 1.0))
    titles = {each: f"{power(each)} to {power(each + 1)}" for each in present}
    named = [(low, zeros, "0")] + [(each, counts.get(each, 0.0), titles[each]) for each in present]
    bars = [
        (*_bar(along, up, at, min(count / total, up.high)), f"{title}: {figure(count)}, {share(count / total)}")
        for at, count, title in named
        if count
    ]
    shades = _shades(along, dtype, at_zero=1 if zeros else 0)
    most = f"most values are from {power(max(present, key=lambda e: counts.get(e, 0)))} on"
    return render(
        "chart",
        caption=caption,
        label=f"{caption}: {most}" + (f"; {share(zeros / total)} are 0" if zeros else ""),
        legend=[(kind, _region(kind, name, dtype, zeros / total)) for kind, _, _, name in shades],
        x_labels=_labels(along, zeros),
        y_labels=up.labels(as_share=True),
        x_title="magnitude",
        shades=shades,
        bars=bars,
        marks=[],
        mark_top=0,
        lines=[],
        beyond=[],
        said="",
    )


def spark(counts: Mapping[Any, float], span: Sequence[int], dtype: str = "float16") -> Markup:
    """Return a histogram of the height of a line of text, over a span of exponents (smallest, largest)."""
    dtype = dtype if dtype in RANGES else "float16"
    _, subnormal, overflow = RANGES[dtype]
    known = {int(key): float(count) for key, count in counts.items() if count}
    low, high = min(span[0], subnormal) - 1, max(span[1] + 1, overflow + 1 if dtype == "float16" else span[1] + 1)
    along, most = Axis(low, high), max(known.values(), default=1.0)
    peak = max(known, key=lambda each: known[each]) if known else 0
    span_named = f"{power(min(known))} to {power(max(known) + 1)}, most from {power(peak)}" if known else "no values"
    return render(
        "spark",
        bars=[_bar(along, Axis(0.0, 1.0), each, max(math.sqrt(count / most), 0.06)) for each, count in known.items()],
        shades=_shades(along, dtype),
        label=span_named,
    )


def _bar(along: Axis, up: Axis, exponent: int, height: float) -> _Bar:
    """Return x, y, width and height of the bar of an exponent."""
    left, right = along.place(exponent) or 0.0, along.place(exponent + 1) or 0.0
    tall = up.place(height) or 0.0
    edges = _SIZE * left, _SIZE * (1 - tall), 0.92 * _SIZE * (right - left), _SIZE * tall
    return edges[0], edges[1], edges[2], edges[3]


def _shades(along: Axis, dtype: str, at_zero: int = 0) -> List[_Shade]:
    """Return (kind, left, width, name) of the regions of a dtype that reach into an axis, in the plane's units.

    The first ``at_zero`` exponents of the axis stand for 0.
    """
    zero, subnormal, overflow = RANGES[dtype]
    regions = [
        ("zero", along.low, max(zero, along.low + at_zero), "becomes 0"),
        ("subnormal", max(zero, along.low + at_zero), subnormal, "subnormal"),
        ("overflow", overflow, along.high, "overflows"),
    ]
    found = []
    for kind, low, high, name in regions:
        left, right = max(low, along.low), min(high, along.high)
        if right > left:
            at = _SIZE * (along.place(left) or 0.0)
            found.append((kind, at, _SIZE * (along.place(right) or 0.0) - at, name))
    return found


def _labels(along: Axis, zeros: float) -> List[Tuple[float, str]]:
    """Return what stands below the axis: exponents, and 0 below the bar of the zeros."""
    if not zeros:
        return along.exponents()
    return [(50 / (along.high - along.low), "0"), *(each for each in along.exponents() if each[0] > _BESIDE_ZERO)]


def _region(kind: str, name: str, dtype: str, zeros: float) -> str:
    """Return what the legend says of a region, and the share of zeros."""
    return f"{name} in {dtype}" + (f" ({share(zeros)} are 0)" if kind == "zero" and zeros else "")
