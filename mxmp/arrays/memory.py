"""Arrays on a CPU as memory: where they lie, and whether two hold the same bits."""

from __future__ import annotations

import ctypes

import mxnet as mx
import numpy as np
from mxnet.base import check_call

from ..mxnet_private import library

_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_memcmp.restype = ctypes.c_int


def address(array: mx.nd.NDArray) -> int:
    """Return where an array begins, 0 for a row_sparse one without rows; waits for whatever writes it."""
    array.wait_to_read()  # or a layout of oneDNN could be changed while it is looked at
    pointer = ctypes.c_void_p()
    check_call(library.MXNDArrayGetData(array.handle, ctypes.byref(pointer)))
    return pointer.value or 0


def same_bits(first: mx.nd.NDArray, second: mx.nd.NDArray) -> bool:
    """Return whether two dense arrays on a CPU, of one shape and dtype, hold the same bits; waits for both."""
    size = first.size * np.dtype(first.dtype).itemsize
    return int(_memcmp(address(first), address(second), size)) == 0
