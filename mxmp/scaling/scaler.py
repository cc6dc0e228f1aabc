"""The loss scale at work: one window from scaled loss to step, as a state machine.

A window begins when a step is over and ends with the next step. It goes from READY (nothing
scaled) to SCALED (a loss was scaled) to UNSCALED (gradients are true again); its scale is fixed
by its first loss. Whoever calls out of turn gets a `TrainerError` and nothing is changed.
"""

from __future__ import annotations

import dataclasses
import enum
import logging
import math
from typing import Any, Callable, ClassVar, Dict, List, Optional, Sequence

import mxnet as mx
from mxnet import autograd

from ..arrays.norms import gather, host_norm, sum_of_squares
from ..errors import LossScaleError, NonFiniteLossError, TrainerError
from ..loss_scale import DynamicLossScale, LossScale, NoOpLossScale, floor_message
from .recorded_graph import History
from .scaled_loss import Factors

_LOG = logging.getLogger(__name__)

_COUNTERS = {"skipped_steps": int, "consecutive_skips": int, "last_step_skipped": bool}


class Stage(enum.Enum):
    """How far a window has come."""

    READY = "ready"
    SCALED = "scaled"
    UNSCALED = "unscaled"


@dataclasses.dataclass
class Window:
    """What belongs to one step.

    Attributes:
        scale: What the losses were multiplied by.
        stage: How far it has come.
        reduced: Whether the gradients were reduced over the contexts.
        reached: Whether a backward came through a scaled loss.
        loss_flag: Shape (1,), on a device: 1 if every unscaled loss was finite. None: no loss.
        grad_flag: Shape (1,), on a device: 1 if every gradient was finite before it was
            unscaled. None: not unscaled.
        statistics_flag: Shape (1,), on a device: 1 if no running statistics were destroyed. None:
            not looked at.
        finite: The verdict, once the host has read it.
        destroyed: Whether running statistics were destroyed, once the host has read it.
    """

    scale: float = 1.0
    stage: Stage = Stage.READY
    reduced: bool = False
    reached: bool = False
    loss_flag: Optional[mx.nd.NDArray] = None
    grad_flag: Optional[mx.nd.NDArray] = None
    statistics_flag: Optional[mx.nd.NDArray] = None
    finite: Optional[bool] = None
    destroyed: bool = False


