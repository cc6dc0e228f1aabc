"""Names of kernels: from C++ symbols to what they compute in which dtypes."""

from __future__ import annotations

import ctypes
import re
from functools import lru_cache
from typing import Callable, Optional, Tuple

SIZES = {
    **dict.fromkeys(("bool", "uint8", "int8"), 1),
    **dict.fromkeys(("float16", "bfloat16"), 2),
    **dict.fromkeys(("float32", "int32"), 4),
    **dict.fromkeys(("float64", "int64", "uint64"), 8),
}
"""Bytes of a value of each dtype."""

_CPP = {
    **{"float": "float32", "double": "float64", "half_t": "float16", "half2_t": "float16", "bf16_t": "bfloat16"},
    **{"unsigned char": "uint8", "signed char": "int8", "int": "int32", "long": "int64", "unsigned long": "uint64"},
    "bool": "bool",
}
_TYPE = r"(?:\w+::)*(unsigned char|unsigned long|signed char|float|double|half_t|half2_t|bf16_t|int|long|bool)"
_ARRAY = re.compile(rf"{_TYPE}(?: const)?\*|\bTensor<mshadow::gpu, \d+, {_TYPE}|\b(?:DeviceTensor|BNTensor3)<{_TYPE}")
# The whole of what a mapping kernel assigns is a conversion; one inside a longer expression costs no launch.
_TYPECAST = re.compile(
    rf"MapPlan(?:Large)?Kernel<.*Plan<mshadow::expr::TypecastExp<{_TYPE}, {_TYPE}, mshadow::Tensor<[^<>]*>, 1>"
)
_CAST = re.compile(rf"mxnet_generic_kernel<mxnet::op::mshadow_op::identity_with_cast, {_TYPE}\*, {_TYPE}")


@lru_cache(maxsize=None)
def demangle(name: str) -> str:
    """Return a C++ symbol as C++ writes it; a name that is no symbol as it is."""
    status = ctypes.c_int()
    demangler, free = _demangler()
    text = demangler(name.encode(), None, None, ctypes.byref(status))
    if not text:
        return name
    try:
        return ctypes.string_at(text).decode()
    finally:
        free(text)


@lru_cache(maxsize=None)
def cast_of(kernel: str) -> Optional[Tuple[str, str]]:
    """Return the dtypes from and to which a demangled kernel casts, if it does nothing else; else None.

    Conversions of indices (``tcast_clip``, in Embedding and take) are no casts of data.
    """
    found = _TYPECAST.search(kernel) or _CAST.search(kernel)
    if found is None:
        return None
    target, source = (_CPP[name] for name in found.groups())
    return None if source == target else (source, target)


@lru_cache(maxsize=None)
def dtypes_of(kernel: str) -> Tuple[str, ...]:
    """Return the dtypes of the arrays that a demangled kernel is given, in their order."""
    name = _without_arguments(kernel)
    return tuple(_CPP["".join(found)] for found in _ARRAY.findall(kernel[len(name) :]))


def base_name(kernel: str) -> str:
    """Return the function's own name of a demangled kernel, like ``softmax_grad_kernel``."""
    return re.sub(r"^void ", "", kernel).partition("<")[0].partition("(")[0].rpartition("::")[2]


def _without_arguments(kernel: str) -> str:
    """Return a demangled function up to the parenthesis that opens its arguments."""
    if not kernel.endswith(")"):
        return kernel
    depth = 0
    for position in range(len(kernel) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(kernel[position], 0)
        if depth == 0:
            return kernel[:position]
    return kernel


@lru_cache(maxsize=None)
def _demangler() -> Tuple[Callable[..., int], Callable[[int], None]]:
    """Return ``__cxa_demangle`` of the C++ library, which MXNet loads too, and ``free``."""
    demangler = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
    demangler.restype = ctypes.c_void_p
    free = ctypes.CDLL(None).free
    free.argtypes = [ctypes.c_void_p]
    return demangler, free
