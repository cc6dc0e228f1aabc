"""What a log of training steps records, and how it is attached; `csv_log` and `tensorboard` write it down.

What is computed for the log stays on the device until the next step ends: its finite check has waited for all that
by then, so that the log adds no wait of the host to a step.
"""

from __future__ import annotations

import abc
import atexit
import dataclasses
import time
import weakref
from typing import Any, Callable, Mapping, NamedTuple, Optional, Tuple, Type, TypeVar

from mxnet.gluon.contrib.estimator import BatchEnd, TrainBegin, TrainEnd

from ..errors import TrainerError
from ..train.step import Observation, Observer, StepEnd, Weights, attached_elsewhere, observe, scaler_of
from .skipped import why_skipped
from .step_values import GradientNorm, MeanLoss

_BEFORE_THE_STEP = -2001  # MXNet's GradientUpdateHandler, which calls the trainer's step, has -2000

Log = TypeVar("Log", bound="StepLogger")


class StepRecord(NamedTuple):
    """One step of a log; None is what was not measured.

    Attributes:
        step: Its number among all steps, taken and skipped, from 1 on.
        seconds: Since the log was attached; where a log is attached again, or its file goes on, after the last ones.
        taken: Whether the weights were updated.
        scale: What the losses were multiplied by.
        next_scale: What those of the next step will be.
        grad_norm: Norm of all true gradients, summed over contexts and workers, not divided by the batch size; before
            the trainer clips them, but after the user's own code has (by ``param.grad()``). Not finite where a gradient
            was not.
        loss: Mean of the losses that were given, of all batches of the step.
        zero_share: Share of the gradients' elements that became zero, of the ledger's last sample.
        subnormal_share: Share of those that are subnormal, likewise.
        largest: The largest magnitude of a gradient, likewise.
        error: What the step raised, in one line.
        why: Of a skipped step: the weights whose gradients were not finite, each with the share of its elements, the
            smallest share first. Backward spreads what is not finite to ever more elements, so that one is likely the
            cause.
    """

    step: int
    seconds: float
    taken: bool
    scale: float
    next_scale: float
    grad_norm: Optional[float] = None
    loss: Optional[float] = None
    zero_share: Optional[float] = None
    subnormal_share: Optional[float] = None
    largest: Optional[float] = None
    error: str = ""
    why: str = ""


@dataclasses.dataclass
class _Pending:
    """A step that is over, with what of it lies on the device still."""

    record: StepRecord
    skipped: bool
    norm: Optional[GradientNorm]
    loss: MeanLoss

    def read(self) -> StepRecord:
        """Return the record, complete."""
        norm = None if self.norm is None else self.norm.read()
        return self.record._replace(grad_norm=norm, loss=self.loss.read())


