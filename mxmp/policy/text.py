"""The fields of a policy from text: presets, and pairs of field and value."""

from __future__ import annotations

from typing import Any, Dict

from .. import dtypes
from ..errors import PolicyError, did_you_mean
from .fields import DTYPE_FIELDS, FLAG_FIELDS, OVERRIDE_FIELDS


def parse_fields(spec: str) -> Dict[str, Any]:
    """Return the fields that a comma-separated text sets, those of its preset among them.

    Raises:
        PolicyError: If a preset, field or value is unknown.
        DtypeError: If a dtype is unknown.
    """
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
    for known, fields in PRESETS.items():
        if known.lower() == name.lower():
            return dict(fields)
    raise PolicyError(f"unknown policy {name!r}{did_you_mean(name, PRESETS)}")


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
