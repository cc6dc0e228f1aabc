"""How many elements of a gradient have vanished, estimated: a zero may be one that was computed.

A zero says nothing by itself: behind a ReLU that is off, or in the row of a word that no sentence has, gradients are 0
in float32 too. What vanishes shows in what is left above it. Let l be how many elements lie in the lowest two binades
of the dtype (float16: from 2**-24 to below 2**-22) and u how many in the two above. Each further pair of binades below
is taken to hold r = l / u times as many as the pair above it, for as far as float16 is wide:

    vanished = l * (r + r**2 + ... + r**12), at most the zeros that there are

So that a few stray elements make no alarm, such as the rounding errors of a sum that is 0, two standard deviations of a
count are taken off l (l - 2 * sqrt(l)), and r is at most 1 unless a tenth of what is not 0 lies in these two binades.
Values spread evenly around 0 give r = 1/4, and a gradient that stays clear of the bottom gives l = 0: nothing has
vanished then, however many zeros there are. Where the same layer was seen at a larger scale, those that were 0 there
and did not vanish there are zeros at a smaller scale too. A gradient that has elements below the dtype's smallest
number was not computed in it, and loses nothing.
"""

from __future__ import annotations

import math
from typing import Any, Dict, Optional

import numpy as np

from ...dtypes import limits
from .exponents import BIAS, NONFINITE, ZERO

_PAIRS = 12  # of binades, below the dtype's smallest number
_STEEPEST = 4.0  # r at most, where many elements lie at the bottom
_MANY = 0.1  # of those that are not 0

Exponents = Dict[int, float]


def bottom(dtype: str) -> int:
    """Return the exponent of the smallest positive number of a dtype, in a table's range."""
    return max(round(math.log2(limits(dtype).smallest_subnormal)), 1 - BIAS)


def in_low_precision(counts: Dict[int, Any], dtype: str) -> bool:
    """Return whether a gradient, by its counts at each scale, has only numbers that a dtype has."""
    least = bottom(dtype) + BIAS
    return not any(each[ZERO + 1 : least].any() for each in counts.values())


def unscaled(counts: Dict[int, Any], dtype: str, near: bool = False) -> Exponents:
    """Return how many elements a gradient has by exponent, its scale taken out, with those that vanished.

    Args:
        counts: By log2 of the scale, as of `Layer.counts`.
        dtype: The low precision dtype.
        near: Whether to take what vanished to be as large as it can have been, not as small as is estimated: a scale
            that is too low then is so for sure, as far as that many have vanished.
    """
    found: Exponents = {}
    low, true_zeros = in_low_precision(counts, dtype), 0.0
    for scale, each in sorted(counts.items(), reverse=True):
        every = float(each.sum())
        if low and every:
            vanished = _vanished(each, dtype, max(0.0, float(each[ZERO]) - true_zeros * every))
            gone = sum(vanished.values())
            true_zeros = max(true_zeros, (float(each[ZERO]) - gone) / every)
            _add(found, {bottom(dtype) - 2: gone} if near and gone else vanished, scale)
        kept = each[ZERO + 1 : NONFINITE].nonzero()[0] + ZERO + 1
        _add(found, {int(column) - BIAS: float(each[column]) for column in kept}, scale)
    return found


def share_lost(exponents: Exponents, scale: int, dtype: str) -> float:
    """Return the share of elements that vanish if they are multiplied by 2**scale; of those that are not 0."""
    return _share_below(exponents, bottom(dtype) - 1 - scale)  # half of the smallest number: ties go to even


def share_subnormal(exponents: Exponents, scale: int, dtype: str) -> float:
    """Return the share of elements that are subnormal if they are multiplied by 2**scale; of those that are not 0."""
    tiny = round(math.log2(limits(dtype).tiny))
    return _share_below(exponents, tiny - scale) - share_lost(exponents, scale, dtype)


def lowest_scale(exponents: Exponents, lost: float, dtype: str) -> Optional[int]:
    """Return log2 of the smallest scale at which at most a share of elements vanishes; None without elements."""
    if not exponents:
        return None
    scales = range(bottom(dtype) - 1 - max(exponents), bottom(dtype) - min(exponents))
    return next(scale for scale in scales if share_lost(exponents, scale, dtype) <= lost)


def highest_scale(largest: float, margin: int, dtype: str) -> Optional[int]:
    """Return log2 of the largest scale that leaves a magnitude 2**margin below the dtype's maximum."""
    return math.floor(math.log2(limits(dtype).max / largest)) - margin if largest else None


def _share_below(exponents: Exponents, least: int) -> float:
    total = sum(exponents.values())
    below = sum(count for exponent, count in exponents.items() if exponent < least)
    return below / total if total else 0.0


def _vanished(each: Any, dtype: str, most: float) -> Exponents:
    """Return by exponent how many elements below a dtype's smallest number there were."""
    least = bottom(dtype) + BIAS
    lower, upper = float(each[least : least + 2].sum()), float(each[least + 2 : least + 4].sum())
    lower -= 2 * math.sqrt(lower)
    if lower <= 0 or most <= 0:
        return {}
    steepest = _STEEPEST if lower >= _MANY * each[ZERO + 1 : NONFINITE].sum() else 1.0
    ratio = min(lower / upper, steepest) if upper else steepest
    pairs = lower * ratio ** np.arange(1, _PAIRS + 1)
    pairs = np.diff(np.minimum(np.cumsum(pairs), most), prepend=0.0)
    found: Exponents = {}
    for number, count in enumerate(pairs):
        for exponent in (1, 0):
            found[bottom(dtype) - 2 - 2 * number - 1 + exponent] = float(count) / 2
    return {exponent: count for exponent, count in found.items() if count}


def _add(found: Exponents, more: Exponents, scale: int) -> None:
    for exponent, count in more.items():
        found[exponent - scale] = found.get(exponent - scale, 0.0) + count
