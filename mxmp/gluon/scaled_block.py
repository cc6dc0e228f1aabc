"""The block of a gluon trainer, or of several, within which backward runs on the scaled loss."""

from __future__ import annotations

import contextlib
from typing import Any, Iterator, List, Optional, Sequence

from ..scaling.loss_heads import HEAD_SCALE
from ..scaling.scale_loss import scale_loss
from ..scaling.scaled_loss import ScaledLoss, require_backward
from ..scaling.scaler import turn_of
from .trainer_setup import TrainerSetup


@contextlib.contextmanager
def scaled_block(loss: Any, trainers: Sequence[TrainerSetup]) -> Iterator[Any]:
    """Yield a loss times the scale of all trainers that step on it, and check that backward came through it."""
    with turn_of(trainer._scaler for trainer in trainers), contextlib.ExitStack() as stack:
        begun = [trainer for trainer in trainers if trainer._scaler.window.is_scaled]

        def finish(losses: List[ScaledLoss]) -> None:
            if require_backward(losses, lambda: _written(trainers, begun)):
                for trainer in trainers:
                    trainer._scaler.window = trainer._scaler.window.reached_by_backward()

        for trainer in trainers:
            if trainer._scaler.active:
                trainer._calls.reach(loss)
        block = scale_loss(loss, [trainer._scaler for trainer in trainers], finish)
        for trainer in begun:
            stack.enter_context(trainer._gradients.forbid_overwrite())
        scaled = stack.enter_context(block)
        stack.enter_context(HEAD_SCALE.scaled_by(trainers[0]._scaler.window.scale))
        for trainer in trainers:
            if trainer._scaler.active:
                trainer._training_step.keep_running_stats(trainer._gradients.running_stats())
        yield scaled


def _written(trainers: Sequence[TrainerSetup], begun: Sequence[TrainerSetup]) -> Optional[str]:
    """Return a parameter whose gradient was written within a block, or None.

    Of trainers that have gradients of an earlier block as well, those that are added up cannot be told.
    """
    for trainer in trainers:
        for param, _ in trainer._gradients.fresh():
            if trainer not in begun or param.grad_req == "write":
                return str(param.name)
    return None
