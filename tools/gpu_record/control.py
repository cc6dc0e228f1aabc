"""Steers the record from inside a process that records: marks, its file, and what the host reads of flags."""

from __future__ import annotations

import ctypes
import os
from functools import lru_cache
from pathlib import Path
from typing import Sequence, Union

from mxmp.errors import MxmpError

DELIVERED_FLOATS = 16  # DELIVERED_BYTES in record.c


class NotRecordingError(MxmpError, RuntimeError):
    """This process does not run under the recorder."""


@lru_cache(maxsize=None)
def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL("libcudart.so.11.0")
        library.gpu_record_deliver.argtypes = [ctypes.POINTER(ctypes.c_float), ctypes.c_int]
    except (OSError, AttributeError):
        raise NotRecordingError(
            "this process does not record what it asks of a GPU; start it with env=tools.gpu_record.process.environment"
            "(folder, record)"
        ) from None
    return library


def mark(name: str) -> None:
    """Start a section of the record, until the next mark; call ``mx.nd.waitall()`` first, since MXNet runs ahead."""
    _library().gpu_record_mark(name.encode())


def open_record(path: Union[str, Path]) -> None:
    """Go on in another file; with an OSError, in the old one."""
    error = _library().gpu_record_open(os.fsencode(path))
    if error:
        raise OSError(error, os.strerror(error), str(path))


def deliver(value: Union[float, Sequence[float], None]) -> None:
    """Set what the host reads of flags, since no kernel computes them.

    From now on each copy of an NDArray of at most 64 bytes to the host (``asnumpy``, ``asscalar``, ``as_in_context``)
    gives float32 numbers: the given ones, at most 16, then ones. So ``deliver(1.0)`` has all gradients finite, and
    ``deliver(0.0)`` has the first flag of each copy say that they are not. An array of another dtype has the
    same bytes. Larger copies give what the memory holds; with None all do, from now on.
    """
    if value is None:
        _library().gpu_record_deliver(None, -1)
        return
    values = [float(value)] if isinstance(value, (int, float)) else [float(one) for one in value]
    if len(values) > DELIVERED_FLOATS:
        raise ValueError(f"deliver() takes at most {DELIVERED_FLOATS} numbers, got {len(values)}")
    _library().gpu_record_deliver((ctypes.c_float * len(values))(*values), len(values))
