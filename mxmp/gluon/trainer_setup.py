"""How a trainer is made: its loss scale, optimizer, parameters and kvstore."""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import Any, Callable, Collection, Dict, Iterable, List, Optional, Sequence, Type

import mxnet as mx
from mxnet.gluon.utils import HookHandle

from ..distributed import KVStore, distributed
from ..dtypes import LOW_PRECISION, canonical
from ..errors import TrainerError
from ..loss_scale import LossScale, parse
from ..masters.optimizer import MultiPrecision
from ..optimizer import LossScaleOptimizer
from ..scaling.scaler import Scaler
from ..scaling.source import SharedLossScale, make_scaler
from ..scaling.status import ScalerStatus
from ..training import states
from ..training.running_stats import Statistics
from .contexts import running_statistics
from .distributed import broadcast_param, open_kvstore
from .gradients import Gradients
from .kvstore import any_sparse, choose_update, require_known, require_rescaled, require_unchecked

_LOG = logging.getLogger(__name__)


class TrainerSetup(ScalerStatus, mx.gluon.Trainer):
    """What `Trainer` is made of; its methods that are not called at every step."""

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
    ) -> None:
        given = None
        if isinstance(optimizer, LossScaleOptimizer):
            if loss_scale != "dynamic":
                raise TrainerError(f"loss_scale={loss_scale!r}, but the LossScaleOptimizer has one; leave it out.")
            given, (optimizer, loss_scale) = optimizer, optimizer.parts("Trainer")
        scaler = make_scaler(loss_scale)
        require_known(kvstore)
        if not isinstance(optimizer, (str, mx.optimizer.Optimizer)):
            raise TrainerError(f"optimizer is {optimizer!r}; expected a name or an mx.optimizer.Optimizer.")
        listed = _listed(params)
        if not listed:
            raise TrainerError("there are no parameters to train; is the net empty?")
        choice = choose_update(scaler.loss_scale, kvstore, update_on_kvstore, any_sparse(listed))
        owners = [(param, param._trainer) for param in listed if isinstance(param, mx.gluon.Parameter)]
        try:
            super().__init__(params, optimizer, optimizer_params, kvstore, compression_params, choice)
            self._require_kvstore()
            self._require_fitting(scaler.loss_scale)
        except Exception:
            for param, owner in owners:
                param._trainer = owner
            raise
        self._take_up(scaler)
        if not kvstore and len(self._contexts) > 1:
            _LOG.warning(
                "kvstore=%r with %d contexts: their gradients are not summed, and their parameters drift apart",
                kvstore,
                len(self._contexts),
            )
        if given is not None:
            given.hand_over("Trainer")
        if choice is False and distributed(kvstore) and not any(param._deferred_init for param in self._params):
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
        scaler = make_scaler(loss_scale)
        kind = adoptable(trainer, scaler.loss_scale, cls)
        if not isinstance(trainer, TrainerSetup):
            settings = trainer._kvstore_params
            settings["update_on_kvstore"] = _update_choice(trainer, scaler.loss_scale)
            made = [(updater.states, updater.states_synced) for updater in trainer._updaters]
            trainer.__class__ = kind
            trainer._init_optimizer(trainer._optimizer, {"multi_precision": multi_precision})
            for updater, (present, synced) in zip(trainer._updaters, made):
                updater.states, updater.states_synced = present, synced
        trainer._take_up(scaler)
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
        added = _listed(params)
        known = set(self._param2idx)
        for param in added:
            _check_addable(param, known, self._contexts)
            known.add(param.name)
        for index, param in enumerate(added, len(self._params)):
            self._params.append(param)
            self._param2idx[param.name] = index
            self._optimizer.param_dict[index] = param
            self._params_to_init.append(param)
            param._set_trainer(self)

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

        Args:
            fname: The file.

        Raises:
            StateError: If the file is damaged or does not fit; then nothing is changed.
            TrainerError: As `save_states`.
        """
        self._scaler.require_ready("load_states")
        self._gradients.require_used("load_states")
        states.restore(fname, self._target(), self._scaler)

    def _call_hooks(self, updated: bool) -> None:
        for hook in list(self._step_hooks.values()):
            hook(self, updated)

    @ScalerStatus.loss_scale.setter
    def loss_scale(self, spec: Any) -> None:
        """Set the loss scale of the steps to come."""
        if isinstance(spec, SharedLossScale):
            raise TrainerError(
                "setting loss_scale: give a SharedLossScale to the constructor, or to Trainer.adopt(trainer, shared)."
            )
        self._scaler.loss_scale = parse(spec)

    def _take_up(self, scaler: Scaler) -> None:
        """Work with a scaler, and make what a trainer of mxmp has and one of MXNet lacks."""
        self._scaler = scaler
        scaler.refuse = self._require_fitting
        scaler.join()
        if "_gradients" not in vars(self):
            self._gradients = Gradients(self._params, len(self._contexts or ()))
            self._statistics = Statistics()
            if all(param._data is not None for param in self._params):
                self._statistics.keep(running_statistics(self._params))
            self._step_hooks: Dict[int, Callable[[Any, bool], None]] = OrderedDict()

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

    # ------------------------------------------------------------------ kvstore

    def _prepare(self) -> None:
        if not self._kv_initialized:
            self._init_kvstore()
        if self._params_to_init:
            self._init_params()

    def _require_fitting(self, loss_scale: LossScale) -> None:
        """Raise if gradients would be updated unchecked, or scaled, where a loss scale forbids it."""
        choice = self._kvstore_params["update_on_kvstore"]
        if self._update_on_kvstore if self._kv_initialized else choice is not False:
            require_unchecked(loss_scale, choice, "the kvstore of this trainer")
            require_rescaled(loss_scale, self._optimizer)

    def _require_kvstore(self) -> None:
        """Raise if the kvstore is to update and there is none."""
        if not self._kvstore_params["update_on_kvstore"]:
            return
        kvstore = self._kvstore_params["kvstore"]
        if kvstore is None or (isinstance(kvstore, str) and "dist" not in kvstore and len(self._contexts) == 1):
            raise TrainerError(
                f"update_on_kvstore=True with kvstore={kvstore!r} and {len(self._contexts)} context: MXNet makes no "
                "kvstore there; leave update_on_kvstore out."
            )

    def _init_kvstore(self) -> None:
        options = self._kvstore_params
        if options["update_on_kvstore"] is False:
            options["kvstore"] = open_kvstore(options["kvstore"], self._compression_params, self._params)
        super()._init_kvstore()
        updater = getattr(self._kvstore, "_updater", None)
        if updater is not None and self._kept_states:
            updater.states, updater.states_synced = self._kept_states, dict.fromkeys(self._kept_states, False)
        self._kept_states = {}

    def _reset_kvstore(self) -> None:
        """Forget the kvstore, as MXNet does when parameters are set, but not the states of one that updates."""
        updater = getattr(getattr(self, "_kvstore", None), "_updater", None)
        if updater is not None:
            self._kept_states = updater.states
        super()._reset_kvstore()

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

    def _updating(self) -> List[mx.optimizer.Updater]:
        """Return the updaters that work: with a kvstore one, whose weights the other contexts copy.

        Gradients are the same on all contexts then, but optimizers that draw noise (SGLD) or count
        their calls (Nadam) would let the weights drift apart.
        """
        return self._updaters[:1] if self._kvstore else self._updaters

    def _target(self) -> states.Target:
        """Return what states are saved from, the kvstore's where that updates."""
        if not self._updates_on_kvstore():
            updaters = self._updating()
        elif self._kvstore._updater is not None:
            updaters = [self._kvstore._updater]
        else:
            raise TrainerError(
                f"the optimizer's states are with the servers of kvstore '{self._kvstore.type}', which do not give "
                "them out; to save or load states leave update_on_kvstore out."
            )
        return states.Target(self._optimizer, updaters, self._contexts[: len(updaters)], self._params)


