"""One loss scale for several trainers, which moves once per iteration."""

from __future__ import annotations

import gc
import logging
import weakref
from typing import Any, Callable, List, Optional, Tuple

from ..errors import TrainerError
from ..loss_scale import LossScale, parse
from .scaler import Scaler, Stage, adjusted, location

_LOG = logging.getLogger(__name__)


class SharedLossScale:
    """A loss scale that several trainers are given as their ``loss_scale``.

    Each of them steps or skips on its own; `update` then moves the scale, once per iteration: back
    if any of them skipped. Between two updates a trainer may make one step.

    Args:
        loss_scale: As for `mxmp.gluon.Trainer`.

    Raises:
        LossScaleError: If ``loss_scale`` is not one.

    Example::

        shared = mxmp.gluon.SharedLossScale("dynamic")
        critic_trainer = mxmp.gluon.Trainer(critic.collect_params(), "adam", loss_scale=shared)
        generator_trainer = mxmp.gluon.Trainer(generator.collect_params(), "adam", loss_scale=shared)
        ...
        critic_trainer.step(batch_size)
        generator_trainer.step(batch_size)
        shared.update()
    """

    def __init__(self, loss_scale: Any = "dynamic") -> None:
        self._value = parse(loss_scale)
        # Whether each step since the last update was taken, and which gradient made it skip, where that is known.
        self._outcomes: List[Tuple[bool, Optional[str]]] = []
        # Those of trainers that are alive: one that was dropped in mid-window must not block the others.
        self._members: weakref.WeakSet[MemberScaler] = weakref.WeakSet()

    @property
    def loss_scale(self) -> LossScale:
        """The present loss scale. May be set between iterations."""
        return self._value

    @loss_scale.setter
    def loss_scale(self, spec: Any) -> None:
        """Set the loss scale of the iterations to come."""
        value = parse(spec)
        for member in list(self._members):
            member.require_ready("setting loss_scale")
            member.refuse(value)
        self._value = value

    def update(self) -> None:
        """Move the scale, after the steps of all trainers: back if any was skipped.

        Raises:
            TrainerError: If no trainer has stepped since the last update, or one has scaled a loss
                and not stepped yet.
            LossScaleError: If the loss scale gave up.
        """
        if any(member.waits for member in self._members):
            gc.collect()  # trainers are part of cycles, so that dropped ones may still be there
        for member in list(self._members):
            member.require_window_closed("update of a shared loss scale")
        if not self._outcomes:
            raise TrainerError("update: no trainer has made a step since the last update of the shared loss scale.")
        finite = all(outcome for outcome, _ in self._outcomes)
        found = [where for _, where in self._outcomes if where is not None]
        self._outcomes = []
        for member in self._members:
            member.stepped = False
        before = self._value
        self._value = adjusted(before, finite, lambda: found[0] if found else None)
        if self._value.value != before.value and not getattr(self._value, "warming_up", False):
            _LOG.info("shared %s %g -> %g", type(before).__name__, before.value, self._value.value)


class MemberScaler(Scaler):
    """The window and the counters of one trainer, with the scale of a `SharedLossScale`.

    Attributes:
        stepped: Whether the trainer has made a step since the last update.
    """

    def __init__(self, shared: SharedLossScale) -> None:
        self._shared = shared
        self.stepped = False
        super().__init__(shared.loss_scale)

    def join(self) -> None:
        """Be waited for by `SharedLossScale.update`."""
        self._shared._members.add(self)

    @property
    def waits(self) -> bool:
        """Whether the trainer has scaled a loss and not stepped yet."""
        return self.window.stage is not Stage.READY or self.window.reduced

    @property
    def _loss_scale(self) -> LossScale:
        return self._shared._value

    @_loss_scale.setter
    def _loss_scale(self, value: LossScale) -> None:
        self._shared._value = value

    def _set(self, value: LossScale) -> None:
        self._shared.loss_scale = value

    def _refuse_for_all(self, value: LossScale) -> None:
        for member in {self, *self._shared._members}:
            member.refuse(value)

    def require_ready(self, call: str) -> None:
        """Raise between a scaled loss of any of the trainers and the update of the scale."""
        for member in {self, *self._shared._members}:
            member.require_window_closed(call)
            if member.stepped:
                raise TrainerError(
                    f"{call} came between a step and the update of its shared loss scale; call its update() first."
                )

    def require_window_closed(self, call: str) -> None:
        """Raise between a scaled loss of this trainer and its step."""
        super().require_ready(call)

    def settle(self, finite: bool, step: int, first_bad: Callable[[], Optional[str]]) -> None:
        """Note the outcome of a step; `SharedLossScale.update` moves the scale."""
        self.stepped, scale, where = True, self._loss_scale, None
        self._log(finite, self._count(finite), step, scale, scale)
        if not finite and scale.value <= getattr(scale, "min_scale", 0.0):  # where it may give up
            where = location(first_bad(), step)
        self._shared._outcomes.append((finite, where))

    def _require_can_open(self) -> None:
        if self.stepped:
            raise TrainerError(
                "scale_loss: this trainer has made a step since its shared loss scale moved; call update() of the "
                "SharedLossScale once per iteration, after the steps of all its trainers."
            )
        super()._require_can_open()


def make_scaler(loss_scale: Any) -> Scaler:
    """Return a scaler for what a trainer is given as its loss scale.

    Raises:
        LossScaleError: If it is not one.
    """
    return MemberScaler(loss_scale) if isinstance(loss_scale, SharedLossScale) else Scaler(parse(loss_scale))
