"""Where a scaler gets its loss scale: the interface, and one of its own."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence

from ..errors import LossScaleError
from ..loss_scale import DynamicLossScale, LossScale
from ..loss_scale.dynamic import floor_message

if TYPE_CHECKING:
    from .scaler import Scaler

Where = Callable[[], Optional[str]]
"""Finds where the first non-finite gradient is, for messages; slow. None if that is not known."""


class Moved(NamedTuple):
    """A loss scale before and after a step.

    Attributes:
        before: What the step was made with.
        after: What the next one will be made with.
    """

    before: LossScale
    after: LossScale


class ScaleSource(abc.ABC):
    """Gives scalers their loss scale, and moves it by the outcome of their steps."""

    @property
    @abc.abstractmethod
    def loss_scale(self) -> LossScale:
        """The present loss scale."""

    @abc.abstractmethod
    def replace(self, value: LossScale) -> None:
        """Set the loss scale of the steps to come."""

    @abc.abstractmethod
    def adjust(self, scaler: Scaler, finite: bool, where: Where) -> Moved:
        """Move the loss scale after a step.

        Args:
            scaler: Whose step it was.
            finite: Whether it was taken.
            where: See `Where`.

        Raises:
            LossScaleError: If the loss scale gives up.
        """

    def attach(self, scaler: Scaler) -> None:  # noqa: B027 (most have nothing to do)
        """Register a scaler that works with the loss scale from now on."""

    def scalers(self, scaler: Scaler) -> Iterable[Scaler]:
        """Return all scalers that work with the loss scale, ``scaler`` among them."""
        return (scaler,)

    def has_stepped(self, scaler: Scaler) -> bool:
        """Return whether a scaler has made a step by which the loss scale has not moved yet."""
        return False

    def end_window(self) -> None:  # noqa: B027
        """Forget what was noted of the present step."""

    def to_dict(self) -> Dict[str, Any]:
        """Return the loss scale as plain JSON data."""
        return {"loss_scale": self.loss_scale.to_dict()}

    def from_dict(self, data: Dict[str, Any]) -> List[LossScale]:
        """Return what `to_dict` described, for `load`; changes nothing.

        Raises:
            LossScaleError: If a field is missing or invalid.
        """
        return [LossScale.from_dict(data.get("loss_scale", {}))]

    def load(self, values: Sequence[LossScale]) -> None:
        """Take what `from_dict` returned."""
        self.replace(values[0])


class OwnLossScale(ScaleSource):
    """The loss scale of one trainer.

    Args:
        value: What it starts with.
    """

    def __init__(self, value: LossScale) -> None:
        self._value = value

    @property
    def loss_scale(self) -> LossScale:
        """The present loss scale."""
        return self._value

    def replace(self, value: LossScale) -> None:
        """Set the loss scale of the steps to come."""
        self._value = value

    def adjust(self, scaler: Scaler, finite: bool, where: Where) -> Moved:
        """Move the loss scale after a step."""
        before = self._value
        self._value = adjusted(before, finite, where)
        return Moved(before, self._value)


def adjusted(loss_scale: LossScale, finite: bool, where: Where) -> LossScale:
    """Return the next loss scale.

    Args:
        loss_scale: The present one.
        finite: Whether the gradients were.
        where: See `Where`.

    Raises:
        LossScaleError: If the loss scale gives up.
    """
    try:
        return loss_scale.adjust(finite)
    except LossScaleError as e:
        found = where()
        if found is None or not isinstance(loss_scale, DynamicLossScale):
            raise
        raise LossScaleError(floor_message(loss_scale.floor_skips + 1, loss_scale.min_scale, found)) from e