def adoptable(trainer: Any, loss_scale: LossScale, kind: Type[TrainerSetup]) -> Type[mx.gluon.Trainer]:
    """Return the class that `TrainerSetup.adopt` gives a trainer; changes nothing.

    Args:
        trainer: Anything.
        loss_scale: What it is to have.
        kind: The class of mxmp.

    Raises:
        TrainerError: If it cannot.
    """
    if not isinstance(trainer, mx.gluon.Trainer):
        hint = "; for a Module use mxmp.module.Module" if isinstance(trainer, mx.mod.BaseModule) else ""
        raise TrainerError(f"expected a gluon Trainer, found a {type(trainer).__name__}{hint}.")
    if isinstance(trainer, TrainerSetup):
        trainer._scaler.require_ready("initializing a trainer again")
        trainer._require_fitting(loss_scale)
        return type(trainer)
    store = trainer._kvstore if trainer._kv_initialized else None
    if store and trainer._update_on_kvstore:
        raise TrainerError(
            "the kvstore of this trainer is set up already and updates weights by itself, before any check and without "
            "float32 masters; make the trainer with update_on_kvstore=False."
        )
    if store and distributed(store):
        raise TrainerError(
            f"kvstore '{store.type}' of this trainer is set up already; adopt the trainer before its first step."
        )
    for updater in trainer._updaters:
        for index in updater.states:
            param = trainer._params[index]
            if canonical(param.dtype) in LOW_PRECISION:
                raise TrainerError(
                    f"the trainer has made a step or loaded states, and parameter '{param.name}' is stored in "
                    f"{canonical(param.dtype)}, so that its optimizer state may lack a float32 master; set the "
                    "trainer up before its first step."
                )
    if _update_choice(trainer, loss_scale) is not False:
        require_rescaled(loss_scale, trainer._optimizer)
    return _mixed(type(trainer), kind)


