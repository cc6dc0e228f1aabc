"""The fields of a policy: their names in text and presets, and functions that check and normalise their values."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, Dict, Iterable, Mapping, Tuple, Union

from .. import dtypes
from ..errors import DtypeError, PolicyError, did_you_mean

Overrides = Tuple[Tuple[str, str], ...]
LossScaleSpec = Union[None, str, float]

DTYPE_FIELDS = {"param": "param_dtype", "compute": "compute_dtype", "output": "output_dtype"}
FLAG_FIELDS = ("keep_batchnorm_fp32", "last_layer_fp32", "pure")
OVERRIDE_FIELDS = {"op": "ops", "name": "names", "block": "blocks"}
OUT_OF_RANGE = ("clamp", "float32")


def dtype_field(field: str, value: Any) -> str:
    """Return the full name of a precision, or raise PolicyError with the field's name."""
    try:
        name = dtypes.canonical(value)
    except DtypeError as e:
        raise PolicyError(f"{field}: {e}") from e
    if name not in dtypes.PRECISIONS:
        raise PolicyError(f"{field}={name!r}: expected float16, bfloat16 or float32.")
    return name


def override_field(field: str, value: Union[Mapping[str, Any], Iterable[Tuple[str, Any]]]) -> Overrides:
    """Return overrides as sorted pairs of pattern and dtype, or raise PolicyError with the field's name."""
    try:
        given = list(value.items() if isinstance(value, Mapping) else value)
        pairs = dict(given)
    except (TypeError, ValueError):
        raise PolicyError(f"{field}={value!r}: expected a dict or pairs of pattern and dtype.") from None
    for key, count in Counter(key for key, _ in given).items():
        if count > 1:
            raise PolicyError(f"{field}: {key!r} is given twice; keep one of them.")
    for key in pairs:
        if not isinstance(key, str) or not key or key != key.strip() or any(mark in key for mark in ",="):
            raise PolicyError(
                f"{field}: {key!r} is no pattern of names; it must not be empty, hold ',' or '=', or begin or end with "
                f"a blank. For such a character write '?'."
            )
    return tuple(sorted((key, dtype_field(f"{field}[{key!r}]", dtype)) for key, dtype in pairs.items()))


def loss_scale_field(value: Any) -> LossScaleSpec:
    """Return None, 'dynamic' or a positive number, or raise PolicyError."""
    if value is None or (isinstance(value, str) and value.lower() == "none"):
        return None
    if value == "dynamic":
        return "dynamic"
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 < number < math.inf:
        raise PolicyError(f"loss_scale={value!r}: expected None, 'dynamic' or a positive, finite number.")
    return number


def parse_fields(spec: str) -> Dict[str, Any]:
    """Return the fields that a comma-separated text sets, those of its preset among them; PolicyError or DtypeError."""
    fields: Dict[str, Any] = {}
    for number, item in enumerate(part.strip() for part in spec.split(",")):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals:
            if number:
                raise PolicyError(f"{item!r} is no 'field=value' pair")
            fields.update(_preset(item))
        elif ":" in key:
            _parse_override(fields, key, value)
        else:
            fields.update(_parse_field(key, value))
    return fields


def _parse_field(key: str, value: str) -> Dict[str, Any]:
    field = DTYPE_FIELDS.get(key, key)
    if field in DTYPE_FIELDS.values():
        return {field: dtypes.canonical(value)}
    if field in FLAG_FIELDS:
        if value not in ("True", "False"):
            raise PolicyError(f"{key}={value}: expected True or False")
        return {field: value == "True"}
    if field in ("loss_scale", "out_of_range"):
        return {field: value}
    known = [*DTYPE_FIELDS, *FLAG_FIELDS, "loss_scale", "out_of_range", *(f"{k}:<name>" for k in OVERRIDE_FIELDS)]
    raise PolicyError(f"unknown field {key!r}{did_you_mean(key, known)}")


def _parse_override(fields: Dict[str, Any], key: str, value: str) -> None:
    kind, _, target = key.partition(":")
    if kind not in OVERRIDE_FIELDS or not target:
        raise PolicyError(f"unknown override {key!r}; expected op:<name>, name:<pattern> or block:<pattern>")
    targets = fields.setdefault(OVERRIDE_FIELDS[kind], {})
    if target in targets:
        raise PolicyError(f"{kind} {target!r} is given twice")
    targets[target] = dtypes.canonical(value)


def _preset(name: str) -> Dict[str, Any]:
    found = {known.lower(): fields for known, fields in PRESETS.items()}.get(name.lower())
    if found is None:
        raise PolicyError(f"unknown policy {name!r}{did_you_mean(name, PRESETS)}")
    return found


def _fields(param: str, compute: str, output: str, **others: Any) -> Dict[str, Any]:
    return {"param_dtype": param, "compute_dtype": compute, "output_dtype": output, **others}


PRESETS: Dict[str, Dict[str, Any]] = {
    "O0": _fields("float32", "float32", "float32"),
    "O1": _fields("float32", "float16", "float32", loss_scale="dynamic"),
    "O2": _fields("float16", "float16", "float32", loss_scale="dynamic"),
    "O3": _fields("float16", "float16", "float32", pure=True),
    "mixed_float16": _fields("float32", "float16", "float32", loss_scale="dynamic"),
    "mixed_bfloat16": _fields("float32", "bfloat16", "float32"),
    "float16": _fields("float16", "float16", "float16", pure=True),
    "bfloat16": _fields("bfloat16", "bfloat16", "bfloat16", pure=True),
    "float32": _fields("float32", "float32", "float32"),
}
"""Fields of each named policy. O0 to O3 as in Apex, the others as in Keras."""
