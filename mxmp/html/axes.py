"""The axes of a chart: where a value is along a side of the plane, and what stands there."""

from __future__ import annotations

import math
from typing import List, NamedTuple, Optional, Sequence, Tuple

from .numbers import figure, finite, power_ticks, share, ticks

_LARGEST = 1e300  # of what is drawn


class Axis(NamedTuple):
    """A range of values, or of their logarithms to a base, that a side of the plane stands for."""

    low: float
    high: float
    base: Optional[int] = None

    def place(self, value: Optional[float]) -> Optional[float]:
        """Return where a value is, from 0 to 1; None where it has no place."""
        value = drawable(value)
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

    def exponents(self, base: int = 2) -> List[Tuple[float, str]]:
        """Return the same of an axis whose values are exponents."""
        marks = power_ticks(self.low, self.high, 7)
        return [(100 * (self.place(each) or 0.0), f"{base}^{each:.0f}") for each in marks]


def drawable(value: Optional[float]) -> Optional[float]:
    """Return a number that has a place on an axis, None for all others; differences of larger ones overflow."""
    value = finite(value)
    return value if value is not None and abs(value) < _LARGEST else None


def linear_axis(values: Sequence[Optional[float]]) -> Axis:
    """Return an axis that reaches from the smallest value to the largest."""
    known = [each for each in map(drawable, values) if each is not None] or [0.0]
    low, high = min(known), max(known)
    room = max(0.5, 1e-9 * abs(low))  # beside large numbers 0.5 is nothing
    return Axis(low, high) if high > low else Axis(low - room, low + room)


def value_axis(values: Sequence[Optional[float]], scale: str) -> Axis:
    """Return an axis for values, with some room; for ``scale`` see `mxmp.html.lines`."""
    known = [each for each in map(drawable, values) if each is not None]
    positive = [each for each in known if each > 0]
    if scale == "auto":
        scale = "log10" if positive and len(positive) == len(known) and max(known) > 1e3 * min(known) else "linear"
    if scale.startswith("log"):
        base = int(scale[3:])
        logs = [math.log(each, base) for each in positive or [1.0]]
        low, high = math.floor(min(logs) - 0.01), math.ceil(max(logs) + 0.01)
        return Axis(low, high if high > low else low + 1, base)
    if scale == "share":
        return Axis(0.0, 1.05 * max([*known, 1e-4]))
    axis = linear_axis(known)
    room = 0.05 * (axis.high - axis.low)
    return Axis(0.0 if axis.low == 0 else axis.low - room, axis.high + room)
