"""Trainers of MXNet: which of them can become trainers of mxmp, and a warning if one trains a converted net.

This file also keeps the policy of a net on its parameters, and checks parameters that are added to a trainer. It has
the loss scale by the names that clients of contrib.amp use.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import Any, Collection, Iterable, List, Sequence, Type

import mxnet as mx

from ..distributed import distributed
from ..dtypes import BFLOAT16, LOW_PRECISION, canonical
from ..errors import LossScaleError, TrainerError, a_type_of
from ..loss_scale import DynamicLossScale, LossScale, NoOpLossScale, parse
from ..mxnet_private import is_deferred, is_initialized
from ..policy import Policy
from ..train.kvstores import refuse_compression, refuse_update_on_kvstore
from ..train.multi_precision import MultiPrecision
from ..train.scaler import Scaler, ScalerStatus

_LOG = logging.getLogger(__name__)
_WARNED = "_mxmp_warned"
"""Attribute of a trainer of MXNet: it has been warned of."""


def require_gluon_trainer(trainer: Any, call: str) -> None:
    """Raise a TrainerError that names the call if an argument is no gluon Trainer, of MXNet or of mxmp."""
    if not isinstance(trainer, mx.gluon.Trainer):
        hint = "; for a Module use mxmp.module.Module" if isinstance(trainer, mx.mod.BaseModule) else ""
        raise TrainerError(f"{call}: expected a gluon Trainer, found {a_type_of(trainer)}{hint}.")


def adoptable(trainer: Any, loss_scale: LossScale, kind: Type[mx.gluon.Trainer]) -> Type[mx.gluon.Trainer]:
    """Return the class of ``kind`` that `mxmp.gluon.Trainer.adopt` gives a trainer, or raise; changes nothing."""
    if isinstance(trainer, ScalerStatus):
        trainer._scaler.require_ready("initializing a trainer again")
        trainer._scaler.validate(loss_scale)
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
    if not distributed(trainer._kvstore_params["kvstore"]):
        refuse_compression(trainer._compression_params, not isinstance(loss_scale, NoOpLossScale), False)
    settings = trainer._kvstore_params
    refuse_update_on_kvstore(settings["kvstore"], settings["update_on_kvstore"], trainer._params)
    return _class_of_both(type(trainer), kind)


def _class_of_both(user_class: Type[mx.gluon.Trainer], kind: Type[mx.gluon.Trainer]) -> Type[mx.gluon.Trainer]:
    """Return a class that is mxmp's trainer and the given one, or raise if that has a step of its own."""
    if user_class is mx.gluon.Trainer:
        return kind
    members = (vars(base).items() for base in kind.__mro__[: kind.__mro__.index(mx.gluon.Trainer)])
    ours = {name for items in members for name, value in items if callable(value) and not name.startswith("__")}
    for base in user_class.__mro__[: user_class.__mro__.index(mx.gluon.Trainer)]:
        both = sorted(ours & set(vars(base)))
        if both:
            raise TrainerError(
                f"{base.__name__} has a method {both[0]} of its own, which mxmp's trainer would replace; derive it "
                f"from mxmp.gluon.Trainer."
            )
    attributes = {"__doc__": user_class.__doc__, "__module__": user_class.__module__}
    return type(user_class.__name__, (kind, user_class), attributes)


def warn_of_plain_trainers(net: mx.gluon.Block, policy: Policy, params: Sequence[mx.gluon.Parameter]) -> bool:
    """Log one warning for each trainer of MXNet that lacks something to train a converted net's parameters.

    Returns whether any parameter that is trained has a trainer.
    """
    trained = [param for param in params if param.grad_req != "null" and param._trainer is not None]
    for trainer in dict.fromkeys(param._trainer for param in trained):
        of_trainer = [param for param in trained if param._trainer is trainer]
        is_done = isinstance(trainer, ScalerStatus) or _WARNED in vars(trainer)
        missing = [] if is_done else _missing(policy, trainer, of_trainer)
        if missing:
            setattr(trainer, _WARNED, True)
            kind = "mx.gluon.Trainer" if type(trainer) is mx.gluon.Trainer else type(trainer).__name__
            text = (
                "block '%s' is converted (%s), but parameter '%s' is updated by a plain %s: %s. Use "
                "mxmp.gluon.Trainer, or call mxmp.gluon.Trainer.adopt(trainer), or amp.init_trainer(trainer)."
            )
            _LOG.warning(text, net.name, policy, of_trainer[0].name, kind, "; ".join(missing))
    return bool(trained)


def _missing(policy: Policy, trainer: mx.gluon.Trainer, params: Sequence[mx.gluon.Parameter]) -> List[str]:
    """Return the things that parameters need and a trainer of MXNet does not do."""
    faults = []
    if policy.loss_scale not in (None, 1.0):
        faults.append(
            f"its gradients are not scaled, so that small ones are lost in {policy.compute_dtype} (if you "
            "scale the loss by hand, give the policy loss_scale=None)"
        )
    optimizer, stored = trainer._optimizer, {canonical(param.dtype) for param in params}
    if isinstance(optimizer, MultiPrecision):
        without_masters = [] if optimizer.masters else sorted(stored & set(LOW_PRECISION))
    else:  # MXNet's own have masters of float16
        without_masters = sorted(stored & set(LOW_PRECISION[-1:] if optimizer.multi_precision else LOW_PRECISION))
    if BFLOAT16 in without_masters:
        faults.append("weights stored in bfloat16 have no float32 masters, and MXNet's optimizers cannot update them")
    elif without_masters and not policy.pure:
        dtype = without_masters[0]
        faults.append(f"weights stored in {dtype} have no float32 masters, so that small updates are rounded away")
    return faults


