"""Why a step was skipped, in a line for a log."""

from __future__ import annotations

from ..errors import visible
from ..train.step import Weights
from .ledger.sample import skipped

_NAMES = 3  # of weights in a line


def why_skipped(weights: Weights) -> str:
    """Return which gradients of a skipped step are not finite, and what share of each, the smallest share first.

    It waits for the gradients and reads each once, as a sample of a ledger does; not again if another log or a ledger
    did in this step. '' if all are finite.
    """
    parts = sorted(skipped(weights).shares.items(), key=lambda each: each[1])
    if not parts:
        return ""
    named = ", ".join(f"'{visible(name)}' ({100 * part:.3g} %)" for name, part in parts[:_NAMES])
    return f"gradients not finite: {named}" + (f" and {len(parts) - _NAMES} more" if len(parts) > _NAMES else "")
