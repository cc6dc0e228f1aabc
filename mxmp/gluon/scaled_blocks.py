"""The block of ``Trainer.scale_loss``, around the backward passes of all trainers that step on the loss."""

from __future__ import annotations

import contextlib
import weakref
from typing import Any, Iterator, List, Optional, Sequence

from ..errors import TrainerError
from ..train.loss_heads import HEAD_SCALE
from ..train.scale_loss import scale_loss
from ..train.scaled_loss import ScaledLoss, require_backward
from ..train.scaler import turn_of


class LossBlock:
    """The context manager that `Trainer.scale_loss` returns, which is no loss."""

    def __init__(self, context: contextlib.AbstractContextManager[Any]) -> None:
        self._context = context

    def __enter__(self) -> Any:
        return self._context.__enter__()

    def __exit__(self, *error: Any) -> Optional[bool]:
        return self._context.__exit__(*error)

    def backward(self, *args: Any, **kwargs: Any) -> None:
        """Raise: the block is no loss."""
        raise TrainerError(
            "scale_loss(loss).backward(): scale_loss is a block, which yields the loss; write `with "
            "trainer.scale_loss(loss) as scaled: scaled.backward()`."
        )


@contextlib.contextmanager
def scaled_block(loss: Any, trainers: Sequence[Any]) -> Iterator[Any]:
    """Yield a loss times the scale of all trainers that step on it, and check that backward came through it."""
    trainers = list(dict.fromkeys(trainers))
    with turn_of(trainer._scaler for trainer in trainers), contextlib.ExitStack() as stack:
        end_look(trainers)
        for trainer in trainers:
            trainer._gradients.require_own()
        stack.callback(_let_see_true_gradients, trainers)  # also where the block raises, of those that it began with
        begun = [trainer for trainer in trainers if trainer._scaler.state.is_scaled]

        def finish(losses: List[ScaledLoss]) -> None:
            if require_backward(losses, lambda: _written(trainers, begun)):
                for trainer in trainers:
                    trainer._scaler.state.reached = True

        for trainer in trainers:
            if trainer._scaler.active:
                trainer._calls.reach(loss)
        block = scale_loss(loss, [trainer._scaler for trainer in trainers], finish)
        for trainer in begun:
            stack.enter_context(trainer._gradients.forbid_overwrite())
        scaled = stack.enter_context(block)
        stack.enter_context(HEAD_SCALE.scaled_by(trainers[0]._scaler.state.scale))
        for trainer in trainers:
            if trainer._scaler.active:
                trainer._training_step.keep_running_stats(trainer._gradients.running_stats())
        yield scaled


def end_look(trainers: Sequence[Any]) -> None:
    """Let gradients be those that backward wrote, times the scale, whoever has looked at them."""
    for trainer in trainers:
        trainer._gradients.hide()
        trainer._training_step.look_away(trainer._gradients)


def _let_see_true_gradients(trainers: Sequence[Any]) -> None:
    """Have the gradients of trainers that are scaled unscaled if somebody reads one before the step."""
    states = [(trainer, trainer._scaler.state) for trainer in trainers]
    alive = weakref.WeakSet(trainer for trainer, state in states if state.is_scaled and state.scale != 1.0)

    def look() -> None:
        found = list(alive)
        with turn_of(trainer._scaler for trainer in found):
            if any(trainer._scaler.is_open for trainer in found):
                return  # within a block gradients are scaled
            for trainer in found:
                trainer._gradients.hide()
                trainer._training_step.look(trainer._gradients)

    for trainer in list(alive):
        trainer._gradients.let_see(look)


def _written(trainers: Sequence[Any], begun: Sequence[Any]) -> Optional[str]:
    """Return a parameter whose gradient was written within a block, or None.

    Of trainers that have gradients of an earlier block as well, those that are added up cannot be told.
    """
    for trainer in trainers:
        for param, _ in trainer._gradients.fresh():
            if trainer not in begun or param.grad_req == "write":
                return str(param.name)
    return None
