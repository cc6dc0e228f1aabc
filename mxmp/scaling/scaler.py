"""The loss-scaling state machine of one trainer: a loss scale, the window of the present step, counters of skips.

Whoever calls out of turn gets a `TrainerError` and nothing is changed.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

import mxnet as mx

from ..arrays.norms import host_norm, sum_of_squares
from ..errors import LossScaleError, NonFiniteLossError, TrainerError
from ..loss_scale import DynamicLossScale, LossScale, NoOpLossScale
from .recorded_graph import GraphChecks
from .scaled_loss import Factors
from .skips import SkipCounter, worth_a_line
from .source import ScaleSource
from .window import Stage, Window

_LOG = logging.getLogger(__name__)


class _Turn:
    """A lock that a thread may take twice; a copy is another one."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __reduce__(self) -> Tuple[Any, ...]:
        return _Turn, ()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: Any) -> None:
        self._lock.release()


class Scaler:
    """Scales losses, knows how far a step has come, and decides whether it is taken.

    Attributes:
        source: Where the loss scale comes from.
        window: What is known of the present step. Whoever moves a step on replaces it.
        skips: Counts and logs the steps that were skipped.
        factors: What losses are multiplied by.
        graph_checks: Checks on the recorded graphs of losses.
        validate: Raises if the owner cannot work with a loss scale that is set or loaded.
        observers: What is told of each step, see `mxmp.training.observer`.
        explain: Runs the present step again, without dropout, and says why it is not finite; None if that is not found
            out.
        turn: What a thread holds while it scales a loss: threads of data parallel training, each with a context of its
            own, take turns.
        bad_input: Says which input of the present step holds inf or NaN; None if none is known to.
        nonfinite_loss: 'raise' or 'skip', what a step does whose loss is not finite by itself.
        max_nonfinite_losses: How many such steps in a row are skipped.
    """

    nonfinite_loss = "raise"
    max_nonfinite_losses = 10

    def __init__(self, source: ScaleSource) -> None:
        self.source = source
        self._open = False
        self.turn = _Turn()
        self.window = Window()
        self.skips = SkipCounter()
        self.factors, self.graph_checks = Factors(), GraphChecks()
        self.validate: Callable[[LossScale], None] = lambda _: None
        self.observers: Dict[int, Any] = {}
        self.explain: Callable[[], Optional[str]] = lambda: None
        self.bad_input: Callable[[], Optional[str]] = lambda: None

    @property
    def loss_scale(self) -> LossScale:
        """The loss scale that the next window will start with."""
        return self.source.loss_scale

    @loss_scale.setter
    def loss_scale(self, value: LossScale) -> None:
        self.require_ready("setting loss_scale")
        self._validate_for_all(value)
        self.source.replace(value)

    @property
    def active(self) -> bool:
        """Whether losses must be scaled."""
        return not isinstance(self.loss_scale, NoOpLossScale)

    @property
    def is_open(self) -> bool:
        """Whether a scale_loss block is open."""
        return self._open

    @property
    def checks(self) -> bool:
        """Whether this window's gradients are checked before they are used."""
        return self.active or self.window.scale != 1.0

    # ------------------------------------------------------------------ preconditions

    def require_closed(self, call: str) -> None:
        """Raise inside of a scale_loss block."""
        if self._open:
            raise TrainerError(
                f"{call} was called inside a scale_loss block, where backward may still run; "
                f"end the block, then call {call}."
            )

    def require_window_closed(self, call: str) -> None:
        """Raise between a scaled loss and its step."""
        self.require_closed(call)
        if not self.window.is_ready:
            raise TrainerError(
                f"{call} came between backward and step, where gradients of the present scale "
                "wait to be used; call step first (update on a module)."
            )

    def require_ready(self, call: str) -> None:
        """Raise between a scaled loss of any scaler with this loss scale and the step by which it moves."""
        for scaler in self.source.scalers(self):
            scaler.require_window_closed(call)
            if self.source.has_stepped(scaler):
                raise TrainerError(
                    f"{call} came between a step and the update of its shared loss scale; call its update() first."
                )

    def require_scaled(self, call: str) -> None:
        """Raise if losses must be scaled and this window's was not."""
        if self.active and self.window.stage is Stage.READY:
            raise TrainerError(
                f"{call}: the loss of this step was not scaled, but the loss scale is "
                f"{self.loss_scale.value:g}. Run backward as `with trainer.scale_loss(loss) as scaled: "
                "scaled.backward()`, or create the trainer with loss_scale=None."
            )

    def require_can_scale(self, call: str, step: str = "step") -> None:
        """Raise if a loss cannot be scaled now; arguments as `Window.require_can_scale`."""
        if self.source.has_stepped(self):
            raise TrainerError(
                f"{call}: this trainer has made a step since its shared loss scale moved; call update() of the "
                "SharedLossScale once per iteration, after the steps of all its trainers."
            )
        if self._open:
            raise TrainerError(
                f"{call} was called inside a scale_loss block of the same trainer; end the block "
                "first, or scale all losses at once: scale_loss([loss1, loss2])."
            )
        self.window.require_can_scale(call, step)

    # ------------------------------------------------------------------ one window

    @contextlib.contextmanager
    def block(self, scale: float, loss_flag: Optional[mx.nd.NDArray]) -> Iterator[None]:
        """Scale losses for backward passes within the block; if it raises, the window is as before.

        ``loss_flag`` says whether the losses are finite.
        """
        before = self.window
        self.window = before.scaled(scale, loss_flag)
        self._open = True
        try:
            yield
        except BaseException:
            self.window = before
            raise
        finally:
            self._open = False

    def close_window(self) -> None:
        """Forget the present window."""
        self.window = Window()
        self.source.end_window()

    def should_step(self, flag: Optional[mx.nd.NDArray]) -> bool:
        """Return whether the step should be taken; one host read, at most once a window.

        The flag, shape (1,), is 1 if the gradients as they are now are finite; None if that is known from
        `read_norm`, or there are none. Raises NonFiniteLossError if the loss itself was not finite.
        """
        if self.window.finite is None:
            if flag is None or not self.checks:
                return True
            (finite,) = self._read([flag])
            self.window = self.window.decided(finite == 1.0)
        return bool(self.window.finite)

    def read_norm(self, groups: Sequence[Sequence[mx.nd.NDArray]]) -> float:
        """Return the largest norm of several groups of unscaled float32 gradients, NaN if any is; one host read.

        Those of a group lie on one context. Where gradients are checked it also decides the window, so that the step
        need not read again. Raises NonFiniteLossError if the loss itself was not finite.
        """
        norms = [math.sqrt(square) for square in self._read([sum_of_squares(group) for group in groups])]
        if self.window.finite is None:
            # Squares overflow above 1.8e19: such gradients may be finite all the same.
            norms = [x if math.isfinite(x) else host_norm(group) for x, group in zip(norms, groups)]
            if self.checks:
                self.window = self.window.decided(all(map(math.isfinite, norms)))
        return math.nan if any(map(math.isnan, norms)) else max(norms)

    def _read(self, values: Sequence[mx.nd.NDArray]) -> List[float]:
        numbers, self.window = self.window.read(values)
        if self.window.loss_finite is False:
            self.meet_nonfinite_loss()
        return numbers

    def meet_nonfinite_loss(self) -> None:
        """Have the present step skipped, whose loss is not finite by itself, or raise NonFiniteLossError."""
        row = self.skips.nonfinite_losses
        if self.nonfinite_loss == "raise" or row >= self.max_nonfinite_losses:
            raise non_finite_loss(self.explained(), row)
        self.window = self.window.with_bad_loss()

    @property
    def next_skip_is_told(self) -> bool:
        """Whether there is more to say than the first time if the next step is skipped: a warning, or an error."""
        scale = self.loss_scale
        gives_up = isinstance(scale, DynamicLossScale) and scale.floor_skips + 1 >= scale.max_floor_skips
        return gives_up or self.skips.next_is_explained

    def explained(self) -> Optional[str]:
        """Return why the present step is not finite, from running it again; None if that is not found out, or fails."""
        return self._found_out(self.explain)

    def _found_out(self, find: Callable[[], Optional[str]]) -> Optional[str]:
        try:
            return find()
        except Exception:  # an explanation that fails must not hide what it was to explain
            _LOG.debug("the step cannot be run again", exc_info=True)
            return None

    # ------------------------------------------------------------------ between windows

    def update_scale(self, finite: bool, step: int, first_bad: Callable[[], Optional[str]]) -> None:
        """Adjust the loss scale and the counters to the outcome of a step; a LossScaleError if the scale gives up.

        ``step`` is its number, for messages; ``first_bad`` finds the name of the first non-finite gradient, slowly. A
        step that was skipped for its loss leaves the scale as it is, for that is no overflow.
        """
        if self.window.loss_finite is False:
            self.skips.count_nonfinite_loss()
            self.source.keep(self)
            if worth_a_line(self.skips.nonfinite_losses):
                line = "step %d skipped, its loss is NaN or inf: %s stays at %g; %d such steps in a row%s"
                why = self.explained()
                again = "" if why is None else f". Run again: {why}"
                scale = self.loss_scale
                _LOG.warning(line, step, type(scale).__name__, scale.value, self.skips.nonfinite_losses, again)
            return

        def where() -> Optional[str]:
            name = first_bad()
            if name is None:
                return None
            why = self.explained()
            return f"'{name}' at step {step}" + ("" if why is None else f". Run again: {why.rstrip('.')}")

        explains = not finite and self.skips.next_is_explained
        self.skips.count(finite)
        moved = self.source.adjust(self, finite, where)
        self.skips.log(finite, step, moved, self.window.stats_lost, lambda: self._found_out(self.bad_input))
        why = self.explained() if explains else None
        if why is not None:
            _LOG.warning("step %d run again: %s", step, why)

    def to_dict(self) -> Dict[str, Any]:
        """Return the loss scale and the counters as plain JSON data."""
        return {**self.source.to_dict(), **self.skips.to_dict()}

    def check_dict(self, data: Dict[str, Any]) -> List[LossScale]:
        """Return the loss scales of a state that `load_dict` will take, or raise its errors; changes nothing."""
        if not isinstance(data, dict):
            raise LossScaleError(f"the state of the loss scale is a {type(data).__name__}; expected a dict.")
        values = self.source.from_dict(data)
        self.skips.check_dict(data)
        for loss_scale in values:
            self._validate_for_all(loss_scale)
        return values

    def load_dict(self, data: Dict[str, Any]) -> None:
        """Take the state that `to_dict` returned, or change nothing.

        Raises LossScaleError if a field is missing or invalid, TrainerError if the owner cannot work with the scale.
        """
        self.source.load(self.check_dict(data))
        self.skips.load_dict(data)

    def _validate_for_all(self, value: LossScale) -> None:
        """Raise if any owner of the loss scale cannot work with another."""
        for scaler in self.source.scalers(self):
            scaler.validate(value)


