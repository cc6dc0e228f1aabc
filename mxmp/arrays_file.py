"""Files of arrays (``mx.nd.save``, ``.params``): their structure, checked before MXNet reads them.

MXNet believes the sizes that a file declares: a damaged one makes it ask for terabytes, write beyond
its buffers or return an array of another size. Here the file is walked from record to record without
reading values. The format is ``NDArray::Save`` and ``Load`` in src/ndarray/ndarray.cc at tag 1.9.1.
"""

from __future__ import annotations

import math
import os
import struct
from typing import Any, BinaryIO, Iterable, NoReturn, Tuple

import numpy as np

from .errors import CheckpointError
from .files import require_file

_LIST_MAGIC = 0x112
_V1, _V2, _V3 = 0xF993FAC8, 0xF993FAC9, 0xF993FACA  # with 64-bit sizes; with storage types; with numpy's shapes
_ITEM_BYTES = {0: 4, 1: 8, 2: 2, 3: 1, 4: 4, 5: 1, 6: 8, 7: 1, 12: 2}  # mshadow's type flags that can be loaded
_ROW_SPARSE = 1
_AUXILIARY = {0: 0, _ROW_SPARSE: 1, 2: 2}  # storage type -> arrays of indices: dense, row_sparse, csr
_INDEX_DTYPES = {4: "<i4", 6: "<i8"}
_DEVICES = (1, 2, 3, 5)  # cpu, gpu, cpu_pinned, cpu_shared
_MAX_AXES = 32  # numpy's limit, which no NDArray can be read with beyond
_SMALLEST_ENTRY, _SMALLEST_NAME = 4, 8  # bytes

Shape = Tuple[int, ...]


def check_arrays_file(file: str) -> int:
    """Check that a file is one of arrays, and that what it declares is there; return the number of arrays.

    The CheckpointError names the entry, as a number from 0 (the names stand at the end of the file), what it
    declares and what is there.
    """
    require_file(file)
    try:
        with open(file, "rb") as stream:
            return _Walk(file, stream, os.fstat(stream.fileno()).st_size).run()
    except CheckpointError:
        raise
    except OSError as e:
        raise CheckpointError(f"{file}: it cannot be read: {e.strerror or e}") from e


