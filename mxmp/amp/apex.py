"""NVIDIA Apex's functions for Gluon nets and trainers: initialize, master_params, state_dict, load_state_dict.

References:
    https://nvidia.github.io/apex/amp.html for the levels and their properties.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, NamedTuple

import mxnet as mx

from .. import dtypes
from ..errors import LossScaleError, did_you_mean
from ..gluon import Trainer
from ..gluon.adoption import adoptable, require_gluon_trainer
from ..gluon.api import convert_all
from ..loss_scale import DynamicLossScale, LossScale, parse
from ..mxnet_private import is_deferred, is_initialized
from ..policy import Policy
from .contrib import as_list, require_trainer
from .operators import AmpError

_LEVELS = ("O0", "O1", "O2", "O3")
_OF_STORED = ("cast_model_type", "keep_batchnorm_fp32", "master_weights")  # for levels with parameters in low precision
_BOUNDS = {"min_loss_scale": "min_scale", "max_loss_scale": "max_scale"}
_PROPERTIES = (*_OF_STORED, "cast_model_outputs", "loss_scale", *_BOUNDS)

# Properties of Apex without a meaning here, and the reason.
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
        optimizers: A ``mx.gluon.Trainer``, which becomes an `mxmp.gluon.Trainer`. Or an ``mx.optimizer.Optimizer``, for
            which a trainer of its net's parameters is made. Or a list of them, or None.
        opt_level: 'O0' to 'O3'.
        enabled: False leaves the nets as they are, and the trainers without a loss scale.
        num_losses: Number of losses with scales of their own: see `scale_loss` and its ``loss_id``.
        **overrides: Properties; None means the value of the level. ``cast_model_type``: 'float16' or 'bfloat16', for O2
            and O3. ``keep_batchnorm_fp32``: whether BatchNorm's data is float32 too, for O2 and O3. ``master_weights``:
            for O2 and O3. ``loss_scale``: 'dynamic', a number or a `LossScale`. ``min_loss_scale`` and
            ``max_loss_scale``: bounds of a dynamic scale. ``cast_model_outputs``: dtype of the nets' outputs.

    Returns:
        The models, or (models, trainers) if optimizers are given. Lists are returned for lists.

    Raises:
        AmpError: If a property makes no sense; the message says why.
        PolicyError: If a property has an invalid value.
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
    nets, trainers = as_list(models), [] if optimizers is None else as_list(optimizers)
    if len(nets) != len(trainers) and any(isinstance(trainer, mx.optimizer.Optimizer) for trainer in trainers):
        raise AmpError(
            f"{len(trainers)} optimizers for {len(nets)} nets: mxmp cannot match them; give Trainers."
        )
    # Every trainer is checked before a net changes.
    for i, trainer in enumerate(trainers):
        if isinstance(trainer, mx.optimizer.Optimizer):
            _require_initialized(nets[i])
        else:
            _require_trainer(trainer, settings, overrides.get("master_weights"))
    if enabled:
        convert_all(nets, settings.policy)  # or none of them
    for i, trainer in enumerate(trainers):
        if isinstance(trainer, mx.optimizer.Optimizer):
            options = {"multi_precision": settings.masters}
            trainers[i] = Trainer(nets[i], trainer, options, loss_scale=settings.loss_scale)
    for trainer in trainers:
        Trainer.adopt(trainer, settings.loss_scale, settings.masters, num_losses)
    if optimizers is None:
        return models
    return models, trainers if isinstance(optimizers, (list, tuple)) else trainers[0]


def master_params(optimizer: Any) -> Iterator[mx.nd.NDArray]:
    """Yield the float32 values that trainers update: `mxmp.gluon.Trainer.master_params`.

    Between backward and step their gradients are unscaled first, as at the end of Apex's ``scale_loss``:
    ``gluon.utils.clip_global_norm([p.grad for p in master_params(trainer)], 1.0 * batch_size)`` clips. With
    ``trainer.clip_global_norm`` an overflow needs no further host read.

    Args:
        optimizer: A trainer that `initialize` or `init_trainer` has seen, or a list of them.
    """
    for trainer in as_list(optimizer):
        yield from require_trainer(trainer, "master_params").master_params()


def state_dict(optimizers: Any = None) -> Dict[str, Any]:
    """Return the loss scales of trainers and their counts of skipped steps as plain JSON data.

    ``trainer.save_states`` saves them too, next to the optimizer's states.

    Args:
        optimizers: A trainer that `initialize` or `init_trainer` has seen, or a list of them. mxmp does not remember
            them, as Apex does.

    Raises:
        AmpError: Without trainers.
        TrainerError: Between backward and step.
    """
    scalers = _scalers(optimizers, "state_dict")
    return {f"loss_scaler{i}": scaler.to_dict() for i, scaler in enumerate(scalers)}


def load_state_dict(state: Dict[str, Any], optimizers: Any = None) -> None:
    """Load the state that `state_dict` returned; on an error change nothing.

    Args:
        state: The state, of as many trainers.
        optimizers: As for `state_dict`.

    Raises:
        LossScaleError: If the state does not fit.
        TrainerError: Between backward and step, or if a trainer cannot work with its loss scale.
    """
    scalers = _scalers(optimizers, "load_state_dict")
    expected = [f"loss_scaler{i}" for i in range(len(scalers))]
    if not isinstance(state, dict) or set(state) != set(expected):
        names = sorted(map(str, state)) if isinstance(state, dict) else type(state).__name__
        raise LossScaleError(f"load_state_dict: the state has {names}; expected {expected}.")
    for name, scaler in zip(expected, scalers):
        scaler.check_dict(state[name])
    for name, scaler in zip(expected, scalers):
        scaler.load_dict(state[name])


def _scalers(optimizers: Any, call: str) -> List[Any]:
    """Return the loss scalers of trainers, between steps."""
    if optimizers is None:
        raise AmpError(f"{call}: give the trainers: mxmp keeps nothing of them itself.")
    scalers = [require_trainer(trainer, call)._scaler for trainer in as_list(optimizers)]
    for scaler in scalers:
        scaler.require_ready(call)
    return scalers


class _Settings(NamedTuple):
    """The settings that a level and its overrides mean."""

    policy: Policy
    loss_scale: LossScale
    masters: bool  # whether low precision parameters have float32 masters


def _parse_settings(level: str, overrides: Dict[str, Any]) -> _Settings:
    """Return the settings for a level and its overrides; raise an AmpError for one that makes no sense there."""
    options = {name: value for name, value in overrides.items() if value is not None}
    _check_names(level, options)
    policy = Policy.parse(level)
    if "cast_model_type" in options:
        if dtypes.canonical(options["cast_model_type"]) == dtypes.FLOAT32:
            raise AmpError(f"cast_model_type=float32 at {level} leaves nothing in low precision; use O0.")
        policy = policy.replace(param_dtype=options["cast_model_type"], compute_dtype=options["cast_model_type"])
        if policy.compute_dtype == dtypes.BFLOAT16:  # it has float32's range
            policy = policy.replace(loss_scale=None)
    if "keep_batchnorm_fp32" in options:
        policy = policy.replace(keep_batchnorm_fp32=_flag("keep_batchnorm_fp32", options))
    if "cast_model_outputs" in options:
        policy = policy.replace(output_dtype=options["cast_model_outputs"])
    masters = _flag("master_weights", options) if "master_weights" in options else level != "O3"
    return _Settings(policy, _loss_scale(policy, options), masters)


def _check_names(level: str, options: Dict[str, Any]) -> None:
    """Raise an AmpError if a level or property is unknown, or the property has no effect at the level."""
    if level not in _LEVELS:
        raise AmpError(f"opt_level={level!r}: expected one of {', '.join(_LEVELS)}; the letter O, not a zero.")
    for name in options:
        if name in _ABSENT:
            raise AmpError(f"{name}: {_ABSENT[name]}; leave it out.")
        if name not in _PROPERTIES:
            raise AmpError(f"unknown property {name!r}{did_you_mean(name, _PROPERTIES)}.")
        if name in _OF_STORED and level in ("O0", "O1"):
            raise AmpError(
                f"{name}={options[name]} makes no sense at {level}, where parameters stay float32; use O2 or O3, or "
                "leave it out."
            )


def _loss_scale(policy: Policy, options: Dict[str, Any]) -> LossScale:
    spec = options.get("loss_scale", policy.loss_scale)
    if not isinstance(spec, LossScale):
        spec = policy.replace(loss_scale=spec).loss_scale  # it refuses a scale for float32
    bounds: Dict[str, Any] = {ours: float(options[name]) for name, ours in _BOUNDS.items() if name in options}
    if not bounds:
        return parse(spec)
    if spec != "dynamic":
        raise AmpError(f"min_loss_scale and max_loss_scale are for loss_scale='dynamic'; it is {spec!r}.")
    return DynamicLossScale(**bounds)


def _flag(name: str, options: Dict[str, Any]) -> bool:
    value = options[name]
    if str(value) not in ("True", "False"):  # as text too, for command lines
        raise AmpError(f"{name}={value!r}: expected True or False.")
    return str(value) == "True"


def _require_initialized(net: Any) -> None:
    """Raise an AmpError if a net's parameters cannot get a trainer, because one is not initialized."""
    for param in net.collect_params().values() if isinstance(net, mx.gluon.Block) else ():
        if not is_initialized(param) and not is_deferred(param):
            raise AmpError(
                f"parameter '{param.name}' is not initialized, so that no trainer can be made of the optimizer; call "
                f"initialize of block '{net.name}' first."
            )


def _require_trainer(trainer: Any, settings: _Settings, master_weights: Any) -> None:
    """Raise an error if a trainer cannot be set up."""
    require_gluon_trainer(trainer, "initialize")
    adoptable(trainer, settings.loss_scale, Trainer)
    if master_weights is None or not isinstance(trainer, Trainer):
        return
    if trainer.multi_precision != settings.masters:
        raise AmpError(
            f"master_weights={master_weights}, but the trainer was made with "
            f"multi_precision={trainer.multi_precision}; leave master_weights out, or make the trainer anew."
        )
