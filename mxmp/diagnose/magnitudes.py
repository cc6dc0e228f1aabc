"""A histogram of magnitudes, as a loss scale is chosen by."""

from __future__ import annotations

import math
from typing import Any, Dict, Iterable

import numpy as np

from .. import dtypes
from ..errors import LossScaleError

# float32 as an integer: a sign, eight bits of exponent, 23 of mantissa.
_MAGNITUDE, _MANTISSA_BITS, _INFINITE, _LEAST_NORMAL = 0x7FFFFFFF, 23, 0x7F800000, 0x00800000
_FIELDS = 257  # zero, and the 256 values of the exponent's field, the last one for NaN
_BIAS = 127  # what is counted under field f, zeros before it, is above 2**(f - 1 - 127) and at most 2**(f - 127)


class Magnitudes:
    """A histogram of log2 of absolute values.

    Attributes:
        counts: By exponent e: how many values are above 2**(e - 1) and at most 2**e. A `mxmp.diagnose.Ledger`
            counts otherwise: from 2**e to below 2**(e + 1).
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
        if values.dtype != np.float32:
            self._add_any(values.astype(np.float64))
            return
        bits = np.ascontiguousarray(values).reshape(-1).view(np.int32) & _MAGNITUDE  # in the order of the magnitudes
        # One less, so that a power of two falls to those below it; 0 becomes -1, and -1 when it is shifted.
        fields = np.bincount(((bits - 1) >> _MANTISSA_BITS) + 1, minlength=_FIELDS)
        infinite = np.count_nonzero(bits == _INFINITE)
        self.zeros += int(fields[0])
        self.nonfinite += int(infinite + fields[_FIELDS - 1])
        fields[_FIELDS - 2] -= infinite
        largest = bits[bits < _INFINITE].max(initial=0) if bits.size else 0
        self.largest = max(self.largest, float(np.int32(largest).view(np.float32)))
        for field in np.flatnonzero(fields[2:-1]) + 2:
            self._count(int(field) - _BIAS, int(fields[field]))
        if fields[1]:  # subnormal, or the least normal number: their exponents are in their mantissas
            below = bits[(bits > 0) & (bits <= _LEAST_NORMAL)]
            self._add_exponents(below.view(np.float32).astype(np.float64))

    def _add_any(self, values: np.ndarray[Any, Any]) -> None:
        values = np.abs(values)
        finite = values[np.isfinite(values)]
        nonzero = finite[finite > 0]
        self.nonfinite += values.size - finite.size
        self.zeros += finite.size - nonzero.size
        self.largest = max(self.largest, float(finite.max(initial=0.0)))
        self._add_exponents(nonzero)

    def _add_exponents(self, values: np.ndarray[Any, Any]) -> None:
        mantissas, exponents = np.frexp(values)  # mantissas from 0.5, excluding 1
        for exponent, count in zip(*np.unique(exponents - (mantissas == 0.5), return_counts=True)):
            self._count(int(exponent), int(count))

    def _count(self, exponent: int, count: int) -> None:
        self.counts[exponent] = self.counts.get(exponent, 0) + count

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


class GradientCounts:
    """Counts gradients by the names of what they are gradients of."""

    def __init__(self) -> None:
        self._counted: Dict[str, Magnitudes] = {}

    def add(self, name: str, gradient: Any) -> None:
        """Count the values of an NDArray, which is waited for."""
        self._counted.setdefault(name, Magnitudes()).add(gradient.asnumpy())

    def found(self, names: Iterable[str]) -> Dict[str, Magnitudes]:
        """Return what was counted, in the order of ``names``, but for gradients that are 0 everywhere."""
        pairs = ((name, self._counted[name]) for name in dict.fromkeys(names) if name in self._counted)
        return {name: each for name, each in pairs if each.total or each.nonfinite}


def _log2(scale: float) -> int:
    mantissa, exponent = math.frexp(scale) if scale > 0 and math.isfinite(scale) else (0.0, 0)
    if mantissa != 0.5:
        raise LossScaleError(f"scale is {scale!r}; expected a power of two.")
    return exponent - 1
