"""The values of arrays for numpy to read, without a copy where that is possible."""

from __future__ import annotations

from typing import Any, Tuple

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
    dtype, shape = array.dtype, array.shape  # each question to an array takes a call of MXNet
    if on_gpu(array) or dtypes.canonical(dtype) not in _SHARED or 0 in shape:
        return array.asnumpy()  # type: ignore[no-any-return]
    return np.asarray(_Memory(array, np.dtype(dtype), shape))


class _Memory:
    """An array's memory, for numpy to read, whose views keep the array alive."""

    def __init__(self, array: mx.nd.NDArray, dtype: np.dtype[Any], shape: Tuple[int, ...]) -> None:
        self._array = array
        read_only = True
        data = address(array), read_only
        self.__array_interface__ = {
            "version": 3, "data": data, "shape": shape, "typestr": dtype.str, "descr": dtype.descr
        }  # fmt: skip
