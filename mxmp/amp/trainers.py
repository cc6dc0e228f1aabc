"""init_trainer, scale_loss and unscale: MXNet's own trainers with mxmp's loss scaling."""

from __future__ import annotations

import contextlib
from typing import Any, Iterator, List

import mxnet as mx

from ..arrays import scale_in_place
from ..errors import TrainerError
from ..gluon import Trainer
from ..gluon.scaled_blocks import end_look
from ..train.loss_heads import HEAD_SCALE
from ..train.scaler import Scaler, SharedLossScale, turn_of
from .hook import installed_hook
from .operators import AmpError


def init_trainer(optimizer_or_trainer: mx.gluon.Trainer, loss_scale: Any = "auto") -> None:
    """Give a trainer loss scaling and exact skips: from now on it is an `mxmp.gluon.Trainer`.

    This one object changes, not its class. Its optimizer keeps float32 masters for parameters in
    low precision.

    Args:
        optimizer_or_trainer: A ``mx.gluon.Trainer``, created before or after `init`.
        loss_scale: 'dynamic', a number or a `LossScale`, or None for no scaling and no checks. 'auto' is
            'dynamic' if `init` was called for float16, and None for bfloat16, which has float32's range. A scale
            that starts at 65536, as contrib.amp's: ``mxmp.loss_scale.DynamicLossScale(init_scale=2.0**16)``.

    Raises:
        AmpError: If `init` was not called.
        TrainerError: If it is no trainer; if its kvstore updates, before any check; or if it has
            made a step with parameters in low precision.
        LossScaleError: If ``loss_scale`` is not one.
    """
    hook = installed_hook()
    if hook is None:
        raise AmpError("amp.init was not called, so no net runs in mixed precision; call it first, or amp.initialize.")
    auto = isinstance(loss_scale, str) and loss_scale == "auto"
    adopt(optimizer_or_trainer, hook.request.base().loss_scale if auto else loss_scale)


@contextlib.contextmanager
def scale_loss(loss: Any, optimizer_or_trainer: Any, loss_id: int = 0, delay_unscale: bool = True) -> Iterator[Any]:
    """Return a context manager that yields the loss, or the list of losses, times the loss scale.

    Args:
        loss: As for `mxmp.gluon.Trainer.scale_loss`.
        optimizer_or_trainer: A trainer that `init_trainer` or `initialize` has seen; or a list of
            all trainers whose parameters the loss depends on.
        loss_id: Number of the loss, below the ``num_losses`` of `initialize`.
        delay_unscale: Of Apex; without effect, because gradients are unscaled by the step, by `unscale` or where
            ``param.grad()`` is read. To accumulate them set ``grad_req='add'`` on the parameters.

    Raises:
        TrainerError: If a trainer is not initialized, or cannot scale a loss now.
    """
    trainers = [require_trainer(each, "scale_loss") for each in as_list(optimizer_or_trainer)]
    hook = installed_hook()
    if hook is not None:
        hook.warn_if_idle(loss)
    if not trainers:
        raise TrainerError("scale_loss: the list of trainers is empty.")
    with HEAD_SCALE.turn, turn_of(trainer._scaler for trainer in trainers):
        several = [trainer for trainer in trainers if trainer._scaler.num_losses > 1]
        if loss_id != 0 and len(several) < len(trainers):
            raise TrainerError(f"loss_id={loss_id!r}: the trainer has one loss; give num_losses to amp.initialize.")
        for trainer in several:
            end_look([trainer])
            trainer._scaler.require_can_scale("scale_loss")
            trainer._scaler.select(loss_id)
        scale = min(trainer.loss_scale.value for trainer in trainers)
        for trainer in several:
            # A step's gradients have one scale at any time, in their dtype: exact in float32, float16 may lose bits.
            scaler = trainer._scaler
            if scaler.state.is_scaled:
                scale_in_place(trainer._gradients.fresh_grads(), scale / scaler.state.scale)
                scaler.state.scale = scale
        with trainers[0].scale_loss(loss, *trainers[1:]) as scaled:
            yield scaled
        for trainer in several:
            trainer._scaler.note(trainer._gradients.fresh_grads())


def unscale(optimizer_or_trainer: Any) -> None:
    """Make ``param.grad()`` the true gradients, for clipping: `mxmp.gluon.Trainer.unscale`.

    Call it once, after the last backward. Gradients that were not finite make the step skip,
    whatever becomes of them.

    Args:
        optimizer_or_trainer: A trainer that `init_trainer` or `initialize` has seen.

    Raises:
        TrainerError: If it was not, or twice in a step, or before backward.
    """
    require_trainer(optimizer_or_trainer, "unscale").unscale()


def adopt(trainer: Any, loss_scale: Any, masters: bool = True, num_losses: int = 1) -> None:
    """Make a trainer an `mxmp.gluon.Trainer` with a loss scale for each loss, or raise as `init_trainer`."""
    several = num_losses > 1 or (isinstance(trainer, Trainer) and trainer._scaler.num_losses > 1)
    if several and isinstance(loss_scale, SharedLossScale):
        raise TrainerError("loss_scale: a SharedLossScale is for trainers with one loss; leave num_losses out.")
    Trainer.adopt(trainer, loss_scale, masters)
    if several:
        trainer._attach_scaler(Scaler(trainer.loss_scale, num_losses))


def require_trainer(trainer: Any, call: str) -> Trainer:
    """Return a trainer that was initialized, or raise a TrainerError."""
    if isinstance(trainer, Trainer):
        return trainer
    if isinstance(trainer, mx.gluon.Trainer):
        raise TrainerError(f"{call}: the trainer was not initialized; call amp.init_trainer(trainer) first.")
    raise TrainerError(f"{call}: expected a gluon Trainer, found a {type(trainer).__name__}.")


def as_list(value: Any) -> List[Any]:
    """Return a list or tuple as a list, anything else as the list of it."""
    return list(value) if isinstance(value, (list, tuple)) else [value]