@contextlib.contextmanager
def turn_of(scalers: Iterable[Scaler]) -> Iterator[None]:
    """Wait until no other thread scales a loss with any of the scalers, and keep the others waiting."""
    with contextlib.ExitStack() as stack:
        for scaler in sorted(scalers, key=id):  # in one order, so that no two threads wait for one another
            stack.enter_context(scaler.turn)
        yield


def non_finite_loss(why: Optional[str], skipped: int) -> NonFiniteLossError:
    """Return the error for a loss that is not finite by itself.

    ``why`` says what running it again has shown, ``skipped`` how many steps before were skipped for that.
    """
    again = f", after {skipped} steps in a row that were skipped for that" if skipped else ""
    return NonFiniteLossError(
        f"the loss itself is NaN or inf, before any scaling{again}; no loss scale mends that. The "
        "weights and the loss scale are unchanged. Look at the data, the learning rate and "
        "the forward pass: an activation may exceed its dtype." + ("" if why is None else f" Run again: {why}")
    )


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
    def nonfinite_loss(self) -> str:
        """What a step does whose loss is NaN or inf by itself: 'raise' a NonFiniteLossError, or 'skip'.

        A step that is skipped for that leaves the loss scale as it is, for a NaN batch is no overflow.
        """
        return self._scaler.nonfinite_loss

    @nonfinite_loss.setter
    def nonfinite_loss(self, value: str) -> None:
        if value not in ("raise", "skip"):
            raise TrainerError(f"nonfinite_loss is {value!r}; expected 'raise' or 'skip'.")
        if value == "skip" and not self._scaler.active:
            raise TrainerError(
                "nonfinite_loss='skip', but without a loss scale nothing is checked; give loss_scale=1, which checks "
                "and does not scale."
            )
        self._scaler.nonfinite_loss = value

    @property
    def max_nonfinite_losses(self) -> int:
        """How many steps in a row are skipped by ``nonfinite_loss='skip'``; the next one raises."""
        return self._scaler.max_nonfinite_losses

    @max_nonfinite_losses.setter
    def max_nonfinite_losses(self, value: int) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise TrainerError(f"max_nonfinite_losses is {value!r}; expected a whole number from 1 on.")
        self._scaler.max_nonfinite_losses = value

    @property
    def skipped_steps(self) -> int:
        """Steps skipped so far because of non-finite gradients, or losses."""
        return self._scaler.skips.skipped_steps

    @property
    def consecutive_skips(self) -> int:
        """Steps skipped since the last one that was taken."""
        return self._scaler.skips.consecutive_skips

    @property
    def last_step_skipped(self) -> bool:
        """Whether the last step was skipped."""
        return self._scaler.skips.last_step_skipped
