"""A gluon Trainer with loss scaling, exact skips and float32 masters."""

from __future__ import annotations

import contextlib
from typing import Any

from ..arrays.norms import require_positive
from ..distributed import KVStore
from ..errors import TrainerError
from ..scaling import loss_heads
from ..training.kvstores import adopt_kvstore_masters
from .scaled_block import scaled_block
from .trainer_setup import TrainerSetup


class Trainer(TrainerSetup):
    """Applies an optimizer to parameters, as ``mx.gluon.Trainer``, in mixed precision.

    Three things are added. The loss is scaled, and a step whose gradients are not finite is
    skipped without a trace: weights, optimizer states, update counts and schedule keep every
    bit, and running statistics that the forward pass made non-finite are restored. Float16 and
    bfloat16 parameters have float32 masters (see `mxmp.optimizer.MultiPrecision`). Calls out of
    turn are errors that say what to do.

    The order of calls::

        with autograd.record():
            loss = loss_fn(net(x), y)
        with trainer.scale_loss(loss) as scaled:  # as often as wanted
            scaled.backward()
        trainer.unscale()                         # optional: true gradients in param.grad()
        trainer.clip_global_norm(1.0)             # optional; or clip_value
        trainer.step(batch_size)

    A step reads once on the host (the finite check), more often only where it has something to put
    back; without a loss scale, never.

    Args:
        params: As for ``mx.gluon.Trainer``.
        optimizer: A name, an ``mx.optimizer.Optimizer``, a `MultiPrecision`, or a
            `LossScaleOptimizer`, whose loss scale the trainer then has.
        optimizer_params: As for ``mx.gluon.Trainer``. ``multi_precision`` (default True) says
            whether low precision parameters have masters; with an optimizer instance it is the
            only key.
        kvstore: As for ``mx.gluon.Trainer``; 'horovod', or a `mxmp.distributed.KVStore`, which says
            in which dtype gradients are summed over workers (float32 by default). Gradients are
            summed, so that ``batch_size`` of `step` is that of all workers together. Every worker
            gets worker 0's parameters: at once if all are initialized, else at the first step.
        compression_params: As for ``mx.gluon.Trainer``.
        update_on_kvstore: True only without a dynamic loss scale, because such an update happens
            inside the all-reduce, before any check: with a static scale nothing is checked then.
            None means False where MXNet allows the choice.
        loss_scale: 'dynamic', a number, a `LossScale`, a `SharedLossScale`, or None for no scaling
            and no checks.
        nonfinite_loss: What a step does whose loss is NaN or inf by itself: 'raise' a NonFiniteLossError, or 'skip',
            which leaves the loss scale as it is, for a NaN batch is no overflow. Needs a loss scale, such as 1.
        max_nonfinite_losses: How many steps in a row 'skip' skips; the next one raises. Both may be set later, also
            on a trainer of `adopt` or `mxmp.amp`, on a Module or a `LossScaleOptimizer`.

    Raises:
        TrainerError: If the arguments contradict each other.
        LossScaleError: If ``loss_scale`` is not one.
    """

    def __repr__(self) -> str:
        """Return what it trains, by which optimizer and with which loss scale."""
        inner = getattr(self.mx_optimizer, "inner", self.mx_optimizer)
        return (
            f"{type(self).__name__}({len(self.mx_params)} parameters, {type(inner).__name__}, "
            f"learning_rate={inner.learning_rate:g}, loss_scale={self.loss_scale!r}, "
            f"skipped_steps={self.skipped_steps})"
        )

    def scale_loss(self, loss: Any, *others: Trainer) -> contextlib.AbstractContextManager[Any]:
        """Return a context manager that yields the loss times the loss scale.

        Call backward on what it yields, inside the block. Works inside and outside of
        ``autograd.record()``. A low precision loss is cast to float32 first; the gradient of
        that cast is the scale itself, so a float16 loss cannot bear a scale above 65504: a step at
        65536 is skipped. Several blocks may come before a step: their gradients are of one
        scale. For a gradient penalty see `mxmp.gluon.precision`.

        Args:
            loss: An NDArray of any shape and floating point dtype, on any context, or nested
                lists and tuples of them; the container is kept.
            others: Further trainers that step on this loss. All of them use the smallest of their
                scales for this window; each then steps on its own. Leave those out that do not step,
                even if backward reaches their parameters.

        Raises:
            TrainerError: Inside another block, after `unscale`, or if ``loss`` is no loss; if a loss head
                within the net keeps the scale from the gradients (one that runs eagerly and comes late
                may be found some steps later: see `mxmp.scaling.recorded_graph`); if it holds second
                derivatives that MXNet lacks or gets wrong. At the end of the block if no backward was
                called on what it yields, on each of several losses, or if its backward overwrote
                gradients of an earlier block. Without a loss scale nothing of this is checked but the calls.
        """
        trainers = (self, *others)
        for trainer in trainers:
            if not isinstance(trainer, TrainerSetup):
                raise TrainerError(
                    f"scale_loss: expected further trainers of mxmp, found a {type(trainer).__name__} of "
                    f"{type(trainer).__module__}; see Trainer.adopt."
                )
            if trainer._scaler.active:
                loss_heads.refuse(trainer.mx_params)
        return scaled_block(loss, trainers)

    def unscale(self) -> None:
        """Make ``param.grad()`` the true gradients, in float32, reduced over the contexts.

        Float32 gradients are unscaled in place. For float16 and bfloat16 parameters, whose
        dtype would flush them to zero, ``param.grad()`` shows float32 copies until the step is
        over. They may be changed in place; the step uses what it finds. Gradients that were not
        finite before still make the step skip, whatever becomes of them. No host read, but on a CPU a
        wait for large gradients of low precision.

        Raises:
            TrainerError: Twice in a window, inside a scale_loss block, or without gradients.
        """
        if self._scaler.window.is_unscaled:
            raise TrainerError(
                "unscale: the gradients of this window are unscaled already; call unscale once, "
                "after the last backward, then step."
            )
        self._begin("unscale")
        self._training_step.unscale(self._gradients)

    def clip_global_norm(self, max_norm: float) -> float:
        """Scale the gradients down so that their global norm is at most ``max_norm``.

        Unscales first if `unscale` was not called. As in ``gluon.utils.clip_global_norm``, the
        norm is that of ``param.grad()``, not yet divided by the batch size. This reads once on
        the host, for the norm and the finite check together; `step` then reads no more, so
        changes of the gradients after this call are not checked. Contexts without a kvstore
        have gradients of their own: the largest norm counts.

        Args:
            max_norm: Positive.

        Returns:
            The norm before clipping, computed in float32. It is inf or NaN if the gradients are
            not finite; then nothing is clipped, and the step will be skipped unless there is no loss
            scale: then nothing is checked, here as in `step`.

        Raises:
            TrainerError: If ``max_norm`` is not positive, or as `unscale`.
            NonFiniteLossError: If the loss itself was not finite.
        """
        require_positive("clip_global_norm: max_norm", max_norm)
        self._begin("clip_global_norm")
        return self._training_step.clip_global_norm(self._gradients, max_norm)

    def clip_value(self, max_value: float) -> None:
        """Bring every element of the gradients into [-max_value, max_value].

        Unscales first if `unscale` was not called; as with `clip_global_norm` the gradients are not
        yet divided by the batch size, and nothing is read on the host. Gradients that were not finite
        before still make the step skip.

        Args:
            max_value: Positive.

        Raises:
            TrainerError: If ``max_value`` is not positive, or as `unscale`.
        """
        require_positive("clip_value: max_value", max_value)
        self._begin("clip_value")
        self._training_step.clip_value(self._gradients, max_value)

    def step(self, batch_size: int, ignore_stale_grad: bool = False) -> bool:
        """Reduce the gradients, check them and update the parameters, or skip.

        Args:
            batch_size: Gradients are divided by it.
            ignore_stale_grad: True leaves parameters alone whose gradients no backward wrote
                since the last step; False makes them an error.

        Returns:
            True if the parameters were updated, False if the step was skipped.

        Raises:
            TrainerError: Inside a scale_loss block, if the loss was not scaled, after
                `allreduce_grads`, or (StaleGradientError) without fresh gradients.
            NonFiniteLossError: If the loss itself was not finite, and ``nonfinite_loss`` is 'raise' or has skipped
                too many; nothing is updated. With a distributed kvstore every worker raises, whosever loss it is.
            LossScaleError: If the loss scale gave up; nothing is updated.
        """
        if self._scaler.window.reduced and not self._scaler.window.is_unscaled:
            raise TrainerError("step came after allreduce_grads and would reduce again; call update.")
        rescale = self._rescale("step", batch_size)
        if self._updates_on_kvstore():
            return self._step_on_kvstore(batch_size, ignore_stale_grad)
        self._begin("step", ignore_stale_grad, check_stale=True)
        return self._finish(rescale)

    def allreduce_grads(self) -> None:
        """Reduce the gradients over the contexts, still scaled; then call `update`.

        Raises:
            TrainerError: Twice in a window, after `unscale`, inside a scale_loss block, or
                without gradients.
        """
        if self._scaler.window.reduced:
            raise TrainerError("allreduce_grads: the gradients are reduced already; call update or step.")
        self._begin("allreduce_grads")
        self._training_step.reduce(self._gradients)

    def update(self, batch_size: int, ignore_stale_grad: bool = False) -> bool:
        """Check the gradients and update the parameters, or skip: `step` without reducing.

        Args:
            batch_size: As for `step`.
            ignore_stale_grad: As for `step`.

        Returns:
            As `step`.

        Raises:
            TrainerError: As `step`.
            NonFiniteLossError: As `step`.
            LossScaleError: As `step`.
        """
        rescale = self._rescale("update", batch_size)
        self._begin("update", ignore_stale_grad, check_stale=True)
        if self.mx_kvstore and not self._scaler.window.reduced:
            raise TrainerError(
                "update came before allreduce_grads, so that every context and worker would use its own gradients "
                "alone; call step, or allreduce_grads first."
            )
        return self._finish(rescale)

    def discard_grads(self) -> None:
        """Give up the present window: its gradients count as used, and nothing is updated.

        The way back after an error between backward and step. With ``grad_req='add'`` call
        ``zero_grad`` on the parameters as well.

        Raises:
            TrainerError: Inside a scale_loss block.
        """
        self._scaler.require_closed("discard_grads")
        self._training_step.discard()
        self._gradients.discard()

    # The window.

    def _begin(self, call: str, ignore_stale: bool = False, check_stale: bool = False) -> None:
        """Raise if ``call`` cannot come now; changes nothing."""
        self._scaler.require_closed(call)
        if self._updates_on_kvstore():
            raise TrainerError(f"{call} cannot be used where the kvstore updates; set update_on_kvstore=False.")
        self._gradients.require(call, ignore_stale and not self._scaler.checks, self._scaler.window.reached)
        self._scaler.require_scaled(call)
        if check_stale and not ignore_stale:
            self._gradients.require_all(call)
        if ignore_stale and isinstance(self.mx_kvstore, KVStore):
            raise TrainerError(
                f"{call}: ignore_stale_grad=True with kvstore '{self.mx_kvstore.type}': a worker does not know which "
                "gradients are stale on the others; set grad_req='null' where nothing is to be trained."
            )

    def _rescale(self, call: str, batch_size: Any) -> float:
        require_positive(f"{call}: batch_size", batch_size)
        return float(self.mx_scale / batch_size)

    def _finish(self, rescale: float) -> bool:
        """Update or skip, and call the hooks."""
        self._training_step.reduce(self._gradients)
        any_fresh = any(self._gradients.groups())
        updated = self._training_step.run(self._gradients, rescale) and any_fresh
        self._call_hooks(updated)
        return updated

    def _step_on_kvstore(self, batch_size: float, ignore_stale_grad: bool) -> bool:
        """Let the kvstore update, unchecked; a static scale goes out with the batch size."""
        self._scaler.require_closed("step")
        self._gradients.require("step", ignore_stale_grad, self._scaler.window.reached)
        self._scaler.require_scaled("step")
        try:
            super().step(batch_size * self._scaler.window.scale, ignore_stale_grad)
            adopt_kvstore_masters(self.mx_kvstore, self.mx_params)
        finally:
            self.discard_grads()
        self._call_hooks(True)
        return True
