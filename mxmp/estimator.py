"""Mixed precision for ``mxnet.gluon.contrib.estimator``: one handler on ``fit``."""

from __future__ import annotations

import dataclasses
from typing import Any, List, Optional, Sequence, Union

import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon.contrib.estimator import (
    BatchEnd,
    BatchProcessor,
    EpochBegin,
    EpochEnd,
    Estimator,
    TrainBegin,
    TrainEnd,
)

from .errors import TrainerError, a_type_of
from .gluon import Trainer, restore
from .gluon.adoption import adoptable
from .gluon.api import convert_all
from .gluon.blocks import descendants
from .loss_scale import LossScale, NoOpLossScale, parse
from .names import hooks as _hooks
from .policy import Policy
from .train.step import scaler_of

globals().update(_hooks(__name__))

_ATTRIBUTE = "_mxmp_mixed_precision"


@dataclasses.dataclass
class _Applied:
    """The changes that a handler made to an estimator, kept as an attribute of the estimator."""

    nets: List[gluon.Block]
    trainer: Any
    loss_scale_before: LossScale
    loss_scale: Optional[LossScale]  # The handler's loss scale; None before the trainer has it.


class ScalingBatchProcessor(BatchProcessor):
    """A batch processor around another, whose ``fit_batch`` runs backward on the scaled losses.

    Data, labels, predictions and losses come back as MXNet's own ``fit_batch`` gives them; the
    losses are not scaled. All else is the inner processor's.

    Args:
        inner: The processor, with the ``fit_batch`` of MXNet.
    """

    def __init__(self, inner: BatchProcessor) -> None:
        super().__init__()
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # It is not set yet while unpickling.
            raise AttributeError(name)
        return getattr(self.inner, name)

    def _get_data_and_label(self, batch: Any, ctx: Any, batch_axis: int = 0) -> Any:
        """Return the data and labels of a batch for each context, as the inner processor does."""
        return self.inner._get_data_and_label(batch, ctx, batch_axis)

    def evaluate_batch(self, estimator: Estimator, val_batch: Any, batch_axis: int = 0) -> Any:
        """Evaluate a batch as the inner processor does."""
        return self.inner.evaluate_batch(estimator, val_batch, batch_axis)

    def fit_batch(self, estimator: Estimator, train_batch: Any, batch_axis: int = 0) -> Any:
        """Run forward and backward on a batch, as MXNet's ``fit_batch`` but with the losses scaled."""
        data, label = self._get_data_and_label(train_batch, estimator.context, batch_axis)
        with autograd.record():
            pred = [estimator.net(x) for x in data]
            loss = [estimator.loss(y_hat, y) for y_hat, y in zip(pred, label)]
        with estimator.trainer.scale_loss(loss) as scaled:
            for each in scaled:
                each.backward()
        return data, label, pred, loss


