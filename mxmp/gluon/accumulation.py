"""Gradients added up over several batches before each step, for a batch that does not fit into memory."""

from __future__ import annotations

import contextlib
import logging
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, TypeVar

import numpy as np
from mxnet import gluon

from ..arrays import require_positive
from ..errors import TrainerError, a_type_of
from .blocks import undone
from .trainer import Trainer

_LOG = logging.getLogger(__name__)

_END: Any = object()

Batch = TypeVar("Batch")


class Accumulator:
    """Makes one step of the gradients of several batches, a group, as if they were one large batch.

    In the loop gradients add up (``grad_req='add'``). At the end of each group they are summed over contexts and
    workers, checked and used or skipped as one, and zeroed::

        accumulator = mxmp.gluon.Accumulator(trainer, steps=4)
        for x, y in accumulator(loader):
            with autograd.record():
                loss = loss_fn(net(x), y)
            with trainer.scale_loss(loss) as scaled:
                scaled.backward()
            accumulator.clip_global_norm(1.0, len(x))  # optional
            accumulator.step(len(x))

    The last group of a loader may be smaller. Each group's gradients are divided by its true number of samples, so
    batches of different sizes count by their samples. Do not divide the loss. Losses that are means already want
    ``step(1)``. The update is that of one large batch, to rounding: gradients of parameters that are stored in low
    precision are rounded at each addition. BatchNorm is different: it normalizes each batch by itself.

    Args:
        trainer: A trainer of mxmp, or a list of them, which all step at the end of a group.
        steps: How many batches make a group, 1 or more.

    Raises:
        TrainerError: If an argument is wrong.

    References:
        ``accelerator.accumulate`` of Hugging Face Accelerate,
        https://huggingface.co/docs/accelerate/usage_guides/gradient_accumulation.
    """

    def __init__(self, trainer: Any, steps: int) -> None:
        trainers = list(trainer) if isinstance(trainer, (list, tuple)) else [trainer]
        for each in trainers:
            if not isinstance(each, Trainer):
                kind = f"{a_type_of(each)} of {type(each).__module__}"
                hint = "; Trainer.adopt makes it one of mxmp" if isinstance(each, gluon.Trainer) else ""
                raise TrainerError(f"Accumulator: expected a trainer of mxmp, found {kind}{hint}.")
        if not trainers:
            raise TrainerError("Accumulator: trainer is an empty list; give a trainer of mxmp, or a list of them.")
        if isinstance(steps, bool) or not isinstance(steps, (int, np.integer)) or steps < 1:
            raise TrainerError(f"Accumulator: steps={steps!r}; expected how many batches make a group, 1 or more.")
        self._trainers: List[Trainer] = list(dict.fromkeys(trainers))
        self._size = int(steps)
        self._runs = self._stepping = self._is_last = False
        self._waits = False  # Whether the present batch waits for its step.
        self._batches = 0  # Batches of the present group, the present one included.
        self._samples = 0

    @property
    def ends_group(self) -> bool:
        """Whether the present batch is the last of its group, whose `step` updates."""
        return self._batches == self._size or self._is_last

    def __call__(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield batches, with gradients that add up meanwhile; call `step` once for each.

        One batch more is fetched before each is yielded, which tells the last. When the loop ends the parameters'
        ``grad_req`` is as it was. A group that ``break`` or an error leaves unfinished is dropped, with a warning.

        Args:
            batches: A loader, or anything else that yields batches.

        Raises:
            TrainerError: If it is nothing to loop over, or a gradient is row_sparse, which MXNet does not add up.
                Within another loop, or between a backward and its step. In the loop, if `step` was not called for a
                batch, or the trainer's own `step` was.
        """
        if not isinstance(batches, Iterable):
            raise TrainerError(f"Accumulator: {a_type_of(batches)} is nothing to loop over; give a loader.")
        return self._loop(batches)

    def clip_global_norm(self, max_norm: float, batch_size: float) -> Optional[float]:
        """Clip the mean gradient of a group, where the present batch is its last: `Trainer.clip_global_norm`.

        Args:
            max_norm: Positive. Each of several trainers has a norm of its own.
            batch_size: As for the batch's `step`.

        Returns:
            None within a group; at its end the norm before clipping, the largest of several trainers.

        Raises:
            TrainerError: Outside of the loop or after the batch's step, and as `Trainer.clip_global_norm`.
            NonFiniteLossError: As `Trainer.clip_global_norm`.
        """
        self._require_waiting("clip_global_norm")
        require_positive("clip_global_norm: max_norm", max_norm)
        require_positive("clip_global_norm: batch_size", batch_size)
        if not self.ends_group:
            return None
        return max([each.clip_global_norm(max_norm, self._samples + batch_size) for each in self._trainers])

    def step(self, batch_size: int, ignore_stale_grad: bool = False) -> Optional[bool]:
        """Count a batch, and at the end of its group update the parameters, or skip, and zero the gradients.

        Args:
            batch_size: The number of samples of this batch, with a distributed kvstore of all workers together.
            ignore_stale_grad: As for `Trainer.step`.

        Returns:
            None within a group; at its end whether all trainers updated.

        Raises:
            TrainerError: Outside of the loop, twice for a batch, and as `Trainer.step`.
            NonFiniteLossError: As `Trainer.step`; the group is dropped.
            LossScaleError: As `Trainer.step`.
        """
        self._require_waiting("step")
        require_positive("step: batch_size", batch_size)
        if not self.ends_group:
            for trainer in self._trainers:
                trainer._require("step", ignore_stale_grad)
        self._waits, self._samples = False, self._samples + batch_size
        if not self.ends_group:
            for observer in [each for trainer in self._trainers for each in trainer._scaler.observers.values()]:
                observer.on_batch()
            return None
        self._stepping = True
        try:
            return all([trainer.step(self._samples, ignore_stale_grad) for trainer in self._trainers])
        finally:
            self._stepping = False
            self._clear()

    def _require_waiting(self, call: str) -> None:
        """Raise unless the present batch waits for its step."""
        if not self._waits:
            state = "outside of the loop"
            if self._runs:
                state = "twice for a batch" if call == "step" else "after the batch's step"
            raise TrainerError(f"{call} was called {state}; call it once in `for batch in accumulator(loader):`.")

    def _loop(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        with self._adding_up():
            fetched = iter(batches)
            batch = next(fetched, _END)
            while batch is not _END:
                following = next(fetched, _END)
                self._batches, self._is_last, self._waits = self._batches + 1, following is _END, True
                yield batch
                if self._waits:
                    raise TrainerError("Accumulator: no step was made for a batch; call accumulator.step(batch_size).")
                batch = following

    @contextlib.contextmanager
    def _adding_up(self) -> Iterator[None]:
        """Let gradients add up within this context, beginning with zeros; they are as they were after it."""
        if self._runs:
            raise TrainerError("Accumulator: a loop of this accumulator is running; end it first.")
        for trainer in self._trainers:
            trainer._scaler.require_ready("Accumulator")
        self._require_dense()
        changed = [param for param in self._params() if param.grad_req == "write"]
        with undone(lambda: self._end(changed)):
            self._runs = True
            for trainer in self._trainers:
                trainer._step_hooks[id(self)] = self._refuse_other_steps
            for param in changed:
                param.grad_req = "add"
            self._clear()
            yield

    def _end(self, changed: Sequence[gluon.Parameter]) -> None:
        """Give parameters their ``grad_req`` back and trainers their own step; drop an unfinished group."""
        for trainer in self._trainers:
            trainer._step_hooks.pop(id(self), None)
        for param in changed:
            param.grad_req = "write"
        if self._batches:
            _LOG.warning("Accumulator: the loop ended within a group; its %d batches are dropped.", self._batches)
        self._runs = self._waits = self._is_last = self._stepping = False
        self._clear()

    def _clear(self) -> None:
        """Drop the gradients, zero them, and begin a group."""
        self._batches, self._samples = 0, 0
        for trainer in self._trainers:
            trainer.discard_grads()
        for param in self._params():
            param.zero_grad()

    def _require_dense(self) -> None:
        """Raise if MXNet cannot add up a parameter's gradients: those of a sparse one are written only."""
        for param in self._params():
            if param._grad_stype != "default":
                raise TrainerError(
                    f"Accumulator: the gradient of parameter '{param.name}' is row_sparse, which MXNet does not add "
                    "up; make its layer with sparse_grad=False."
                )

    def _params(self) -> List[gluon.Parameter]:
        """Return all parameters that are trained."""
        params: Dict[int, gluon.Parameter] = {id(p): p for trainer in self._trainers for p in trainer._params}
        return [param for param in params.values() if param.grad_req != "null"]

    def _refuse_other_steps(self, trainer: Trainer, updated: bool) -> None:
        if not self._stepping:
            raise TrainerError(
                "the trainer's own step was called in an accumulator's loop: it has updated before the group was "
                "complete. Call accumulator.step(batch_size) instead."
            )
