"""Watches nets and trainers while a loop runs: hooks on the nets, and methods in front of the trainers' own."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any, Dict, Iterator, List, Sequence, Tuple

import numpy as np
from mxnet import autograd, gluon

from ... import dtypes
from ...arrays import all_finite, to_float32
from ...errors import StaleGradientError
from ...gluon.trainer import Trainer
from ...loss_scale import DynamicLossScale
from ...mxnet_private import is_fresh, parameters
from ...mxnet_private import trainers as private
from ...train.step import scaler_of
from .calls import NetCalls
from .division import Division
from .findings import LoopFindings
from .state import arrays_in, check_finite, is_low, names_of

_USING = ("unscale", "clip_global_norm", "clip_value", "allreduce_grads", "step", "update")
"""The methods of a trainer that use gradients."""


class LoopWatch:
    """Notes what a loop does from one step to the next, and adds what is wrong to the findings."""

    def __init__(self, nets: Sequence[gluon.Block], trainers: Sequence[gluon.Trainer], found: LoopFindings) -> None:
        self.found = found
        self.calls = NetCalls(nets, found)
        self.watched = [_Trainer(trainer, self) for trainer in trainers]
        self.steps = 0
        self.skips = 0  # steps that were skipped, other than by a dynamic scale with finite weights

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watch within this context."""
        self.calls.attach()
        for watched in self.watched:
            watched.attach()
        try:
            yield
            if self.skips > 1 and self.skips == self.steps:
                self.found.add(
                    "steps_skipped",
                    f"all {self.steps} steps were skipped: their gradients are not finite; diagnose.Watch says why.",
                    "warning",
                )
        finally:
            self.calls.detach()
            for watched in self.watched:
                watched.detach()

    def finish(self) -> None:
        """Check what all steps have in common."""
        self.calls.check_called()
        self.calls.check_sizes()
        check_finite(self.calls.nets, self.steps, self.found)

    def note_step(self, watched: _Trainer, batch_size: Any) -> None:
        """Check the calls before a step."""
        self.steps += 1
        self.calls.is_over = True
        recorded = self.calls.check_recorded()
        if autograd.is_recording():
            self.found.add(
                "step_recorded",
                "step is called within autograd.record(), so that the update is recorded too; end the block before.",
            )
        self.calls.check_size(watched.trainer, batch_size, recorded, watched.division.counts)
        watched.division.check(batch_size, recorded)


class _Trainer:
    """Watches one trainer: its methods on this one object note a call, and call the class's own."""

    def __init__(self, trainer: gluon.Trainer, watch: LoopWatch) -> None:
        self.trainer, self._watch, self._found = trainer, watch, watch.found
        self._is_ours = isinstance(trainer, Trainer)
        self._is_begun = False  # whether a loss of this step was scaled
        self._is_using = False  # whether a method that uses gradients runs, or has run since the last backward
        self._depth = 0
        self._skipped = False
        self.division = Division(watch.found)

    def attach(self) -> None:
        """Put methods in front of the trainer's."""
        for name in _USING:
            if hasattr(self.trainer, name):
                vars(self.trainer)[name] = partial(self._use, name, getattr(self.trainer, name))
        setter = self.trainer.set_learning_rate
        vars(self.trainer)["set_learning_rate"] = partial(self._set_rate, setter)
        if self._is_ours:
            vars(self.trainer)["scale_loss"] = partial(self._scale_loss, self.trainer.scale_loss)

    def detach(self) -> None:
        """Take them away."""
        for name in (*_USING, "set_learning_rate", "scale_loss"):
            vars(self.trainer).pop(name, None)

    @contextlib.contextmanager
    def _scale_loss(self, original: Any, loss: Any, *others: Any) -> Iterator[Any]:
        everyone = [each for each in self._watch.watched if each.trainer in (self.trainer, *others)]
        for each in everyone:
            each._begin()
        for each in everyone:
            each.division.note(loss, self._watch.calls.outputs)
        for array in arrays_in(loss):
            if is_low(array):
                self._found.add(
                    "loss_precision",
                    f"the loss is {dtypes.canonical(array.dtype)}: it is computed in low precision, which loses its "
                    f"digits and caps the loss scale; give the loss float32 outputs (output.astype('float32')).",
                    "warning",
                )
        with original(loss, *others) as scaled:
            yield scaled
        for each in everyone:
            each._is_using = False

    def _begin(self) -> None:
        """Check, before the first backward of a step, that gradients which add up are zero."""
        if not self._is_begun:
            self._is_begun, self._skipped = True, False
            left = [
                param.name
                for param in self._params()
                if param.grad_req == "add" and any(np.any(to_float32(grad).asnumpy()) for grad in param.list_grad())
            ]
            if left:
                self._found.add(
                    "zero_grad_missing",
                    f"grad_req='add', but the gradients of {names_of(left)} are not zero before the first backward of "
                    f"a step: those of the step before are added in. Call zero_grad() on the parameters after each "
                    f"step.",
                )

    def _params(self) -> List[gluon.Parameter]:
        found = (param for param in private.params(self.trainer) if param.grad_req != "null")
        return [param for param in found if parameters.is_initialized(param)]

    def _use(self, name: str, original: Any, *args: Any, **kwargs: Any) -> Any:
        """Check the gradients before the first method that uses them, and call it."""
        inner = self._depth > 0
        if not inner:
            self._before(name, args, kwargs)
        self._depth += 1
        try:
            result = original(*args, **kwargs)
        except UserWarning as e:  # what MXNet's trainer raises for a gradient that is not fresh
            if self._is_ours or "by backward since last" not in str(e):
                raise
            raise StaleGradientError(str(e)) from e
        finally:
            self._depth -= 1
        if not inner and name in ("step", "update"):
            self._is_begun = self._is_using = False
            self._skipped = result is False
            self._watch.skips += self._skipped and not self._may_recover()
        return result

    def _may_recover(self) -> bool:
        """Return whether a lower scale may end the skips: it is dynamic, and the weights are finite."""
        finite = all(all_finite(p.list_data()[:1]).asnumpy().item() for p in self._params())
        return finite and isinstance(scaler_of(self.trainer).loss_scale, DynamicLossScale)

    def _before(self, name: str, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        if not self._is_using:
            self._is_using = True
            self._watch.calls.check_written()
            self._check_stale(name, kwargs.get("ignore_stale_grad", len(args) > 1 and args[1]))
        if name in ("step", "update"):
            self._watch.note_step(self, kwargs.get("batch_size", args[0] if args else None))

    def _check_stale(self, name: str, ignored: Any) -> None:
        """Find weights without a gradient, or all of them where a net was called."""
        fresh = {id(param) for param in self._params() if any(map(is_fresh, parameters.checked_arrays(param)))}
        stale = [param.name for param in self._params() if id(param) not in fresh]
        if not stale or ignored:
            return
        if fresh:
            self._found.add(
                "no_gradient",
                f"no backward wrote the gradient of {names_of(stale)} before {name}: the loss does not depend on them. "
                f"Call the layers that they belong to, or set grad_req='null' on them.",
            )
        elif self._watch.calls.check_recorded():
            self._found.add(
                "no_backward",
                f"no backward reached a weight of the trainer before {name}: call backward on the loss of the net, "
                f"once before each step.",
            )

    def _set_rate(self, original: Any, rate: float) -> None:
        if self._skipped:
            self._found.add(
                "schedule_on_skip",
                "the learning rate is set after a step that was skipped, so that the schedule runs ahead of the "
                "updates; do it where step returned True, or give the optimizer an lr_scheduler.",
                "warning",
            )
        original(rate)
