"""The loss scale and the counts of skipped steps, as properties of a trainer or module."""

from __future__ import annotations

from typing import Any

from ..loss_scale import LossScale
from .scaler import Scaler


class ScalerStatus:
    """The loss scale and the counts of skipped steps, read from ``_scaler``."""

    _scaler: Scaler

    @property
    def loss_scale(self) -> LossScale:
        """The present loss scale. May be set between steps, to whatever the constructor takes."""
        return self._scaler.loss_scale

    @loss_scale.setter
    def loss_scale(self, spec: Any) -> None:
        self._set_loss_scale(spec)

    def _set_loss_scale(self, spec: Any) -> None:
        """Set the loss scale of the steps to come."""
        raise NotImplementedError

    @property
    def skipped_steps(self) -> int:
        """Steps skipped so far because of non-finite gradients."""
        return self._scaler.skips.skipped_steps

    @property
    def consecutive_skips(self) -> int:
        """Steps skipped since the last one that was taken."""
        return self._scaler.skips.consecutive_skips

    @property
    def last_step_skipped(self) -> bool:
        """Whether the last step was skipped."""
        return self._scaler.skips.last_step_skipped
