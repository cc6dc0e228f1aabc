"""Reads and writes files of arrays and symbols through MXNet, and checks what MXNet does not.

What MXNet writes on a full disk is cut off without an error: all of a symbol's file, the last 4 KiB of
an arrays file. What it reads from a damaged file may take all memory (`mxmp.arrays_file`).
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, Union

import mxnet as mx

from ..arrays_file import check_arrays_file
from ..errors import CheckpointError, mxnet_reason

Arrays = Union[Dict[str, Any], List[Any]]

_NOT_WHOLE = "what was written is not whole; is the disk full?"
_INCOMPLETE = "FileStream.Write incomplete"  # as MXNet says it, where it notices


def load_arrays(file: str) -> Arrays:
    """Return what ``mx.nd.save`` wrote; a CheckpointError names the entry of a damaged file."""
    file = os.fspath(file)
    check_arrays_file(file)
    try:
        arrays: Arrays = mx.nd.load(file)
        for array in arrays.values() if isinstance(arrays, dict) else arrays:
            if min(array.shape, default=0) < 0:
                raise ValueError(f"a size of the shape {array.shape} is beyond what this MXNet counts")
    except (mx.MXNetError, ValueError, OSError) as e:
        raise CheckpointError(f"{file}: MXNet cannot load it: {mxnet_reason(e)}") from e
    return arrays


def write_arrays(file: str, arrays: Arrays) -> None:
    """Write arrays, as ``mx.nd.save``, and raise OSError if not all of it was written."""
    values = arrays.values() if isinstance(arrays, dict) else arrays
    for array in values:
        array.wait_to_read()  # MXNet writes the shape of sparse values before it waits for them
    is_numpy = any(isinstance(array, mx.np.ndarray) for array in values)
    try:
        (mx.npx.save if is_numpy else mx.nd.save)(file, arrays)
    except mx.MXNetError as e:
        raise OSError(_NOT_WHOLE if _INCOMPLETE in str(e) else mxnet_reason(e)) from e
    require_whole(file)


def require_whole(file: str) -> None:
    """Raise OSError if a file of arrays that MXNet has just written is cut off."""
    try:
        check_arrays_file(file)
    except CheckpointError as e:
        raise OSError(_NOT_WHOLE) from e


def write_symbol(file: str, symbol: Any, remove_amp_cast: bool = False) -> None:
    """Write a symbol's JSON, as ``Symbol.save``, and raise OSError if that fails."""
    with open(file, "w", encoding="utf-8", newline="\n") as stream:
        stream.write(symbol.tojson(remove_amp_cast=remove_amp_cast))
