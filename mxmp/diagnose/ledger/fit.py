"""The loss scales that fit a layer, and those that fit all layers, or most of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import List, Mapping, Optional, Sequence, Tuple

from ...dtypes import limits
from .exponents import BIAS, ZERO
from .layer import Layer
from .steps import Steps
from .vanish import Exponents, highest_scale, lowest_scale, unscaled

MARGIN = 2
"""Binades between the largest gradient that was seen and the dtype's maximum: one step in many is looked at."""

_FAR = 4  # binades below that maximum, as far as which gradients do not overflow in one step and not in another

_FEW = 32  # elements that are not 0, below which what vanishes of a layer tells nothing


@dataclass(frozen=True)
class Fit:
    """The scales that fit one layer, by log2: not lower than one, not higher than the other; None if there is no end.

    Attributes:
        name: Of its parameter.
        elements: Of that.
        lowest: At a lower scale more vanishes than may, by an estimate.
        sure: The same for sure: no more than ``lowest``.
        highest: At a higher one its largest gradient comes too near to the dtype's maximum, or steps were skipped.
    """

    name: str
    elements: int
    lowest: Optional[int]
    sure: Optional[int]
    highest: Optional[int]

    def is_high_enough(self, scale: int) -> bool:
        """Return whether 2**scale is not too low."""
        return self.lowest is None or self.lowest <= scale

    def holds(self, scale: float) -> bool:
        """Return whether 2**scale fits, or may fit."""
        return (self.sure is None or self.sure <= scale) and (self.highest is None or scale <= self.highest)


@dataclass(frozen=True)
class CommonFit:
    """The scales that fit as many layers as any scale does.

    Attributes:
        lowest, highest: Log2 of them; None if there is no end.
        kept: The layers that these scales fit.
        left_out: The layers that they do not fit; none if some scale fits all.
    """

    lowest: Optional[int]
    highest: Optional[int]
    kept: Tuple[Fit, ...]
    left_out: Tuple[Fit, ...]

    @property
    def middle(self) -> Optional[int]:
        """Log2 of a scale in the middle, which estimates that are a little off leave within."""
        if self.lowest is None or self.highest is None:
            return self.highest if self.lowest is None else self.lowest + MARGIN
        return (self.lowest + self.highest + 1) // 2


def scales_too_high(layers: Sequence[Layer], steps: Steps, dtype: str) -> List[int]:
    """Return log2 of the scales at which too many steps were skipped.

    Those at which the gradients of steps that were taken stay far below the dtype's maximum are none: their skips have
    another cause, such as data that is NaN.
    """
    tops = {scale: _above_all(layers, scale) for scale in steps.too_high()}
    return [scale for scale, top in tops.items() if top is None or top * 2.0**_FAR > limits(dtype).max]


def _above_all(layers: Sequence[Layer], scale: int) -> Optional[float]:
    """Return a power of two above all scaled gradients that were counted at a scale; None if there are none."""
    counted = [layer.counts[scale][ZERO + 1 :].nonzero()[0] for layer in layers if scale in layer.counts]
    return max((2.0 ** (int(each[-1]) + ZERO + 2 - BIAS) for each in counted if each.size), default=None)


def common_fit_of(
    layers: Sequence[Layer], exponents: Mapping[str, Exponents], too_high: Sequence[int], lost: float, dtype: str
) -> CommonFit:
    """Return the scales that fit as many layers as any does; without `MARGIN` if that leaves fewer out.

    Args:
        layers: What was seen of them.
        exponents: By layer its elements by exponent, with the scale taken out and with those that vanished.
        too_high: Log2 of the scales at which too many steps were skipped.
        lost: What share of a layer's elements that are not 0 may vanish. Of n elements chance makes two standard
            deviations of a count more, 2 * sqrt(lost / n).
        dtype: The low precision dtype.
    """
    lows = [_lowest(layer, exponents[layer.name], lost, dtype) for layer in layers]
    found: List[CommonFit] = []
    for margin in (MARGIN, 0):
        highs = _highest(layers, too_high, margin, dtype)
        fits = [Fit(each.name, each.elements, *low, high) for each, low, high in zip(layers, lows, highs)]
        found.append(common_fit(fits))
        if not found[0].left_out:
            break
    return min(found, key=lambda each: len(each.left_out))  # the first, of equals


def _lowest(layer: Layer, exponents: Exponents, lost: float, dtype: str) -> Tuple[Optional[int], Optional[int]]:
    """Return log2 of the lowest scale that fits a layer, by an estimate and for sure."""
    count = sum(exponents.values())
    if count < _FEW:
        return None, None
    may = lost + 2 * math.sqrt(lost / count)
    sure = lowest_scale(unscaled(layer.counts, dtype, near=True), may, dtype)
    return lowest_scale(exponents, may, dtype), sure


def _highest(layers: Sequence[Layer], too_high: Sequence[int], margin: int, dtype: str) -> List[Optional[int]]:
    """Return log2 of the highest scale that fits each layer; where none was first in skips, these count for all."""
    explained = {scale for layer in layers for scale in layer.skips_at}
    return [
        _min(
            highest_scale(layer.largest_unscaled, margin, dtype),
            *(scale - 1 - margin for scale in too_high if scale in layer.skips_at or scale not in explained),
        )
        for layer in layers
    ]


def common_fit(fits: Sequence[Fit]) -> CommonFit:
    """Return the scales that fit most layers: leaving out as few as possible, of those the smaller.

    So ``lowest`` is never above ``highest``, and without the layers that are left out no layer is. An estimate of how
    small gradients are that have vanished leaves no layer out, since a larger scale will show them: where it has no
    room below ``highest``, what is sure counts.
    """
    starts = [-math.inf, *sorted({fit.sure for fit in fits if fit.sure is not None})]
    best = max(starts, key=lambda scale: _served(fits, scale))  # the lowest, of equals
    kept = tuple(fit for fit in fits if fit.holds(best))
    highest = _min(*(fit.highest for fit in kept))
    ends = [fit.lowest if highest is None or fit.is_high_enough(highest) else fit.sure for fit in kept]
    lowest = max((end for end in ends if end is not None), default=None)
    return CommonFit(lowest, highest, kept, tuple(fit for fit in fits if fit not in kept))


def _served(fits: Sequence[Fit], scale: float) -> Tuple[int, int]:
    served = [fit.elements for fit in fits if fit.holds(scale)]
    return len(served), sum(served)


def _min(*scales: Optional[int]) -> Optional[int]:
    known = [scale for scale in scales if scale is not None]
    return min(known) if known else None
