"""The loss scaling of one trainer: its loss scale, the window of the present step, and counts of skipped steps.

A call out of turn is a `TrainerError` and changes nothing.
"""

from __future__ import annotations

import gc
import logging
import math
import weakref
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple, Type

import mxnet as mx

from ..arrays import all_finite, concat_scalars, host_norm, sum_of_squares
from ..errors import LossScaleError, NonFiniteLossError, TrainerError, a_type_of
from ..explainer import explainer
from ..loss_scale import DynamicLossScale, LossScale, NoOpLossScale, floor_message, parse
from .loss_heads import Factors
from .window import Alive, Window, in_block

_LOG = logging.getLogger(__name__)

_COUNTS: Dict[str, Type[int]] = {"skipped_steps": int, "consecutive_skips": int, "last_step_skipped": bool}

Where = Callable[[], Optional[str]]
"""Finds the place of the first non-finite gradient, for messages; slow. Gives None if it finds none."""


class Scaler:
    """Scales losses, checks the order of calls, decides whether a step is taken, and counts skipped steps.

    Args:
        loss_scale: A `LossScale` or a `SharedLossScale`.
        num_losses: How many losses have scales of their own, as Apex's ``num_losses``. All losses of a step share its
            gradients. After each backward pass a flag tells whether they are finite; a GPU is not waited for. In a
            skipped step the scale of the first loss with a failed flag backs off. Losses before it count as finite.
            The scales of losses after it do not change.
        default: Gives the loss scale in place of ``loss_scale``, and is called again up to the first step.

    Attributes:
        window: The state of the present step; None between steps.
        factors: The factors of losses.
        has_checked_loss_heads: Whether a loss was searched for loss heads, which is done with the first.
        num_losses: How many losses have scales of their own.
        loss_id: The number of the loss that is scaled now.
        skipped_steps: Steps skipped so far.
        consecutive_skips: Steps skipped since the last one that was taken.
        last_step_skipped: Whether the last step was skipped.
        nonfinite_loss: 'raise' or 'skip', for a step whose loss is not finite by itself.
        max_nonfinite_losses: How many such steps in a row are skipped.
        owners: Trainers, modules or optimizers that must be able to work with a loss scale that is set or loaded.
        stepping: The trainer or module that makes the present step, about which diagnosis is asked if it fails.
        skips_of_all: Steps skipped so far, of all scalers; an attribute of the class.
        observers: The `mxmp.train.step.Observer` objects that are told of each step.
        calls: A `mxmp.diagnose.watch.StepCalls` that keeps the calls of the present step; None before the first.
        default: As above; None if there is none, the first step is over, or a loss scale was set or loaded.
    """

    nonfinite_loss = "raise"
    max_nonfinite_losses = 10
    skips_of_all = 0

    def __init__(
        self, loss_scale: Any, num_losses: int = 1, default: Optional[Callable[[], LossScale]] = None
    ) -> None:
        self.default, loss_scale = default, default() if default else loss_scale
        self.shared = loss_scale if isinstance(loss_scale, SharedLossScale) else None
        if self.shared is not None and num_losses > 1:
            raise TrainerError("loss_scale: a SharedLossScale is for trainers with one loss; leave num_losses out.")
        self._scales: List[LossScale] = [parse(None if self.shared else loss_scale)] * num_losses
        self.num_losses, self.loss_id = num_losses, 0
        self.window: Optional[Window] = None
        self.factors = Factors()
        self.has_checked_loss_heads = False
        self.skipped_steps = 0
        self.consecutive_skips = 0
        self.last_step_skipped = False
        self._bad_losses = 0  # Steps in a row that were skipped because their loss was not finite; not saved.
        self.observers: Dict[Any, Any] = {}
        self.calls: Any = None
        self.owners, self.stepping = Alive(), Alive()

    # ------------------------------------------------------------------ the loss scale

    @property
    def loss_scale(self) -> LossScale:
        """The loss scale that the next step will start with; up to the first step the one that `default` gives now."""
        if self.default is not None and self.window is None:
            value = self.default()
            if value != self._scales[0]:
                self.validate(value)
                _require_checks(self.nonfinite_loss, value)
                self._scales = [value] * len(self._scales)
        return self._scales[self.loss_id] if self.shared is None else self.shared.loss_scale

    @loss_scale.setter
    def loss_scale(self, value: LossScale) -> None:
        self.require_ready("setting loss_scale")
        for scaler in self._sharing():
            scaler.validate(value)
        self._replace([value] * len(self._scales))

    def _replace(self, values: Sequence[LossScale]) -> None:
        self.default = None
        if self.shared is None:
            self._scales = list(values)
        else:
            self.shared._value = values[0]

    def validate(self, value: LossScale) -> None:
        """Raise if an owner cannot work with a loss scale."""
        for owner in self.owners:
            owner._require_fitting(value)

    def _sharing(self) -> Iterable[Scaler]:
        """Return all scalers that work with the loss scale."""
        return (self,) if self.shared is None else {self, *self.shared._scalers}

    def select_loss(self, loss_id: int) -> None:
        """Make a loss the one that is scaled, or raise a TrainerError if there is no such loss."""
        if isinstance(loss_id, bool) or not isinstance(loss_id, int) or not 0 <= loss_id < self.num_losses:
            raise TrainerError(
                f"loss_id={loss_id!r}: the trainer has losses 0 to {self.num_losses - 1}; num_losses says how many."
            )
        self.loss_id = loss_id

    def record_finite(self, grads: List[mx.nd.NDArray]) -> None:
        """Record whether the gradients of the step are finite after the backward pass of the present loss."""
        if grads and self.window is not None:
            self.window.finite_after.append((self.loss_id, all_finite(grads)))

    @property
    def active(self) -> bool:
        """Whether losses must be scaled."""
        return not isinstance(self.loss_scale, NoOpLossScale)

    @property
    def checks(self) -> bool:
        """Whether this step's gradients are checked before they are used."""
        return self.active or (self.window is not None and self.window.scale != 1.0)

    # ------------------------------------------------------------------ the window

    def ensure_window(self, scale: Optional[float] = None) -> Window:
        """Return the window of the present step, which begins here if there is none.

        Args:
            scale: The factor of the losses. None leaves the factor of the window as it is, 1 at first.
        """
        if self.window is None:
            self.window = Window()
        if scale is not None:
            self.window.scale = scale
        return self.window

    def end_step(self) -> None:
        """Forget the present step."""
        self.window = self.default = None

    # ------------------------------------------------------------------ preconditions

    def require_closed(self, call: str) -> None:
        """Raise inside of a scale_loss block."""
        if self.window is not None and self.window.is_open:
            raise TrainerError(
                f"{call} was called inside a scale_loss block, where backward may still run; "
                f"end the block, then call {call}."
            )

    def require_between_steps(self, call: str) -> None:
        """Raise between a scaled loss and its step."""
        self.require_closed(call)
        if self.window is not None:
            raise TrainerError(
                f"{call} came between backward and step, where gradients of the present scale "
                "wait to be used; call step first (update on a module), or discard_grads to give them up."
            )

    def require_ready(self, call: str) -> None:
        """Raise between a scaled loss of any scaler with this loss scale and the step by which it moves."""
        for scaler in self._sharing():
            scaler.require_between_steps(call)
            if scaler.shared is not None and scaler in scaler.shared.stepped:
                raise TrainerError(
                    f"{call} came between a step and the update of its shared loss scale; call its update() first."
                )

    def require_can_scale(self, call: str, step: str = "step") -> None:
        """Raise if a further backward pass would mix gradients: after they were unscaled or summed.

        ``call`` is the method that begins one, ``step`` that which ends the step.
        """
        window = self.window
        if self.shared is not None and self in self.shared.stepped:
            raise TrainerError(
                f"{call}: this trainer has made a step since its shared loss scale moved; call update() of the "
                "SharedLossScale once per iteration, after the steps of all its trainers."
            )
        if window is None:
            return
        if in_block(window):
            raise TrainerError(
                f"{call} was called inside a scale_loss block of the same trainer; end the block "
                "first, or scale all losses at once: scale_loss([loss1, loss2])."
            )
        if window.awaits_update:
            raise TrainerError(
                f"{call} came after allreduce_grads; a further backward would mix reduced and unreduced "
                "gradients. Call update first, or discard_grads to leave that step out."
            )
        if window.is_true and window.is_summed:
            raise TrainerError(
                f"{call} came after the gradients were unscaled; a further backward would mix scaled and true "
                f"gradients. Call {step} first, or unscale after the last backward; to leave that step out call "
                "discard_grads."
            )

    # ------------------------------------------------------------------ one step

    def read(self, values: Sequence[mx.nd.NDArray] = ()) -> List[float]:
        """Copy float32 arrays of shape (1,) and all flags to the host, at once; return the numbers of the arrays.

        On a GPU an inf becomes a NaN. Raises NonFiniteLossError if the loss itself was not finite.
        """
        window = self.ensure_window()
        arrays = [*values, *window.flags.values()]
        numbers: List[float] = concat_scalars(arrays).asnumpy().tolist() if arrays else []
        window.failed |= {name for name, number in zip(window.flags, numbers[len(values) :]) if number != 1.0}
        if "gradients" in window.failed:
            window.finite = False
        if "losses" in window.failed:
            self.handle_nonfinite_loss()
        return numbers[: len(values)]

    def read_norm(self, groups: Sequence[Sequence[mx.nd.NDArray]]) -> float:
        """Return the largest norm of several groups of unscaled float32 gradients, NaN if any is; one host read.

        Those of a group lie on one context. Where gradients are checked it also decides the step, which then need not
        read again. Raises NonFiniteLossError if the loss itself was not finite.
        """
        window = self.ensure_window()
        norms = [math.sqrt(square) for square in self.read([sum_of_squares(group) for group in groups])]
        if window.finite is None:
            # Squares overflow above 1.8e19: such gradients may be finite all the same.
            norms = [x if math.isfinite(x) else host_norm(group) for x, group in zip(norms, groups)]
            if self.checks:
                window.finite = all(map(math.isfinite, norms))
        return math.nan if any(map(math.isnan, norms)) else max(norms)

    def handle_nonfinite_loss(self) -> None:
        """Have the present step skipped, whose loss is not finite by itself, or raise NonFiniteLossError."""
        window, row = self.ensure_window(), self._bad_losses
        window.failed.add("losses")
        if self.nonfinite_loss == "raise" or row >= self.max_nonfinite_losses:
            again = f", after {row} steps in a row that were skipped for that" if row else ""
            raise NonFiniteLossError(
                f"the loss itself is NaN or inf, before any scaling{again}; no loss scale mends that. The "
                "weights and the loss scale are unchanged. Look at the data, the learning rate and "
                f"the forward pass: an activation may exceed its dtype.{self._again()}"
            )
        window.finite = False

    @property
    def next_skip_is_told(self) -> bool:
        """Whether there is more to say than the first time if the next step is skipped: a warning, or an error."""
        scale = self.loss_scale
        gives_up = isinstance(scale, DynamicLossScale) and scale.floor_skips + 1 >= scale.max_floor_skips
        return gives_up or self._next_skip_is_explained

    @property
    def _next_skip_is_explained(self) -> bool:
        return self.consecutive_skips >= 9 and should_log(self.consecutive_skips + 1)

    def _again(self) -> str:
        """Run the present step again; return the reason of its failure as the end of a message, or ''."""
        why = self._ask("explain_step")
        return "" if why is None else f" Run again: {why}"

    def _ask(self, question: str) -> Optional[str]:
        """Return the answer of a function of `mxmp.diagnose.watch` about the present step; None if there is none."""
        try:
            return next((getattr(explainer(), question)(owner) for owner in self.stepping), None)
        except Exception:  # A failure here must not hide the failure that is being explained.
            _LOG.debug("the step cannot be run again", exc_info=True)
            return None

    # ------------------------------------------------------------------ the end of a step

    def update_scale(self, finite: bool, step: int, first_bad: Where) -> None:
        """Adjust the loss scale and the counts to the outcome of a step; a LossScaleError if the scale gives up.

        ``step`` is its number, for messages. ``first_bad`` finds the name of the first non-finite gradient. A step that
        was skipped because of its loss leaves the scale as it is: a NaN in the data is no overflow.
        """
        skips_before, explained = self.consecutive_skips, not finite and self._next_skip_is_explained
        self.last_step_skipped = not finite
        self.skipped_steps += not finite
        Scaler.skips_of_all += not finite
        self.consecutive_skips = 0 if finite else skips_before + 1
        if "losses" in self.ensure_window().failed:
            self._note_bad_loss(step)
            return
        self._bad_losses = 0

        def where() -> Optional[str]:
            name = first_bad()
            again = self._again().rstrip(".")
            return None if name is None else f"'{name}' at step {step}{again and f'.{again}'}"

        before, after = self._adjusted(finite, where)
        text = f"{type(after).__name__} {before.value:g} -> {after.value:g}"
        if not finite:
            self._log_skip(step, before, text)
        elif skips_before > 1:
            _LOG.info("step %d taken, after %d skipped in a row: %s", step, skips_before, text)
        elif after.value != before.value and not getattr(after, "warming_up", False):
            _LOG.info("%s after step %d", text, step)
        why = self._ask("explain_step") if explained else None
        if why is not None:
            _LOG.warning("step %d run again: %s", step, why)

    def _note_bad_loss(self, step: int) -> None:
        """Count a step that was skipped because of its loss."""
        self._bad_losses += 1
        if self.shared is not None:
            self.shared.stepped.add(self)
        if should_log(self._bad_losses):
            scale = self.loss_scale
            text = "step %d skipped, its loss is NaN or inf: %s stays at %g; %d such steps in a row%s"
            again = self._again()
            _LOG.warning(text, step, type(scale).__name__, scale.value, self._bad_losses, again and f".{again}")

    def _adjusted(self, finite: bool, where: Where) -> Tuple[LossScale, LossScale]:
        """Move the loss scale; return it before and after. A shared loss scale moves in its own `update`.

        A skipped step with several losses makes one more host read for each.
        """
        if self.shared is not None:
            self.shared._note(self, finite, where)
            return self.shared.loss_scale, self.shared.loss_scale
        finite_after = self.ensure_window().finite_after
        losses = list(dict.fromkeys(loss_id for loss_id, _ in finite_after)) or [self.loss_id]
        bad = (loss_id for loss_id, flag in finite_after if not finite and flag.asscalar() != 1.0)
        self.loss_id = next(bad, losses[-1])
        for loss_id in losses[: losses.index(self.loss_id)]:
            self._scales[loss_id] = self._scales[loss_id].adjust(True)
        before = self.loss_scale
        self._scales[self.loss_id] = adjusted(before, finite, where)
        return before, self.loss_scale

    def _log_skip(self, step: int, before: LossScale, text: str) -> None:
        """Log a skipped step, if it is worth a line. ``text`` says how the loss scale moved."""
        if should_log(self.consecutive_skips):
            line = "step %d skipped, its gradients are not finite%s: %s; %d skipped in a row, %d in all"
            bad_input = self._ask("bad_input")
            data = "" if bad_input is None else f", which no loss scale mends, for {bad_input}"
            _LOG.log(self._level(before), line, step, data, text, self.consecutive_skips, self.skipped_steps)

    def _level(self, before: LossScale) -> int:
        """Return WARNING if the scale cannot fall or has not helped for long; INFO if another line warns already."""
        dynamic = before if isinstance(before, DynamicLossScale) else None
        falls = dynamic is not None and dynamic.value > dynamic.min_scale
        warned = dynamic is not None and not falls and dynamic.at_floor == "warn"
        warned = warned or "statistics" in self.ensure_window().failed
        return logging.INFO if warned or (falls and self.consecutive_skips < 10) else logging.WARNING

    # ------------------------------------------------------------------ saved states

    def to_dict(self) -> Dict[str, Any]:
        """Return the loss scale and the counts as plain JSON data."""
        several = {"loss_scales": [scale.to_dict() for scale in self._scales]} if self.num_losses > 1 else {}
        counts = {name: getattr(self, name) for name in _COUNTS}
        return {"loss_scale": self.loss_scale.to_dict(), **several, **counts}

    def check_dict(self, data: Dict[str, Any]) -> List[LossScale]:
        """Return the loss scales of a state that `load_dict` will take, or raise its errors; changes nothing."""
        if not isinstance(data, dict):
            raise LossScaleError(f"the state of the loss scale is {a_type_of(data)}; expected a dict.")
        values = [LossScale.from_dict(data.get("loss_scale", {}))]
        if self.num_losses > 1:
            saved = data.get("loss_scales")
            if not isinstance(saved, list) or len(saved) != self.num_losses:
                count = len(saved) if isinstance(saved, list) else 1
                raise LossScaleError(f"the state is of {count} losses; expected {self.num_losses} (num_losses).")
            values = [LossScale.from_dict(each) for each in saved]
        for name, kind in _COUNTS.items():
            value = data.get(name)
            if type(value) is not kind or int(value) < 0:
                raise LossScaleError(f"{name} is {value!r}; expected {kind.__name__}, at least 0.")
        for loss_scale in values:
            for scaler in self._sharing():
                scaler.validate(loss_scale)
        return values

    def load_dict(self, data: Dict[str, Any]) -> None:
        """Take the state that `to_dict` returned, or change nothing.

        Raises LossScaleError if a field is missing or invalid, TrainerError if the owner cannot work with the scale.
        """
        self._replace(self.check_dict(data))
        for name in _COUNTS:
            setattr(self, name, data[name])


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
        # Whether each step since the last update was taken, and the gradient that made it skip, if it was looked for.
        self._outcomes: List[Tuple[bool, Optional[str]]] = []
        # A trainer that was dropped within a step must not block the others.
        self._scalers = Alive()
        self.stepped: weakref.WeakSet[Scaler] = weakref.WeakSet()  # Scalers that wait for `update`.

    def __repr__(self) -> str:
        """Return the present loss scale."""
        return f"{type(self).__name__}({self.loss_scale!r})"

    @property
    def loss_scale(self) -> LossScale:
        """The present loss scale. May be set between iterations."""
        return self._value

    @loss_scale.setter
    def loss_scale(self, spec: Any) -> None:
        """Set the loss scale of the iterations to come."""
        value = parse(spec)
        for scaler in self._scalers:
            scaler.require_ready("setting loss_scale")
            scaler.validate(value)
        self._value = value

    def attach(self, scaler: Scaler) -> None:
        """Let `update` wait for a scaler from now on."""
        self._scalers.add(scaler)

    def update(self) -> None:
        """Move the scale, after the steps of all trainers: back if any was skipped.

        Raises:
            TrainerError: If no trainer has stepped since the last update, or one has scaled a loss
                and not stepped yet.
            LossScaleError: If the loss scale gave up.
        """
        if any(scaler.window is not None for scaler in self._scalers):
            gc.collect()  # Trainers are part of cycles, so dropped ones may still be there.
        for scaler in self._scalers:
            scaler.require_between_steps("update of a shared loss scale")
        if not self.stepped and not self._outcomes:
            raise TrainerError("update: no trainer has made a step since the last update of the shared loss scale.")
        outcomes, self._outcomes = self._outcomes, []
        self.stepped.clear()
        if not outcomes:  # All steps were skipped because of their losses.
            return
        before, bad = self._value, next((where for _, where in outcomes if where is not None), None)
        self._value = adjusted(before, all(finite for finite, _ in outcomes), lambda: bad)
        if self._value.value != before.value and not getattr(self._value, "warming_up", False):
            _LOG.info("shared %s %g -> %g", type(before).__name__, before.value, self._value.value)

    def _note(self, scaler: Scaler, finite: bool, where: Where) -> None:
        """Note the outcome of a step."""
        self.stepped.add(scaler)
        may_give_up = not finite and self._value.value <= getattr(self._value, "min_scale", 0.0)
        self._outcomes.append((finite, where() if may_give_up else None))


