"""The levels and properties of NVIDIA Apex, parsed to a policy and a loss scale.

References:
    https://nvidia.github.io/apex/amp.html for the levels and their properties.
"""

from __future__ import annotations

from typing import Any, Dict, NamedTuple

from .. import dtypes
from ..errors import DtypeError
from ..loss_scale import DynamicLossScale, LossScale, parse
from ..policy import Policy, did_you_mean
from .operators import AmpError

_LEVELS = ("O0", "O1", "O2", "O3")
_FLAGS = ("keep_batchnorm_fp32", "master_weights")
_SCALES = ("loss_scale", "min_loss_scale", "max_loss_scale")
_PROPERTIES = ("cast_model_type", "cast_model_outputs", *_FLAGS, *_SCALES)

# Properties of Apex that mean nothing here, and why.
_ABSENT = {
    "patch_torch_functions": "mxmp patches no functions; operators are cast one by one at O1, and at no other level",
    "verbosity": "mxmp writes to Python's logging; set the level of the logger 'mxmp'",
}


class Settings(NamedTuple):
    """The settings that a level and its overrides stand for."""

    policy: Policy
    loss_scale: LossScale
    masters: bool  # whether low precision parameters have float32 masters


def parse_settings(level: str, overrides: Dict[str, Any]) -> Settings:
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
    return Settings(policy, _loss_scale(policy, given), masters)


def _check_for_level(level: str, given: Dict[str, Any]) -> None:
    """Raise an AmpError if a property has no effect at a level."""
    dtype = _dtype(given["cast_model_type"]) if "cast_model_type" in given else None
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


def _dtype(value: Any) -> str:
    try:
        return dtypes.canonical(value)
    except DtypeError as e:
        raise AmpError(f"cast_model_type: {e}") from e