_POLICY = "_mxmp_policy"
"""Attribute of a parameter: the policy that its net was converted with."""


def note_policy(params: Iterable[mx.gluon.Parameter], policy: Policy) -> None:
    """Note the policy that a net was converted with on its parameters."""
    for param in params:
        setattr(param, _POLICY, policy)


def forget_policy(params: Iterable[mx.gluon.Parameter], policy: Policy) -> None:
    """Forget a policy that a net was converted with, but not that of another net with the same parameters."""
    for param in params:
        if vars(param).get(_POLICY) is policy:
            del vars(param)[_POLICY]


def policies_of(params: Iterable[Any]) -> List[Policy]:
    """Return the policies that the nets of parameters were converted with, none for parameters of other nets."""
    return [vars(param)[_POLICY] for param in params if _POLICY in getattr(param, "__dict__", {})]


def policys_loss_scale(params: Iterable[Any]) -> LossScale:
    """Return the loss scale that the policy of the parameters' net says; a dynamic one for those of none.

    Raises TrainerError if they are of nets whose policies say different things.
    """
    scales = list(dict.fromkeys(parse(policy.loss_scale) for policy in policies_of(params)))
    if len(scales) > 1:
        raise TrainerError(
            f"the parameters are of nets with policies that say different loss scales, {scales[0]} and {scales[1]}; "
            "give loss_scale, or make a trainer for each net."
        )
    return scales[0] if scales else parse("dynamic")


def listed(params: Any) -> List[Any]:
    """Return parameters given as a net, a dict, a list or a tuple; anything else is left to MXNet to refuse."""
    if isinstance(params, mx.gluon.Block):
        params = params.collect_params()
    values = params.values() if hasattr(params, "values") else params
    return list(values) if isinstance(values, Iterable) else [params]


def require_addable(param: Any, names: Collection[str], contexts: Sequence[mx.Context]) -> None:
    """Raise if a parameter cannot be added to a trainer whose parameters have these names and contexts."""
    if not isinstance(param, mx.gluon.Parameter):
        raise TrainerError(f"add_params: expected gluon Parameters, found {a_type_of(param)}.")
    if not is_initialized(param) and not is_deferred(param):
        raise TrainerError(f"add_params: parameter '{param.name}' is not initialized; call its initialize first.")
    if param.name in names:
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


# ------------------------------------------------------------------ names of contrib.amp


class AmpLossScaler:
    """``trainer._amp_loss_scaler``: a view of a trainer's loss scale by the names that contrib.amp has for it.

    Sockeye, for one, saves and restores a run by them. Like ``trainer.loss_scale`` they may only be changed between
    steps. Only a dynamic scale grows: for others ``_unskipped`` is 0, and a changed ``_scale_seq_len`` is ignored.

    References:
        python/mxnet/contrib/amp/loss_scaler.py at tag 1.9.1.
    """

    def __init__(self, scaler: Scaler) -> None:
        self._scaler = scaler

    @property
    def loss_scale(self) -> float:
        """The factor of the next loss."""
        return self._scaler.loss_scale.value

    @property
    def _loss_scale(self) -> float:
        return self.loss_scale

    @_loss_scale.setter
    def _loss_scale(self, value: Any) -> None:
        scale = self._scaler.loss_scale
        if value == scale.value:
            return
        if isinstance(scale, NoOpLossScale):
            raise LossScaleError(
                f"_loss_scale={value!r}, but the trainer has no loss scale, as by default with bfloat16; set its "
                "loss_scale to 'dynamic' or a number first."
            )
        if isinstance(scale, DynamicLossScale):
            self._scaler.loss_scale = dataclasses.replace(scale, value=value, warming_up=False)
        else:
            self._scaler.loss_scale = parse(value)

    # In contrib.amp a new scale is used one step late. Here it is used at once, so that the two are always equal.
    _next_loss_scale = _loss_scale

    @property
    def _unskipped(self) -> int:
        return getattr(self._scaler.loss_scale, "growth_tracker", 0)

    @_unskipped.setter
    def _unskipped(self, value: int) -> None:
        self._change(growth_tracker=value)

    @property
    def _scale_seq_len(self) -> int:
        return getattr(self._scaler.loss_scale, "growth_interval", DynamicLossScale.growth_interval)

    @_scale_seq_len.setter
    def _scale_seq_len(self, value: int) -> None:
        tracker = self._unskipped
        self._change(growth_interval=value, growth_tracker=tracker if tracker < value else 0)

    def _change(self, **fields: Any) -> None:
        scale = self._scaler.loss_scale
        if isinstance(scale, DynamicLossScale):
            self._scaler.loss_scale = dataclasses.replace(scale, **fields)

    def has_overflow(self, params: Any) -> bool:
        """Return False: go on to the trainer's step, which checks the gradients and skips by itself.

        A loop for contrib.amp may ask before its step (LossScaler.has_overflow in
        python/mxnet/contrib/amp/loss_scaler.py).
        """
        return False


class _MixedUpError(TrainerError, AttributeError):
    """A function of contrib.amp was given a trainer of mxmp; ``hasattr`` is False for the attribute that it reads."""


def mixed_up(function: str) -> TrainerError:
    """Return the error for a function of contrib.amp that was given a trainer of mxmp."""
    return _MixedUpError(
        f"{function} of mxnet.contrib.amp was called with a trainer of mxmp, whose loss scale it does not know: call "
        f"that of mxmp.amp (`from mxmp import amp`). If a library calls it, run the program by `mxmp run --amp float16 "
        f"SCRIPT`, which puts mxmp.amp in the place of mxnet.contrib.amp."
    )
