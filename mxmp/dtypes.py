"""Names, aliases and limits of the dtypes that mxmp deals with.

In all other files of mxmp a dtype is its full name as a string ('float16', 'bfloat16', 'float32', ...). numpy is
imported when one of its dtypes is first asked for, because the command line reads policies without it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

from .errors import DtypeError

if TYPE_CHECKING:
    import numpy as np

FLOAT16 = "float16"
BFLOAT16 = "bfloat16"
FLOAT32 = "float32"

LOW_PRECISION = (FLOAT16, BFLOAT16)  # that mixed precision computes in
PRECISIONS = (*LOW_PRECISION, FLOAT32)  # that a policy can name

# Bytes per element, for every dtype that MXNet 1.9.1 knows.
ITEM_BYTES = dict(float16=2, bfloat16=2, float32=4, float64=8, uint8=1, int8=1, int32=4, int64=8, bool=1)

_ALIASES = {
    **dict.fromkeys(("half", "fp16", "f16"), FLOAT16),
    **dict.fromkeys(("bf16",), BFLOAT16),
    **dict.fromkeys(("float", "single", "fp32", "f32"), FLOAT32),
    **dict.fromkeys(("double", "fp64", "f64"), "float64"),
}

# MXNet's type flags (3rdparty/mshadow/mshadow/base.h, TypeFlag, at tag 1.9.1); they are how
# nnvm JSON writes the dtype of a variable (attribute __dtype__).
_FLAGS = {
    **dict(zip("01234567", (FLOAT32, "float64", FLOAT16, "uint8", "int32", "int8", "int64", "bool"))),
    "12": BFLOAT16,
}
_FLAG_OF = {name: flag for flag, name in _FLAGS.items()}


def __getattr__(name: str) -> Any:
    if name == "NUMPY_BFLOAT16":  # MXNet's substitute for the dtype that numpy lacks
        return to_numpy(BFLOAT16)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class FloatLimits(NamedTuple):
    """Largest finite, smallest normal and smallest positive value; distance from 1.0 to the next larger one."""

    max: float
    tiny: float
    smallest_subnormal: float
    eps: float


_LIMITS = {
    FLOAT16: FloatLimits(65504.0, 2.0**-14, 2.0**-24, 2.0**-10),
    BFLOAT16: FloatLimits((2.0 - 2.0**-7) * 2.0**127, 2.0**-126, 2.0**-133, 2.0**-7),
    FLOAT32: FloatLimits((2.0 - 2.0**-23) * 2.0**127, 2.0**-126, 2.0**-149, 2.0**-23),
}


def canonical(dtype: Any) -> str:
    """Return the full name of a dtype of MXNet, given as name, alias or numpy dtype; DtypeError if it is none.

    Example:
        >>> import numpy as np
        >>> canonical("half"), canonical(np.float32)
        ('float16', 'float32')
    """
    try:
        name = _name_of(dtype)
    except TypeError:
        name = ""
    if dtype is None or name not in ITEM_BYTES:  # numpy takes None for float64
        raise DtypeError(f"unknown dtype {dtype!r}; expected float16, bfloat16 or float32.")
    return name


@functools.lru_cache(maxsize=64)
def _name_of(dtype: Any) -> str:
    # numpy computes a dtype's name at each access, and networks ask often.
    if isinstance(dtype, str):
        return _ALIASES.get(dtype.strip().lower(), dtype.strip().lower())
    import numpy as np

    numpy_dtype = np.dtype(dtype)
    return BFLOAT16 if numpy_dtype == to_numpy(BFLOAT16) else str(numpy_dtype.name)


def from_flag(flag: str) -> str | None:
    """Return the dtype of MXNet's type flag, or None for 'unknown' (-1)."""
    return _FLAGS.get(flag)


def to_flag(dtype: str) -> str:
    """Return MXNet's type flag of a dtype, as nnvm JSON spells it."""
    return _FLAG_OF[dtype]


@functools.lru_cache(maxsize=None)
def to_numpy(dtype: str) -> np.dtype[Any]:
    """Return the numpy dtype that MXNet uses for a dtype name (python/mxnet/base.py at tag 1.9.1).

    numpy has no bfloat16; MXNet's substitute is a record of one field.
    """
    import numpy as np

    return np.dtype([("bfloat16", np.uint16)] if dtype == BFLOAT16 else dtype)


def limits(dtype: str) -> FloatLimits:
    """Return the limits of float16, bfloat16 or float32."""
    return _LIMITS[dtype]
