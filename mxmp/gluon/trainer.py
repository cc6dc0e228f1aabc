"""A gluon Trainer with loss scaling, exact skips and float32 masters."""

from __future__ import annotations

import contextlib
from typing import Any, List

import mxnet as mx

from ..arrays.finite import all_finite
from ..arrays.norms import clip_coefficient, require_positive, scale_in_place
from ..distributed import KVStore
from ..errors import NonFiniteLossError, TrainerError
from ..scaling import loss_heads
from ..scaling.scaler import Stage
from . import contexts
from .gradients import Update
from .scaled_block import scaled_block
from .trainer_setup import TrainerSetup


class Trainer(TrainerSetup):
    """Applies an optimizer to parameters, as ``mx.gluon.Trainer``, in mixed precision.

    Three things are added. The loss is scaled, and a step whose gradients are not finite is
    skipped without a trace: weights, optimizer states, update counts and schedule keep every
    bit, and running statistics that the forward pass destroyed are put back. Float16 and
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

    Raises:
        TrainerError: If the arguments contradict each other.
        LossScaleError: If ``loss_scale`` is not one.
    """

    def __repr__(self) -> str:
        """Return what it trains, by which optimizer and with which loss scale."""
        inner = getattr(self._optimizer, "inner", self._optimizer)
        return (
            f"{type(self).__name__}({len(self._params)} parameters, {type(inner).__name__}, "
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
                loss_heads.refuse(trainer._params)
        return scaled_block(loss, trainers)

    def unscale(self) -> None:
        """Make ``param.grad()`` the true gradients, in float32, reduced over the contexts.

        Float32 gradients are unscaled in place. For float16 and bfloat16 parameters, whose
        dtype would flush them to zero, ``param.grad()`` shows float32 copies until the step is
        over. They may be changed in place; the step uses what it finds. Gradients that were not
        finite before still make the step skip, whatever becomes of them. No host read.

        Raises:
            TrainerError: Twice in a window, inside a scale_loss block, or without gradients.
        """
        if self._scaler.window.stage is Stage.UNSCALED:
            raise TrainerError(
                "unscale: the gradients of this window are unscaled already; call unscale once, "
                "after the last backward, then step."
            )
        self._begin("unscale")
        self._reduce()
        self._unscale()

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
        groups = self._unscaled("clip_global_norm")
        self._check_statistics()
        try:
            norm = self._scaler.read_norm(groups[:1] if self._kvstore else groups)
        except NonFiniteLossError:
            self._end_window()
            raise
        if self._scaler.window.finite is not False:
            for group in groups:
                scale_in_place(group, clip_coefficient(norm, max_norm))
        return norm

    def clip_value(self, max_value: float) -> None:
        """Bring every element of the gradients into [-max_value, max_value].

        Unscales first if `unscale` was not called; as with `clip_global_norm` the gradients are not
        yet divided by the batch size. No host read. Gradients that were not finite before still make
        the step skip.

        Args:
            max_value: Positive.

        Raises:
            TrainerError: If ``max_value`` is not positive, or as `unscale`.
        """
        require_positive("clip_value: max_value", max_value)
        for group in self._unscaled("clip_value"):
            for grad in group:
                grad = grad.as_nd_ndarray()
                mx.nd.clip(grad, -max_value, max_value, out=grad)

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
            NonFiniteLossError: If the loss itself was not finite; nothing is updated. With a
                distributed kvstore every worker raises, whosever loss it is.
            LossScaleError: If the loss scale gave up; nothing is updated.
        """
        if self._scaler.window.reduced and self._scaler.window.stage is not Stage.UNSCALED:
            raise TrainerError("step came after allreduce_grads and would reduce again; call update.")
        rescale = self._rescale("step", batch_size)
        if self._updates_on_kvstore():
            return self._step_on_kvstore(batch_size, ignore_stale_grad)
        self._begin("step", ignore_stale_grad, check_stale=True)
        if self._scaler.window.stage is not Stage.UNSCALED:
            self._reduce()
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
        self._reduce()

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
        if self._kvstore and not self._scaler.window.reduced:
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
        self._gradients.discard()
        self._scaler.close_window()
        loss_heads.forget(self._params)

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
        if ignore_stale and isinstance(self._kvstore, KVStore):
            raise TrainerError(
                f"{call}: ignore_stale_grad=True with kvstore '{self._kvstore.type}': a worker does not know which "
                "gradients are stale on the others; set grad_req='null' where nothing is to be trained."
            )

    def _rescale(self, call: str, batch_size: Any) -> float:
        require_positive(f"{call}: batch_size", batch_size)
        return float(self._scale / batch_size)

    def _reduce(self) -> None:
        window = self._scaler.window
        if window.reduced:
            return
        if self._kvstore:
            self._gradients.clear_stale()
        if isinstance(self._kvstore, KVStore):
            self._gradients.widen()  # sums over workers may exceed float16
            if self._scaler.checks:  # all workers decide alike
                window.loss_flag = self._kvstore.agree(window.loss_flag)
        self._allreduce_grads()
        window.reduced = True

    def _unscale(self) -> None:
        window = self._scaler.window
        self._gradients.take()
        if self._scaler.checks:
            window.grad_flag = all_finite(self._all_arrays())
        self._gradients.unscale(1.0 / window.scale)
        window.stage = Stage.UNSCALED

    def _unscaled(self, call: str) -> List[List[mx.nd.NDArray]]:
        """Return the gradients of each context that has any, unscaled now if they were not before."""
        self._begin(call)
        if self._scaler.window.stage is not Stage.UNSCALED:
            self._reduce()
            self._unscale()
        return [group for group in self._gradients.arrays() if group]

    def _all_arrays(self) -> List[mx.nd.NDArray]:
        return [grad for group in self._gradients.arrays() for grad in group]

    def _finish(self, rescale: float) -> bool:
        """Update or skip, and end the window."""
        window = self._scaler.window
        # Gradients of a scale below 1 may overflow when they are unscaled, so that comes first.
        unscale_first = window.scale < 1.0 or self._optimizer.needs_unscaled_gradients
        if window.stage is Stage.SCALED and window.scale != 1.0 and unscale_first:
            self._unscale()
        if window.stage is not Stage.UNSCALED:
            rescale /= window.scale
        updates = self._gradients.take()
        self._check_statistics()
        try:
            unread = self._scaler.checks and window.finite is None
            finite = self._scaler.judge(all_finite(self._all_arrays()) if unread else None)
            step = self._optimizer.num_update + self.skipped_steps + 1
            if finite:
                self._apply(updates, rescale)
            self._scaler.settle(finite, step, self._gradients.first_bad)
        finally:
            self._end_window()
        updated = finite and any(updates)
        self._call_hooks(updated)
        return updated

    def _step_on_kvstore(self, batch_size: float, ignore_stale_grad: bool) -> bool:
        """Let the kvstore update, unchecked; a static scale goes out with the batch size."""
        self._scaler.require_closed("step")
        self._gradients.require("step", ignore_stale_grad, self._scaler.window.reached)
        self._scaler.require_scaled("step")
        try:
            super().step(batch_size * self._scaler.window.scale, ignore_stale_grad)
            contexts.keep_masters_of(self._kvstore._updater.states if self._kvstore._updater else {}, self._params)
        finally:
            self.discard_grads()
        self._call_hooks(True)
        return True

    def _apply(self, updates: List[List[Update]], rescale: float) -> None:
        updaters = self._updating()
        if len(updaters) < len(updates):
            updates = [contexts.on_first_context(updates, self._params)]
        for updater, group in zip(updaters, updates):
            self._optimizer.check_states([(index, weight, updater.states.get(index)) for index, _, weight in group])
        self._optimizer.rescale_grad = rescale
        for updater, group in zip(updaters, updates):
            if group:
                updater(*zip(*group))
        if len(updaters) < len(self._contexts):
            contexts.copy_to_others(updates[0], self._params)

    def _check_statistics(self) -> None:
        if self._scaler.checks and self._scaler.window.finite is None:
            flag = self._statistics.check(contexts.running_statistics(self._params))
            self._scaler.window.statistics_flag = flag

    def _end_window(self) -> None:
        destroyed = self._scaler.window.destroyed
        self._gradients.release()
        self._scaler.close_window()
        loss_heads.forget(self._params)
        if destroyed:
            self._statistics.mend(contexts.running_statistics(self._params))