class _Walk:
    """Reads the structure of a file, record by record."""

    def __init__(self, file: str, stream: BinaryIO, size: int) -> None:
        self._file, self._stream, self._size = file, stream, size
        self._where = "the header"  # what is being read, for errors

    def run(self) -> int:
        magic, _ = self._numbers("QQ")
        if magic != _LIST_MAGIC:
            self._fail(f"found {magic:#x}, expected {_LIST_MAGIC:#x}, which a file of mx.nd.save begins with")
        count = self._count("arrays", _SMALLEST_ENTRY)
        for number in range(count):
            self._where = f"entry {number}"
            self._entry()
        self._names(count)
        if self._left:
            self._where = "the end"
            self._fail(f"found {self._left} bytes more, expected none")
        return count

    @property
    def _left(self) -> int:
        return self._size - self._stream.tell()

    def _fail(self, text: str) -> NoReturn:
        hint = "The file is truncated, damaged, or no file of parameters."
        raise CheckpointError(f"{self._file}: {self._where}: {text}. {hint}")

    def _numbers(self, form: str) -> Tuple[int, ...]:
        """Read little-endian numbers."""
        size = struct.calcsize("<" + form)
        data = self._stream.read(size) if size <= self._left else b""
        if len(data) != size:
            self._fail(f"the file ends; expected {size} bytes more, found {self._left}")
        return struct.unpack("<" + form, data)

    def _count(self, what: str, smallest: int) -> int:
        """Read how many of something there are, no more than the file has room for."""
        (count,) = self._numbers("Q")
        if count * smallest > self._left:
            self._fail(f"{count} {what} declared, but {self._left} bytes are left in the file")
        return count

    def _skip(self, shape: Shape, item_bytes: int) -> None:
        size = math.prod(shape) * item_bytes
        if size > self._left:
            self._fail(f"the shape {shape} of {item_bytes} bytes each needs {size} bytes, found {self._left}")
        self._stream.seek(size, os.SEEK_CUR)

    def _shape(self, axes: int, form: str = "q") -> Shape:
        if not 0 <= axes <= _MAX_AXES:
            self._fail(f"found {axes} axes, expected 0 to {_MAX_AXES}")
        shape = self._numbers(form * axes)
        if min(shape, default=0) < 0:
            self._fail(f"found the shape {shape}, expected sizes from 0 on")
        return shape

    def _sized_shape(self) -> Shape:
        (axes,) = self._numbers("i")
        return self._shape(axes)

    def _flag(self, what: str, known: Iterable[int]) -> int:
        """Read a number, of what ``what`` says with braces in its place, that is one of those known."""
        (flag,) = self._numbers("i")
        if flag not in known:
            self._fail(f"found the {what.format(flag)}, expected one of {sorted(known)}")
        return flag

    def _item_bytes(self) -> int:
        return _ITEM_BYTES[self._flag("dtype number {}", _ITEM_BYTES)]

    def _context(self) -> None:
        device, number = self._numbers("ii")
        if device not in _DEVICES or number < 0:
            self._fail(f"found the device type {device} with number {number}, expected types {_DEVICES} and 0 on")

    def _entry(self) -> None:
        (magic,) = self._numbers("I")
        if magic in (_V2, _V3):
            self._versioned(magic)
            return
        shape = self._sized_shape() if magic == _V1 else self._shape(magic, "I")  # before V1 the number of axes
        self._context()
        self._skip(shape, self._item_bytes())

    def _versioned(self, magic: int) -> None:
        """Walk over an array of MXNet 1.0 and later: shapes, place, dtypes, then all values."""
        storage = self._flag("storage type {}", _AUXILIARY)
        stored = self._sized_shape() if _AUXILIARY[storage] else None
        shape = self._sized_shape()
        if not shape and magic == _V2:
            return  # an empty NDArray, without values
        self._context()
        values = (shape if stored is None else stored), self._item_bytes()
        indices = []
        for _ in range(_AUXILIARY[storage]):
            dtype = _INDEX_DTYPES[self._flag("dtype number {} of indices", _INDEX_DTYPES)]
            indices.append((dtype, self._sized_shape()))
        self._skip(*values)
        if stored is None:
            return
        found = [self._indices(*each) for each in indices]
        if not (_rows_fit if storage == _ROW_SPARSE else _csr_fits)(shape, stored, *found):
            sizes = [len(each) for each in found]
            self._fail(f"{stored} values and {sizes} indices that do not fit a sparse array of the shape {shape}")

    def _indices(self, dtype: str, shape: Shape) -> np.ndarray[Any, Any]:
        """Read the indices of a sparse array, which MXNet follows wherever they lead."""
        start, item_bytes = self._stream.tell(), np.dtype(dtype).itemsize
        if len(shape) != 1:
            self._fail(f"found indices of the shape {shape}, expected one axis")
        self._skip(shape, item_bytes)
        self._stream.seek(start)
        return np.frombuffer(self._stream.read(shape[0] * item_bytes), dtype)

    def _names(self, count: int) -> None:
        self._where = "the names"
        names = self._count("names", _SMALLEST_NAME)
        if names not in (0, count):
            self._fail(f"found {names}, expected {count}, one for each array, or none")
        seen = set()
        for number in range(names):
            self._where = f"the name of entry {number}"
            size = self._count("bytes", 1)
            try:
                name = self._stream.read(size).decode("utf-8")
            except UnicodeDecodeError:
                self._fail("it is no UTF-8")
            if "\0" in name or name in seen:
                self._fail(f"found {name!r}, expected names without a zero byte, each once")
            seen.add(name)


def _rows_fit(shape: Shape, stored: Shape, rows: np.ndarray[Any, Any]) -> bool:
    """Return whether the values of a row_sparse array are those of rows that it has."""
    return stored == (len(rows), *shape[1:]) and _within(rows, shape[0]) and bool((rows[1:] > rows[:-1]).all())


def _csr_fits(shape: Shape, stored: Shape, starts: np.ndarray[Any, Any], columns: np.ndarray[Any, Any]) -> bool:
    """Return whether the values of a csr array have places in it, row by row."""
    if len(shape) != 2 or stored != (len(columns),) or not _within(columns, shape[1]):
        return False
    if not len(starts):
        return not len(columns)  # zeros, which MXNet saves without indices
    ends = len(starts) == shape[0] + 1 and starts[0] == 0 and starts[-1] == len(columns)
    return ends and bool((starts[1:] >= starts[:-1]).all())


def _within(indices: np.ndarray[Any, Any], size: int) -> bool:
    return not len(indices) or (indices.min() >= 0 and indices.max() < size)
