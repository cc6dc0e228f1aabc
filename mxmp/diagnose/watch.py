"""Explain the steps of trainers and modules: by a `Watch`, and unasked where a step fails.

Unasked, a step is explained after ten skips in a row, if the loss is not finite, or if the scale gives up. Dropout is
off then, so that no random number is drawn.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any, Deque, List, Optional, Sequence, Tuple

import mxnet as mx
from mxnet import autograd, gluon

from ..errors import TrainerError, a_type_of
from ..gluon import Trainer
from ..module import BucketingModule, Module
from ..module.binding import LOSS_SCALE
from ..report.explanation import NO_FAULT, Explanation
from ..train.step import Observer, Step, StepEnd
from ..train.window import LOCK
from .explain import from_elsewhere, judge, nan_given
from .rerun import MOST_CALLS, Call, Gradients, KeptCall, LossGradients, Recorder, Replay, as_outputs


class Watch(Observer):
    """Keeps the inputs of each step of a trainer or module, to run a skipped one again: bug or overflow?

    It costs the memory of a batch, and an addition to each output of a net; nothing is run again before `verdict` is
    called. Call that right after the step: inputs and gradients of outputs are kept, weights are not, and are read when
    `verdict` is called. A step that is skipped has left its own; of one that is taken they are those that it wrote.
    Dropout draws anew, and random numbers of the user's stream with it. A ``with`` block detaches it at its end; the
    last step is kept then too. For an Estimator it is one of the ``observers`` of
    `mxmp.estimator.MixedPrecisionHandler`.

    Args:
        loss: The loss Block that a trainer's loop calls with a net's output and labels, so that labels are looked at
            too; may be left out. A function is refused, because its calls cannot be noted.

    Attributes:
        end: How the last step ended: a `mxmp.train.step.StepEnd`; None before the first.

    Raises:
        TrainerError: If the loss is no Block.

    Example:
        >>> import mxmp, mxnet as mx
        >>> net, loss = mx.gluon.nn.Dense(2, in_units=3), mx.gluon.loss.L2Loss()
        >>> net.initialize()
        >>> trainer = mxmp.gluon.Trainer(mxmp.gluon.convert(net, "O1").collect_params(), "sgd")
        >>> watch = mxmp.diagnose.Watch(loss).attach(trainer)
    """

    end: Optional[StepEnd] = None

    def __init__(self, loss: Optional[gluon.Block] = None) -> None:
        if loss is not None and not isinstance(loss, gluon.Block):
            raise TrainerError(
                f"Watch: loss is {a_type_of(loss)}; expected a Block, such as gluon.loss.L2Loss(), whose calls "
                f"are noted, as those of a function cannot be: put it into a Block, leave loss out, or call "
                f"mxmp.diagnose.explain. Give the trainer or module to attach: Watch(loss).attach(trainer)."
            )
        self._loss: Any = loss
        self._replays: List[Replay] = []
        self._bad: Optional[str] = None  # The first weight whose gradient is not finite.
        self._scale = 1.0
        self._labels: Deque[Tuple[Any, ...]] = deque(maxlen=MOST_CALLS)
        self._handle: Any = None

    def attach(self, owner: Any) -> Watch:
        """Keep the steps of a trainer or module from now on, and return this.

        Args:
            owner: A `mxmp.gluon.Trainer` of nets that mxmp has converted, a `mxmp.module.Module` or `BucketingModule`.
                A second call with the same one does nothing.

        Raises:
            TrainerError: If the owner is none of them, or this is attached to another.
        """
        if not isinstance(owner, (Trainer, Module, BucketingModule)):
            raise TrainerError(
                f"Watch: expected a trainer or module of mxmp, found {a_type_of(owner)} of "
                f"{type(owner).__module__}; mxmp.gluon.Trainer.adopt makes a trainer of MXNet one of mxmp."
            )
        is_new = self._owner is None
        super().attach(owner)
        if is_new:
            self._replays, self.end = [], None
            self._handle = None if self._loss is None else self._loss.register_forward_pre_hook(self._note_labels)
        return self

    def detach(self) -> None:
        """Keep no further steps; the last one stays. A second call does nothing."""
        if self._owner is None:
            return
        if self._handle is not None:
            self._handle.detach()
        self._labels.clear()
        super().detach()

    def verdict(self) -> Explanation:
        """Return why the last step was skipped, by running it again with the weights that are there now.

        Those are the step's own if it was skipped and nothing has written them since.

        Returns:
            The explanation; 'no fault found' for a step that is finite.

        Raises:
            TrainerError: If no step was made since it watches, or the nets of the trainer are not converted.
        """
        if not self._replays:
            raise TrainerError(
                "verdict: no step of a converted net was kept; attach the Watch before the forward pass of a step, and "
                "call verdict after step or update."
            )
        self._labels.clear()
        loss, self._loss = self._loss, None  # It is called, and not to be noted.
        try:
            found = judge([replay.with_masters() for replay in self._replays], self._scale)
        finally:
            self._loss = loss

        if found.kind == NO_FAULT and self._bad is not None:
            return replace(found, text=from_elsewhere(self._bad))
        return found

    # ------------------------------------------------------------------ events of a step.

    def on_reduced(self, step: Step, scale: float) -> None:
        """Keep the calls of the step that is being made."""
        owner, self._bad = self._owner, None
        if isinstance(owner, Trainer):
            self._scale = owner._scaler.ensure_window().scale
            self._replays = calls_of(owner).replays(self._scale, self._of_loss)
        else:
            module = owner if isinstance(owner, Module) else owner._curr_module
            self._scale = module._backward_scale
            self._replays = _of_module(module, copied=True)
        self._labels.clear()

    def on_skip(self, step: Step) -> None:
        """Note a weight whose gradient is not finite."""
        self._bad = step.first_non_finite()

    def on_end(self, end: StepEnd) -> None:
        """Note how the step ended."""
        self.end = end

    def _note_labels(self, block: gluon.Block, inputs: Tuple[Any, ...]) -> None:
        if self._loss is not None and autograd.is_recording():  # It is not noted where it is evaluated.
            self._labels.append(inputs)

    def _of_loss(self, outputs: Any) -> Optional[LossGradients]:
        """Return the gradients of the loss for a call's outputs, if the loss was called with these."""
        labels = next((given[1:] for given in self._labels if given and given[0] is outputs), None)
        return None if labels is None else LossGradients(self._loss, labels, as_outputs(outputs))


