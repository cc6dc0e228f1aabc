"""Observers of training steps: what a ledger and a log are told by every front, whoever makes the step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, NamedTuple, Optional

from ..errors import TrainerError
from ..loss_scale import LossScale
from ..scaling.scaler import Scaler, ScalerStatus

if TYPE_CHECKING:
    from .step import Weights


class StepEnd(NamedTuple):
    """How a step ended.

    Attributes:
        number: Its number among all steps, taken and skipped, from 1 on.
        taken: Whether the weights were updated.
        skipped: Whether it was skipped for its gradients, even if the loss scale gave up; not so if a loss was not
            finite, which ends a step by an error or, with ``nonfinite_loss='skip'``, leaves all three False and None.
        scale: What the losses were multiplied by.
        loss_scale: The loss scale of the next step.
        error: What the step raised, None if nothing.
    """

    number: int
    taken: bool
    skipped: bool
    scale: float
    loss_scale: LossScale
    error: Optional[BaseException] = None


class Observer:
    """Is told of each step of a trainer, module or optimizer. Each method does nothing unless it is overridden.

    It may read the gradients of `Weights.groups`, but not write them; and it must not call that once the step is over.
    Steps that a kvstore takes by itself are not told.
    """

    def on_batch(self) -> None:
        """A batch is over whose step comes with a later one: gradients are added up."""

    def on_gradients(self, weights: Weights, scale: float) -> None:
        """The gradients are as backward wrote them: times ``scale``, one per context, in their own dtype."""

    def on_reduced(self, weights: Weights, scale: float) -> None:
        """The gradients are summed over contexts and workers, in float32 if there may be several; times ``scale``."""

    def on_update(self, weights: Weights) -> None:
        """The step will be taken; weights and masters are as they were."""

    def on_updated(self, weights: Weights) -> None:
        """The weights were updated."""

    def on_skip(self, weights: Weights) -> None:
        """The step will be skipped: some gradients are not finite; unscaled, if there was reason to."""

    def on_end(self, end: StepEnd) -> None:
        """The step is over: taken, skipped, or ended by an error, which is raised after this."""


class Observation:
    """An observer at work on one trainer, module or optimizer; `detach` ends it."""

    def __init__(self, observers: Dict[int, Observer], observer: Observer) -> None:
        self._observers = observers
        observers[id(self)] = observer

    def detach(self) -> None:
        """Tell the observer of no further steps; a second call does nothing."""
        self._observers.pop(id(self), None)


def observe(owner: Any, observer: Observer) -> Observation:
    """Tell an observer of each step of a trainer, a module or a `LossScaleOptimizer` of mxmp from now on.

    Raises:
        TrainerError: If ``owner`` is none of them.
    """
    return Observation(scaler_of(owner).observers, observer)


def attached_elsewhere(observer: Observer, owner: Any) -> TrainerError:
    """Return the error of what is attached to one owner and shall be to another."""
    name = type(observer).__name__
    return TrainerError(
        f"attach: this {name} is attached to another {type(owner).__name__}; detach it first, or make one for each."
    )


def scaler_of(owner: Any) -> Scaler:
    """Return the scaler of a trainer, a module or an optimizer of mxmp; a TrainerError if it is none of them."""
    if not isinstance(owner, ScalerStatus):
        raise TrainerError(
            f"expected a trainer, a module or a LossScaleOptimizer of mxmp, found a {type(owner).__name__} of "
            f"{type(owner).__module__}; mxmp.gluon.Trainer.adopt makes a trainer of MXNet one of mxmp."
        )
    return owner._scaler