class ScalerStatus:
    """The loss scale and the counts of skipped steps, read from ``_scaler``."""

    _scaler: Scaler

    @property
    def loss_scale(self) -> LossScale:
        """The present loss scale. May be set between steps, to any value that the constructor takes."""
        return self._scaler.loss_scale

    @loss_scale.setter
    def loss_scale(self, spec: Any) -> None:
        self._set_loss_scale(spec)

    def _set_loss_scale(self, spec: Any) -> None:
        """Set the loss scale of the steps to come."""
        raise NotImplementedError

    def _require_fitting(self, loss_scale: LossScale) -> None:
        """Raise if this cannot work with a loss scale that is set or loaded."""

    @property
    def nonfinite_loss(self) -> str:
        """Whether a step whose loss is NaN or inf by itself raises a NonFiniteLossError ('raise') or skips ('skip').

        Such a skip leaves the loss scale as it is: a NaN in the data is no overflow.
        """
        return self._scaler.nonfinite_loss

    @nonfinite_loss.setter
    def nonfinite_loss(self, value: str) -> None:
        if value not in ("raise", "skip"):
            raise TrainerError(f"nonfinite_loss is {value!r}; expected 'raise' or 'skip'.")
        _require_checks(value, self.loss_scale)
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
        return self._scaler.skipped_steps

    @property
    def consecutive_skips(self) -> int:
        """Steps skipped since the last one that was taken."""
        return self._scaler.consecutive_skips

    @property
    def last_step_skipped(self) -> bool:
        """Whether the last step was skipped."""
        return self._scaler.last_step_skipped


def adjusted(loss_scale: LossScale, finite: bool, where: Where) -> LossScale:
    """Return the next loss scale, or raise LossScaleError, with the first bad gradient, if it gives up."""
    try:
        return loss_scale.adjust(finite)
    except LossScaleError as e:
        first_bad = where()
        if first_bad is None or not isinstance(loss_scale, DynamicLossScale):
            raise
        raise LossScaleError(floor_message(loss_scale.floor_skips + 1, loss_scale.min_scale, first_bad)) from e


def should_log(count: int) -> bool:
    """Return whether an event gets a line in the log when it happens for the given time: 1, 10, 50, 100, 500, ..."""
    return count == 1 or (count >= 10 and str(count).rstrip("0") in ("1", "5"))


def _require_checks(nonfinite_loss: str, loss_scale: LossScale) -> None:
    """Raise if losses that are not finite are to be skipped, but no step checks them."""
    if nonfinite_loss == "skip" and isinstance(loss_scale, NoOpLossScale):
        raise TrainerError(
            "nonfinite_loss='skip', but without a loss scale nothing is checked; give loss_scale=1, which checks and "
            "does not scale."
        )
