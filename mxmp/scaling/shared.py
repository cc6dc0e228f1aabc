"""One loss scale for several trainers, which moves once per iteration."""

from __future__ import annotations

import gc
import logging
import weakref
from typing import TYPE_CHECKING, Any, Iterable, List, Optional, Tuple

from ..errors import TrainerError
from ..loss_scale import LossScale, parse
from .source import Moved, ScaleSource, Where, adjusted

if TYPE_CHECKING:
    from .scaler import Scaler

_LOG = logging.getLogger(__name__)


class SharedSource(ScaleSource):
    """The loss scale of several scalers: each notes the outcome of its step, and `update` moves the scale."""

    def __init__(self, value: LossScale) -> None:
        super().__init__(value)
        # Whether each step since the last update was taken, and which gradient made it skip, where that is known.
        self._outcomes: List[Tuple[bool, Optional[str]]] = []
        # Those of trainers that are alive: one that was dropped in mid-window must not block the others.
        self._scalers: weakref.WeakSet[Scaler] = weakref.WeakSet()
        self._stepped: weakref.WeakSet[Scaler] = weakref.WeakSet()

    def replace_for_all(self, value: LossScale) -> None:
        """Set the loss scale where all scalers can work with it, between their steps."""
        for scaler in list(self._scalers):
            scaler.require_ready("setting loss_scale")
            scaler.validate(value)
        self._value = value

    def update(self) -> None:
        """Move the scale back if any step since the last update was skipped; see `SharedLossScale.update`."""
        if any(not scaler.window.is_ready for scaler in self._scalers):
            gc.collect()  # trainers are part of cycles, so that dropped ones may still be there
        for scaler in list(self._scalers):
            scaler.require_window_closed("update of a shared loss scale")
        if not (self._outcomes or self._stepped):
            raise TrainerError("update: no trainer has made a step since the last update of the shared loss scale.")
        if not self._outcomes:
            self._stepped.clear()
            return
        finite = all(outcome for outcome, _ in self._outcomes)
        found = [where for _, where in self._outcomes if where is not None]
        self._outcomes = []
        self._stepped.clear()
        before = self._value
        self._value = adjusted(before, finite, lambda: found[0] if found else None)
        if self._value.value != before.value and not getattr(self._value, "warming_up", False):
            _LOG.info("shared %s %g -> %g", type(before).__name__, before.value, self._value.value)

    def adjust(self, scaler: Scaler, finite: bool, where: Where) -> Moved:
        """Note the outcome of a step; `update` moves the scale."""
        self._stepped.add(scaler)
        may_give_up = not finite and self._value.value <= getattr(self._value, "min_scale", 0.0)
        self._outcomes.append((finite, where() if may_give_up else None))
        return self._value, self._value

    def keep(self, scaler: Scaler) -> None:
        """Note that a scaler has made a step that says nothing of the loss scale."""
        self._stepped.add(scaler)

    def attach(self, scaler: Scaler) -> None:
        """Let `update` wait for a scaler from now on."""
        self._scalers.add(scaler)

    def scalers(self, scaler: Scaler) -> Iterable[Scaler]:
        """Return the scalers of all trainers that are alive, and ``scaler``."""
        return {scaler, *self._scalers}

    def has_stepped(self, scaler: Scaler) -> bool:
        """Return whether a scaler has made a step since the last `update`."""
        return scaler in self._stepped


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
        self._source = SharedSource(parse(loss_scale))

    def __repr__(self) -> str:
        """Return the present loss scale."""
        return f"{type(self).__name__}({self.loss_scale!r})"

    @property
    def loss_scale(self) -> LossScale:
        """The present loss scale. May be set between iterations."""
        return self._source.loss_scale

    @loss_scale.setter
    def loss_scale(self, spec: Any) -> None:
        """Set the loss scale of the iterations to come."""
        self._source.replace_for_all(parse(spec))

    def update(self) -> None:
        """Move the scale, after the steps of all trainers: back if any was skipped.

        Raises:
            TrainerError: If no trainer has stepped since the last update, or one has scaled a loss
                and not stepped yet.
            LossScaleError: If the loss scale gave up.
        """
        self._source.update()


def make_source(loss_scale: Any) -> ScaleSource:
    """Return the source of what a trainer is given as its loss scale; a LossScaleError if it is none."""
    return loss_scale._source if isinstance(loss_scale, SharedLossScale) else ScaleSource(parse(loss_scale))
