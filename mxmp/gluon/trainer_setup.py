"""How a trainer is made: its loss scale, optimizer, parameters and kvstore."""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import Any, Callable, Dict, Optional

import mxnet as mx
from mxnet.gluon.utils import HookHandle

from ..distributed import distributed
from ..errors import TrainerError
from ..loss_scale import LossScale, parse
from ..masters.optimizer import MultiPrecision
from ..mxnet_private import TrainerBase, parameters, trainers
from ..optimizer import LossScaleOptimizer
from ..scaling.amp_loss_scaler import AmpLossScaler
from ..scaling.scaler import Scaler, ScalerStatus
from ..scaling.shared import SharedLossScale, make_source
from ..training import states
from ..training.kvstores import (
    any_sparse,
    choose_update,
    init_param,
    kvstore_updater,
    open_for_trainer,
    require_known,
    require_rescaled,
    require_unchecked,
    require_updating_kvstore,
)
from ..training.state_header import Target
from ..training.step import Step
from .adoption import adoptable, listed, require_addable, update_choice
from .calls import NetCalls
from .gradients import Gradients

_LOG = logging.getLogger(__name__)


class TrainerSetup(ScalerStatus, TrainerBase):
    """What `Trainer` is made of; its methods that are not called at every step."""

    _training_step: Step
    # States of a kvstore that updates, while there is none.
    _kept_states: Dict[int, Any] = {}

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: Optional[Dict[str, Any]] = None,
        kvstore: Any = "device",
        compression_params: Optional[Dict[str, Any]] = None,
        update_on_kvstore: Optional[bool] = None,
        loss_scale: Any = "dynamic",
        nonfinite_loss: str = "raise",
        max_nonfinite_losses: int = 10,
    ) -> None:
        given = None
        if isinstance(optimizer, LossScaleOptimizer):
            if loss_scale != "dynamic":
                raise TrainerError(f"loss_scale={loss_scale!r}, but the LossScaleOptimizer has one; leave it out.")
            given, (optimizer, loss_scale) = optimizer, optimizer.peek_optimizer_and_scale("Trainer")
        scaler = Scaler(make_source(loss_scale))
        require_known(kvstore)
        if not isinstance(optimizer, (str, mx.optimizer.Optimizer)):
            raise TrainerError(f"optimizer is {optimizer!r}; expected a name or an mx.optimizer.Optimizer.")
        given_params = listed(params)
        if not given_params:
            raise TrainerError("there are no parameters to train; is the net empty?")
        sparse = any_sparse(given_params)
        choice = choose_update(scaler.loss_scale, kvstore, update_on_kvstore, sparse)
        own = [param for param in given_params if isinstance(param, mx.gluon.Parameter)]
        owners = [(param, parameters.trainer_of(param)) for param in own]
        try:
            super().__init__(params, optimizer, optimizer_params, kvstore, compression_params, choice)
            require_updating_kvstore(update_on_kvstore, kvstore, len(self.mx_contexts), sparse)
            self._require_fitting(scaler.loss_scale)
            self._scaler = scaler
            self.nonfinite_loss, self.max_nonfinite_losses = nonfinite_loss, max_nonfinite_losses
        except Exception:
            for param, owner in owners:
                parameters.trainer_of.set(param, owner)
            raise
        self._attach_scaler(scaler)
        if not kvstore and len(self.mx_contexts) > 1:
            text = "kvstore=%r with %d contexts: their gradients are not summed, and their parameters drift apart"
            _LOG.warning(text, kvstore, len(self.mx_contexts))
        if given is not None:
            given.hand_over("Trainer")
        if choice is False and distributed(kvstore) and not any(map(parameters.is_deferred, self.mx_params)):
            self._prepare()

    @classmethod
    def adopt(cls, trainer: mx.gluon.Trainer, loss_scale: Any = "dynamic", multi_precision: bool = True) -> Any:
        """Give a ``mx.gluon.Trainer`` loss scaling, exact skips and masters: it becomes one of mxmp.

        This one object changes, not its class; its optimizer, schedule and states stay.

        Args:
            trainer: Any whose kvstore does not update weights by itself, and is not a distributed one
                that was set up already.
            loss_scale: As for `Trainer`.
            multi_precision: Whether low precision parameters have float32 masters.

        Returns:
            The trainer.

        Raises:
            TrainerError: If it is no trainer or cannot become one of mxmp; then nothing is changed.
            LossScaleError: If ``loss_scale`` is not one.
        """
        scaler = Scaler(make_source(loss_scale))
        kind = adoptable(trainer, scaler.loss_scale, cls)
        if not isinstance(trainer, TrainerSetup):
            settings = trainers.kvstore_params(trainer)
            settings["update_on_kvstore"] = update_choice(trainer, scaler.loss_scale)
            made = [(updater.states, updater.states_synced) for updater in trainers.updaters(trainer)]
            trainer.__class__ = kind
            trainers.init_optimizer(trainer, trainers.optimizer(trainer), {"multi_precision": multi_precision})
            for updater, (present, synced) in zip(trainers.updaters(trainer), made):
                updater.states, updater.states_synced = present, synced
        trainer._attach_scaler(scaler)
        return trainer

    def add_params(self, params: Any) -> None:
        """Train further parameters from the next step on, with the same optimizer.

        Their update counts start anew; their masters and states are made at their first step. A run
        that is resumed from states saved later must add them before it loads.

        Args:
            params: As for the constructor, on the contexts of the parameters that are there.

        Raises:
            TrainerError: Between backward and step, or if one is no parameter, is trained already,
                is sparse or lies on other contexts; then none is added.
        """
        self._scaler.require_ready("add_params")
        added = listed(params)
        known = set(self.mx_param_indices)
        for param in added:
            require_addable(param, known, self.mx_contexts)
            known.add(param.name)
        for index, param in enumerate(added, len(self.mx_params)):
            self.mx_params.append(param)
            self.mx_param_indices[param.name] = index
            self.mx_optimizer.param_dict[index] = param
            self.mx_params_to_init.append(param)
            parameters.set_trainer(param, self)

    def register_step_hook(self, hook: Callable[[Any, bool], None]) -> HookHandle:
        """Call a function after every step, taken or skipped.

        Args:
            hook: Gets the trainer, whose counters and scale are those for the next step, and whether
                the parameters were updated.

        Returns:
            A handle, whose ``detach()`` ends it. What a hook raises comes out of the step, which is
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
            TrainerError: Between backward and step: gradients are not saved. Or if the states are
                with the servers of a distributed kvstore that updates.
        """
        self._scaler.require_ready("save_states")
        self._gradients.require_used("save_states")
        states.save(fname, self._target(), self._scaler.to_dict())

    def load_states(self, fname: str) -> None:
        """Load what `save_states` saved; the file decides over every field it has.

        A file of what ``get_states`` of a trainer's updater gave is read too: the states alone.

        Args:
            fname: The file.

        Raises:
            StateError: If the file is damaged or does not fit; then nothing is changed.
            TrainerError: As `save_states`.
        """
        self._scaler.require_ready("load_states")
        self._gradients.require_used("load_states")
        states.restore(fname, self._target(), self._scaler, of_updater=True)

    def _call_hooks(self, updated: bool) -> None:
        for hook in list(self._step_hooks.values()):
            hook(self, updated)

    def _set_loss_scale(self, spec: Any) -> None:
        """Set the loss scale of the steps to come."""
        if isinstance(spec, SharedLossScale):
            raise TrainerError(
                "setting loss_scale: give a SharedLossScale to the constructor, or to Trainer.adopt(trainer, shared)."
            )
        self._scaler.loss_scale = parse(spec)

    def _attach_scaler(self, scaler: Scaler) -> None:
        """Work with a scaler, and make what a trainer of mxmp has and one of MXNet lacks."""
        known = vars(self).get("_scaler")
        if known is not None:
            scaler.observers = known.observers
            scaler.nonfinite_loss, scaler.max_nonfinite_losses = known.nonfinite_loss, known.max_nonfinite_losses
        self._scaler = scaler
        scaler.validate = self._require_fitting
        self._calls = NetCalls.of(self, scaler)
        scaler.source.attach(scaler)
        if "_gradients" in vars(self):
            self._training_step.scaler = scaler
            return
        self._training_step, self._gradients = Step(scaler), Gradients(self)
        self._step_hooks: Dict[int, Callable[[Any, bool], None]] = OrderedDict()
        if all(parameters.is_initialized(param) for param in self.mx_params):
            self._training_step.keep_running_stats(self._gradients.running_stats())

    # ------------------------------------------------------------------ names of contrib.amp

    @property
    def _amp_loss_scaler(self) -> AmpLossScaler:
        """The loss scale by the names that clients of contrib.amp use."""
        return AmpLossScaler(self._scaler)

    @_amp_loss_scaler.setter
    def _amp_loss_scaler(self, _: Any) -> None:
        raise _mixed_up("init_trainer")

    @property
    def _amp_original_scale(self) -> float:
        """Nothing that a trainer of mxmp has: contrib.amp's scale_loss reads it, and would scale behind our back."""
        raise _mixed_up("scale_loss")

    def mx_init_optimizer(self, optimizer: Any, optimizer_params: Dict[str, Any]) -> None:
        """Make the optimizer, with masters, and the updaters."""
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
        super().mx_init_optimizer(optimizer, {})

    # ------------------------------------------------------------------ kvstore

    def _prepare(self) -> None:
        if not self.mx_is_kvstore_ready:
            trainers.init_kvstore(self)
        if self.mx_params_to_init:
            trainers.init_params(self)

    def _require_fitting(self, loss_scale: LossScale) -> None:
        """Raise if gradients would be updated unchecked, or scaled, where a loss scale forbids it."""
        choice = self.mx_kvstore_params["update_on_kvstore"]
        if self.mx_updates_on_kvstore if self.mx_is_kvstore_ready else choice is not False:
            require_unchecked(loss_scale, choice, "the kvstore of this trainer")
            require_rescaled(loss_scale, self.mx_optimizer)

    def mx_init_kvstore(self) -> None:
        """Open the kvstore; one of mxmp where it is distributed and the trainer updates."""
        options = self.mx_kvstore_params
        if options["update_on_kvstore"] is False:
            options["kvstore"] = open_for_trainer(options["kvstore"], self.mx_compression_params, self.mx_params)
        super().mx_init_kvstore()
        updater = kvstore_updater(self.mx_kvstore)
        if updater is not None and self._kept_states:
            updater.states, updater.states_synced = self._kept_states, dict.fromkeys(self._kept_states, False)
        self._kept_states = {}

    def mx_reset_kvstore(self) -> None:
        """Forget the kvstore, as MXNet does when parameters are set, but not the states of one that updates."""
        updater = kvstore_updater(getattr(self, "mx_kvstore", None))
        if updater is not None:
            self._kept_states = updater.states
        super().mx_reset_kvstore()

    def mx_init_params(self) -> None:
        """Give the kvstore the parameters that are initialized by now, and all workers those of worker 0."""
        summed = self.mx_params_to_init if self.mx_kvstore and not self.mx_updates_on_kvstore else ()
        ready = [param for param in summed if not parameters.is_deferred(param)]
        done = {param.name for param in ready if init_param(self.mx_kvstore, self.mx_param_indices[param.name], param)}
        self.mx_params_to_init = [param for param in self.mx_params_to_init if param.name not in done]
        super().mx_init_params()

    def _updates_on_kvstore(self) -> bool:
        self._prepare()
        return bool(self.mx_kvstore and self.mx_updates_on_kvstore)

    def _target(self) -> Target:
        """Return what states are saved from, the kvstore's where that updates."""
        if not self._updates_on_kvstore():
            updaters = self._gradients.updaters
        elif kvstore_updater(self.mx_kvstore) is not None:
            updaters = [kvstore_updater(self.mx_kvstore)]
        else:
            raise TrainerError(
                f"the optimizer's states are with the servers of kvstore '{self.mx_kvstore.type}', which do not give "
                "them out; to save or load states leave update_on_kvstore out."
            )
        return Target(self.mx_optimizer, updaters, self.mx_contexts[: len(updaters)], self.mx_params)


class _MixedUpError(TrainerError, AttributeError):
    """A function of contrib.amp was given a trainer of mxmp; for ``hasattr`` the trainer lacks what it asks for."""


def _mixed_up(function: str) -> TrainerError:
    """Return the error for a function of contrib.amp that was given a trainer of mxmp."""
    return _MixedUpError(
        f"{function} of mxnet.contrib.amp was called with a trainer of mxmp, whose loss scale it does not know: call "
        f"that of mxmp.amp (`from mxmp import amp`). If a library calls it, run the program by `mxmp run --amp float16 "
        f"SCRIPT`, which puts mxmp.amp in the place of mxnet.contrib.amp."
    )
