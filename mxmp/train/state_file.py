"""Values in one .npz file: arrays plus a JSON header, nothing pickled. And pickles of MXNet's updaters, read alone.

A value is None, a bool, an int, a float, a str, or a list, tuple or dict of values, a numpy
scalar, an NDArray (dense or row_sparse) or a `MasterState`. In the header plain scalars stand
for themselves, everything else is ``{kind: content}``.
"""

from __future__ import annotations

import io
import json
import math
import os
import pickle
import zipfile
from typing import Any, Dict

import mxnet as mx
import numpy as np

from ..dtypes import BFLOAT16, canonical, to_numpy
from ..errors import StateError
from ..files import saving
from ..mxnet_private import copy_from_numpy
from .masters import MasterState

_HEADER = "header"
_FORMAT: Any = np.lib.format  # numpy gives its functions no types


class CannotEncodeError(Exception):
    """A value is none of those that a state file can hold."""


def encode(value: Any, arrays: Dict[str, np.ndarray[Any, Any]], prefix: str = "") -> Any:
    """Return JSON data for a value, or raise CannotEncodeError; its arrays are added, names with ``prefix``."""
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


def write(fname: str, header: Dict[str, Any], arrays: Dict[str, np.ndarray[Any, Any]]) -> None:
    """Write a file whole, or raise a CheckpointError and leave what was there as it was."""
    fname = os.fspath(fname)
    members = {_HEADER: np.array(json.dumps(header)), **arrays}
    with saving(f"{fname}: the states", fname) as (name,), zipfile.ZipFile(name, "w") as file:
        for member, array in members.items():  # as np.savez, which leaves its archive open where writing fails
            with file.open(f"{member}.npy", "w", force_zip64=True) as stream:
                _FORMAT.write_array(stream, array, allow_pickle=False)


class StateFile:
    """A file that was read, with its JSON header; errors, as of a file that `write` did not write, name the file."""

    def __init__(self, fname: str) -> None:
        self._fname = fname
        self._arrays = _read(fname)
        try:
            self.header: Dict[str, Any] = json.loads(str(self._arrays[_HEADER][()]))
        except (KeyError, ValueError, IndexError, RecursionError) as e:
            raise self.error("the header", "missing or no JSON", "the header of save_states") from e
        if not isinstance(self.header, dict):
            raise self.error("the header", repr(self.header), "a dict")

    def error(self, field: str, found: Any, expected: Any) -> StateError:
        """Return the error for a field that is not what it should be."""
        return StateError(f"{self._fname}: {field} is {found}; expected {expected}.")

    def decode(self, where: str, data: Any, ctx: mx.Context) -> Any:
        """Return the value that `encode` described, its arrays on ``ctx``; ``where`` is the field, for errors."""
        if data is None or isinstance(data, (bool, int, float, str)):
            return data
        try:
            return self._decode(where, data, ctx)
        except StateError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError, IndexError, RecursionError, mx.MXNetError) as e:
            raise self.error(where, "malformed", "what save_states writes") from e

    def _decode(self, where: str, data: Dict[str, Any], ctx: mx.Context) -> Any:
        ((kind, content),) = data.items()
        if type(content) is not list:
            raise self.error(where, f"a {kind} of {type(content).__name__}", "a list in it")
        if kind == "numpy":
            return self._scalar(where, *content)
        if kind == "array":
            return self._array(where, ctx, *content)
        if kind == "dict":
            pairs = [[self.decode(where, item, ctx) for item in pair] for pair in content]
            return {key: value for key, value in pairs}
        if kind == "row_sparse":
            return self._rows(where, ctx, *content)
        items = [self.decode(f"{where}[{i}]", item, ctx) for i, item in enumerate(content)]
        return MasterState(*items) if kind == "master" else {"list": list, "tuple": tuple}[kind](items)

    def _scalar(self, where: str, dtype: str, value: Any) -> np.generic:
        kind = np.dtype(dtype).type
        if not issubclass(kind, (np.number, np.bool_)) or not isinstance(value, (bool, int, float)):
            raise self.error(where, f"{value!r} of dtype {dtype!r}", "a number of a numeric dtype")
        return kind(value)

    def _rows(self, where: str, ctx: mx.Context, values: Any, rows: Any, shape: Any) -> Any:
        """Return a row_sparse array, whose indices MXNet follows wherever they lead."""
        values, rows = (self.decode(where, part, ctx) for part in (values, rows))
        places = rows.asnumpy()
        fits = rows.dtype == np.int64 and values.shape == (*places.shape, *shape[1:]) and places.ndim == 1
        if not (fits and (places[1:] > places[:-1]).all() and ((places >= 0) & (places < shape[0])).all()):
            raise self.error(where, f"values {values.shape} of rows that are not its", f"rows of an array {shape}")
        return mx.nd.sparse.row_sparse_array((values, rows), shape=tuple(shape), ctx=ctx)

    def _array(self, where: str, ctx: mx.Context, name: str, dtype: str, shape: Any) -> mx.nd.NDArray:
        array = self._arrays.get(name)
        stored = np.dtype(np.uint16) if dtype == BFLOAT16 else np.dtype(dtype)
        if array is None or array.dtype != stored or array.shape != tuple(shape):
            found = "missing" if array is None else f"{array.dtype} {array.shape}"
            raise self.error(where, found, f"{dtype} {tuple(shape)}")
        loaded = mx.nd.empty(array.shape, ctx=ctx, dtype=to_numpy(dtype))
        copy_from_numpy(loaded, array.view(to_numpy(dtype)))
        return loaded