class Scaler:
    """A loss scale with its window and the counters of skipped steps.

    Attributes:
        window: The present window.
        skipped_steps: Steps skipped so far.
        consecutive_skips: Steps skipped since the last one that was not.
        last_step_skipped: Whether the last step was skipped.
        factors: What losses are multiplied by.
        history: Checks what was recorded of them.
        refuse: Raises if the owner cannot work with a loss scale that is set or loaded.
    """

    # Scaled losses of the open blocks of all scalers, to refuse scaling one twice.
    _scaled_losses: ClassVar[Dict[int, mx.nd.NDArray]] = {}

    def __init__(self, loss_scale: LossScale) -> None:
        self._loss_scale = loss_scale
        self._open = False
        self.window = Window()
        self.skipped_steps = 0
        self.consecutive_skips = 0
        self.last_step_skipped = False
        self.factors, self.history = Factors(), History()
        self.refuse: Callable[[LossScale], None] = _accept

    def join(self) -> None:
        """Begin to work for a trainer; a scale that is shared waits for it from now on."""

    @property
    def loss_scale(self) -> LossScale:
        """The loss scale that the next window will start with."""
        return self._loss_scale

    @loss_scale.setter
    def loss_scale(self, value: LossScale) -> None:
        self.require_ready("setting loss_scale")
        self.refuse(value)
        self._set(value)

    def _set(self, value: LossScale) -> None:
        self._loss_scale = value

    def _refuse_for_all(self, value: LossScale) -> None:
        """Raise if any owner of the scale cannot work with it."""
        self.refuse(value)

    @property
    def active(self) -> bool:
        """Whether losses must be scaled."""
        return not isinstance(self._loss_scale, NoOpLossScale)

    @property
    def is_open(self) -> bool:
        """Whether a scale_loss block is open."""
        return self._open

    @property
    def checks(self) -> bool:
        """Whether this window's gradients are checked before they are used."""
        return self.active or self.window.scale != 1.0

    def require_closed(self, call: str) -> None:
        """Raise inside of a scale_loss block."""
        if self._open:
            raise TrainerError(
                f"{call} was called inside a scale_loss block, where backward may still run; "
                f"end the block, then call {call}."
            )

    def require_ready(self, call: str) -> None:
        """Raise between a scaled loss and its step."""
        self.require_closed(call)
        if self.window.stage is not Stage.READY or self.window.reduced:
            raise TrainerError(
                f"{call} came between backward and step, where gradients of the present scale "
                "wait to be used; call step first (update on a module)."
            )

    def require_scaled(self, call: str) -> None:
        """Raise if losses must be scaled and this window's was not."""
        if self.active and self.window.stage is Stage.READY:
            raise TrainerError(
                f"{call}: the loss of this step was not scaled, but the loss scale is "
                f"{self._loss_scale.value:g}. Run backward as `with trainer.scale_loss(loss) as scaled: "
                "scaled.backward()`, or create the trainer with loss_scale=None."
            )

    def close_window(self) -> None:
        """Forget the present window."""
        self.window = Window()
        self.factors.release()

    def judge(self, flag: Optional[mx.nd.NDArray]) -> bool:
        """Return whether the step can be taken. Reads once on the host, at most once a window.

        Args:
            flag: Shape (1,): 1 if the gradients as they are now are finite. None if that is
                known from `read`.

        Raises:
            NonFiniteLossError: If the loss itself was not finite.
        """
        if self.window.finite is None:
            if flag is None or not self.checks:
                return True
            (finite,) = self.read(flag)
            self.window.finite = self.window.finite is not False and finite == 1.0
        return self.window.finite

    def read(self, value: mx.nd.NDArray) -> List[float]:
        """Return a small array's content, read together with the window's flags.

        Args:
            value: Shape (N,), float32.

        Returns:
            Its N elements. ``window.finite`` is False if the gradients were not finite before
            they were unscaled, else None.

        Raises:
            NonFiniteLossError: If the loss itself was not finite.
        """
        window = self.window
        flags = [flag for flag in (window.loss_flag, window.grad_flag, window.statistics_flag) if flag is not None]
        ctx = value.ctx
        parts = [value, *(flag.as_in_context(ctx) for flag in flags)]
        with autograd.pause():
            numbers = (mx.nd.concat(*parts, dim=0) if flags else value).asnumpy().tolist()
        bad = [flag for flag, number in zip(flags, numbers[value.size :]) if number != 1.0]
        window.destroyed = any(flag is window.statistics_flag for flag in bad)
        bad = [flag for flag in bad if flag is not window.statistics_flag]
        if window.loss_flag is not None and any(flag is window.loss_flag for flag in bad):
            raise non_finite_loss()
        window.finite = False if bad else None
        return numbers[: value.size]

    def read_norm(self, groups: Sequence[Sequence[mx.nd.NDArray]]) -> float:
        """Return the largest norm of several groups of unscaled gradients; one host read.

        Where gradients are checked it also sets ``window.finite``, so that the step need not read again.

        Args:
            groups: Float32 arrays, those of a group on one context.

        Returns:
            NaN if any norm is NaN.

        Raises:
            NonFiniteLossError: If the loss itself was not finite.
        """
        norms = [math.sqrt(square) for square in self.read(gather([sum_of_squares(group) for group in groups]))]
        if self.window.finite is None:
            # Squares overflow above 1.8e19: such gradients may be finite all the same.
            norms = [x if math.isfinite(x) else host_norm(group) for x, group in zip(norms, groups)]
            if self.checks:
                self.window.finite = all(map(math.isfinite, norms))
        return math.nan if any(map(math.isnan, norms)) else max(norms)

    def settle(self, finite: bool, step: int, first_bad: Callable[[], Optional[str]]) -> None:
        """Adjust the loss scale and the counters to the outcome of a step.

        Args:
            finite: Whether the step was taken.
            step: Its number, for messages.
            first_bad: Finds the name of the first non-finite gradient; slow.

        Raises:
            LossScaleError: If the loss scale gives up.
        """
        row, before = self._count(finite), self._loss_scale
        self._loss_scale = adjusted(before, finite, lambda: location(first_bad(), step))
        self._log(finite, row, step, before, self._loss_scale)

    def _count(self, finite: bool) -> int:
        """Count a step as taken or skipped; return how many were skipped right before it."""
        row = self.consecutive_skips
        self.last_step_skipped = not finite
        self.skipped_steps += not finite
        self.consecutive_skips = 0 if finite else row + 1
        return row

    def _log(self, finite: bool, row: int, step: int, before: LossScale, after: LossScale) -> None:
        """Log a step, after ``row`` skipped ones, if it is worth a line."""
        moved = f"{type(after).__name__} {before.value:g} -> {after.value:g}"
        if not finite and worth_a_line(row + 1):
            text = "step %d skipped, its gradients are not finite: %s; %d skipped in a row, %d in all"
            _LOG.log(self._skip_level(before), text, step, moved, row + 1, self.skipped_steps)
        elif finite and row > 1:
            _LOG.info("step %d taken, after %d skipped in a row: %s", step, row, moved)
        elif finite and after.value != before.value and not getattr(after, "warming_up", False):
            _LOG.info("%s after step %d", moved, step)

    def _skip_level(self, before: LossScale) -> int:
        """Return WARNING where the scale cannot fall or has not helped for long, but INFO where another line warns."""
        dynamic = before if isinstance(before, DynamicLossScale) else None
        falls = dynamic is not None and dynamic.value > dynamic.min_scale
        warned = self.window.destroyed or (dynamic is not None and not falls and dynamic.at_floor == "warn")
        return logging.INFO if warned or (falls and self.consecutive_skips < 10) else logging.WARNING

    def to_dict(self) -> Dict[str, Any]:
        """Return the loss scale and the counters as plain JSON data."""
        return {
            "loss_scale": self._loss_scale.to_dict(),
            "skipped_steps": self.skipped_steps,
            "consecutive_skips": self.consecutive_skips,
            "last_step_skipped": self.last_step_skipped,
        }

    def check_dict(self, data: Dict[str, Any]) -> None:
        """Check that `load_dict` will take a state; changes nothing.

        Raises:
            LossScaleError: If a field is missing or invalid.
            TrainerError: If the owner cannot work with the loss scale.
        """
        if not isinstance(data, dict):
            raise LossScaleError(f"the state of the loss scale is a {type(data).__name__}; expected a dict.")
        loss_scale = LossScale.from_dict(data.get("loss_scale", {}))
        for name, expected in _COUNTERS.items():
            value = data.get(name)
            if type(value) is not expected or value < 0:
                raise LossScaleError(f"{name} is {value!r}; expected a {expected.__name__} of at least 0.")
        self._refuse_for_all(loss_scale)

    def load_dict(self, data: Dict[str, Any]) -> None:
        """Take the state that `to_dict` returned, or change nothing.

        Raises:
            LossScaleError: As `check_dict`.
            TrainerError: As `check_dict`.
        """
        self.check_dict(data)
        self._loss_scale = LossScale.from_dict(data["loss_scale"])
        for name in _COUNTERS:
            setattr(self, name, data[name])

    def _require_can_open(self) -> None:
        if self._open:
            raise TrainerError(
                "scale_loss was called inside a scale_loss block of the same trainer; end the block "
                "first, or scale all losses at once: scale_loss([loss1, loss2])."
            )
        if self.window.stage is Stage.UNSCALED:
            raise TrainerError(
                "scale_loss was called after the gradients were unscaled; a further backward would mix "
                "scaled and true gradients. Call step first, or unscale after the last backward."
            )
        if self.window.reduced:
            raise TrainerError(
                "scale_loss was called after allreduce_grads; a further backward would mix reduced and "
                "unreduced gradients. Call update first."
            )


def worth_a_line(count: int) -> bool:
    """Return whether what happened so often gets a line in the log: the first time, and at 10, 50, 100, 500, ..."""
    return count == 1 or (count >= 10 and str(count).rstrip("0") in ("1", "5"))


def _accept(_: LossScale) -> None:
    """Refuse nothing."""


def adjusted(loss_scale: LossScale, finite: bool, where: Callable[[], Optional[str]]) -> LossScale:
    """Return the next loss scale.

    Args:
        loss_scale: The present one.
        finite: Whether the gradients were.
        where: Finds the first non-finite gradient, for the message.

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


def location(name: Optional[str], step: int) -> Optional[str]:
    """Return where a gradient was found, for messages; None if its name is not known."""
    return None if name is None else f"'{name}' at step {step}"


def non_finite_loss() -> NonFiniteLossError:
    """Return the error for a loss that is not finite by itself."""
    return NonFiniteLossError(
        "the loss itself is NaN or inf, before any scaling; no loss scale mends that. The "
        "weights and the loss scale are unchanged. Look at the data, the learning rate and "
        "the forward pass: an activation may exceed its dtype."
    )
