"""What a ledger takes from one step: the counts of a sample, or what a skipped step had that was not finite."""

from __future__ import annotations

import math
import re
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import mxnet as mx
import numpy as np

from ...arrays import on_gpu
from ...train.step import Weights
from .exponents import LARGEST, NONFINITE, ZERO, Read, count_exponents, largest


class Sample(NamedTuple):
    """What was counted in a step.

    Attributes:
        layers: Name and elements of each gradient's weight, in the order of the counts' rows.
        read: Returns the counts, see `count_exponents`.
        scale: What the gradients were multiplied by.
        on_host: Whether reading them waits for no GPU.
        updates: Names of weights without masters and what `lost.compare` began to count of them.
        weights: The weights of the first context by name, which are to be read only.
        before: Returns the counts of those as they are before the update; None where they are not counted.
    """

    layers: List[Tuple[str, int]]
    read: Read
    scale: float
    on_host: bool
    updates: List[Tuple[str, Any]]
    weights: Dict[str, mx.nd.NDArray]
    before: Optional[Read]

    def at_scale(self, scale: float) -> Sample:
        """Return the sample as if the gradients were multiplied by ``scale``, to the next power of two.

        They are already but for a loop without a trainer, which hands them in with their scale taken out.
        """
        read, factor = self.read, scale / self.scale
        return self._replace(read=lambda: scaled(read(), factor), scale=scale)


def take(weights: Weights, scale: float, with_weights: bool) -> Sample:
    """Begin to count the gradients of all contexts, and if asked to the weights of the first."""
    groups = weights.groups()
    updates = [update for group in groups for update in group]
    layers = [(name_of(weights, each.index), each.weight.size) for each in updates]
    grads = [each.grad for each in updates]
    first = {name_of(weights, each.index): each.weight for group in groups[:1] for each in group}
    before = count_exponents(list(first.values())) if with_weights else None
    return Sample(layers, count_exponents(grads), scale, not any(map(on_gpu, grads)), [], first, before)


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


class Skipped(NamedTuple):
    """What a skipped step had.

    Attributes:
        layers: Name and elements of each gradient's weight.
        table: Their counts, in the same order.
        shares: What share of a gradient is not finite, by name of those with any; of several contexts the smallest.
    """

    layers: List[Tuple[str, int]]
    table: Any
    shares: Dict[str, float]

    @property
    def first(self) -> List[str]:
        """The gradients of which the smallest share is not finite."""
        return [name for name, share in self.shares.items() if share == min(self.shares.values())]


def skipped(weights: Weights) -> Skipped:
    """Return what the gradients of a skipped step have; waits for them, and reads them once for all who ask in it."""
    if weights.seen is None:
        weights.seen = _skipped(weights)
    found: Skipped = weights.seen
    return found


def _skipped(weights: Weights) -> Skipped:
    updates = [update for group in weights.groups() for update in group]
    layers = [(name_of(weights, each.index), each.weight.size) for each in updates]
    table = count_exponents([each.grad for each in updates])()
    shares: Dict[str, float] = {}
    for (name, _), row in zip(layers, table):
        if row[NONFINITE]:
            share = float(row[NONFINITE] / row[: NONFINITE + 1].sum())
            shares[name] = min(share, shares.get(name, 1.0))
    return Skipped(layers, table, shares)


def name_of(weights: Weights, index: int) -> str:
    """Return the name of a weight alone: a loop without a trainer says "parameter 'fc_weight'"."""
    name = weights.name(index)
    match = re.fullmatch(r"parameter '(.*)'", name)
    return match.group(1) if match else name
