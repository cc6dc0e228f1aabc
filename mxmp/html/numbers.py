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
    except OverflowError:  # of an integer beyond all floats
        return math.inf if value > 0 else -math.inf
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
    if math.isnan(number):
        return "NaN"
    if 1000 <= abs(number) < 1e6 or (number == int(number) and abs(number) < 1e6):
        return f"{number:,.0f}"
    return f"{number:.3g}"


def share(value: Any) -> str:
    """Return a share of 1 as percent.

    Example:
        >>> [share(each) for each in (0, 0.00001234, 0.034, 0.5, 1)]
        ['0 %', '0.00123 %', '3.4 %', '50 %', '100 %']
    """
    number = to_float(value)
    if number is None or not math.isfinite(number):
        return figure(number)
    return f"{figure(100 * number)} %"


def size(count: Any) -> str:
    """Return a number of bytes with a unit.

    Example:
        >>> size(102_400_000)
        '102 MB'
    """
    number = to_float(count)
    if number is None or not math.isfinite(number):
        return figure(number)
    power = min(max(int(math.log10(number)) // 3, 0), len(_UNITS) - 1) if number >= 1 else 0
    return f"{number / 1000**power:.3g} {_UNITS[power]}"


def ticks(low: float, high: float, most: int = 5) -> List[float]:
    """Return round numbers within a range, at most ``most`` + 1, a step of 1, 2 or 5 times a power of ten apart.

    Example:
        >>> ticks(0, 97)
        [0.0, 20.0, 40.0, 60.0, 80.0]
    """
    rough = (high - low) / most
    if not rough > 1e-300:  # the powers below are not exact, or 0
        return [low]
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(each * power for each in (1, 2, 5, 10) if each * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def power_ticks(low: float, high: float, most: int = 6) -> List[float]:
    """Return exponents within a range, at most ``most`` + 1, each a multiple of the same power of two.

    Example:
        >>> power_ticks(-27, 18)
        [-24.0, -16.0, -8.0, 0.0, 8.0, 16.0]
    """
    step = 1
    while (high - low) / step > most:
        step *= 2
    return [float(step * each) for each in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]
