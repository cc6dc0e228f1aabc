"""What a ledger takes from one step: the counts of a sample, or what a skipped step had that was not finite."""

from __future__ import annotations

import math
import re
from typing import Any, Dict, List, NamedTuple, Tuple

import numpy as np

from ...arrays.devices import on_gpu
from ...arrays.exponents import LARGEST, NONFINITE, ZERO, Read, count_exponents, largest
from ...training.step import Weights


class Sample(NamedTuple):
    """What was counted in a step.

    Attributes:
        layers: Name and elements of each gradient's weight, in the order of the counts' rows.
        read: Returns the counts, see `count_exponents`.
        scale: What the gradients were multiplied by.
        on_host: Whether reading them waits for no GPU.
        updates: Names of weights without masters and what `lost.compare` began to count of them.
    """

    layers: List[Tuple[str, int]]
    read: Read
    scale: float
    on_host: bool
    updates: List[Tuple[str, Any]]

    def at_scale(self, scale: float) -> Sample:
        """Return the sample as if the gradients were multiplied by ``scale``, to the next power of two.

        They are already but for a loop without a trainer, which hands them in with their scale taken out.
        """
        read, factor = self.read, scale / self.scale
        return self._replace(read=lambda: scaled(read(), factor), scale=scale)


def take(weights: Weights, scale: float) -> Sample:
    """Begin to count the gradients of all contexts."""
    updates = [update for group in weights.groups() for update in group]
    layers = [(name_of(weights, each.index), each.weight.size) for each in updates]
    grads = [each.grad for each in updates]
    return Sample(layers, count_exponents(grads), scale, not any(map(on_gpu, grads)), [])


def scaled(table: Any, factor: float) -> Any:
    """Return the counts of gradients that are multiplied by a factor, rounded to a power of two."""
    shift = round(math.log2(factor))
    if not shift:
        return table
    found = np.zeros_like(table)
    found[:, ZERO], found[:, NONFINITE] = table[:, ZERO], table[:, NONFINITE]
    for column in table[:, ZERO + 1 : NONFINITE].any(axis=0).nonzero()[0] + ZERO + 1:
        found[:, min(max(column + shift, ZERO + 1), NONFINITE - 1)] += table[:, column]
    found[:, LARGEST] = (largest(table) * np.float32(2.0**shift)).astype(np.float32).view(np.uint32)
    return found


def not_finite(weights: Weights) -> Dict[str, float]:
    """Return the names of weights whose gradient is not finite, and what share of it is not; waits for them.

    Of several contexts the one with the smallest share counts.
    """
    updates = [update for group in weights.groups() for update in group]
    parts: Dict[str, float] = {}
    for each, row in zip(updates, count_exponents([each.grad for each in updates])()):
        if row[NONFINITE]:
            name, part = name_of(weights, each.index), float(row[NONFINITE] / row[: NONFINITE + 1].sum())
            parts[name] = min(part, parts.get(name, 1.0))
    return parts


def name_of(weights: Weights, index: int) -> str:
    """Return the name of a weight alone: a loop without a trainer says "parameter 'fc_weight'"."""
    name = weights.name(index)
    match = re.fullmatch(r"parameter '(.*)'", name)
    return match.group(1) if match else name
