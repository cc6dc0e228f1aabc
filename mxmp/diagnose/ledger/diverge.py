"""Whether a run diverges: weights or gradients grow in most layers together, and its steps are not finite."""

from __future__ import annotations

from statistics import median
from typing import Iterable, Optional, Sequence, Tuple

from .layer import Layer
from .steps import Steps

_IN_A_ROW = 3  # steps not taken: a scale that finds its level has fewer once it has taken one
_WEIGHTS, _GRADIENTS = 16.0, 64.0  # times as large as before, in half of the layers or more
_MOVED = 2.0  # times as large as before weights are at the least where gradients tell
_LAYERS = 2  # that must be known


def divergence(layers: Sequence[Layer], steps: Steps) -> Optional[str]:
    """Return a sentence that says that the run diverges; None if it does not.

    One layer that overflows leaves the others as large as they were. A run that diverges has all of them grow since the
    sample of which weights were counted: weights, or with them gradients, of skipped steps what is finite of them.
    Gradients alone tell nothing: below a layer that starts with zeros they grow by themselves.
    """
    if not steps.taken or steps.not_taken_last < _IN_A_ROW:
        return None
    weights = _growth((layer.weight_before, layer.weight) for layer in layers)
    gradients = _growth((layer.grad_before, layer.grad) for layer in layers)
    grown = [f"weights {weights:,.0f} times"] if weights >= _WEIGHTS else []
    grown += [f"gradients {gradients:,.0f} times"] if gradients >= _GRADIENTS and weights >= _MOVED else []
    if not grown:
        return None
    return (
        f"The run diverges: in most layers {' and '.join(grown)} as large as before, and the last "
        f"{steps.not_taken_last} steps were not finite. No scale and no precision mends that: go back to an earlier "
        f"checkpoint, and lower the learning rate or clip gradients."
    )


def _growth(pairs: Iterable[Tuple[float, float]]) -> float:
    """Return the median of how many times as large values are as before, where both are known; 0 if few are."""
    found = [after / before for before, after in pairs if before and after]
    return median(found) if len(found) >= _LAYERS else 0.0
