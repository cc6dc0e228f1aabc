"""Where a scaler gets its loss scale."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple

from ..errors import LossScaleError
from ..loss_scale import DynamicLossScale, LossScale
from ..loss_scale.dynamic import floor_message

if TYPE_CHECKING:
    from .scaler import Scaler

Where = Callable[[], Optional[str]]
"""Finds where the first non-finite gradient is, for messages; slow. None if that is not known."""


Moved = Tuple[LossScale, LossScale]
"""The loss scale that a step was made with, and that of the next one."""


class ScaleSource:
    """The loss scale of one trainer. Derived classes have one for several trainers, or several."""

    def __init__(self, value: LossScale) -> None:
        self._value = value

    @property
    def loss_scale(self) -> LossScale:
        """The present loss scale."""
        return self._value

    def replace(self, value: LossScale) -> None:
        """Set the loss scale of the steps to come, for a scaler that has checked it."""
        self._value = value

    def adjust(self, scaler: Scaler, finite: bool, where: Where) -> Moved:
        """Move the loss scale after a step of a scaler, taken if ``finite``; LossScaleError if it gives up."""
        before = self._value
        self._value = adjusted(before, finite, where)
        return before, self._value

    def keep(self, scaler: Scaler) -> None:
        """Leave the loss scale as it is after a step of a scaler that says nothing of it."""

    def attach(self, scaler: Scaler) -> None:
        """Register a scaler that works with the loss scale from now on."""

    def scalers(self, scaler: Scaler) -> Iterable[Scaler]:
        """Return all scalers that work with the loss scale, ``scaler`` among them."""
        return (scaler,)

    def has_stepped(self, scaler: Scaler) -> bool:
        """Return whether a scaler has made a step by which the loss scale has not moved yet."""
        return False

    def end_window(self) -> None:
        """Forget what was noted of the present step."""

    def to_dict(self) -> Dict[str, Any]:
        """Return the loss scale as plain JSON data."""
        return {"loss_scale": self.loss_scale.to_dict()}

    def from_dict(self, data: Dict[str, Any]) -> List[LossScale]:
        """Return what `to_dict` described, for `load`, or raise LossScaleError; changes nothing."""
        return [LossScale.from_dict(data.get("loss_scale", {}))]

    def load(self, values: Sequence[LossScale]) -> None:
        """Take what `from_dict` returned."""
        self.replace(values[0])


def adjusted(loss_scale: LossScale, finite: bool, where: Where) -> LossScale:
    """Return the next loss scale, or raise LossScaleError if it gives up."""
    try:
        return loss_scale.adjust(finite)
    except LossScaleError as e:
        found = where()
        if found is None or not isinstance(loss_scale, DynamicLossScale):
            raise
        raise LossScaleError(floor_message(loss_scale.floor_skips + 1, loss_scale.min_scale, found)) from e
