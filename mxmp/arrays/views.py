"""The values of arrays for numpy to read, without a copy where that is possible."""

from __future__ import annotations

import ctypes
from typing import Any

import mxnet as mx
import numpy as np

from .. import dtypes
from .devices import on_gpu
from .memory import address

_SHARED = frozenset({dtypes.FLOAT32, *dtypes.LOW_PRECISION})


def view(array: mx.nd.NDArray) -> np.ndarray[Any, Any]:
    """Return the values of an array, to be read while nothing writes to it.

    Those of an array on a CPU, of float32 or low precision, are its own memory: a copy of a large one takes as long as
    what is read from it, for the most part because its pages are new. Others are copied. Waits for the array.
    """
    dtype = array.dtype
    if on_gpu(array) or dtypes.canonical(dtype) not in _SHARED or not array.size:
        return array.asnumpy()  # type: ignore[no-any-return]
    memory: Any = (ctypes.c_char * (array.size * np.dtype(dtype).itemsize)).from_address(address(array))
    memory.owner = array  # which lives as long as what is returned
    values = np.frombuffer(memory, dtype).reshape(array.shape)
    values.flags.writeable = False
    return values
