"""The records of `mxmp.diagnose.measure_ranges` and `measure_gradients`: magnitudes of values and of gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Dict, Iterator, List, Mapping, Optional, Tuple, Type

import numpy as np

from ..display import (
    BAR,
    NUMBER,
    SHARE,
    SPARK,
    Column,
    Figures,
    Histogram,
    Record,
    Section,
    Table,
    figure,
    power,
    share,
)
from ..dtypes import FLOAT16, canonical, limits
from ..errors import ConvertError, LossScaleError, MxmpError

_ROWS = 20  # The rows of a table on a terminal.

HEADROOM = 2.0
"""How many times larger than measured a value may come to be; a calibration does not see all data."""


@dataclass(repr=False)
class Magnitudes:
    """A histogram of log2 of absolute values.

    Attributes:
        counts: By exponent e: how many values are above 2**(e - 1) and at most 2**e.
        zeros: How many are 0.
        nonfinite: How many are infinite or NaN.
        largest: The largest finite absolute value, 0 if there is none.
    """

    counts: Dict[int, int] = field(default_factory=dict)
    zeros: int = 0
    nonfinite: int = 0
    largest: float = 0.0

    def __repr__(self) -> str:
        ends = f" up to 2**{max(self.counts)}, at least 2**{min(self.counts) - 1}" if self.counts else ""
        return f"Magnitudes({self.total:,} values{ends}; {self.zeros:,} are 0, {self.nonfinite:,} inf or NaN)"

    @property
    def total(self) -> int:
        """How many values there are, without those that are 0, infinite or NaN."""
        return sum(self.counts.values())

    @property
    def shares(self) -> Dict[int, float]:
        """The share of `total` that is above 2**(e - 1) and at most 2**e, by exponent e in growing order."""
        return {exponent: self.counts[exponent] / self.total for exponent in sorted(self.counts)}

    def add(self, values: np.ndarray[Any, Any]) -> None:
        """Add the values of an array of any shape and floating point dtype."""
        values = np.abs(values.astype(np.float64).reshape(-1))
        finite = values[np.isfinite(values)]
        nonzero = finite[finite > 0]
        self.nonfinite += values.size - finite.size
        self.zeros += finite.size - nonzero.size
        self.largest = max(self.largest, float(finite.max(initial=0.0)))
        mantissas, exponents = np.frexp(nonzero)  # Mantissas are at least 0.5 and less than 1.
        exponents = exponents - (mantissas == 0.5)  # A power of two counts with the values below it.
        least = exponents.min(initial=0)
        counts = np.bincount(exponents - least)
        self._merge({int(i + least): int(counts[i]) for i in np.flatnonzero(counts)})

    def _merge(self, counts: Mapping[int, int]) -> None:
        for exponent, count in counts.items():
            self.counts[exponent] = self.counts.get(exponent, 0) + count

    def merge(self, other: Magnitudes) -> None:
        """Add the counts of another histogram."""
        self._merge(other.counts)
        self.zeros += other.zeros
        self.nonfinite += other.nonfinite
        self.largest = max(self.largest, other.largest)

    def share_lost(self, scale: float = 1.0, dtype: str = FLOAT16) -> float:
        """Return the share of `total` that becomes 0 in low precision, from 0 to 1.

        Args:
            scale: A factor on the values; a power of two, because the counts tell no more.
            dtype: 'float16' or 'bfloat16'.

        Raises:
            LossScaleError: If the scale is no power of two.
        """
        shift = _log2(scale)
        least = _log2(limits(canonical(dtype)).smallest_subnormal)
        # Half of the smallest number, and all values below, are rounded to 0, because ties go to even.
        lost = sum(count for exponent, count in self.counts.items() if exponent + shift <= least - 1)
        return lost / self.total if self.total else 0.0

    def largest_scale(self, dtype: str = FLOAT16) -> float:
        """Return the largest power of two that leaves all values finite in low precision; 1 if there is no value."""
        if not self.largest:
            return 1.0
        return 2.0 ** math.floor(math.log2(limits(canonical(dtype)).max / self.largest))


def _log2(scale: float) -> int:
    mantissa, exponent = math.frexp(scale) if scale > 0 and math.isfinite(scale) else (0.0, 0)
    if mantissa != 0.5:
        raise LossScaleError(f"scale is {scale!r}; expected a power of two.")
    return exponent - 1


@dataclass(frozen=True)
class Gradients(Record, Mapping[str, Magnitudes]):
    """The gradients of a network's activations by magnitude: a mapping from the names of outputs.

    ``print`` shows which share lies in which power of two and which becomes 0 in float16, and the layers that lose
    most. A page has the histogram, against float16's range.

    Attributes:
        layers: The magnitudes of each gradient, by the name of the output, in the network's order.

    References:
        Micikevicius et al., "Mixed Precision Training", 2017, https://arxiv.org/abs/1710.03740, figure 3
    """

    _kind: ClassVar[str] = "gradients"
    _title: ClassVar[str] = "Gradients"
    _error: ClassVar[Type[MxmpError]] = ConvertError

    layers: Dict[str, Magnitudes]

    def __getitem__(self, name: str) -> Magnitudes:
        return self.layers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    @property
    def total(self) -> Magnitudes:
        """The magnitudes of all gradients together."""
        total = Magnitudes()
        for each in self.layers.values():
            total.merge(each)
        return total

    def _sections(self) -> List[Section]:
        total = self.total
        count = total.total + total.zeros + total.nonfinite
        figures = [
            ("gradients", figure(count), f"{figure(total.zeros)} are 0 in float32"),
            ("become 0 in float16", share(total.share_lost()), "of the others, without a loss scale"),
            ("largest loss scale", power(_log2(total.largest_scale())), "that keeps all finite in float16"),
        ]
        # A histogram's bar ``e`` begins at 2**e; a count of magnitudes ends there.
        bars = {exponent - 1: count for exponent, count in total.counts.items()}
        drawn = Histogram("All gradients, against float16's range", bars, FLOAT16, total.zeros)
        rows = [(f"{power(e - 1)} to {power(e)}", 100 * part, _in_float16(e)) for e, part in total.shares.items()]
        columns = Column("magnitude"), Column("percent", BAR, "Of the gradients that are not 0."), Column("in float16")
        by_power = Table("All gradients by powers of two", columns, rows, "powers of two")
        summary = Section("Gradients", [Figures(figures)])
        return [summary, Section("Gradients by layer", [drawn, by_power, self._table])]

    @property
    def _table(self) -> Table:
        columns = (
            Column("gradient of"),
            Column("values", NUMBER),
            Column("zero", SHARE, "Share that is 0 in float32: behind a ReLU that is off, say."),
            Column("0 in float16 unscaled", SHARE, "Share of the others that becomes 0 in float16."),
            Column("largest", NUMBER),
            Column("largest scale", NUMBER, "The largest loss scale that leaves all finite in float16."),
            Column("inf or NaN", NUMBER),
            Column("magnitudes", SPARK, "By powers of two; shaded where float16 has none."),
        )
        rows = []
        for name, each in sorted(self.layers.items(), key=lambda pair: -pair[1].share_lost()):
            values, bars = each.total + each.zeros, {exponent - 1: count for exponent, count in each.counts.items()}
            zero = each.zeros / values if values else None
            fits = each.largest, each.largest_scale(), each.nonfinite or None
            rows.append((name, values + each.nonfinite, zero, each.share_lost(), *fits, bars))
        return Table("Gradients by layer", columns, rows, "gradients", _ROWS)


def _in_float16(exponent: int) -> str:
    """Return the fate in float16 of values above 2**(exponent - 1) and up to 2**exponent."""
    range_of = limits(FLOAT16)
    if exponent < _log2(range_of.smallest_subnormal):
        return "0"
    if exponent <= _log2(range_of.tiny):
        return "subnormal"
    return "inf" if 2.0 ** (exponent - 1) > range_of.max else ""


# ---------------------------------------------------------------------- ranges of values


@dataclass(frozen=True)
class Ranges(Record, Mapping[str, float]):
    """The largest magnitudes in a network that ran in float32: a mapping from the names of outputs and inputs.

    ``print`` shows them as shares of float16's range. A conversion takes the record: ``convert(net, ranges=...)``.

    Attributes:
        ranges: The largest magnitudes by name, the largest first.
        data: The file of the inputs, or words for them; '' if neither is known. Only `mxmp ranges` sets this field and
            those that follow.
        keep_float32: Patterns of the operators that a conversion keeps in float32 because of the ranges.
        gradients: The gradients of the same network; None if they were not measured.
    """

    _kind: ClassVar[str] = "ranges"
    _title: ClassVar[str] = "Largest magnitudes"
    _error: ClassVar[Type[MxmpError]] = ConvertError

    ranges: Dict[str, float]
    data: str = ""
    keep_float32: Tuple[str, ...] = ()
    gradients: Optional[Gradients] = None

    def __getitem__(self, name: str) -> float:
        return self.ranges[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.ranges)

    def __len__(self) -> int:
        return len(self.ranges)

    @property
    def _lead(self) -> str:
        return self.data

    def _sections(self) -> List[Section]:
        end = limits(FLOAT16).max
        columns = Column("tensor"), Column("largest", NUMBER), Column("of float16's largest", SHARE), Column("note")
        rows = []
        for name, value in self.ranges.items():
            # As a conversion decides: one batch seldom has the largest value of all.
            near = "near its end: float32 if ranges are given" if value * HEADROOM > end else ""
            rows.append((name, value, value / end, "beyond float16" if value > end else near))
        table = Table("Largest magnitudes", columns, rows, "tensors", _ROWS)
        gradients = [] if self.gradients is None else self.gradients._sections()
        return [Section("Largest magnitudes", [table]), *gradients]
