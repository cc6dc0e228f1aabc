"""The values of arrays for numpy to read, without a copy where that is possible."""

from __future__ import annotations

import ctypes
from typing import Any

import mxnet as mx
import numpy as np

from .. import dtypes
from .devices import on_gpu
from .memory import address


def view(array: mx.nd.NDArray) -> np.ndarray[Any, Any]:
    """Return the values of an array, to be read while nothing writes to it.

    Those of a float32 array on a CPU are its own memory: a copy of a large one takes as long as what is read from it,
    for the most part because its pages are new. Others are copied. Waits for the array.
    """
    if on_gpu(array) or dtypes.canonical(array.dtype) != dtypes.FLOAT32 or not array.size:
        return array.asnumpy()  # type: ignore[no-any-return]
    memory: Any = (ctypes.c_float * array.size).from_address(address(array))
    memory.owner = array  # which lives as long as what is returned
    values = np.frombuffer(memory, np.float32).reshape(array.shape)
    values.flags.writeable = False
    return values