# ---------------------------------------------------------------------- the steps of trainers


class StepCalls(Recorder):
    """The calls since a trainer's last step of the nets that it trains, on which its present step rests.

    All are kept, with gradients, where a `Watch` asks for them, or where a skip of the present step will be explained.
    The trainer's scaler has it up to the end of the step.
    """

    def __init__(self, trainer: Trainer) -> None:
        super().__init__()
        self._trainer = trainer

    def __reduce__(self) -> Tuple[Any, ...]:
        """Have pickle and copy make an empty one: graphs that ran cannot be copied."""
        return StepCalls, (self._trainer,)

    @property
    def keeps_gradients(self) -> bool:  # type: ignore[override]
        """Whether all calls are kept, with the gradients of their outputs."""
        scaler = self._trainer._scaler
        return scaler.next_skip_is_told or any(isinstance(each, Watch) for each in list(scaler.observers.values()))


def calls_of(trainer: Trainer) -> StepCalls:
    """Return the calls of a trainer's present step, which are kept from the first time on that this is called in it."""
    scaler = trainer._scaler
    with LOCK:  # Threads may make their first calls at once.
        if scaler.calls is None:
            scaler.calls = StepCalls(trainer)
        calls: StepCalls = scaler.calls
    return calls


# ---------------------------------------------------------------------- the steps of modules


def _of_module(module: Module, copied: bool = False) -> List[Replay]:
    """Return the calls of a module's executors, one per context; they hold data, labels and parameters.

    ``copied`` says whether data and labels are copied, which the next batch overwrites.
    """
    runnable, group, out_grads = module._require_bound("replay"), module._exec_group, module._out_grads
    data = [*group.data_names, *(group.label_names or ())]
    trained = frozenset(weight.name for weight in module._trained())
    replays = []
    for executor, context in zip(group.execs, module._context):
        values = {**executor.arg_dict, **executor.aux_dict}
        values.pop(LOSS_SCALE, None)
        names = [name for name in data if name in values]
        if copied:
            values.update({name: values[name].copy() for name in names})
        fixed = values, names, trained, context, module.for_training, module._loss_heads
        call = Call(runnable.converted.decisions, *fixed)
        replays.append(Replay(call, _gradients(executor.outputs, runnable.loss_outputs, out_grads, len(group.execs))))
    return replays


def _gradients(
    outputs: Sequence[Any], losses: Sequence[int], out_grads: Optional[Sequence[Any]], contexts: int
) -> Optional[Gradients]:
    """Return the gradients of an executor's outputs; ones for losses, whose backward begins by itself.

    ``out_grads`` are the true gradients that backward was given, which are known on one context alone.
    """
    if out_grads is not None:
        pairs = zip(out_grads, outputs)
        return Gradients([grad.copyto(output.ctx) for grad, output in pairs]) if contexts == 1 else None
    ones, zeros = mx.nd.ones_like, mx.nd.zeros_like
    return Gradients([(ones if number in losses else zeros)(output) for number, output in enumerate(outputs)])


# ---------------------------------------------------------------------- unasked


def explain_step(owner: Any) -> Optional[str]:
    """Return why the present step of a trainer or module is not finite; None if that is not found out.

    It runs again, without dropout.
    """
    outside, bad = False, None
    if isinstance(owner, Module):
        replays, scale = _of_module(owner), owner._backward_scale
    else:
        calls, window = calls_of(owner), owner._scaler.ensure_window()
        replays, scale = calls.replays(window.scale), window.scale
        outside = "losses" in window.failed and calls.is_complete
        bad = owner._training_step.first_non_finite() if calls.is_complete else None
    if not replays:
        return None
    verdict = judge([replay.with_masters().without_dropout() for replay in replays], scale)
    if verdict.kind != NO_FAULT:
        return str(verdict)
    look = "look at the loss, at its labels, and at other nets that it comes through."
    if outside:
        return f"the outputs of the trainer's nets are finite here: {look}"
    return None if bad is None else from_elsewhere(bad)


def bad_input(owner: Any) -> Optional[str]:
    """Return which input of the present step holds NaN; None if none is known to, or another net may have given it.

    Arrays on a GPU are not looked at, see `nan_given`.
    """
    if not isinstance(owner, Module):
        recorder = calls_of(owner)
        first = [KeptCall(each.call) for each in recorder.calls[:1]]
        return next((nan_given(Replay.of_net(each, 1.0, None, not recorder.is_complete)) for each in first), None)
    if not owner._require_bound("replay").on_cpu:
        return None
    return next(filter(None, map(nan_given, _of_module(owner))), None)
