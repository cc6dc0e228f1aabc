"""The loss scale of a trainer by the private names of contrib.amp's, which scripts of others read and write."""

from __future__ import annotations

import dataclasses
from typing import Any

from ..errors import LossScaleError
from ..loss_scale import DynamicLossScale, NoOpLossScale, parse
from .scaler import Scaler


class AmpLossScaler:
    """``trainer._amp_loss_scaler``: a view of a trainer's loss scale by the names that contrib.amp has for it.

    Sockeye, for one, saves and restores a run by them. A change is made as by ``trainer.loss_scale``: between steps
    alone. Only a dynamic scale grows: for others ``_unskipped`` is 0, and the numbers that say when it grows are not
    kept.

    References:
        python/mxnet/contrib/amp/loss_scaler.py at tag 1.9.1.
    """

    def __init__(self, scaler: Scaler) -> None:
        self._scaler = scaler

    @property
    def loss_scale(self) -> float:
        """The factor of the next loss."""
        return self._scaler.loss_scale.value

    @property
    def _loss_scale(self) -> float:
        return self.loss_scale

    @_loss_scale.setter
    def _loss_scale(self, value: Any) -> None:
        scale = self._scaler.loss_scale
        if value == scale.value:
            return
        if isinstance(scale, NoOpLossScale):
            raise LossScaleError(
                f"_loss_scale={value!r}, but the trainer has no loss scale, as by default with bfloat16; set its "
                "loss_scale to 'dynamic' or a number first."
            )
        if isinstance(scale, DynamicLossScale):
            self._scaler.loss_scale = dataclasses.replace(scale, value=value, warming_up=False)
        else:
            self._scaler.loss_scale = parse(value)

    # In contrib.amp a new scale is used one step late. Here it is used at once, so that the two are always equal.
    _next_loss_scale = _loss_scale

    @property
    def _unskipped(self) -> int:
        return getattr(self._scaler.loss_scale, "growth_tracker", 0)

    @_unskipped.setter
    def _unskipped(self, value: int) -> None:
        self._change(growth_tracker=value)

    @property
    def _scale_seq_len(self) -> int:
        return getattr(self._scaler.loss_scale, "growth_interval", DynamicLossScale.growth_interval)

    @_scale_seq_len.setter
    def _scale_seq_len(self, value: int) -> None:
        tracker = self._unskipped
        self._change(growth_interval=value, growth_tracker=tracker if tracker < value else 0)

    def _change(self, **fields: Any) -> None:
        scale = self._scaler.loss_scale
        if isinstance(scale, DynamicLossScale):
            self._scaler.loss_scale = dataclasses.replace(scale, **fields)

    def has_overflow(self, params: Any) -> bool:
        """Return False: MXNet's own step, which asks, runs only where a kvstore updates, and then nothing is checked.

        See Trainer._update in python/mxnet/gluon/trainer.py.
        """
        return False
