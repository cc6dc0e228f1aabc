"""How many elements of arrays have which exponent, and the largest of each: what a loss scale is judged by.

A GPU counts in one launch for up to 200 arrays, without a copy of any; a CPU's arrays are counted by numpy at once.
"""

from __future__ import annotations

import functools
import logging
from typing import Any, Callable, Dict, List, Sequence, Tuple

import mxnet as mx
import numpy as np

from ... import dtypes
from ...arrays import chunks, on_gpu, view
from ...errors import mxnet_reason
from . import exponents_gpu

# Columns of a table: 254 binades of float32, with what a bin of 0 and one of 255 means there, and one more.
ZERO, NONFINITE, LARGEST, COLUMNS = 0, 255, 256, 257
BIAS = 127  # the column of [1, 2)

_LOG = logging.getLogger(__name__)
_PIECE = 2**16  # elements at a time, which stay in a processor's caches
_LOW_PIECE = 2**20  # of low precision, for which 2**15 counts are made

Read = Callable[[], Any]


def count_exponents(arrays: Sequence[mx.nd.NDArray]) -> Read:
    """Begin to count the elements of arrays by exponent; those of GPUs without any wait of the host.

    But for row_sparse ones, whose number of rows MXNet waits for.

    Args:
        arrays: Any shapes, contexts and floating point dtypes. Of a row_sparse one the stored rows are counted.

    Returns:
        A function that waits for the counts and returns a table of int64, shape (arrays, 257). A row's column ``e +
        127`` has how many elements are at least 2**e and below 2**(e+1) in magnitude, for e from -126 to 127. Column
        `ZERO` has those that are 0, or subnormal in float32; `NONFINITE` those that are infinite or NaN; and `LARGEST`
        the bits of the largest finite magnitude as a float32, see `largest`.
    """
    with mx.autograd.pause():
        stored = [_stored(array) for array in arrays]
    groups: Dict[Any, List[int]] = {}
    for number, array in enumerate(stored):
        if array.size:
            groups.setdefault((array.ctx, dtypes.canonical(array.dtype)), []).append(number)
    parts: List[Tuple[Sequence[int], Read]] = []
    for (_, dtype), numbers in groups.items():
        here = on_gpu(stored[numbers[0]]) and dtype in exponents_gpu.DTYPES
        count = _count_on_gpu if here else _count_on_host
        parts += [(some, count([stored[n] for n in some])) for some in chunks(numbers, exponents_gpu.MOST_ARRAYS)]
    return functools.partial(_joined, len(stored), parts)


def largest(rows: Any) -> Any:
    """Return the largest finite magnitudes of rows of a table, float32."""
    return rows[..., LARGEST].astype(np.uint32).view(np.float32)


def _joined(count: int, parts: Sequence[Tuple[Sequence[int], Read]]) -> Any:
    table = np.zeros((count, COLUMNS), np.int64)
    for numbers, read in parts:
        table[list(numbers)] = read()
    return table


def _stored(array: mx.nd.NDArray) -> mx.nd.NDArray:
    """Return the elements of an array that are stored, as a dense one."""
    array = array.as_nd_ndarray()
    return array if array.stype == "default" else array.data


def _count_on_gpu(arrays: Sequence[mx.nd.NDArray]) -> Read:
    try:
        return exponents_gpu.count(arrays)
    except mx.MXNetError as e:
        _warn(mxnet_reason(e))
        return _count_on_host(arrays)


@functools.lru_cache(maxsize=None)
def _warn(reason: str) -> None:
    _LOG.warning("Gradients are copied to the host to be counted, slowly: MXNet compiles no kernel here (%s).", reason)


def _count_on_host(arrays: Sequence[mx.nd.NDArray]) -> Read:
    table = np.stack([_row(array) for array in arrays])
    return lambda: table


def _row(array: mx.nd.NDArray) -> Any:
    """Return the row of one array; waits for it."""
    dtype = dtypes.canonical(array.dtype)
    values = view(array).reshape(-1)
    row = np.zeros(COLUMNS, np.int64)
    if dtype in dtypes.LOW_PRECISION:
        _add_low(dtype, values.view(np.uint16), row)
        return row
    for start in range(0, values.size, _PIECE):
        _add(values[start : start + _PIECE].astype(np.float32, copy=False), row)
    return row


def _add(values: Any, row: Any) -> None:
    """Add float32 values to a row."""
    counts = np.bincount(values.view(np.uint32) >> 23, minlength=512)  # the bits of sign and exponent
    row[:LARGEST] += counts[:256] + counts[256:]
    if counts[NONFINITE] or counts[NONFINITE + 256]:
        values = values[np.isfinite(values)]
    if values.size:
        top = max(abs(values.max()), abs(values.min()))
        row[LARGEST] = max(row[LARGEST], int(np.asarray(top, np.float32).view(np.uint32)))


def _add_low(dtype: str, bits: Any, row: Any) -> None:
    """Add low precision values, given as their bits: how often each pattern is there, then the values of those."""
    found = np.zeros(2**15, np.int64)
    for start in range(0, bits.size, _LOW_PIECE):
        found += np.bincount(bits[start : start + _LOW_PIECE] & 0x7FFF, minlength=2**15)
    (patterns,) = found.nonzero()
    values = _magnitudes(dtype)[patterns]
    columns = values.view(np.uint32) >> 23
    np.add.at(row, columns, found[patterns])
    row[LARGEST] = values[columns < NONFINITE].max(initial=0.0).view(np.uint32)


@functools.lru_cache(maxsize=None)
def _magnitudes(dtype: str) -> Any:
    """Return as float32 what the 2**15 patterns of bits of a low precision dtype without its sign mean."""
    bits = np.arange(2**15, dtype=np.uint32)
    if dtype == dtypes.FLOAT16:
        return bits.astype(np.uint16).view(np.float16).astype(np.float32)
    return (bits << 16).view(np.float32)