class MixedPrecisionHandler(TrainBegin, EpochBegin, BatchEnd, EpochEnd, TrainEnd):
    """Makes an Estimator train in mixed precision, from the beginning of a fit on.

    It converts the estimator's nets in place, makes its trainer an `mxmp.gluon.Trainer` and has
    MXNet's ``fit_batch`` scale the losses. Inputs and targets stay as the loader gives them;
    validation and predictions run the converted net, take float32 and give float32. A batch
    processor with a ``fit_batch`` of its own stays as it is. It has to run backward as
    ``with estimator.trainer.scale_loss(loss) as scaled: ...``; otherwise the step raises.

    The estimator stays in mixed precision after the fit, until `restore`. A later fit goes on with
    the loss scale as it is, unless its handler has another one. The gradients of a batch that
    an exception ended are dropped.

    Args:
        policy: A policy or its name.
        loss_scale: 'policy' for the policy's; or 'dynamic', a number, a `LossScale`, or None for no
            scaling and no checks.
        observers: Observers of the steps, such as a `mxmp.diagnose.Watch`. When a fit begins, the ``attach`` of each
            is called with the trainer. When the fit ends, its ``detach`` is called if it has one, so that a log writes
            its last step. An observer that was attached to the trainer before stays attached.

    Raises:
        PolicyError: If the policy is not one.
        LossScaleError: If the loss scale is not one.
        TrainerError: If an observer has no ``attach``.

    Example:
        >>> handler = MixedPrecisionHandler("O2", loss_scale=128)  # estimator.fit(..., event_handlers=[handler])
        >>> handler.policy.param_dtype
        'float16'

    References:
        ``Learner.to_fp16`` and ``to_fp32`` of fastai, https://docs.fast.ai/callback.fp16.html.
    """

    # Before all others: the LoggingHandler and a CheckpointHandler that resumes use the trainer.
    priority = -np.inf

    def __init__(
        self, policy: Union[str, Policy] = "O1", loss_scale: Any = "policy", observers: Sequence[Any] = ()
    ) -> None:
        self.policy = Policy.parse(policy)
        is_policys = isinstance(loss_scale, str) and loss_scale == "policy"
        self.loss_scale = parse(self.policy.loss_scale if is_policys else loss_scale)
        self.observers = tuple(observers)
        for each in self.observers:
            if not callable(getattr(each, "attach", None)):
                text = f"observers holds {a_type_of(each)}, which has no attach"
                raise TrainerError(f"{text}; expected a mxmp.diagnose.Watch or a log of steps.")
        self._attached: List[Any] = []  # Observers that were not attached before.
        self._first_batch, self._epoch, self._skipped = True, 0, 0

    def train_begin(self, estimator: Estimator, *args: Any, **kwargs: Any) -> None:
        """Convert the estimator, or change nothing and raise as `mxmp.gluon.Trainer.adopt` or `mxmp.gluon.convert`."""
        _require_estimator(estimator, "MixedPrecisionHandler")
        _drop_unfinished(estimator.trainer)
        adoptable(estimator.trainer, self.loss_scale, Trainer)
        nets = _nets(estimator)
        convert_all(nets, self.policy)
        if not isinstance(estimator.trainer, Trainer):
            for net in nets:  # A trainer that has stepped is adopted while its parameters are float32.
                restore(net)
        self._adopt(estimator, nets)
        convert_all(nets, self.policy)
        if getattr(estimator.batch_processor.fit_batch, "__func__", None) is BatchProcessor.fit_batch:
            estimator.batch_processor = ScalingBatchProcessor(estimator.batch_processor)
        self._detach()  # An exception may have ended the last fit.
        attached = list(scaler_of(estimator.trainer).observers.values())
        for each in self.observers:
            each.attach(estimator.trainer)
            if not any(each is other for other in attached):
                self._attached.append(each)
        self._first_batch, self._epoch = True, 0
        text = "MixedPrecisionHandler: policy %s; losses are scaled by %s, now %g"
        scale = estimator.trainer.loss_scale.value
        estimator.logger.info(text, self.policy, type(self.loss_scale).__name__, scale)

    def epoch_begin(self, estimator: Estimator, *args: Any, **kwargs: Any) -> None:
        """Store the number of skipped steps so far; a checkpoint may have been loaded since `train_begin`."""
        self._skipped = estimator.trainer.skipped_steps

    def batch_end(self, estimator: Estimator, *args: Any, **kwargs: Any) -> None:
        """Before the first step, let the trainer make masters anew: its parameters may have other dtypes."""
        if self._first_batch:  # The first forward pass may have stored them in low precision.
            _make_masters_anew(estimator.trainer)
            self._first_batch = False

    def epoch_end(self, estimator: Estimator, *args: Any, **kwargs: Any) -> None:
        """Log how many steps of the epoch were skipped, if any."""
        trainer = estimator.trainer
        skipped = trainer.skipped_steps - self._skipped
        if skipped:
            text = "[Epoch %d] MixedPrecisionHandler: %d steps skipped, their gradients were not finite; loss scale %g"
            estimator.logger.info(text, self._epoch, skipped, trainer.loss_scale.value)
        self._epoch += 1

    def train_end(self, estimator: Estimator, *args: Any, **kwargs: Any) -> None:
        """Detach the observers that `train_begin` attached."""
        self._detach()

    def _detach(self) -> None:
        attached, self._attached = self._attached, []
        for each in attached:
            getattr(each, "detach", lambda: None)()

    @staticmethod
    def restore(estimator: Estimator) -> None:
        """Restore an estimator to float32, as fastai's ``to_fp32``; nothing to do for one that is.

        Its nets run their own graphs. Their parameters are float32, with the exact values of their
        masters. The batch processor and the loss scale are those of before. The trainer goes on from
        its present states, in float32.

        Raises:
            TrainerError: If it is no Estimator.
        """
        _require_estimator(estimator, "restore")
        applied = vars(estimator).pop(_ATTRIBUTE, None)
        if applied is None:
            return
        _drop_unfinished(applied.trainer)
        for net in applied.nets:
            restore(net)
        _make_masters_anew(applied.trainer)
        applied.trainer.loss_scale = applied.loss_scale_before
        if isinstance(estimator.batch_processor, ScalingBatchProcessor):
            estimator.batch_processor = estimator.batch_processor.inner

    def _adopt(self, estimator: Estimator, nets: List[gluon.Block]) -> None:
        """Give the trainer the handler's loss scale, unless it has had it from an earlier fit."""
        trainer, applied = estimator.trainer, vars(estimator).get(_ATTRIBUTE)
        if applied is None or applied.trainer is not trainer:
            before = trainer.loss_scale if isinstance(trainer, Trainer) else NoOpLossScale()
            applied = _Applied(nets, trainer, before, None)
        if applied.loss_scale != self.loss_scale:
            Trainer.adopt(trainer, self.loss_scale)
        setattr(estimator, _ATTRIBUTE, dataclasses.replace(applied, nets=nets, loss_scale=self.loss_scale))


def _require_estimator(estimator: Any, call: str) -> None:
    if not isinstance(estimator, Estimator):
        raise TrainerError(
            f"{call}: expected a mxnet.gluon.contrib.estimator.Estimator, found {a_type_of(estimator)}."
        )


def _nets(estimator: Estimator) -> List[gluon.Block]:
    """Return the nets for training and for validation; one that holds the other first."""
    net, val_net = estimator.net, estimator.val_net
    around = any(block is net for block in descendants(val_net))
    return list(dict.fromkeys([val_net, net] if around else [net, val_net]))


def _drop_unfinished(trainer: Any) -> None:
    """Discard the gradients that an interrupted fit left between backward and step."""
    if isinstance(trainer, Trainer) and trainer._scaler.window is not None:
        trainer.discard_grads()


def _make_masters_anew(trainer: Trainer) -> None:
    """Have a trainer make the masters of its parameters at the next step; its states are float32 in any case."""
    for masters in trainer._training_step.masters:
        masters.load({})
