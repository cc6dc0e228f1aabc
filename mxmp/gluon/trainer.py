"""A gluon Trainer with loss scaling, exact skips and float32 masters."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections import OrderedDict
from typing import Any, Callable, Dict, Iterator, Optional

import mxnet as mx
from mxnet.gluon.utils import HookHandle

from ..arrays import is_low_precision, require_positive, tree_leaves
from ..distributed import KVStore, distributed
from ..errors import TrainerError, a_type_of
from ..loss_scale import LossScale, NoOpLossScale, parse
from ..mxnet_private import is_deferred, is_initialized
from ..optimizer import LossScaleOptimizer
from ..train import loss_heads, states
from ..train.kvstores import (
    init_param,
    open_for_trainer,
    refuse_compression,
    refuse_update_on_kvstore,
    require_kvstore,
)
from ..train.multi_precision import require_finite, unwrapped
from ..train.scaler import Scaler, ScalerStatus, SharedLossScale
from ..train.states import Target
from .adoption import (
    AmpLossScaler,
    adoptable,
    listed,
    mixed_up,
    policys_loss_scale,
    require_addable,
    require_gluon_trainer,
)
from .freeze import FrozenParameter
from .gradients import LossBlock, TrainerStep

_LOG = logging.getLogger(__name__)


class Trainer(ScalerStatus, mx.gluon.Trainer):
    """Applies an optimizer to parameters, as ``mx.gluon.Trainer``, in mixed precision.

    Three things are added. The loss is scaled, and a step whose gradients are not finite is
    skipped: weights, optimizer states, update counts and schedule keep every bit, and running
    statistics that the forward pass made non-finite are restored. Float16 and bfloat16 parameters
    have float32 masters (see `master_params`), which the optimizer updates in their place. A call
    out of turn is an error, which names the call to make.

    The order of calls::

        with autograd.record():
            loss = loss_fn(net(x), y)
        with trainer.scale_loss(loss) as scaled:  # as often as wanted
            scaled.backward()
        trainer.unscale()                         # optional: true gradients in param.grad()
        trainer.clip_global_norm(1.0, batch_size) # optional; or clip_value
        trainer.step(batch_size)

    A step reads once on the host (the finite check), more often only where it has something to put
    back; without a loss scale, never.

    Args:
        params: As for ``mx.gluon.Trainer``; or a net, whose parameters are taken.
        optimizer: A name or an ``mx.optimizer.Optimizer``; or a `MultiPrecision` or `LossScaleOptimizer`, whose
            inner optimizer the trainer takes, with its ``masters`` or its loss scale.
        optimizer_params: As for ``mx.gluon.Trainer``. ``multi_precision`` (default True) says
            whether low precision parameters have masters; with an optimizer instance it is the
            only key.
        kvstore: As for ``mx.gluon.Trainer``; 'horovod', or a `mxmp.distributed.KVStore`, which says
            in which dtype gradients are summed over workers (float32 by default). Gradients are
            summed, so that ``batch_size`` of `step` is that of all workers together. Every worker
            gets worker 0's parameters: at once if all are initialized, else at the first step.
        compression_params: As for ``mx.gluon.Trainer``; only without a loss scale.
        update_on_kvstore: None or False: an update on the kvstore happens inside the all-reduce, before any check.
            So asynchronous kvstores and row_sparse parameters are refused too; row_sparse gradients are not.
        loss_scale: 'dynamic', a number, a `LossScale`, a `SharedLossScale`, or None for no scaling
            and no checks. 'policy' takes the loss scale of the policy of the parameters' net, and 'dynamic'
            if the net is not converted. It is read at the trainer's first step, so convert the net before.
        nonfinite_loss: For a step whose loss is NaN or inf by itself: 'raise' a NonFiniteLossError, or 'skip'.
            The skip leaves the loss scale as it is: a NaN in the data is no overflow. It needs a loss scale,
            such as 1.
        max_nonfinite_losses: How many steps in a row 'skip' skips; the next one raises. Both may be set later, also
            on a trainer of `adopt` or `mxmp.amp`, on a Module or a `LossScaleOptimizer`.
        **others: Any other argument is an error, which says where options of the optimizer go.

    Raises:
        TrainerError: If the arguments contradict each other.
        LossScaleError: If ``loss_scale`` is not one.
    """

    _params_to_init: Any  # MXNet's

    multi_precision: bool
    """Whether low precision parameters have float32 masters."""

    _training_step: TrainerStep

    _single_losses: Optional[int] = 0
    """How many losses of one element the first step has so far; None if others came too, or that step is over."""

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: Optional[Dict[str, Any]] = None,
        kvstore: Any = "device",
        compression_params: Optional[Dict[str, Any]] = None,
        update_on_kvstore: Optional[bool] = None,
        loss_scale: Any = "policy",
        nonfinite_loss: str = "raise",
        max_nonfinite_losses: int = 10,
        **others: Any,
    ) -> None:
        for name, value in others.items():
            raise _ArgumentError(
                f"Trainer: unknown argument {name!r}; options of the optimizer, multi_precision among them, go into "
                f"optimizer_params: Trainer(params, 'sgd', {{{name!r}: {value!r}}})."
            )
        keras_optimizer = None
        if isinstance(params, mx.gluon.Block):
            params = params.collect_params()
        if isinstance(optimizer, LossScaleOptimizer):
            if not _is_policys(loss_scale):
                raise TrainerError(f"loss_scale={loss_scale!r}, but the LossScaleOptimizer has one; leave it out.")
            keras_optimizer, (optimizer, loss_scale) = optimizer, optimizer.peek_optimizer_and_scale("Trainer")
        given_params = listed(params)
        scaler = _make_scaler(loss_scale, given_params)
        require_kvstore(kvstore)
        if not isinstance(optimizer, (str, mx.optimizer.Optimizer)):
            raise TrainerError(f"optimizer is {optimizer!r}; expected a name or an mx.optimizer.Optimizer.")
        if not given_params:
            raise TrainerError("there are no parameters to train; is the net empty?")
        if all(isinstance(param, FrozenParameter) and param.grad_req == "null" for param in given_params):
            raise TrainerError(
                "all parameters are of a frozen block, which has no gradients; train the net that it was made of, and "
                "freeze that afterwards."
            )
        refuse_update_on_kvstore(kvstore, update_on_kvstore, given_params)
        are_parameters = [param for param in given_params if isinstance(param, mx.gluon.Parameter)]
        owners = [(param, param._trainer) for param in are_parameters]
        try:
            super().__init__(params, optimizer, optimizer_params, kvstore, compression_params, False)
            self._require_fitting(scaler.loss_scale)
            self._scaler = scaler
            self.nonfinite_loss, self.max_nonfinite_losses = nonfinite_loss, max_nonfinite_losses
            self._attach_scaler(scaler)
        except BaseException:
            for param, owner in owners:
                param._trainer = owner
            raise
        if not kvstore and len(self._contexts) > 1:
            text = "kvstore=%r with %d contexts: their gradients are not summed, and their parameters drift apart"
            _LOG.warning(text, kvstore, len(self._contexts))
        if keras_optimizer is not None:
            keras_optimizer.hand_over("Trainer")
        if distributed(kvstore) and not any(map(is_deferred, self._params)):
            self._prepare()

    @classmethod
    def adopt(
        cls, trainer: mx.gluon.Trainer, loss_scale: Any = "policy", multi_precision: bool = True, num_losses: int = 1
    ) -> Any:
        """Give a ``mx.gluon.Trainer`` loss scaling, exact skips and masters: it becomes one of mxmp.

        This one object changes, not its class; its optimizer, schedule and states stay.

        Args:
            trainer: Any whose kvstore does not update weights by itself, and is not a distributed one
                that was set up already.
            loss_scale: As for `Trainer`.
            multi_precision: Whether low precision parameters have float32 masters.
            num_losses: Number of losses with scales of their own, which `scale_loss` knows by their ``loss_id``.

        Returns:
            The trainer.

        Raises:
            TrainerError: If it is no trainer or cannot become one of mxmp; then nothing is changed.
            LossScaleError: If ``loss_scale`` is not one.
        """
        require_gluon_trainer(trainer, "adopt")
        scaler = _make_scaler(loss_scale, trainer._params, num_losses)
        kind = adoptable(trainer, scaler.loss_scale, cls)
        is_ours = isinstance(trainer, Trainer)
        with states.all_or_none([trainer, *([trainer._training_step] if is_ours else [])]):
            if not is_ours:
                settings = {**trainer._kvstore_params, "update_on_kvstore": False}
                trainer._kvstore_params = settings
                made = [(updater.states, updater.states_synced) for updater in trainer._updaters]
                trainer.__class__ = kind
                trainer._init_optimizer(trainer._optimizer, {"multi_precision": multi_precision})
                for updater, (present, synced) in zip(trainer._updaters, made):
                    updater.states, updater.states_synced = present, synced
            trainer._attach_scaler(scaler)
        return trainer

    def add_params(self, params: Any) -> None:
        """Train further parameters from the next step on, with the same optimizer.

        Their update counts start anew; their masters and states are made at their first step. A run
        that is resumed from states saved later must add them before it loads.

        Args:
            params: As for the constructor, a net too; on the contexts of the parameters that are there.

        Raises:
            TrainerError: Between backward and step, or if one is no parameter, is trained already,
                is sparse or has other contexts. Then none is added.
        """
        self._scaler.require_ready("add_params")
        added = listed(params)
        names = set(self._param2idx)
        for param in added:
            require_addable(param, names, self._contexts)
            names.add(param.name)
        for index, param in enumerate(added, len(self._params)):
            self._params.append(param)
            self._param2idx[param.name] = index
            self._optimizer.param_dict[index] = param
            self._params_to_init.append(param)
            param._set_trainer(self)
        for masters in self._training_step.masters:
            masters.compared_steps = 0

    def register_step_hook(self, hook: Callable[[Any, bool], None]) -> HookHandle:
        """Call a function after every step, taken or skipped.

        Args:
            hook: Gets the trainer, whose counters and scale are those for the next step, and whether
                the parameters were updated.

        Returns:
            A handle, whose ``detach()`` ends it. An error of a hook comes out of the step, which is
            complete by then; hooks behind it are not called.

        Raises:
            TrainerError: If it is no function.
        """
        if not callable(hook):
            raise TrainerError(f"register_step_hook: {hook!r} is no function; expected one of (trainer, updated).")
        handle = HookHandle()
        handle.attach(self._step_hooks, hook)
        return handle

    def save_states(self, fname: str) -> None:
        """Save optimizer states, masters, counters, scheduler and loss scale to one file.

        A run that loads it, with the parameters, goes on bit for bit as if never stopped. The
        file is written whole or not at all.

        Args:
            fname: Any name; the format is .npz with a JSON header, and no pickle.

        Raises:
            TrainerError: Between backward and step: gradients are not saved. Or if a parameter has no value yet,
                because its shape follows from the first input. Or if one was written to past its float32 master.
        """
        self._require_between_steps("save_states")
        states.save(fname, self._target("save_states"), self._scaler.to_dict())

    def load_states(self, fname: str) -> None:
        """Load states that `save_states` saved; the file decides about every field that it has.

        It decides about the loss scale too. If the saved run had none, the trainer has none from now on, and the log
        says so. Files of MXNet's own trainers are read too, and those of ``get_states`` of an updater. They have no
        loss scale, and the trainer's stays as it is.

        Args:
            fname: The file.

        Raises:
            StateError: If the file is damaged or does not fit; then nothing is changed.
            TrainerError: As `save_states`.
            CheckpointError: If there is no such file; it is a FileNotFoundError too.
        """
        self._require_between_steps("load_states")
        states.restore(fname, self._target("load_states"), self._scaler)

    def _require_between_steps(self, call: str) -> None:
        """Raise if gradients wait for a step, because a state has no gradients."""
        self._scaler.require_ready(call)
        self._training_step.require_used(call)

    def _set_loss_scale(self, spec: Any) -> None:
        """Set the loss scale of the steps to come."""
        if isinstance(spec, SharedLossScale):
            raise TrainerError(
                "setting loss_scale: give a SharedLossScale to the constructor, or to Trainer.adopt(trainer, shared)."
            )
        self._scaler.loss_scale = parse(spec)

    def _attach_scaler(self, scaler: Scaler) -> None:
        """Use a scaler from now on; make the attributes of a trainer of mxmp that one of MXNet lacks."""
        before = vars(self).get("_scaler")
        if before is not None:
            scaler.observers, scaler.calls = before.observers, before.calls
            scaler.nonfinite_loss, scaler.max_nonfinite_losses = before.nonfinite_loss, before.max_nonfinite_losses
        self._scaler = scaler
        scaler.owners.add(self)
        scaler.stepping.add(self)
        if scaler.shared is not None:
            scaler.shared.attach(scaler)
        if "_training_step" in vars(self):
            self._training_step.scaler = scaler
            return
        self._training_step = TrainerStep(self, scaler)
        self._step_hooks: Dict[int, Callable[[Any, bool], None]] = OrderedDict()
        if all(is_initialized(param) for param in self._params):
            self._training_step.last_stats.keep(self._training_step.running_stats())

    # ------------------------------------------------------------------ names of contrib.amp

    @property
    def _amp_loss_scaler(self) -> AmpLossScaler:
        """The loss scale by the names that clients of contrib.amp use."""
        return AmpLossScaler(self._scaler)

    @_amp_loss_scaler.setter
    def _amp_loss_scaler(self, _: Any) -> None:
        raise mixed_up("init_trainer")

    @property
    def _amp_original_scale(self) -> float:
        """An attribute of contrib.amp's trainers, which its scale_loss reads. Here it is an error."""
        raise mixed_up("scale_loss")

    def _init_optimizer(self, optimizer: Any, optimizer_params: Dict[str, Any]) -> None:
        """Make the optimizer and the updaters."""
        options = dict(optimizer_params)
        masters = options.pop("multi_precision", True)
        if not isinstance(optimizer, mx.optimizer.Optimizer):
            optimizer, options = mx.optimizer.create(optimizer, **options), {}
        if options:
            raise TrainerError(
                f"optimizer_params has {sorted(options)}, but the optimizer is an instance; set them on it."
            )
        optimizer, self.multi_precision = unwrapped(optimizer, masters)
        super()._init_optimizer(optimizer, {})

    def set_learning_rate(self, lr: float) -> None:
        """Set the learning rate; a TrainerError if it is no finite number."""
        require_finite(lr)
        super().set_learning_rate(lr)

    # ------------------------------------------------------------------ kvstore

    def _prepare(self) -> None:
        """Open the kvstore, and give it the parameters that have values by now."""
        if not self._kv_initialized:
            self._init_kvstore()
        if self._params_to_init:
            self._init_params()

    def _require_fitting(self, loss_scale: LossScale) -> None:
        """Raise if gradients would be compressed where a loss scale forbids it."""
        if not distributed(self._kvstore_params["kvstore"]):  # which refuses it under any loss scale
            refuse_compression(self._compression_params, not isinstance(loss_scale, NoOpLossScale), False)

    def _init_kvstore(self) -> None:
        """Open the kvstore; one of mxmp where it is distributed."""
        options = self._kvstore_params
        options["kvstore"] = open_for_trainer(options["kvstore"], self._compression_params, self._params)
        super()._init_kvstore()

    def _init_params(self) -> None:
        """Give the kvstore the parameters that are initialized by now, and all workers those of worker 0."""
        summed = self._params_to_init if self._kvstore else ()
        initialized = [param for param in summed if not is_deferred(param)]
        done = {param.name for param in initialized if init_param(self._kvstore, self._param2idx[param.name], param)}
        self._params_to_init = [param for param in self._params_to_init if param.name not in done]
        super()._init_params()

    def _target(self, call: str) -> Target:
        """Return the optimizer, states and parameters that a call saves or loads."""
        for param in self._params:
            if is_deferred(param):
                raise TrainerError(
                    f"{call}: parameter '{param.name}' has no value yet: its shape follows from the first input. Call "
                    f"the net once, or load its parameters; then call {call}."
                )
        self._prepare()
        step, count = self._training_step, len(self._training_step.updaters)
        return Target(self._optimizer, step.updaters, step.masters[:count], self._contexts[:count], self._params)

    def __getstate__(self) -> Dict[str, Any]:
        """Return the state for copy and pickle, of nets too whose parameters know it: without the kvstore."""
        unopened = dict(_kvstore=None, _kv_initialized=False, _update_on_kvstore=None)
        return {**vars(self), **unopened, "_params_to_init": list(self._params)}

    def __setstate__(self, state: Dict[str, Any]) -> None:
        """Restore a copied state, and the parameters of its optimizers, which MXNet leaves out of a copy."""
        self.__dict__.update(state)
        for optimizer in (self._optimizer, *(updater.optimizer for updater in self._updaters)):
            optimizer.param_dict = dict(enumerate(self._params))

    def __repr__(self) -> str:
        """Return the number of parameters, the optimizer and the loss scale as a text."""
        return (
            f"{type(self).__name__}({len(self._params)} parameters, {type(self._optimizer).__name__}, "
            f"learning_rate={self.learning_rate:g}, loss_scale={self.loss_scale!r}, "
            f"skipped_steps={self.skipped_steps})"
        )

    def scale_loss(
        self, loss: Any, *others: Trainer, loss_id: int = 0
    ) -> contextlib.AbstractContextManager[Any]:
        """Return a context manager that yields the loss times the loss scale.

        Call backward on the scaled losses that it yields, inside the block. Works inside and outside of
        ``autograd.record()``. A low precision loss is cast to float32 first. The gradient of that cast is
        the scale itself, so a float16 loss cannot bear a scale above 65504: a step at 65536 is skipped.
        Several blocks may come before a step: their gradients are of one scale. For a gradient penalty
        see `mxmp.gluon.precision`.

        After the block, up to the step, ``param.grad()`` and ``param.list_grad()`` give unscaled gradients in float32.
        Reading one unscales all of them, on the device. Still scaled are ``param.data().grad``, arrays that were
        taken before, and gradients after a block that raised.

        Several threads may have blocks of one trainer open at once. Step after all of them.

        Args:
            loss: An NDArray of any shape and floating point dtype, on any context, or nested
                lists and tuples of them; the container is kept.
            others: Further trainers that step on this loss. All of them use the smallest of their
                scales for this window; each then steps on its own. Leave those out that do not step,
                even if backward reaches their parameters.
            loss_id: Number of the loss, of which each has a scale of its own: see ``num_losses`` of `adopt`.

        Raises:
            TrainerError: Inside another block of the same trainer, after `unscale`, or if ``loss`` is no loss. If a
                loss head within the net keeps the scale from the gradients; one that runs eagerly is only found in
                the trainer's first step. At the beginning of the block, if gradients wait for the step of another
                trainer, or the block would add to gradients that a backward outside of scale_loss wrote. At its end,
                if backward was not called on each loss that it yields, or overwrote gradients of an earlier block.
                Without a loss scale only the order of calls is checked.
        """
        trainers = (self, *others)
        for trainer in trainers:
            if not isinstance(trainer, Trainer):
                raise TrainerError(
                    f"scale_loss: expected further trainers of mxmp, found {a_type_of(trainer)} of "
                    f"{type(trainer).__module__}; see Trainer.adopt."
                )
            if trainer._scaler.active:
                loss_heads.refuse(trainer._params)
            if trainer._single_losses is not None:
                sizes = [each.size for each in tree_leaves(loss) if isinstance(each, mx.nd.NDArray)]
                trainer._single_losses = None if max(sizes, default=0) > 1 else trainer._single_losses + len(sizes)
        return LossBlock(loss, trainers, loss_id)

    def master_params(self) -> Iterator[mx.nd.NDArray]:
        """Yield the float32 values that are updated: masters, or the parameters where they are float32.

        They are the arrays themselves, on the first context of each parameter; low precision parameters
        without masters are yielded as they are. Between backward and step the gradients are unscaled
        first, and the ``grad`` of each array is the one that the step uses.

        Raises:
            TrainerError: As `unscale`.
        """
        window = self._scaler.window
        if window is not None and not (window.is_summed or window.is_open):
            self.unscale()
        for index, param in enumerate(self._params):
            if param.grad_req != "null":
                yield self._master(index, param)

    def _master(self, index: int, param: mx.gluon.Parameter) -> mx.nd.NDArray:
        """Return the master of a weight, made now if the first step is still to come."""
        weight = param.list_data()[0]
        master = self._training_step.masters[0].of(index, weight) if is_low_precision(weight) else None
        if master is None:
            return weight
        if self._scaler.window is not None and self._scaler.window.is_true:
            mx.autograd.mark_variables([master], [param.list_grad()[0]])
        return master

    def unscale(self) -> None:
        """Make ``param.grad()`` the true gradients, in float32, reduced over the contexts.

        Float32 gradients are unscaled in place. For float16 and bfloat16 parameters, whose
        dtype would flush them to zero, ``param.grad()`` shows float32 copies until the step is
        over. They may be changed in place; the step uses them. Gradients that were not finite
        before still make the step skip, even if they are changed. Nothing is read on the host; on a
        CPU large gradients of low precision are waited for.

        Raises:
            TrainerError: Twice in a window, inside a scale_loss block, or without gradients.
        """
        window = self._scaler.window
        if window is not None and window.is_true and window.is_summed and not window.awaits_update:
            raise TrainerError(
                "unscale: the gradients of this window are unscaled already; call unscale once, "
                "after the last backward, then step; to leave a step out call discard_grads."
            )
        self._require("unscale")
        self._training_step.unscale()

    def clip_global_norm(self, max_norm: float, batch_size: Optional[float] = None) -> float:
        """Scale the gradients down so that their global norm is at most ``max_norm``.

        Give the ``batch_size`` that `step` will get: then the norm is that of the mean gradient, by which the step
        updates. Without it the norm is that of ``param.grad()``, as in ``gluon.utils.clip_global_norm``: of MXNet's
        losses, one for each sample, these are sums over the batch.

        Unscales first if `unscale` was not called. One host read gives the norm and the finite
        check together. `step` then reads no more, so changes of the gradients after this call are
        not checked. Contexts without a kvstore have gradients of their own: the largest norm counts.

        Args:
            max_norm: Positive.
            batch_size: As for `step`.

        Returns:
            The norm before clipping, computed in float32, of the mean gradient if there is a ``batch_size``. It is inf
            or NaN if the gradients are not finite. Then nothing is clipped, and the step will be skipped. Without a
            loss scale the step is not skipped, because nothing is checked.

        Raises:
            TrainerError: If an argument is not positive, or as `unscale`.
            NonFiniteLossError: If the loss itself was not finite.
        """
        require_positive("clip_global_norm: max_norm", max_norm)
        rescale = 1.0 if batch_size is None else self._rescale("clip_global_norm", batch_size)
        self._require("clip_global_norm")
        return self._training_step.clip_global_norm(max_norm, rescale)

    def clip_value(self, max_value: float, batch_size: Optional[float] = None) -> None:
        """Bring every element of the gradients into [-max_value, max_value].

        Unscales first if `unscale` was not called. Nothing is read on the host. Gradients that were not finite
        before still make the step skip.

        Args:
            max_value: Positive.
            batch_size: As for `step`: then the elements are those of the mean gradient, as for `clip_global_norm`.

        Raises:
            TrainerError: If an argument is not positive, or as `unscale`.
        """
        require_positive("clip_value: max_value", max_value)
        rescale = 1.0 if batch_size is None else self._rescale("clip_value", batch_size)
        self._require("clip_value")
        self._training_step.clip_value(max_value / rescale)

    def step(self, batch_size: int, ignore_stale_grad: bool = False) -> bool:
        """Reduce the gradients, check them and update the parameters, or skip.

        Args:
            batch_size: Gradients are divided by it.
            ignore_stale_grad: True does not update parameters whose gradients no backward wrote
                since the last step; False makes them an error.

        Returns:
            True if the parameters were updated, False if the step was skipped.

        Raises:
            TrainerError: Inside a scale_loss block, after `allreduce_grads`, or while averages are swapped in. If
                the loss was not scaled, or a backward outside of scale_loss wrote a gradient. Without fresh
                gradients (StaleGradientError).
            NonFiniteLossError: If the loss itself was not finite, and ``nonfinite_loss`` is 'raise' or has skipped
                too many; nothing is updated. With a distributed kvstore every worker raises, whosever loss it is.
            LossScaleError: If the loss scale gave up; nothing is updated.
        """
        rescale = self._rescale("step", batch_size)
        has_grads = self._require("step", ignore_stale_grad, check_stale=True)
        count, self._single_losses = self._single_losses, None
        if count and batch_size > count:  # The losses may be means over the batch, which the step divides by.
            text = "step(%g) divides the gradients by %g, but the loss has one element. If that is a mean, call "
            text += "step(1): otherwise the learning rate is %g times smaller. If it is a sum, all is right."
            _LOG.warning(text, batch_size, batch_size, batch_size)
        return self._update_or_skip(rescale, has_grads)

    def allreduce_grads(self) -> None:
        """Reduce the gradients over the contexts and make them true ones, as `unscale`; then call `update`.

        Raises:
            TrainerError: Twice in a window, after `unscale`, inside a scale_loss block, or
                without gradients.
        """
        if self._scaler.window is not None and self._scaler.window.is_summed:
            raise TrainerError(
                "allreduce_grads: the gradients are reduced already; call update or step, or discard_grads to leave "
                "that step out."
            )
        self._require("allreduce_grads")
        self._training_step.unscale()
        self._scaler.ensure_window().awaits_update = True

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
        has_grads = self._require("update", ignore_stale_grad, check_stale=True)
        if self._kvstore and not (self._scaler.window is not None and self._scaler.window.is_summed):
            raise TrainerError(
                "update came before allreduce_grads, so that every context and worker would only use its own "
                "gradients; call step, or allreduce_grads first."
            )
        return self._update_or_skip(rescale, has_grads)

    def discard_grads(self) -> None:
        """Give up the present window: its gradients count as used, and nothing is updated.

        The way back after an error between backward and step. With ``grad_req='add'`` call
        ``zero_grad`` on the parameters as well.

        Raises:
            TrainerError: Inside a scale_loss block.
        """
        self._scaler.require_closed("discard_grads")
        self._training_step.make_stale()
        self._training_step.discard()

    # ------------------------------------------------------------------ shared by the calls of a step

    def _require(self, call: str, ignore_stale: bool = False, check_stale: bool = False) -> bool:
        """Raise unless a call may use the gradients of a step now; return whether there are any."""
        self._scaler.require_closed(call)
        if self._params_to_init or not self._kv_initialized:
            self._prepare()
        has_grads = self._training_step.require(call, ignore_stale and not self._scaler.checks)
        if check_stale and not ignore_stale:
            self._training_step.require_all(call)
        if ignore_stale and isinstance(self._kvstore, KVStore):
            raise TrainerError(
                f"{call}: ignore_stale_grad=True with kvstore '{self._kvstore.type}': a worker does not know which "
                "gradients are stale on the others; set grad_req='null' where nothing is to be trained."
            )
        return has_grads

    def _rescale(self, call: str, batch_size: Any) -> float:
        require_positive(f"{call}: batch_size", batch_size)
        return float(self._scale / batch_size)

    def _update_or_skip(self, rescale: float, has_grads: bool) -> bool:
        """Update or skip, and call the hooks."""
        updated = self._training_step.run(rescale) and has_grads
        for hook in list(self._step_hooks.values()):
            hook(self, updated)
        return updated


def _is_policys(loss_scale: Any) -> bool:
    return isinstance(loss_scale, str) and loss_scale == "policy"


def _make_scaler(loss_scale: Any, params: Any, num_losses: int = 1) -> Scaler:
    """Return the scaler of a trainer of some parameters; one that follows their policy up to the first step."""
    default = functools.partial(policys_loss_scale, params) if _is_policys(loss_scale) else None
    return Scaler(loss_scale, num_losses, default)


class _ArgumentError(TrainerError, TypeError):
    """An argument is not one of the trainer's."""