class UpdaterFile(StateFile):
    """A file of ``Updater.get_states``, which scripts write past a trainer's save_states: the states alone, pickled."""

    def __init__(self, fname: str) -> None:
        self._fname = fname
        try:
            with open(fname, "rb") as stream:
                self.states = _StatesUnpickler(stream).load()
        except Exception as e:  # a damaged pickle raises all sorts
            raise _no_states(fname, e) from e
        if not isinstance(self.states, dict):
            raise self.error("the content", f"a {type(self.states).__name__}", "a dict of states")

    @staticmethod
    def is_one(fname: str) -> bool:
        """Return whether a file begins as a pickle does."""
        if not os.path.isfile(fname):  # the reader of states says so
            return False
        with open(fname, "rb") as stream:
            return stream.read(1) == pickle.PROTO


class _StatesUnpickler(pickle.Unpickler):
    """Makes arrays and containers alone, so that nothing of a file is run."""

    def find_class(self, module: str, name: str) -> Any:
        for kind in (bytearray, mx.nd.NDArray, mx.nd.sparse.RowSparseNDArray, MasterState):
            if (kind.__module__, kind.__name__) == (module, name):
                return kind
        raise pickle.UnpicklingError(f"it holds a {module}.{name}")


def _no_states(fname: str, e: Exception) -> StateError:
    return StateError(
        f"{fname}: not a file of optimizer states, or damaged ({str(e):.200}); expected one that mxmp's "
        "save_states wrote. Files of mxnet.gluon.Trainer cannot be read."
    )


def _read(fname: str) -> Dict[str, np.ndarray[Any, Any]]:
    try:
        with zipfile.ZipFile(fname) as file:
            size = os.path.getsize(fname)
            if min(info.header_offset for info in file.infolist()):
                raise ValueError("something stands before its first array")
            return {info.filename[: -len(".npy")]: _member(file, info, size) for info in file.infolist()}
    except FileNotFoundError:
        raise
    except Exception as e:  # zipfile and numpy raise all sorts: struct.error, RuntimeError, SyntaxError, ...
        raise _no_states(fname, e) from e


def _member(file: zipfile.ZipFile, info: zipfile.ZipInfo, size: int) -> np.ndarray[Any, Any]:
    """Return an array of an archive of ``size`` bytes, once what it declares is known to be there."""
    name = info.filename
    if not name.endswith(".npy") or info.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{name!r} is no array that is stored as it is")
    if info.file_size != info.compress_size or info.file_size > size:
        raise ValueError(f"{name} declares {info.file_size} bytes, the file has {size}")
    data = io.BytesIO(file.read(info))  # checks its sum
    version = _FORMAT.read_magic(data)
    read_header = {(1, 0): _FORMAT.read_array_header_1_0, (2, 0): _FORMAT.read_array_header_2_0}[version]
    shape, in_fortran_order, dtype = read_header(data)
    left = info.file_size - data.tell()
    if dtype.hasobject or min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != left:
        raise ValueError(f"{name} declares {dtype} {shape}, but has {left} bytes")
    array = np.frombuffer(data.getbuffer()[data.tell() :], dtype)
    return array.reshape(shape, order="F" if in_fortran_order else "C")
