"""Advice from a ledger: the range of scales in which nothing overflows and little vanishes, and layers for float32."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Iterable, List, Mapping, Optional, Sequence, Tuple

from .layer import Layer
from .vanish import Exponents, highest_scale, in_low_precision, lowest_scale, share_lost, unscaled

_SKIPPED = 0.01  # of the steps at a scale, from which on it is too high
_LOST = 0.1  # of the updates of a weight, from which on it is said
_FEW = 32  # elements that are not 0, below which a layer tells nothing
_NAMES = 3  # of layers in a sentence


@dataclass(frozen=True)
class Advice:
    """What a ledger advises; ``print`` shows the sentences.

    Attributes:
        lowest: The smallest power of two that as a scale lets less than the share asked for vanish, of all elements
            that are not 0; None if there is nothing to tell it by. An estimate, and too low where most has vanished:
            how small that was cannot be seen.
        highest: The largest that leaves all gradients that were seen a factor of 2 below the dtype's maximum, and at
            which under 1 % of the steps were skipped; None likewise.
        last: The scale of the last step; None before the first.
        float32_layers: Parameters of which more vanishes than was asked for even at the highest scale: their layers
            are to be kept in float32.
        overrides: That as overrides of a policy, 'name:fc1*=float32,name:fc2*=float32'; '' if there are none. The
            patterns match the operators that are called as their parameters are.
        sentences: What is wrong and what to do; none if nothing is.
    """

    lowest: Optional[float]
    highest: Optional[float]
    last: Optional[float]
    float32_layers: Tuple[str, ...]
    overrides: str
    sentences: Tuple[str, ...]

    def __str__(self) -> str:
        """Return the sentences, one a line."""
        return "\n".join(self.sentences) or "Nothing is wrong with the gradients that were seen."


def advise(
    layers: Sequence[Layer], steps: Mapping[int, List[int]], last: Optional[float], lost: float, dtype: str
) -> Advice:
    """Return advice.

    Args:
        layers: What was seen.
        steps: By log2 of the scale: how many steps were taken and how many skipped.
        last: The scale of the last step.
        lost: What share of elements may vanish.
        dtype: The low precision dtype.
    """
    low = [layer for layer in layers if in_low_precision(layer.counts, dtype)]
    judged = [layer for layer in low if layer.counts] or list(layers)  # float32 throughout: what scales would do
    exponents = {layer.name: unscaled(layer.counts, dtype) for layer in judged}
    highest = _highest(judged, steps, dtype)
    lowest = lowest_scale(_sum(exponents.values()), lost, dtype)
    beyond = _beyond(exponents, highest, lost, dtype) if low else ()
    sentences: List[str] = []
    if low and last is not None:
        sentences += _vanishing(exponents, last, lowest, highest, lost, dtype)
    sentences += _overflowing(layers, steps, last, highest, dtype)
    if beyond:
        sentences.append(
            f"No scale serves {_names(beyond)}: at 2**{highest} more than {lost:.3g} of the gradient vanishes, and "
            f"above it gradients overflow. Keep these layers in float32."
        )
    sentences += _lost_updates(layers)
    return Advice(_power(lowest), _power(highest), last, beyond, _overrides(beyond), tuple(sentences))


def _highest(layers: Sequence[Layer], steps: Mapping[int, List[int]], dtype: str) -> Optional[int]:
    largest = max((layer.largest_unscaled for layer in layers), default=0.0)
    too_high = [scale - 1 for scale in steps if _skipped_share(steps[scale]) >= _SKIPPED]
    found = [scale for scale in (highest_scale(largest, dtype), min(too_high, default=None)) if scale is not None]
    return min(found, default=None)


def _skipped_share(taken_and_skipped: Sequence[int]) -> float:
    return taken_and_skipped[1] / max(sum(taken_and_skipped), 1)


def _beyond(exponents: Mapping[str, Exponents], highest: Optional[int], lost: float, dtype: str) -> Tuple[str, ...]:
    """Return the layers that lose more than a share at the highest scale."""
    if highest is None:
        return ()
    return tuple(
        name
        for name, each in exponents.items()
        if sum(each.values()) >= _FEW and share_lost(each, highest, dtype) > lost
    )


def _vanishing(
    exponents: Mapping[str, Exponents],
    last: float,
    lowest: Optional[int],
    highest: Optional[int],
    lost: float,
    dtype: str,
) -> List[str]:
    scale = _log2(last)
    share = share_lost(_sum(exponents.values()), scale, dtype)
    if share <= lost or lowest is None:
        return []
    losses = {name: share_lost(each, scale, dtype) * sum(each.values()) for name, each in exponents.items()}
    worst = sorted((name for name in losses if losses[name]), key=lambda name: -losses[name])
    said = f"At the scale of {last:g} an estimated {share:.0%} of the gradients vanish, most of {_names(worst)}."
    if highest is not None and lowest > highest:
        return [f"{said} That takes a scale of 2**{lowest}, at which others overflow."]
    most = "" if highest is None else f", 2**{highest} at the most"
    return [f"{said} A larger one keeps them: 2**{lowest} at the least{most}; loss_scale='dynamic' finds one."]


def _overflowing(
    layers: Sequence[Layer], steps: Mapping[int, List[int]], last: Optional[float], highest: Optional[int], dtype: str
) -> List[str]:
    """Return what is said if steps were skipped at the last scale too, more than a dynamic scale has to."""
    counted = steps.get(_log2(last), [0, 0]) if last is not None else [0, 0]
    if counted[1] < 2 or _skipped_share(counted) < _SKIPPED:
        return []
    causes = sorted((layer for layer in layers if layer.skips), key=lambda layer: -layer.skips)
    of = f", most by {_names([layer.name for layer in causes])}" if causes else ""
    mend = f" Scale the loss by 2**{highest} at most." if highest is not None else ""
    return [f"At the scale of {last:g} {counted[1]} of {sum(counted)} steps were skipped{of}.{mend}"]


def _lost_updates(layers: Sequence[Layer]) -> List[str]:
    worst = sorted((each for each in layers if each.lost_share is not None), key=lambda each: -each.lost)
    moved, lost = sum(each.moved for each in worst), sum(each.lost for each in worst)
    if not moved or lost / moved <= _LOST:
        return []
    return [
        f"{lost / moved:.0%} of the updates are lost, below half a bit of their weight, most of "
        f"{_names([each.name for each in worst])}. Keep float32 masters: multi_precision=True."
    ]


def _overrides(names: Sequence[str]) -> str:
    """Return overrides for the operators whose parameters are named."""
    return ",".join(dict.fromkeys(f"name:{name.rpartition('_')[0] or name}*=float32" for name in names))


def _names(names: Sequence[str]) -> str:
    more = len(names) - _NAMES
    return ", ".join(f"'{name}'" for name in names[:_NAMES]) + (f" and {more} more" if more > 0 else "")


def _sum(exponents: Iterable[Exponents]) -> Exponents:
    found: Exponents = {}
    for each in exponents:
        for exponent, count in each.items():
            found[exponent] = found.get(exponent, 0.0) + count
    return found


def _log2(scale: float) -> int:
    return round(math.log2(scale))


def _power(scale: Optional[int]) -> Optional[float]:
    return None if scale is None else 2.0**scale
