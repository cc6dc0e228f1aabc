"""Values in one .npz file: arrays plus a JSON header, nothing pickled.

A value is None, a bool, an int, a float, a str, or a list, tuple or dict of values, a numpy
scalar, an NDArray (dense or row_sparse) or a `MasterState`. In the header plain scalars stand
for themselves, everything else is ``{kind: content}``.
"""

from __future__ import annotations

import json
import os
import zipfile
from typing import Any, Dict

import mxnet as mx
import numpy as np

from ..dtypes import BFLOAT16, canonical, to_numpy
from ..errors import StateError
from ..files import saving
from .multi_precision import MasterState

_HEADER = "header"


class CannotEncodeError(Exception):
    """A value is none of those that a state file can hold."""


def encode(value: Any, arrays: Dict[str, np.ndarray], prefix: str = "") -> Any:
    """Return JSON data for a value; its arrays are added to ``arrays``, names with ``prefix``.

    Raises:
        CannotEncodeError: If the value holds anything that a file cannot.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, np.generic):
        return {"numpy": [value.dtype.name, value.item()]}
    if isinstance(value, MasterState):
        return {"master": [encode(item, arrays, prefix) for item in (value.master, value.inner)]}
    if type(value) in (list, tuple):
        return {type(value).__name__: [encode(item, arrays, prefix) for item in value]}
    if type(value) is dict:
        pairs = [[encode(item, arrays, prefix) for item in pair] for pair in value.items()]
        return {"dict": pairs}
    if isinstance(value, mx.nd.sparse.RowSparseNDArray):
        parts = [encode(part, arrays, prefix) for part in (value.data, value.indices)]
        return {"row_sparse": [*parts, list(value.shape)]}
    if isinstance(value, mx.nd.NDArray) and value.stype == "default":
        dtype = canonical(value.dtype)
        array = value.asnumpy()
        name = f"{prefix}{len(arrays)}"
        arrays[name] = array.view(np.uint16) if dtype == BFLOAT16 else array
        return {"array": [name, dtype, list(value.shape)]}
    raise CannotEncodeError(type(value).__name__)


def write(fname: str, header: Dict[str, Any], arrays: Dict[str, np.ndarray]) -> None:
    """Write a file, whole or not at all.

    Raises:
        CheckpointError: If it cannot be written; then what was there is as it was.
    """
    fname = os.fspath(fname)
    members = {_HEADER: np.array(json.dumps(header)), **arrays}
    with saving(f"{fname}: the states", fname) as (name,), zipfile.ZipFile(name, "w") as file:
        for member, array in members.items():  # as np.savez, which leaves its archive open where writing fails
            with file.open(f"{member}.npy", "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, array, allow_pickle=False)


class StateFile:
    """A file that was read, with errors that name it.

    Attributes:
        header: The JSON header, a dict.

    Raises:
        StateError: If the file is not one of `write`, or damaged.
    """

    def __init__(self, fname: str) -> None:
        self._fname = fname
        self._arrays = _read(fname)
        try:
            self.header: Dict[str, Any] = json.loads(str(self._arrays[_HEADER][()]))
        except (KeyError, ValueError) as e:
            raise self.error("the header", "missing or no JSON", "the header of save_states") from e
        if not isinstance(self.header, dict):
            raise self.error("the header", repr(self.header), "a dict")

    def error(self, field: str, found: Any, expected: Any) -> StateError:
        """Return the error for a field that is not what it should be."""
        return StateError(f"{self._fname}: {field} is {found}; expected {expected}.")

    def decode(self, where: str, data: Any, ctx: mx.Context) -> Any:
        """Return the value that `encode` described, its arrays on ``ctx``.

        Args:
            where: The field, for errors.
            data: A part of the header.
            ctx: The context for arrays.

        Raises:
            StateError: If ``data`` is nothing that `encode` writes, or does not fit the arrays.
        """
        if data is None or isinstance(data, (bool, int, float, str)):
            return data
        try:
            return self._decode(where, data, ctx)
        except StateError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError, IndexError) as e:
            raise self.error(where, "malformed", "what save_states writes") from e

    def _decode(self, where: str, data: Dict[str, Any], ctx: mx.Context) -> Any:
        ((kind, content),) = data.items()
        if kind == "numpy":
            return np.dtype(content[0]).type(content[1])
        if kind == "array":
            return self._array(where, *content, ctx)
        if kind == "dict":
            pairs = [[self.decode(where, item, ctx) for item in pair] for pair in content]
            return {key: value for key, value in pairs}
        if kind == "row_sparse":
            parts = tuple(self.decode(where, part, ctx) for part in content[:2])
            return mx.nd.sparse.row_sparse_array(parts, shape=tuple(content[2]), ctx=ctx)
        items = [self.decode(f"{where}[{i}]", item, ctx) for i, item in enumerate(content)]
        return MasterState(*items) if kind == "master" else {"list": list, "tuple": tuple}[kind](items)

    def _array(self, where: str, name: str, dtype: str, shape: Any, ctx: mx.Context) -> mx.nd.NDArray:
        array = self._arrays.get(name)
        stored = np.dtype(np.uint16) if dtype == BFLOAT16 else np.dtype(dtype)
        if array is None or array.dtype != stored or array.shape != tuple(shape):
            found = "missing" if array is None else f"{array.dtype} {array.shape}"
            raise self.error(where, found, f"{dtype} {tuple(shape)}")
        loaded = mx.nd.empty(array.shape, ctx=ctx, dtype=to_numpy(dtype))
        loaded._sync_copyfrom(array.view(to_numpy(dtype)))
        return loaded


def _read(fname: str) -> Dict[str, np.ndarray]:
    try:
        # Opened here, because np.load leaks a file that is no archive.
        with open(fname, "rb") as raw, np.load(raw, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise
    except (OSError, ValueError, EOFError, AttributeError, TypeError, zipfile.BadZipFile) as e:
        raise StateError(
            f"{fname}: not a file of optimizer states, or damaged ({e}); expected one that mxmp's "
            "save_states wrote. Files of mxnet.gluon.Trainer cannot be read."
        ) from e
