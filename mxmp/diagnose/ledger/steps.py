"""How the steps of a run ended, by loss scale."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Dict, List, Optional

from ...errors import NonFiniteLossError
from ...loss_scale import DynamicLossScale
from ...train.step import StepEnd

TOO_MANY = 0.01
"""The share of skipped steps at a scale, from which on it is too high. A dynamic scale skips fewer."""


@dataclass
class Steps:
    """How many steps were taken, and how many not.

    Attributes:
        by_scale: By log2 of the loss scale, rounded: steps taken, steps skipped.
        last: The scale of the last step; None before the first.
        not_taken_last: How many steps in a row were not taken, up to the last.
        non_finite_losses: Steps that ended because the loss itself was not finite; these are not skipped.
        is_dynamic: Whether the loss scale moves by itself, as of the last step.
    """

    by_scale: Dict[int, List[int]] = field(default_factory=dict)
    last: Optional[float] = None
    not_taken_last: int = 0
    non_finite_losses: int = 0
    is_dynamic: bool = False

    def count(self, end: StepEnd) -> None:
        """Count a step."""
        self.last, self.is_dynamic = end.scale, isinstance(end.loss_scale, DynamicLossScale)
        if end.taken or end.skipped:
            self.by_scale.setdefault(log2(end.scale), [0, 0])[end.skipped] += 1
        self.not_taken_last = 0 if end.taken else self.not_taken_last + 1
        ended = end.error is None or isinstance(end.error, NonFiniteLossError)
        self.non_finite_losses += ended and not (end.taken or end.skipped)

    @property
    def taken(self) -> int:
        """How many steps were taken."""
        return sum(taken for taken, _ in self.by_scale.values())

    @property
    def skipped(self) -> int:
        """How many steps were skipped."""
        return sum(skipped for _, skipped in self.by_scale.values())

    @property
    def at_last(self) -> List[int]:
        """How many steps were taken and skipped at the last scale."""
        return self.by_scale.get(log2(self.last), [0, 0]) if self.last is not None else [0, 0]

    def skipped_at(self) -> List[int]:
        """Return log2 of the scales at which steps were skipped."""
        return [scale for scale, (_, skipped) in self.by_scale.items() if skipped]

    def taken_above(self, scale: int) -> int:
        """Return how many steps were taken at larger scales than 2**scale."""
        return sum(taken for each, (taken, _) in self.by_scale.items() if each > scale)

    def too_high(self) -> List[int]:
        """Return log2 of the scales at which too many steps were skipped."""
        return [scale for scale in self.by_scale if self.is_too_high(scale)]

    def is_too_high(self, scale: int) -> bool:
        """Return whether too many steps were skipped at 2**scale; what larger scales took it would have taken too."""
        taken, skipped = self.by_scale.get(scale, (0, 0))
        return bool(skipped) and skipped >= TOO_MANY * (skipped + taken + self.taken_above(scale))


def log2(scale: Optional[float]) -> int:
    """Return log2 of a loss scale, rounded; 0 before there is one."""
    return round(math.log2(scale)) if scale else 0
