"""What is said of steps that were not taken."""

from __future__ import annotations

from typing import List, Sequence

from .fit import CommonFit
from .layer import Layer
from .steps import TOO_MANY, Steps, log2
from .words import counted, listed

_IN_A_ROW = 4  # steps that were skipped at one scale after another, from which on the scale is doubted
_ASK = "mxmp.diagnose.explain or a Watch names the operator or input that is"


def non_finite_losses(steps: Steps) -> List[str]:
    """Return what is said of losses that were not finite."""
    if not steps.non_finite_losses:
        return []
    of = counted(steps.non_finite_losses, "step")
    return [
        f"The loss itself was NaN or inf in {of}, which no loss scale mends: look at the data, the learning rate and "
        f"the forward pass; mxmp.diagnose.explain does."
    ]


def skips(layers: Sequence[Layer], steps: Steps, common: CommonFit, too_high: Sequence[int]) -> List[str]:
    """Return what is said of steps that were skipped more often than a dynamic scale has to.

    Args:
        layers: What was seen.
        steps: How the steps ended.
        common: The scales that fit most layers.
        too_high: Log2 of the scales that steps were skipped at because they are too high.
    """
    if steps.last is None:
        return []
    return _in_a_row(layers, steps) or _at_last(layers, steps, common, too_high)


def _in_a_row(layers: Sequence[Layer], steps: Steps) -> List[str]:
    """Return what is said of steps that are skipped wherever the scale falls to."""
    count, last = min(steps.not_taken_last, steps.skipped), log2(steps.last)
    scales, above = steps.skipped_at(), steps.taken_above(last)
    if count < _IN_A_ROW or not (above or last <= 0 or steps.is_dynamic):
        return []
    what = f"The last {count:,} steps were skipped, down to the scale of {steps.last:g}{_first(layers, scales)}."
    if above:
        return [f"{what} The scale is hardly the cause, for {_taken(above)}: {_ASK}."]
    if last <= 0:
        return [f"{what} The scale is hardly the cause: {_ASK}."]
    return [f"{what} If lower ones do not help, the scale is not the cause: {_ASK}."]


def _at_last(layers: Sequence[Layer], steps: Steps, common: CommonFit, too_high: Sequence[int]) -> List[str]:
    """Return what is said of steps that were skipped at the last scale."""
    (taken, skipped), last = steps.at_last, log2(steps.last)
    if skipped < 2 or skipped < TOO_MANY * (taken + skipped):
        return []
    what = f"At the scale of {steps.last:g} {skipped} of {taken + skipped} steps were skipped{_first(layers, [last])}."
    if last not in too_high:
        why = "the gradients of those that were taken stay far from overflow"
        if not steps.is_too_high(last):
            why = _taken(steps.taken_above(last))
        return [f"{what} The scale is hardly the cause, for {why}: {_ASK}."]
    if common.left_out or common.highest is None:
        return [what]
    return [
        f"{what} Scale the loss by 2**{common.highest} at most; if steps are skipped there too, ask a Watch or "
        f"mxmp.diagnose.explain."
    ]


def _taken(above: int) -> str:
    return f"{counted(above, 'step')} {'was' if above == 1 else 'were'} taken at larger ones"


def _first(layers: Sequence[Layer], scales: Sequence[int]) -> str:
    """Return in which gradients the steps at some scales were not finite first."""
    skips = {layer.name: sum(layer.skips_at.get(scale, 0) for scale in scales) for layer in layers}
    names = sorted((name for name in skips if skips[name]), key=lambda name: -skips[name])
    return f", first in the gradients of {listed(names)}" if names else ""
