"""A gluon Trainer with loss scaling, exact skips and float32 masters."""

from __future__ import annotations

import contextlib
from typing import Any, Dict, List, Optional

import mxnet as mx

from ..distributed import KVStore, distributed
from ..errors import NonFiniteLossError, TrainerError
from ..loss_scale import NoOpLossScale, parse
from ..optimizer import states
from ..optimizer.finite import all_finite
from ..optimizer.multi_precision import MultiPrecision
from ..optimizer.norm import clip_coefficient, scale_in_place
from ..optimizer.scaler import Scaler, Stage, scale_loss
from ..optimizer.status import ScalerStatus
from .distributed import broadcast_param, open_kvstore
from .gradients import Gradients, Update
from .kvstore import any_sparse, choose_update, refuse_kvstore_update


class Trainer(ScalerStatus, mx.gluon.Trainer):
    """Applies an optimizer to parameters, as ``mx.gluon.Trainer``, in mixed precision.

    Three things are added. The loss is scaled, and a step whose gradients are not finite is
    skipped without a trace: weights, optimizer states, update counts and schedule keep every
    bit. Float16 and bfloat16 parameters have float32 masters (see
    `mxmp.optimizer.MultiPrecision`). Calls out of turn are errors that say what to do.

    The order of calls::

        with autograd.record():
            loss = loss_fn(net(x), y)
        with trainer.scale_loss(loss) as scaled:  # as often as wanted
            scaled.backward()
        trainer.unscale()                         # optional: true gradients in param.grad()
        trainer.clip_global_norm(1.0)             # optional
        trainer.step(batch_size)

    A step reads once on the host (the finite check); without a loss scale, never.

    Args:
        params: As for ``mx.gluon.Trainer``.
        optimizer: A name, an ``mx.optimizer.Optimizer``, or a `MultiPrecision`.
        optimizer_params: As for ``mx.gluon.Trainer``. ``multi_precision`` (default True) says
            whether low precision parameters have masters; with an optimizer instance it is the
            only key.
        kvstore: As for ``mx.gluon.Trainer``; 'horovod', or a `mxmp.distributed.KVStore`, which says
            in which dtype gradients are summed over workers (float32 by default). Gradients are
            summed, so that ``batch_size`` of `step` is that of all workers together. Every worker
            gets worker 0's parameters: at once if all are initialized, else at the first step.
        compression_params: As for ``mx.gluon.Trainer``.
        update_on_kvstore: True only without a loss scale, because such an update happens inside
            the all-reduce, before any check. None means False where MXNet allows the choice.
        loss_scale: 'dynamic', a number, a `LossScale`, or None for no scaling and no checks.

    Raises:
        TrainerError: If the arguments contradict each other.
        LossScaleError: If ``loss_scale`` is none.
    """

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: Optional[Dict[str, Any]] = None,
        kvstore: Any = "device",
        compression_params: Optional[Dict[str, Any]] = None,
        update_on_kvstore: Optional[bool] = None,
        loss_scale: Any = "dynamic",
    ) -> None:
        self._scaler = Scaler(parse(loss_scale))
        choice = choose_update(self._scaler.active, kvstore, update_on_kvstore, any_sparse(params))
        super().__init__(params, optimizer, optimizer_params, kvstore, compression_params, choice)
        self._gradients = Gradients(self._params)
        if choice is False and distributed(kvstore) and not any(param._deferred_init for param in self._params):
            self._prepare()

    @ScalerStatus.loss_scale.setter
    def loss_scale(self, spec: Any) -> None:
        """Set the loss scale of the steps to come."""
        value = parse(spec)
        if not isinstance(value, NoOpLossScale) and self._kvstore_params["update_on_kvstore"] is not False:
            raise refuse_kvstore_update("the kvstore of this trainer")
        self._scaler.loss_scale = value

    def scale_loss(self, loss: Any, *others: Trainer) -> contextlib.AbstractContextManager[Any]:
        """Return a context manager that yields the loss times the loss scale.

        Call backward on what it yields, inside the block. Works inside and outside of
        ``autograd.record()``. A low precision loss is cast to float32 first; the gradient of
        that cast is the scale itself, so a float16 loss cannot bear a scale above 65504 and
        costs one skipped step at 65536. Several blocks may come before a step: their gradients
        are of one scale. MXNet has no second derivative of the product; for a gradient penalty
        call ``autograd.grad`` on the loss itself with the scale as ``head_grads``.

        Args:
            loss: An NDArray of any shape and floating point dtype, on any context, or nested
                lists and tuples of them; the container is kept.
            others: Further trainers whose parameters the loss depends on. All of them use the
                smallest of their scales for this window; each then steps on its own.

        Raises:
            TrainerError: Inside another block, after `unscale`, or if ``loss`` is no loss.
        """
        return scale_loss(loss, [trainer._scaler for trainer in (self, *others)])

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
            not finite; then nothing is clipped and the step will be skipped.

        Raises:
            TrainerError: If ``max_norm`` is not positive, or as `unscale`.
            NonFiniteLossError: If the loss itself was not finite.
        """
        if not max_norm > 0:
            raise TrainerError(f"clip_global_norm: max_norm is {max_norm}; expected a positive number.")
        self._begin("clip_global_norm")
        if self._scaler.window.stage is not Stage.UNSCALED:
            self._reduce()
            self._unscale()
        groups = [group for group in self._gradients.arrays() if group]
        try:
            norm = self._scaler.read_norm(groups[:1] if self._kvstore else groups)
        except NonFiniteLossError:
            self._end_window()
            raise
        coefficient = clip_coefficient(norm, max_norm) if self._scaler.window.finite else 1.0
        for group in groups:
            scale_in_place(group, coefficient)
        return norm

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
        if self._updates_on_kvstore():
            self._scaler.require_closed("step")
            super().step(batch_size, ignore_stale_grad)
            return True
        rescale = self._rescale("step", batch_size)
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
        return self._finish(rescale)

    def discard_grads(self) -> None:
        """Give up the present window: its gradients count as used, and nothing is updated.

        The way back after an error between backward and step. With ``grad_req='add'`` call
        ``zero_grad`` on the parameters as well.

        Raises:
            TrainerError: Inside a scale_loss block.
        """
        self._scaler.require_closed("discard_grads")
        self._gradients.take()
        self._end_window()

    def save_states(self, fname: str) -> None:
        """Save optimizer states, masters, counters, scheduler and loss scale to one file.

        A run that loads it, with the parameters, goes on bit for bit as if never stopped. The
        file is written whole or not at all. Where the kvstore updates, MXNet writes its own
        format.

        Args:
            fname: Any name; the format is .npz with a JSON header.

        Raises:
            TrainerError: Between backward and step: gradients are not saved.
        """
        if self._updates_on_kvstore():
            super().save_states(fname)
            return
        self._scaler.require_ready("save_states")
        states.save(fname, self._target(), self._scaler.to_dict())

    def load_states(self, fname: str) -> None:
        """Load what `save_states` saved; the file decides over every field it has.

        Args:
            fname: The file.

        Raises:
            StateError: If the file is damaged or does not fit; then nothing is changed.
            TrainerError: Between backward and step.
        """
        if self._updates_on_kvstore():
            super().load_states(fname)
            return
        self._scaler.require_ready("load_states")
        states.restore(fname, self._target(), self._scaler)

    # Set-up.

    def _init_optimizer(self, optimizer: Any, optimizer_params: Dict[str, Any]) -> None:
        options = dict(optimizer_params)
        masters = options.pop("multi_precision", True)
        if not isinstance(optimizer, mx.optimizer.Optimizer):
            optimizer, options = mx.optimizer.create(optimizer, **options), {}
        if options:
            raise TrainerError(
                f"optimizer_params has {sorted(options)}, but the optimizer is an instance; set them on it."
            )
        if not isinstance(optimizer, MultiPrecision):
            optimizer = MultiPrecision(optimizer, masters)
        super()._init_optimizer(optimizer, {})

    def _prepare(self) -> None:
        if not self._kv_initialized:
            self._init_kvstore()
        if self._params_to_init:
            self._init_params()

    def _init_kvstore(self) -> None:
        options = self._kvstore_params
        if options["update_on_kvstore"] is False:
            options["kvstore"] = open_kvstore(options["kvstore"], self._compression_params, self._params)
        super()._init_kvstore()

    def _init_params(self) -> None:
        if not isinstance(self._kvstore, KVStore):
            super()._init_params()
            return
        for param in self._params_to_init:
            if not param._deferred_init:
                broadcast_param(self._kvstore, self._param2idx[param.name], param)
        self._params_to_init = [param for param in self._params_to_init if param._deferred_init]

    def _updates_on_kvstore(self) -> bool:
        self._prepare()
        return bool(self._kvstore and self._update_on_kvstore)

    def _target(self) -> states.Target:
        return states.Target(self._optimizer, self._updaters, self._contexts, self._params)

    # The window.

    def _begin(self, call: str, ignore_stale: bool = False, check_stale: bool = False) -> None:
        """Raise if ``call`` cannot come now; changes nothing."""
        self._scaler.require_closed(call)
        if self._updates_on_kvstore():
            raise TrainerError(f"{call} cannot be used where the kvstore updates; set update_on_kvstore=False.")
        self._gradients.require(call, may_lack=ignore_stale and not self._scaler.checks)
        self._scaler.require_scaled(call)
        if check_stale and not ignore_stale:
            self._gradients.require_all(call)

    def _rescale(self, call: str, batch_size: Any) -> float:
        if isinstance(batch_size, str) or not batch_size > 0:
            raise TrainerError(f"{call}: batch_size={batch_size!r}; expected a positive number.")
        return float(self._scale / batch_size)

    def _reduce(self) -> None:
        window = self._scaler.window
        if window.reduced:
            return
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
        try:
            unread = self._scaler.checks and window.finite is None
            finite = self._scaler.judge(all_finite(self._all_arrays()) if unread else None)
            step = self._optimizer.num_update + self.skipped_steps + 1
            if finite:
                self._apply(updates, rescale)
            self._scaler.settle(finite, step, self._gradients.first_bad)
        finally:
            self._end_window()
        return finite and any(updates)

    def _apply(self, updates: List[List[Update]], rescale: float) -> None:
        for updater, group in zip(self._updaters, updates):
            self._optimizer.check_states([(index, weight, updater.states.get(index)) for index, _, weight in group])
        self._optimizer.rescale_grad = rescale
        for updater, group in zip(self._updaters, updates):
            if group:
                updater(*zip(*group))

    def _end_window(self) -> None:
        self._gradients.release()
        self._scaler.close_window()
