"""The block of ``Trainer.scale_loss``, around the backward passes of all trainers that step on the loss."""

from __future__ import annotations

import contextlib
import weakref
from typing import Any, Iterator, List, Optional, Sequence, Set

from ..arrays import scale_in_place
from ..errors import TrainerError, UnscaledLossError
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

    def __getattr__(self, name: str) -> Any:
        """Raise: the block is no loss, and has neither ``backward`` nor the rest of one."""
        raise _NoLossError(
            f"scale_loss(loss) was used as a loss (its {name}), but is a block, which yields the scaled loss; write "
            "`with trainer.scale_loss(loss) as scaled: scaled.backward()`."
        )

    def _refuse(self, *args: Any) -> Any:
        return self.value

    __len__ = __iter__ = __getitem__ = __neg__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __pow__ = _refuse


class _NoLossError(TrainerError, AttributeError):
    """The block of scale_loss was used as a loss; ``hasattr`` says that it lacks what a loss has."""


@contextlib.contextmanager
def scaled_block(loss: Any, trainers: Sequence[Any], loss_id: int) -> Iterator[Any]:
    """Yield a loss times the scale of all trainers that step on it, and check that backward came through it."""
    trainers = list(dict.fromkeys(trainers))
    seen_together = joined(trainers)
    with HEAD_SCALE.turn, turn_of(trainer._scaler for trainer in seen_together), contextlib.ExitStack() as stack:
        # Also where the block raises, of those that it began with.
        stack.callback(_let_see_true_gradients, seen_together)
        end_look(trainers)
        stack.enter_context(_chosen_loss(trainers, loss_id))
        scales = any(trainer._scaler.active for trainer in trainers)
        for trainer in trainers:
            trainer._gradients.require_own()
            if scales and trainer._scaler.state.is_ready:
                trainer._gradients.begin()
        begun = [trainer for trainer in trainers if trainer._scaler.state.is_scaled]

        def finish(losses: List[ScaledLoss]) -> None:
            try:
                reached = require_backward(losses, lambda: _written(trainers, begun))
            except UnscaledLossError:
                for trainer in trainers:
                    trainer._scaler.state.mixed = True
                raise
            for trainer in trainers if reached else ():
                trainer._scaler.state.reached = True

        block = scale_loss(loss, [trainer._scaler for trainer in trainers], finish)
        for trainer in begun:
            stack.enter_context(trainer._gradients.forbid_overwrite())
        scaled = stack.enter_context(block)
        stack.enter_context(HEAD_SCALE.scaled_by(trainers[0]._scaler.state.scale))
        for trainer in trainers:
            if trainer._scaler.active:
                trainer._training_step.keep_running_stats(trainer._gradients.running_stats())
        yield scaled


@contextlib.contextmanager
def _chosen_loss(trainers: Sequence[Any], loss_id: int) -> Iterator[None]:
    """Scale one of several losses within a block, and note after it whether the gradients are finite with it."""
    several = [trainer for trainer in trainers if loss_id != 0 or trainer._scaler.num_losses > 1]
    for trainer in several:
        trainer._scaler.require_can_scale("scale_loss")
        trainer._scaler.select(loss_id)
    scale = min(trainer.loss_scale.value for trainer in trainers)
    for trainer in several:
        # A step's gradients have one scale at any time, in their dtype: exact in float32, float16 may lose bits.
        state = trainer._scaler.state
        if state.is_scaled:
            scale_in_place(trainer._gradients.fresh_grads(), scale / state.scale)
            state.scale = scale
    yield
    for trainer in several:
        trainer._scaler.note(trainer._gradients.fresh_grads())


def joined(trainers: Sequence[Any]) -> List[Any]:
    """Return trainers, and those whose gradients of this step are unscaled together with theirs."""
    return list(dict.fromkeys(other for trainer in trainers for other in (trainer, *trainer._gradients.joined)))


def end_look(trainers: Sequence[Any]) -> None:
    """Let gradients be those that backward wrote, times the scale, whoever has looked at them."""
    for_all = joined(trainers)
    for trainer in for_all:
        trainer._gradients.hide()
    scaled: Set[int] = set()
    for trainer in for_all:
        trainer._training_step.look_away(trainer._gradients, scaled)


def _let_see_true_gradients(trainers: Sequence[Any]) -> None:
    """Have the gradients of trainers that are scaled unscaled if somebody reads one before the step."""
    states = [(trainer, trainer._scaler.state) for trainer in trainers]
    alive = weakref.WeakSet(trainer for trainer, state in states if state.is_scaled and state.scale != 1.0)

    def look() -> None:
        owners = list(alive)
        # Within a block of this thread another thread may wait for it in turn: no waiting for that.
        with turn_of((trainer._scaler for trainer in owners), waits=not HEAD_SCALE.in_block) as has_turn:
            if not has_turn or any(trainer._scaler.is_open for trainer in owners):
                return  # within a block gradients are scaled
            for trainer in owners:  # first: two of them may train one parameter
                trainer._gradients.hide()
            unscaled: Set[int] = set()
            for trainer in owners:
                trainer._training_step.look(trainer._gradients, unscaled)

    for trainer in list(alive):
        trainer._gradients.let_see(look, alive)


def _written(trainers: Sequence[Any], begun: Sequence[Any]) -> Optional[str]:
    """Return a parameter whose gradient was written within a block, or None.

    Of trainers that have gradients of an earlier block as well, those that are added up cannot be told.
    """
    for trainer in trainers:
        for param, _ in trainer._gradients.fresh():
            if trainer not in begun or param.grad_req == "write":
                return str(param.name)
    return None
