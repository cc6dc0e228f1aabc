"""Numbers as they are read: few digits, shares as percent, bytes with a unit; and the ticks of an axis."""

from __future__ import annotations

import math
from typing import Any, List, Optional

NONE = "–"
"""What stands for a value that is not known."""

_UNITS = ("bytes", "kB", "MB", "GB", "TB")


def to_float(value: Any) -> Optional[float]:
    """Return a number that JSON or CSV may hold as text ('inf', 'nan', ''); None of what is no number."""
    if value is None or value == "" or isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def finite(value: Optional[float]) -> Optional[float]:
    """Return a number, None if it is infinite or NaN."""
    return value if value is not None and math.isfinite(value) else None


def figure(value: Any) -> str:
    """Return a number with at most three digits that count, an integer whole.

    Example:
        >>> [figure(each) for each in (None, 65504, 0.000123, 1.5, float("inf"))]
        ['–', '65,504', '0.000123', '1.5', '∞']
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    number = to_float(value)
    if number is None:
        return NONE
    if math.isinf(number):
        return "∞" if number > 0 else "−∞"
    if number == int(number) and abs(number) < 1e6 if math.isfinite(number) else False:
        return f"{int(number):,}"
    return f"{number:.3g}".replace("nan", "NaN")


def share(value: Any) -> str:
    """Return a share of 1 as percent.

    Example:
        >>> [share(each) for each in (0, 0.00001, 0.034, 0.5, 1)]
        ['0 %', '< 0.01 %', '3.4 %', '50 %', '100 %']
    """
    number = to_float(value)
    if number is None or not math.isfinite(number):
        return figure(number)
    if 0 < number < 1e-4:
        return "< 0.01 %"
    return f"{100 * number:.3g} %"


def size(count: Any) -> str:
    """Return a number of bytes with a unit.

    Example:
        >>> size(102_400_000)
        '102 MB'
    """
    number = to_float(count)
    if number is None:
        return NONE
    power = min(max(int(math.log10(number)) // 3, 0), len(_UNITS) - 1) if number >= 1 else 0
    return f"{number / 1000**power:.3g} {_UNITS[power]}"


def ticks(low: float, high: float, most: int = 5) -> List[float]:
    """Return round numbers within a range, at most ``most`` + 1, a step of 1, 2 or 5 times a power of ten apart.

    Example:
        >>> ticks(0, 97)
        [0.0, 20.0, 40.0, 60.0, 80.0]
    """
    rough = (high - low) / most
    if not rough > 0:
        return [low]
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(each * power for each in (1, 2, 5, 10) if each * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def power_ticks(low: float, high: float, most: int = 6) -> List[float]:
    """Return whole exponents within a range of exponents, equally far apart."""
    first, last = math.ceil(low - 1e-9), math.floor(high + 1e-9)
    step = max(1, math.ceil((last - first) / most))
    return [float(each) for each in range(first - first % -step if step > 1 else first, last + 1, step)]