class StepLogger(Observer, TrainBegin, BatchEnd, TrainEnd, abc.ABC):
    """Records the steps of one trainer, module or optimizer; its children say where to.

    It changes nothing of the training, bit for bit. Each step is written when the next one ends, and the last one by
    `detach` or `close`. The end of the program calls that if need be, for a log that is alive still: one whose trainer
    is gone with it has to be closed before, or its last step is lost.

    Attributes:
        priority: For an Estimator: before the handler that makes the step.
    """

    priority = _BEFORE_THE_STEP

    def __init__(self, every: int, ledger: Any) -> None:
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise TrainerError(f"{type(self).__name__}: every={every!r}; expected a whole number of steps, 1 or more.")
        if ledger is not None and not callable(getattr(ledger, "shares", None)):
            raise TrainerError(f"{type(self).__name__}: ledger is a {type(ledger).__name__}, which has no shares().")
        self._every, self._ledger = every, ledger
        self._owner: Any = None
        self._observation: Optional[Observation] = None
        self._steps, self._begin = 0, 0.0
        self._seconds = 0.0  # of the last step
        self._norm: Optional[GradientNorm] = None
        self._why = ""
        self._loss = MeanLoss()
        self._has_loss = False  # whether that of the present batch was given
        self._awaits_loss = False  # whether that of the batch before was not
        self._in_group = False  # whether that batch made no step: gradients are added up
        self._pending: Optional[_Pending] = None
        self._skipped = 0  # how many steps were skipped, up to the one that is written
        self._closed = False

    def attach(self: Log, owner: Any) -> Log:
        """Record each step of a trainer, a module or a `LossScaleOptimizer` of mxmp from now on; return the log.

        A module may be attached before it is bound, so that ``fit`` is recorded. Steps that a kvstore takes by itself
        (``update_on_kvstore=True``) are not told. Of several workers let one keep a log. A second call with the same
        owner does nothing.

        Raises:
            TrainerError: If ``owner`` is none of them; if the log is attached to another, or closed.
        """
        if self._closed:
            raise TrainerError(f"attach: this {type(self).__name__} is closed; make another.")
        if self._observation is not None:
            if self._owner is owner:
                return self
            raise attached_elsewhere(self, self._owner)
        self._observation, self._owner = observe(owner, self), owner
        self._begin, self._skipped = time.monotonic() - self._seconds, owner.skipped_steps
        self._at_exit = _closing(self)
        atexit.register(self._at_exit)
        return self

    def detach(self) -> None:
        """Write the last step and record no further ones; a second call does nothing."""
        if self._observation is not None:
            self._observation.detach()
            self._observation = self._owner = self._norm = None
            self._loss, self._has_loss, self._awaits_loss, self._in_group = MeanLoss(), False, False, False
            atexit.unregister(self._at_exit)
            self._flush()

    def close(self) -> None:
        """Detach, and close what is written to; a second call does nothing."""
        try:
            self.detach()
        finally:
            if not self._closed:
                self._closed = True
                self._end()

    def __enter__(self: Log) -> Log:
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], *rest: Any) -> None:
        self.close()

    def log(self, loss: Any) -> None:
        """Record the loss of the step under way; between steps, that of the step that has just ended.

        In the loop of a `mxmp.gluon.Accumulator` the mean over all batches of a step is recorded, each by its elements.

        Args:
            loss: As it was before scaling: a number, an NDArray of any shape, or a list of them, one per context. Their
                mean is recorded; arrays are averaged on their devices in float32, and not waited for.

        Raises:
            TrainerError: If ``loss`` is none of these, or the log is not attached.
        """
        if self._owner is None:
            raise TrainerError(f"log: this {type(self).__name__} is not attached; call attach(trainer) first.")
        between = scaler_of(self._owner).state.is_ready and not self._in_group
        is_late = self._awaits_loss and (between or self._in_group)
        if is_late and between and self._pending is not None:
            self._pending.loss.add(loss)
        else:
            self._loss.add(loss)
        self._has_loss, self._awaits_loss = not is_late, False

    # ------------------------------------------------------------------ an observer

    def on_batch(self) -> None:
        """Know that the next loss may be that of the batch which has just been added up."""
        self._end_batch(in_group=True)

    def _end_batch(self, in_group: bool) -> None:
        self._awaits_loss, self._has_loss, self._in_group = not self._has_loss, False, in_group

    def on_reduced(self, weights: Weights, scale: float) -> None:
        """Compute the sum of the squares of all gradients, in one step of ``every``; it stays on the device."""
        self._norm = GradientNorm(weights, scale) if self._steps % self._every == 0 else None

    def on_skip(self, weights: Weights) -> None:
        """Note which gradients are not finite."""
        self._why = why_skipped(weights)

    def on_end(self, end: StepEnd) -> None:
        """Write the step before, and keep this one until the next ends."""
        self._flush()
        shares = self._ledger.shares() if self._ledger is not None else {}
        error = "" if end.error is None else " ".join(f"{type(end.error).__name__}: {end.error}".split())
        self._seconds, scale = time.monotonic() - self._begin, end.loss_scale.value
        record = StepRecord(end.number, self._seconds, end.taken, end.scale, scale, None, None, *_read(shares), error)
        if not (end.taken or end.skipped or error):
            self._why = "the loss is not finite"
        self._pending = _Pending(record._replace(why=self._why), end.skipped, self._norm, self._loss)
        self._norm, self._loss, self._why = None, MeanLoss(), ""
        self._end_batch(in_group=False)
        self._steps += 1
        if end.error is not None:  # which may end the program
            self._flush()

    def _flush(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            self._skipped += pending.skipped
            self._write(pending.read())

    # ------------------------------------------------------------------ a handler of an Estimator

    def train_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Attach the log to an Estimator's trainer."""
        self.detach()
        self.attach(estimator.trainer)

    def batch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Record the losses of a batch."""
        self.log(loss=kwargs["loss"])

    def train_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Write the last step."""
        self.detach()

    # ------------------------------------------------------------------ what children do

    @abc.abstractmethod
    def _write(self, record: StepRecord) -> None:
        """Write one step."""

    @abc.abstractmethod
    def _end(self) -> None:
        """Close what is written to."""


def _closing(log: StepLogger) -> Callable[[], None]:
    """Return what closes a log without keeping it alive, nor the trainer and the parameters that it knows."""
    alive = weakref.ref(log)

    def close() -> None:
        found = alive()
        if found is not None:
            found.close()

    return close


def _read(shares: Mapping[str, float]) -> Tuple[Optional[float], Optional[float], Optional[float]]:
    """Return the shares of a ledger, None for all before its first sample."""
    return shares.get("zero_share"), shares.get("subnormal_share"), shares.get("largest")
