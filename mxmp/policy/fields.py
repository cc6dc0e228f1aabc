"""The fields of a policy: their names in text, and functions that check and normalise their values."""

from __future__ import annotations

import math
from typing import Any, Iterable, Mapping, Tuple, Union

from .. import dtypes
from ..errors import DtypeError, PolicyError

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
        pairs = dict(value)
    except (TypeError, ValueError):
        raise PolicyError(f"{field}={value!r}: expected a dict or pairs of pattern and dtype.") from None
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
