"""A histogram of magnitudes, and the share of them that low precision turns to 0."""

from __future__ import annotations

import math
from typing import Any, Dict

import numpy as np

from .. import dtypes
from ..errors import LossScaleError


class Magnitudes:
    """A histogram of log2 of absolute values.

    Attributes:
        counts: By exponent e: how many values are above 2**(e - 1) and at most 2**e.
        zeros: How many are 0.
        nonfinite: How many are infinite or NaN.
        largest: The largest finite absolute value, 0 if there is none.
    """

    def __init__(self) -> None:
        self.counts: Dict[int, int] = {}
        self.zeros = self.nonfinite = 0
        self.largest = 0.0

    @property
    def total(self) -> int:
        """How many values there are, but for those that are 0, infinite or NaN."""
        return sum(self.counts.values())

    def add(self, values: np.ndarray[Any, Any]) -> None:
        """Add the values of an array of any shape and floating point dtype."""
        values = np.abs(values.astype(np.float64))
        finite = values[np.isfinite(values)]
        nonzero = finite[finite > 0]
        self.nonfinite += values.size - finite.size
        self.zeros += finite.size - nonzero.size
        self.largest = max(self.largest, float(finite.max(initial=0.0)))
        mantissas, exponents = np.frexp(nonzero)  # mantissas from 0.5, excluding 1
        for exponent, count in zip(*np.unique(exponents - (mantissas == 0.5), return_counts=True)):
            self.counts[int(exponent)] = self.counts.get(int(exponent), 0) + int(count)

    def merge(self, other: Magnitudes) -> None:
        """Add the values that another one counted."""
        for exponent, count in other.counts.items():
            self.counts[exponent] = self.counts.get(exponent, 0) + count
        self.zeros += other.zeros
        self.nonfinite += other.nonfinite
        self.largest = max(self.largest, other.largest)

    def share_lost(self, scale: float = 1.0, dtype: str = "float16") -> float:
        """Return the share of `total` that becomes 0 in low precision, from 0 to 1.

        Args:
            scale: What the values are multiplied by before; a power of two, for the counts tell no more.
            dtype: 'float16' or 'bfloat16'.

        Raises:
            LossScaleError: If the scale is no power of two.
        """
        shift = _log2(scale)
        least = _log2(dtypes.limits(dtypes.canonical(dtype)).smallest_subnormal)
        # Half of the least number, and all below, is rounded to 0: ties go to even.
        lost = sum(count for exponent, count in self.counts.items() if exponent + shift <= least - 1)
        return lost / self.total if self.total else 0.0

    def largest_scale(self, dtype: str = "float16") -> float:
        """Return the largest power of two that leaves all values finite in low precision; 1 if there is no value."""
        if not self.largest:
            return 1.0
        return 2.0 ** math.floor(math.log2(dtypes.limits(dtypes.canonical(dtype)).max / self.largest))


def _log2(scale: float) -> int:
    mantissa, exponent = math.frexp(scale) if scale > 0 and math.isfinite(scale) else (0.0, 0)
    if mantissa != 0.5:
        raise LossScaleError(f"scale is {scale!r}; expected a power of two.")
    return exponent - 1