def _update_choice(trainer: mx.gluon.Trainer, loss_scale: LossScale) -> Optional[bool]:
    settings = trainer._kvstore_params
    return choose_update(loss_scale, settings["kvstore"], settings["update_on_kvstore"], any_sparse(trainer._params))


def _mixed(given: Type[mx.gluon.Trainer], kind: Type[TrainerSetup]) -> Type[mx.gluon.Trainer]:
    """Return a class that is mxmp's trainer and the given one.

    Raises:
        TrainerError: If that has a step of its own.
    """
    if given is mx.gluon.Trainer:
        return kind
    own = (vars(base).items() for base in kind.__mro__[: kind.__mro__.index(mx.gluon.Trainer)])
    ours = {name for items in own for name, value in items if callable(value) and not name.startswith("__")}
    for base in given.__mro__[: given.__mro__.index(mx.gluon.Trainer)]:
        both = sorted(ours & set(vars(base)))
        if both:
            raise TrainerError(
                f"{base.__name__} has a method {both[0]} of its own, which mxmp's trainer would replace; derive it "
                f"from mxmp.gluon.Trainer."
            )
    return type(given.__name__, (kind, given), {"__doc__": given.__doc__, "__module__": given.__module__})


def _listed(params: Any) -> List[Any]:
    """Return parameters given as a dict, a list or a tuple; anything else is left to MXNet to refuse."""
    values = params.values() if hasattr(params, "values") else params
    return list(values) if isinstance(values, Iterable) else [params]


def _check_addable(param: Any, known: Collection[str], contexts: Sequence[mx.Context]) -> None:
    if not isinstance(param, mx.gluon.Parameter):
        raise TrainerError(f"add_params: expected gluon Parameters, found a {type(param).__name__}.")
    if param._data is None and not param._deferred_init:
        raise TrainerError(f"add_params: parameter '{param.name}' is not initialized; call its initialize first.")
    if param.name in known:
        raise TrainerError(f"add_params: the trainer has a parameter '{param.name}' already.")
    if "row_sparse" in (param._stype, param._grad_stype):
        raise TrainerError(
            f"add_params: parameter '{param.name}' or its gradient is row_sparse, for which MXNet chooses the kvstore "
            "when the trainer is made; give it to the constructor."
        )
    if param.list_ctx() != contexts:
        raise TrainerError(
            f"add_params: parameter '{param.name}' is on {param.list_ctx()}; those of the trainer are on {contexts}."
        )
