"""Apex-compatible API for Gluon nets and trainers: initialize, master_params, state_dict, load_state_dict.

References:
    https://nvidia.github.io/apex/amp.html for the levels and their properties.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, NamedTuple, Optional

import mxnet as mx

from .. import dtypes
from ..arrays import is_low_precision
from ..errors import LossScaleError, did_you_mean
from ..gluon import Trainer
from ..gluon.adoption import adoptable
from ..gluon.api import convert_all
from ..loss_scale import DynamicLossScale, LossScale, parse
from ..mxnet_private import is_deferred, is_initialized, trainers
from ..policy import Policy
from ..train.masters import Weight
from .operators import AmpError, canonical_dtype
from .trainers import adopt, as_list, require_trainer

_LEVELS = ("O0", "O1", "O2", "O3")
_FLAGS = ("keep_batchnorm_fp32", "master_weights")
_SCALES = ("loss_scale", "min_loss_scale", "max_loss_scale")
_PROPERTIES = ("cast_model_type", "cast_model_outputs", *_FLAGS, *_SCALES)

# Properties of Apex that mean nothing here, and why.
_ABSENT = {
    "patch_torch_functions": "mxmp patches no functions; operators are cast one by one at O1, and at no other level",
    "verbosity": "mxmp writes to Python's logging; set the level of the logger 'mxmp'",
}


def initialize(
    models: Any,
    optimizers: Any = None,
    opt_level: str = "O1",
    *,
    enabled: bool = True,
    num_losses: int = 1,
    **overrides: Any,
) -> Any:
    """Convert nets in place and set up their trainers, with the levels and properties of Apex.

    ========  ========================  ===============  ==========  ================
    level     parameters                runs in          loss_scale  master_weights
    ========  ========================  ===============  ==========  ================
    ``O0``    float32                   float32          none
    ``O1``    float32                   by operator      dynamic
    ``O2``    float16 but BatchNorm's   by operator      dynamic     True
    ``O3``    float16 but BatchNorm's   float16          none        False
    ========  ========================  ===============  ==========  ================

    Args:
        models: A Gluon net, or a list of them.
        optimizers: A ``mx.gluon.Trainer``, which becomes an `mxmp.gluon.Trainer`; or an
            ``mx.optimizer.Optimizer``, for which a trainer of its net's parameters is made; or a list
            of them; or None.
        opt_level: 'O0' to 'O3'.
        enabled: False leaves the nets as they are, and the trainers without a loss scale.
        num_losses: Number of losses with scales of their own: see `scale_loss` and its ``loss_id``.
        **overrides: Properties; None means that of the level. ``cast_model_type``: 'float16' or
            'bfloat16', for O2 and O3. ``keep_batchnorm_fp32``: whether BatchNorm's data is float32
            too, for O2 and O3. ``master_weights``: for O2 and O3. ``loss_scale``: 'dynamic', a number
            or a `LossScale`. ``min_loss_scale``, ``max_loss_scale``: of a dynamic one.
            ``cast_model_outputs``: dtype of the nets' outputs.

    Returns:
        The models, or (models, trainers) where optimizers are given; lists where lists were given.

    Raises:
        AmpError: If a property makes no sense; the message says why.
        PolicyError: Likewise.
        ConvertError: If a net cannot be converted.
        TrainerError: If a trainer cannot check gradients before it updates.

    Example:
        >>> import mxnet as mx
        >>> net = mx.gluon.nn.Dense(2, in_units=3)
        >>> net.initialize()
        >>> trainer = mx.gluon.Trainer(net.collect_params(), "sgd")
        >>> net, trainer = initialize(net, trainer, opt_level="O2", loss_scale=128)
        >>> trainer.loss_scale
        StaticLossScale(value=128.0)
    """
    settings = _parse_settings(opt_level if enabled else "O0", overrides if enabled else {})
    if isinstance(num_losses, bool) or not isinstance(num_losses, int) or num_losses < 1:
        raise AmpError(f"num_losses={num_losses!r}: expected a whole number from 1 on.")
    nets, given = as_list(models), [] if optimizers is None else as_list(optimizers)
    for each in given:
        if isinstance(each, mx.optimizer.Optimizer):
            _require_pairs(nets, given)
        else:
            _require_trainer(each, settings, overrides.get("master_weights"))
    if enabled:
        convert_all(nets, settings.policy)
    trainers = list(given)
    for i, each in enumerate(given):
        if isinstance(each, mx.optimizer.Optimizer):
            params, options = nets[i].collect_params(), {"multi_precision": settings.masters}
            trainers[i] = Trainer(params, each, options, loss_scale=settings.loss_scale)
    for trainer in trainers:
        adopt(trainer, settings.loss_scale, settings.masters, num_losses)
    if optimizers is None:
        return models
    return models, trainers if isinstance(optimizers, (list, tuple)) else trainers[0]


def master_params(optimizer: Any) -> Iterator[mx.nd.NDArray]:
    """Yield the float32 values that trainers update: masters, or the parameters where they are float32.

    They are the arrays themselves, on the first context of each parameter; low precision parameters
    without masters are yielded as they are. Between backward and step their gradients are unscaled
    first, as at the end of Apex's ``scale_loss``, and the ``grad`` of each array is what the step will
    use: ``gluon.utils.clip_global_norm([p.grad for p in master_params(trainer)], 1.0)`` clips. With
    ``trainer.clip_global_norm`` an overflow needs no further host read.

    Args:
        optimizer: A trainer that `initialize` or `init_trainer` has seen, or a list of them.
    """
    for each in as_list(optimizer):
        trainer = require_trainer(each, "master_params")
        state = trainer._scaler.state
        if not (state.is_ready or state.reduced or trainer._scaler.is_open):
            trainer.unscale()
        for index, param in enumerate(trainers.params(trainer)):
            if param.grad_req != "null":
                yield _master(trainer, index, param.list_data()[0])


def state_dict(optimizers: Any = None) -> Dict[str, Any]:
    """Return the loss scales of trainers and their counts of skipped steps as plain JSON data.

    ``trainer.save_states`` has them too, next to the optimizer's states.

    Args:
        optimizers: A trainer that `initialize` or `init_trainer` has seen, or a list of them. Apex
            remembers them; mxmp keeps nothing of a process as a whole.

    Raises:
        AmpError: Without trainers.
        TrainerError: Between backward and step.
    """
    if optimizers is None:
        raise AmpError("state_dict and load_state_dict want to know the trainers: mxmp keeps nothing of them itself.")
    trainers = [require_trainer(each, "state_dict") for each in as_list(optimizers)]
    for trainer in trainers:
        trainer._scaler.require_ready("state_dict")
    return {f"loss_scaler{i}": trainer._scaler.to_dict() for i, trainer in enumerate(trainers)}


def load_state_dict(state: Dict[str, Any], optimizers: Any = None) -> None:
    """Take what `state_dict` returned, or change nothing.

    Args:
        state: For as many trainers.
        optimizers: As for `state_dict`.

    Raises:
        LossScaleError: If it does not fit.
        TrainerError: Between backward and step, or if a trainer cannot work with its loss scale.
    """
    expected = sorted(state_dict(optimizers))
    if not isinstance(state, dict) or set(state) != set(expected):
        found = sorted(map(str, state)) if isinstance(state, dict) else type(state).__name__
        raise LossScaleError(f"load_state_dict: the state has {found}; expected {expected}.")
    scalers = [(trainer._scaler, state[f"loss_scaler{i}"]) for i, trainer in enumerate(as_list(optimizers))]
    for scaler, data in scalers:
        scaler.check_dict(data)
    for scaler, data in scalers:
        scaler.load_dict(data)


def _require_pairs(nets: List[Any], optimizers: List[Any]) -> None:
    """Check that there is an optimizer for each net, and that a trainer of its parameters can be made."""
    if len(nets) != len(optimizers):
        raise AmpError(
            f"{len(optimizers)} optimizers for {len(nets)} nets: it is not clear which trains what; give Trainers."
        )
    for net in nets:
        for param in net.collect_params().values() if isinstance(net, mx.gluon.Block) else ():
            if not is_initialized(param) and not is_deferred(param):
                raise AmpError(
                    f"parameter '{param.name}' is not initialized, so that no trainer can be made of the optimizer; "
                    f"call initialize of block '{net.name}' first."
                )


def _require_trainer(trainer: Any, settings: _Settings, wanted: Optional[Any]) -> None:
    adoptable(trainer, settings.loss_scale, Trainer)
    if wanted is not None and isinstance(trainer, Trainer) and trainer.optimizer.masters != settings.masters:
        raise AmpError(
            f"master_weights={wanted}, but the trainer was made with multi_precision={trainer.optimizer.masters}; "
            f"leave master_weights out, or make the trainer anew."
        )


def _master(trainer: Trainer, index: int, weight: mx.nd.NDArray) -> mx.nd.NDArray:
    """Return the master of a weight, made now if the first step is still to come."""
    if not is_low_precision(weight) or not trainer.optimizer.masters:
        return weight
    updater = trainers.updaters(trainer)[0]
    if index not in updater.states:
        updater.states[index] = trainer.optimizer.create_state_multi_precision(index, weight)
        updater.states_synced[index] = True
    state = updater.states[index]
    trainer.optimizer.share_master(Weight(index, weight, weight, state))
    master = state.master
    if trainer._scaler.state.is_unscaled:
        mx.autograd.mark_variables([master], [trainers.params(trainer)[index].list_grad()[0]])
    return master


class _Settings(NamedTuple):
    """The settings that a level and its overrides stand for."""

    policy: Policy
    loss_scale: LossScale
    masters: bool  # whether low precision parameters have float32 masters


def _parse_settings(level: str, overrides: Dict[str, Any]) -> _Settings:
    """Return the settings for a level and its overrides; AmpError if one is unknown or makes no sense there."""
    given = {name: value for name, value in overrides.items() if value is not None}
    for name in given:
        if name in _ABSENT:
            raise AmpError(f"{name}: {_ABSENT[name]}; leave it out.")
        if name not in _PROPERTIES:
            raise AmpError(f"unknown property {name!r}{did_you_mean(name, _PROPERTIES)}.")
    if level not in _LEVELS:
        raise AmpError(f"opt_level={level!r}: expected one of {', '.join(_LEVELS)}; the letter O, not a zero.")
    _check_for_level(level, given)
    policy = Policy.parse(level)
    if level in ("O2", "O3") and "cast_model_type" in given:
        dtype = given["cast_model_type"]
        policy = policy.replace(param_dtype=dtype, compute_dtype=dtype)
        if policy.compute_dtype == dtypes.BFLOAT16:  # it has float32's range
            policy = policy.replace(loss_scale=None)
    if "keep_batchnorm_fp32" in given:
        policy = policy.replace(keep_batchnorm_fp32=_flag("keep_batchnorm_fp32", given))
    if "cast_model_outputs" in given:
        policy = policy.replace(output_dtype=given["cast_model_outputs"])
    masters = _flag("master_weights", given) if "master_weights" in given else level != "O3"
    return _Settings(policy, _loss_scale(policy, given), masters)


def _check_for_level(level: str, given: Dict[str, Any]) -> None:
    """Raise an AmpError if a property has no effect at a level."""
    dtype = canonical_dtype("cast_model_type", given["cast_model_type"]) if "cast_model_type" in given else None
    if level in ("O2", "O3"):
        if dtype == dtypes.FLOAT32:
            raise AmpError(f"cast_model_type=float32 at {level} leaves nothing in low precision; use O0.")
        return
    kept = "everything is float32" if level == "O0" else "parameters stay float32 and operators are cast one by one"
    if dtype not in (None, dtypes.FLOAT32):
        raise AmpError(f"cast_model_type={dtype} makes no sense at {level}, where {kept}; use O2 or O3.")
    for name in _FLAGS:
        if name in given:
            raise AmpError(f"{name} makes no sense at {level}, where {kept}; use O2 or O3, or leave it out.")


def _loss_scale(policy: Policy, given: Dict[str, Any]) -> LossScale:
    spec = given.get("loss_scale", policy.loss_scale)
    if not isinstance(spec, LossScale):
        spec = policy.replace(loss_scale=spec).loss_scale  # which refuses what makes no sense
    bounds: Dict[str, Any] = {name.replace("_loss", ""): float(given[name]) for name in _SCALES[1:] if name in given}
    if not bounds:
        return parse(spec)
    if spec != "dynamic":
        raise AmpError(f"min_loss_scale and max_loss_scale are for loss_scale='dynamic'; it is {spec!r}.")
    return DynamicLossScale(**bounds)


def _flag(name: str, given: Dict[str, Any]) -> bool:
    flags = {True: True, False: False, "True": True, "False": False}  # as text too, for command lines
    value = given[name]
    if isinstance(value, (bool, str)) and value in flags:
        return flags[value]
    raise AmpError(f"{name}={value!r}: expected True or False.")
