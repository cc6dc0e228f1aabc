"""What a ledger knows of one layer: its gradients' exponents at each scale, its skips, its growth, its lost updates."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Dict

import numpy as np

from ...dtypes import limits
from .exponents import BIAS, LARGEST, NONFINITE, ZERO, largest


@dataclass
class Layer:
    """The gradients of one parameter over a run.

    Attributes:
        name: The parameter.
        elements: Its elements.
        counts: By log2 of the loss scale, rounded: how many elements of the scaled gradients have which exponent;
            columns as of `mxmp.diagnose.ledger.exponents.count_exponents`, those below `NONFINITE`.
        largest: The largest finite magnitude of a scaled gradient.
        largest_unscaled: The largest magnitude of a gradient with its scale taken out.
        skips_at: By log2 of the scale: skipped steps in which it was the first gradient, see `mxmp.diagnose.Ledger`.
        nonfinite: Skipped steps in which its gradient was not finite.
        grad_before, grad: The largest magnitude of its gradient, with the scale taken out, at the latest sample that
            counted weights, and the latest that was not 0; of a sample, or of what was finite in a skipped step. 0
            before there is one.
        weight_before, weight: The largest magnitude of its weight at that sample, and at the latest step that was not
            taken; 0 where they were not looked at.
        lost, moved: Elements whose update was lost, of those whose gradient was not 0; of weights without a master.
    """

    name: str
    elements: int = 0
    counts: Dict[int, Any] = field(default_factory=dict)
    largest: float = 0.0
    largest_unscaled: float = 0.0
    skips_at: Dict[int, int] = field(default_factory=dict)
    nonfinite: int = 0
    grad_before: float = 0.0
    grad: float = 0.0
    weight_before: float = 0.0
    weight: float = 0.0
    lost: int = 0
    moved: int = 0

    def add(self, row: Any, scale: float) -> None:
        """Add the counts of a gradient that was multiplied by ``scale``."""
        exponent, top = round(math.log2(scale)), float(largest(row))
        self.counts[exponent] = self.counts.get(exponent, 0) + row[:NONFINITE]
        self.largest = max(self.largest, top)
        self.largest_unscaled = max(self.largest_unscaled, top / scale)
        self.grow(row, scale)
        if row[NONFINITE]:
            self.largest = math.inf

    def grow(self, row: Any, scale: float) -> None:
        """Note how large the finite elements of a gradient are that was multiplied by ``scale``."""
        self.grad = float(largest(row)) / scale or self.grad

    def skip(self, scale: float, is_first: bool) -> None:
        """Count a skipped step in which its gradient was not finite."""
        self.nonfinite += 1
        if is_first:
            exponent = round(math.log2(scale))
            self.skips_at[exponent] = self.skips_at.get(exponent, 0) + 1

    @property
    def skips(self) -> int:
        """Skipped steps in which it was the first gradient: of no other a smaller share was not finite."""
        return sum(self.skips_at.values())

    @property
    def total(self) -> Any:
        """The counts over all scales."""
        return sum(self.counts.values(), np.zeros(NONFINITE, np.int64))

    def shares(self, dtype: str) -> Dict[str, float]:
        """Return the shares of elements, over all samples, that are 0 and that are subnormal in low precision."""
        return shares(self.total, dtype)

    @property
    def lost_share(self) -> Any:
        """The share of updates that were lost; None if the weight has a master, is float32, or was not looked at."""
        return self.lost / self.moved if self.moved else None

    @property
    def histogram(self) -> Dict[int, int]:
        """How many elements of the scaled gradients are at least 2**e and below 2**(e+1) in magnitude, by e."""
        total = self.total
        return {int(column) - BIAS: int(total[column]) for column in total.nonzero()[0] if column != ZERO}


def shares(counts: Any, dtype: str) -> Dict[str, float]:
    """Return what part of counted elements is 0, and what part subnormal in a dtype; 0 if there are none."""
    every = max(int(counts[:NONFINITE].sum()), 1)
    tiny = round(math.log2(limits(dtype).tiny)) + BIAS
    return {
        "zero_share": int(counts[ZERO]) / every,
        "subnormal_share": int(counts[ZERO + 1 : tiny].sum()) / every,
    }


def summary_of(table: Any, dtype: str) -> Dict[str, float]:
    """Return the shares over all rows of a table, and the largest magnitude; inf if an element is not finite."""
    top = math.inf if table[:, NONFINITE].any() else float(largest(table).max(initial=0.0))
    return {**shares(table.sum(axis=0)[:LARGEST], dtype), "largest": top}
