"""Keeps what the last training step ran on, so that it can be run again."""

from __future__ import annotations

from collections import deque
from typing import Any, Deque, List, Optional, Tuple

from mxnet import autograd, gluon

from ..errors import TrainerError
from ..gluon import Trainer
from ..gluon.calls import MOST_CALLS
from ..module import BucketingModule, Module
from ..probe.step_replay import Call, LossGradients
from ..probe.verdict import Verdict, judge
from ..train.step import Observation, Observer, StepEnd, Weights, attached_elsewhere, observe
from .module_steps import calls_of
from .net_steps import replayed


class Watch(Observer):
    """Keeps the inputs of each step of a trainer or module, to run a skipped one again: bug or overflow?

    It costs the memory of a batch, and an addition to each output of a net; nothing is run again before `verdict` is
    called. Call that right after the step: inputs and gradients of outputs are kept, weights are not, and are read when
    `verdict` is called. A step that is skipped has left its own; of one that is taken they are those that it wrote.
    Dropout draws anew, and random numbers of the user's stream with it. A ``with`` block detaches it at its end; the
    last step is kept then too. For an Estimator it is one of the ``observers`` of
    `mxmp.estimator.MixedPrecisionHandler`.

    Args:
        loss: Of a trainer, the loss Block that is called with a net's output and labels, so that labels are looked at
            too; may be left out. Of a function the calls cannot be noted, so it is refused.

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
                f"Watch: loss is a {type(loss).__name__}; expected a Block, such as gluon.loss.L2Loss(), whose calls "
                f"are noted, as those of a function cannot be: put it into a Block, leave loss out, or call "
                f"mxmp.diagnose.explain. Give the trainer or module to attach: Watch(loss).attach(trainer)."
            )
        self._loss: Any = loss
        self._owner: Any = None
        self._calls: List[Call] = []
        self._scale = 1.0
        self._labels: Deque[Tuple[Any, ...]] = deque(maxlen=MOST_CALLS)
        self._observation: Optional[Observation] = None
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
                f"Watch: expected a trainer or module of mxmp, found a {type(owner).__name__} of "
                f"{type(owner).__module__}; mxmp.gluon.Trainer.adopt makes a trainer of MXNet one of mxmp."
            )
        if self._observation is not None:
            if self._owner is not owner:
                raise attached_elsewhere(self, self._owner)
            return self
        self._owner, self._calls, self.end = owner, [], None
        self._observation = observe(owner, self)
        self._handle = None if self._loss is None else self._loss.register_forward_pre_hook(self._note_labels)
        if isinstance(owner, Trainer):
            owner._calls.watches += 1
        return self

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *raised: object) -> None:
        self.detach()

    def detach(self) -> None:
        """Keep no further steps; the last one stays. A second call does nothing."""
        if self._observation is None:
            return
        self._observation.detach()
        if self._handle is not None:
            self._handle.detach()
        if isinstance(self._owner, Trainer):
            self._owner._calls.watches -= 1
        self._observation = self._owner = self._handle = None
        self._labels.clear()

    def verdict(self) -> Verdict:
        """Return why the last step was skipped, by running it again with the weights that are there now.

        Those are the step's own if it was skipped and nothing has written them since.

        Returns:
            The verdict; 'no fault found' for a step that is finite.

        Raises:
            TrainerError: If no step was made since it watches, or the nets of the trainer are not converted.
        """
        if not self._calls:
            raise TrainerError(
                "verdict: no step of a converted net was kept; attach the Watch before the forward pass of a step, and "
                "call verdict after step or update."
            )
        calls = list(self._calls)
        self._labels.clear()
        loss, self._loss = self._loss, None  # which is called, and not to be noted
        try:
            return judge(calls, self._scale)
        finally:
            self._loss = loss

    # ------------------------------------------------------------------ what is told

    def on_reduced(self, weights: Weights, scale: float) -> None:
        """Keep the calls of the step that is being made."""
        owner = self._owner
        if isinstance(owner, Trainer):
            self._scale = owner._scaler.state.scale
            noted = owner._calls.noted
            self._calls = [replayed(each, self._scale, self._of_loss(each.outputs)) for each in noted]
        else:
            module = owner if isinstance(owner, Module) else owner.mx_current
            self._scale = module._backward_scale
            self._calls = calls_of(module, copied=True)
        self._labels.clear()

    def on_end(self, end: StepEnd) -> None:
        """Note how the step ended."""
        self.end = end

    def _note_labels(self, block: gluon.Block, inputs: Tuple[Any, ...]) -> None:
        if self._loss is not None and autograd.is_recording():  # not where it is evaluated
            self._labels.append(inputs)

    def _of_loss(self, outputs: Any) -> Optional[LossGradients]:
        """Return what computes the gradients of a call's outputs, if the loss was called with these."""
        labels = next((given[1:] for given in self._labels if given and given[0] is outputs), None)
        return None if labels is None else LossGradients(self._loss, labels, outputs)
