"""The errors of a comparison's gradients, at a loss scale at which they are finite."""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from ..probe.gradient_errors import GradientErrors
from ..probe.node_errors import Errors
from .compared import Compared
from .networks.network import GraphBatches

SCALE = 1024.0
"""The loss scale that is tried first."""

BatchErrors = Mapping[int, Errors]
"""The errors of one batch's gradients, by the position of the node that gives them."""


class ScaledGradients:
    """Measures the errors of gradients on all batches of all graphs, at one loss scale after the other.

    Args:
        graphs: The graphs, with their batches.
        compared: What gives the losses.
        show: Shows what is done, and which share of a comparison, whose first half this is.
    """

    def __init__(self, graphs: Sequence[GraphBatches], compared: Compared, show: Callable[[str, float], Any]) -> None:
        self._graphs, self._compared, self._show = graphs, compared, show
        self._measures: List[GradientErrors] = []
        self._known: Dict[float, List[BatchErrors]] = {}

    def at_a_scale(self, given: Optional[float]) -> Tuple[float, List[BatchErrors]]:
        """Return a loss scale and the errors of each batch at it.

        It is that which is given, or the largest power of two up to 1024 at which all gradients are finite that are
        finite in float32, or 1 if there is none.
        """
        if given is not None or self._are_finite(SCALE):
            scale = SCALE if given is None else given
            return scale, self._at(scale)
        finite, too_high = 1.0, SCALE
        while self._are_finite(1.0) and too_high > 2 * finite:
            tried = 2.0 ** round(math.log2(finite * too_high) / 2)
            finite, too_high = (tried, too_high) if self._are_finite(tried) else (finite, tried)
        return finite, self._at(finite)

    def _are_finite(self, scale: float) -> bool:
        return all(math.inf not in errors for batch in self._at(scale) for errors in batch.values())

    def _at(self, scale: float) -> List[BatchErrors]:
        if scale not in self._known:
            self._known[scale] = [*self._measured(scale)]
        return self._known[scale]

    def _measured(self, scale: float) -> List[BatchErrors]:
        if not self._measures:
            self._measures = [GradientErrors(graph.decisions, graph.context) for graph in self._graphs]
        count = sum(len(graph.batches) for graph in self._graphs)
        found: List[BatchErrors] = []
        for graph, measure in zip(self._graphs, self._measures):
            for number, batch in zip(graph.numbers, graph.batches):
                self._show(f"gradients at a loss scale of {scale:g}: batch {len(found) + 1}", len(found) / count / 2)
                found.append(measure(batch, self._compared.loss_of(number, graph.out_format), scale))
        return found
