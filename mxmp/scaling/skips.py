"""Counts of skipped steps, and what the log says of them."""

from __future__ import annotations

import logging
from typing import Any, Callable, Dict, Optional, Type

from ..errors import LossScaleError
from ..loss_scale import DynamicLossScale, LossScale
from .source import Moved

_LOG = logging.getLogger(__name__)

_FIELDS: Dict[str, Type[int]] = {"skipped_steps": int, "consecutive_skips": int, "last_step_skipped": bool}


class SkipCounter:
    """Counts the steps of one trainer that were skipped: in all, and since the last one that was not."""

    def __init__(self) -> None:
        self.skipped_steps = 0
        self.consecutive_skips = 0
        self.last_step_skipped = False
        self.nonfinite_losses = 0  # steps in a row that were skipped since their loss was not finite; not saved
        self._row = 0  # steps skipped right before the last one

    @property
    def next_is_explained(self) -> bool:
        """Whether the next step, if it is skipped, is one of so many in a row that it is told why."""
        return self.consecutive_skips >= 9 and worth_a_line(self.consecutive_skips + 1)

    def count(self, taken: bool) -> None:
        """Count a step as taken or skipped."""
        self._row = self.consecutive_skips
        self.last_step_skipped = not taken
        self.skipped_steps += not taken
        self.consecutive_skips = 0 if taken else self._row + 1
        self.nonfinite_losses = 0

    def count_nonfinite_loss(self) -> None:
        """Count a step as skipped since its loss was not finite."""
        row = self.nonfinite_losses + 1
        self.count(False)
        self.nonfinite_losses = row

    def log(
        self, taken: bool, step: int, moved: Moved, stats_lost: bool, bad_input: Callable[[], Optional[str]]
    ) -> None:
        """Log the step that was counted last, if it is worth a line.

        ``moved`` is the loss scale before and after; ``stats_lost`` says whether running statistics were lost;
        ``bad_input`` which input holds inf or NaN, slowly.
        """
        before, after = moved
        text = f"{type(after).__name__} {before.value:g} -> {after.value:g}"
        if not taken and worth_a_line(self.consecutive_skips):
            line = "step %d skipped, its gradients are not finite%s: %s; %d skipped in a row, %d in all"
            found = bad_input()
            data = "" if found is None else f", which is no overflow, for {found}"
            counts = self.consecutive_skips, self.skipped_steps
            _LOG.log(self._level(before, stats_lost), line, step, data, text, *counts)
        elif taken and self._row > 1:
            _LOG.info("step %d taken, after %d skipped in a row: %s", step, self._row, text)
        elif taken and after.value != before.value and not getattr(after, "warming_up", False):
            _LOG.info("%s after step %d", text, step)

    def _level(self, before: LossScale, stats_lost: bool) -> int:
        """Return WARNING where the scale cannot fall or has not helped for long, but INFO where another line warns."""
        dynamic = before if isinstance(before, DynamicLossScale) else None
        falls = dynamic is not None and dynamic.value > dynamic.min_scale
        warned = stats_lost or (dynamic is not None and not falls and dynamic.at_floor == "warn")
        return logging.INFO if warned or (falls and self.consecutive_skips < 10) else logging.WARNING

    def to_dict(self) -> Dict[str, Any]:
        """Return the counts as plain JSON data."""
        return {name: getattr(self, name) for name in _FIELDS}

    def check_dict(self, data: Dict[str, Any]) -> None:
        """Raise a LossScaleError if `load_dict` will not take counts."""
        for name, expected in _FIELDS.items():
            value = data.get(name)
            if type(value) is not expected or value < 0:
                raise LossScaleError(f"{name} is {value!r}; expected a {expected.__name__} of at least 0.")

    def load_dict(self, data: Dict[str, Any]) -> None:
        """Take counts that `to_dict` returned."""
        for name in _FIELDS:
            setattr(self, name, data[name])


def worth_a_line(count: int) -> bool:
    """Return whether what happened so often gets a line in the log: the first time, and at 10, 50, 100, 500, ..."""
    return count == 1 or (count >= 10 and str(count).rstrip("0") in ("1", "5"))
