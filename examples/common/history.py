"""What a run gave, step by step and epoch by epoch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping


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

    steps: Dict[str, List[float]] = field(default_factory=dict)
    epochs: List[Dict[str, float]] = field(default_factory=list)
    skipped: List[int] = field(default_factory=list)

    @property
    def step(self) -> int:
        """Steps so far."""
        return max(map(len, self.steps.values()), default=0)

    @property
    def epoch_start(self) -> int:
        """Steps before the first of the present epoch."""
        return int(self.epochs[-1]["step"]) if self.epochs else 0

    def add_step(self, values: Mapping[str, float], skipped: bool = False) -> None:
        """Append one step.

        Args:
            values: A number for each series.
            skipped: Whether it was skipped.

        Raises:
            ValueError: If its series are not those of the steps before.
        """
        if self.steps and set(values) != set(self.steps):
            raise ValueError(f"a step has {sorted(values)}; those before have {sorted(self.steps)}.")
        for name, value in values.items():
            self.steps.setdefault(name, []).append(float(value))
        if skipped:
            self.skipped.append(self.step)

    def add_epoch(self, values: Mapping[str, float]) -> None:
        """End the present epoch with what was measured."""
        self.epochs.append({"step": self.step, **{name: float(value) for name, value in values.items()}})

    def means(self, number: int) -> Dict[str, float]:
        """Return the mean of each series over the steps of a finished epoch, counted from 0."""
        start = int(self.epochs[number - 1]["step"]) if number else 0
        stop = int(self.epochs[number]["step"])
        return {name: sum(values[start:stop]) / max(stop - start, 1) for name, values in self.steps.items()}

    def to_dict(self) -> Dict[str, Any]:
        """Return JSON data; numbers that JSON lacks, such as a loss of NaN, are None."""
        return {
            "steps": {name: [_finite(value) for value in values] for name, values in self.steps.items()},
            "epochs": [{name: _finite(value) for name, value in epoch.items()} for epoch in self.epochs],
            "skipped": self.skipped,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> History:
        """Return what `to_dict` described, NaN for None."""
        return cls(
            {name: [_number(value) for value in values] for name, values in data["steps"].items()},
            [{name: _number(value) for name, value in epoch.items()} for epoch in data["epochs"]],
            list(data.get("skipped", [])),  # records of before lack it
        )


def _finite(value: float) -> Any:
    return value if math.isfinite(value) else None


def _number(value: Any) -> float:
    return math.nan if value is None else value
