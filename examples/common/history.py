"""What a run gave, step by step and epoch by epoch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Dict, List, Mapping, Optional

import numpy as np

Number = Optional[float]
"""None for what JSON lacks, such as a loss of NaN."""


@dataclass
class History:
    """Series of numbers of one run.

    The part of a name before a slash says what the number is, the rest of what: 'loss/critic' and
    'loss/generator' are two losses.

    Attributes:
        steps: One item per step, by series; skipped steps are included.
        epochs: One dict per finished epoch: what was measured at its end. 'step' is the number of
            steps up to there.
        skipped: The numbers of the skipped steps, from 1.
    """

    steps: Dict[str, List[Number]] = field(default_factory=dict)
    epochs: List[Dict[str, Number]] = field(default_factory=list)
    skipped: List[int] = field(default_factory=list)

    @property
    def step(self) -> int:
        """Steps so far."""
        return max(map(len, self.steps.values()), default=0)

    @property
    def epoch_start(self) -> int:
        """Steps before the first of the present epoch."""
        return self.steps_of(len(self.epochs)).start

    def steps_of(self, epoch: int) -> slice:
        """Return where the steps of an epoch, counted from 0, are in the series."""
        ends = [int(each["step"] or 0) for each in self.epochs]
        return slice(ends[epoch - 1] if epoch else 0, ends[epoch] if epoch < len(ends) else None)

    def add_step(self, values: Mapping[str, float], skipped: bool = False) -> None:
        """Append one step: a number for each series.

        Raises:
            ValueError: If its series are not those of the steps before.
        """
        if self.steps and set(values) != set(self.steps):
            raise ValueError(f"a step has {sorted(values)}; those before have {sorted(self.steps)}.")
        for name, value in values.items():
            self.steps.setdefault(name, []).append(_number(value))
        if skipped:
            self.skipped.append(self.step)

    def add_epoch(self, values: Mapping[str, float]) -> None:
        """End the present epoch with what was measured."""
        self.epochs.append({"step": self.step, **{name: _number(value) for name, value in values.items()}})

    def means(self, epoch: int) -> Dict[str, float]:
        """Return the mean of each series over the steps of a finished epoch, counted from 0."""
        part = self.steps_of(epoch)
        return {name: float(np.mean(np.array(values[part], float))) for name, values in self.steps.items()}


def _number(value: float) -> Number:
    return float(value) if math.isfinite(value) else None
