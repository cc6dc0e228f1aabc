"""Advice from a ledger: the range of scales in which nothing overflows and little vanishes, and layers for float32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterable, List, Mapping, Optional, Sequence, Tuple

from . import overflow
from .diverge import divergence
from .fit import CommonFit, Fit, common_fit_of, scales_too_high
from .layer import Layer
from .steps import Steps, log2
from .vanish import Exponents, in_low_precision, share_lost, share_subnormal, unscaled
from .words import between, ends, listed, overrides, part, shown_overrides

_LOST = 0.1  # of the updates of a weight, from which on it is said
_SUBNORMAL = 0.5  # of the elements of a layer, from which on it is said


@dataclass(frozen=True)
class Advice:
    """What a ledger advises; ``print`` shows the sentences.

    A scale fits a layer if of its elements that are not 0 no more vanishes than may, and if its largest gradient stays
    a factor of 4 below the dtype's maximum, or below it at all where that leaves fewer layers out; steps that were
    skipped count as gradients above that, unless those of steps that were taken at that scale stay a factor of 16
    below. ``lowest`` to ``highest`` is what fits all layers but ``float32_layers``, the fewest that have to be left
    out: none if there is a scale that fits all. So ``lowest`` is never above ``highest``, and no two sentences ask for
    opposite things.

    Attributes:
        lowest: The smallest power of two that fits as a scale; None if any does that is small enough, or if there is
            nothing to tell it by. An estimate, and too low where most has vanished: how small that was cannot be seen.
        highest: The largest; None likewise.
        scale: One in the middle of these, to be set as a static scale; None if there is nothing to tell it by.
        last: The scale of the last step; None before the first.
        float32_layers: Parameters that no such scale fits: their layers are to be kept in float32.
        overrides: That as overrides of a policy, 'name:fc1*=float32,name:fc2*=float32'; '' if there are none. The
            patterns match the operators that are called as their parameters are: 'name:fc1*' also 'fc10'.
        diverges: Whether weights or gradients grew in most layers until steps were not finite: no scale and no
            precision mends that, so neither is advised.
        sentences: What is wrong and what to do; none if nothing is.
    """

    lowest: Optional[float]
    highest: Optional[float]
    scale: Optional[float]
    last: Optional[float]
    float32_layers: Tuple[str, ...]
    overrides: str
    diverges: bool
    sentences: Tuple[str, ...]

    def __str__(self) -> str:
        """Return the sentences, one a line."""
        return "\n".join(self.sentences) or "Nothing is wrong with the gradients that were seen."


def advise(layers: Sequence[Layer], steps: Steps, lost: float, dtype: str) -> Advice:
    """Return advice.

    Args:
        layers: What was seen.
        steps: How the steps ended, and at which scales.
        lost: What share of elements may vanish.
        dtype: The low precision dtype.
    """
    diverges = divergence(layers, steps)
    if diverges is not None:
        said = [diverges, *overflow.non_finite_losses(steps), *_lost_updates(layers)]
        return Advice(None, None, None, steps.last, (), "", True, tuple(said))
    low = [layer for layer in layers if in_low_precision(layer.counts, dtype)]
    judged = low or layers  # float32 throughout: what scales would do
    exponents = {layer.name: unscaled(layer.counts, dtype) for layer in judged}
    too_high = scales_too_high(judged, steps, dtype)
    common = common_fit_of(judged, exponents, too_high, lost, dtype)
    sentences = overflow.skips(layers, steps, common, too_high)
    if low and steps.last is not None:
        sentences += _conflict(common)
        sentences = sentences or _vanishing(exponents, common, steps, dtype)
        sentences = sentences or _subnormal(exponents, common, steps, dtype)
        sentences += _all_zero(low)
    names = tuple(fit.name for fit in common.left_out)
    sentences = [*overflow.non_finite_losses(steps), *sentences, *_lost_updates(layers)]
    found = _power(common.lowest), _power(common.highest), _power(common.middle)
    return Advice(*found, steps.last, names, overrides(names), False, tuple(sentences))


def _conflict(common: CommonFit) -> List[str]:
    """Return what is said if no scale fits all layers."""
    if not common.left_out:
        return []
    names = [fit.name for fit in common.left_out]
    named = listed(names, [ends(*_beyond(fit, common)) for fit in common.left_out])
    fits = f"{between(common.lowest, common.highest)} fits all but {named}" if common.kept else f"{named}"
    keep = "this layer" if len(names) == 1 else "these layers"
    return [f"No scale fits all layers: {fits}. Keep {keep} in float32: {shown_overrides(names)}."]


def _beyond(fit: Fit, common: CommonFit) -> Tuple[Optional[int], Optional[int]]:
    """Return those ends of the scales that fit a layer which the common ones are beyond."""
    if not common.kept or (fit.sure is not None and fit.highest is not None and fit.sure > fit.highest):
        return fit.sure, fit.highest
    needs_more = fit.sure is not None and (common.highest is None or fit.sure > common.highest)
    return (fit.sure, None) if needs_more else (None, fit.highest)


def _vanishing(exponents: Mapping[str, Exponents], common: CommonFit, steps: Steps, dtype: str) -> List[str]:
    """Return what is said if the last scale is too low for some layers."""
    last = log2(steps.last)
    if common.lowest is None or last >= common.lowest:
        return []
    too_low = [fit.name for fit in common.kept if not fit.is_high_enough(last)]
    lost = {name: share_lost(exponents[name], last, dtype) for name in too_low}
    names = sorted(lost, key=lambda name: -lost[name])
    share, named = share_lost(_sum(exponents.values()), last, dtype), listed(names, [part(lost[n]) for n in names])
    finds = "the dynamic scale grows by itself" if steps.is_dynamic else "loss_scale='dynamic' finds one"
    return [
        f"At the scale of {steps.last:g} an estimated {part(share)} of the gradients vanish, most of {named}. A larger "
        f"one keeps them, such as 2**{common.middle}: {ends(common.lowest, common.highest)}; {finds}."
    ]


def _subnormal(exponents: Mapping[str, Exponents], common: CommonFit, steps: Steps, dtype: str) -> List[str]:
    """Return what is said if most of a layer is subnormal, and there are larger scales that fit."""
    last = log2(steps.last)
    if steps.is_dynamic or common.highest is None or last >= common.highest:
        return []
    shares = {name: share_subnormal(each, last, dtype) for name, each in exponents.items()}
    names = sorted((name for name in shares if shares[name] > _SUBNORMAL), key=lambda name: -shares[name])
    if not names:
        return []
    named = listed(names, [part(shares[name]) for name in names])
    return [
        f"At the scale of {steps.last:g} most of {named} is subnormal: it does not vanish, and has fewer bits than "
        f"{dtype}'s other numbers. A larger scale keeps more of them, 2**{common.highest} at the most."
    ]


def _all_zero(layers: Sequence[Layer]) -> List[str]:
    """Return what is said of layers whose gradients were 0 in two samples or more, while those of others were not."""
    # The gradient of a gamma that is fixed, as BatchNorm's in symbols unless it is said, is 0 by definition.
    zero = [each.name for each in layers if each.counts and not each.histogram and not each.name.endswith("_gamma")]
    again = all(each.total.sum() >= 2 * each.elements for each in layers if each.name in zero)
    if not zero or not again or not any(each.histogram for each in layers):
        return []
    which = "this layer" if len(zero) == 1 else "these layers"
    return [
        f"All gradients of {listed(zero)} were 0: they vanish, which a larger scale shows, or the loss does not depend "
        f"on {which}."
    ]


def _lost_updates(layers: Sequence[Layer]) -> List[str]:
    worst = sorted((each for each in layers if each.lost_share is not None), key=lambda each: -each.lost)
    moved, lost = sum(each.moved for each in worst), sum(each.lost for each in worst)
    if not moved or lost / moved <= _LOST:
        return []
    return [
        f"{lost / moved:.0%} of the updates are lost, below half a bit of their weight, most of "
        f"{listed([each.name for each in worst if each.lost])}. Keep float32 masters: multi_precision=True."
    ]


def _sum(exponents: Iterable[Exponents]) -> Exponents:
    found: Exponents = {}
    for each in exponents:
        for exponent, count in each.items():
            found[exponent] = found.get(exponent, 0.0) + count
    return found


def _power(scale: Optional[int]) -> Optional[float]:
    return None if scale is None else 2.0**scale
