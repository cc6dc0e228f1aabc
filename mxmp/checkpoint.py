"""The files of a checkpoint: their names, ``net-symbol.json`` and ``net-0007.params``, and checks of parameter files.

MXNet trusts the sizes in a file of arrays (``mx.nd.save``, ``.params``). With a damaged file it asks for terabytes, or
writes beyond its buffers. It follows the indices of sparse arrays without a check. Here the file is read record by
record: indices are read, values are not. The format is that of ``NDArray::Save`` and ``Load`` in src/ndarray/ndarray.cc
at tag 1.9.1.
"""

from __future__ import annotations

import io
import math
import os
import re
import struct
from glob import escape, glob
from typing import TYPE_CHECKING, Any, BinaryIO, List, NoReturn, Optional, Sequence, Tuple

from .errors import CheckpointError
from .files import require_file, require_folder

if TYPE_CHECKING:  # a command that refuses its arguments needs no numpy
    import numpy as np

_EPOCH = re.compile(r"-(\d{4}|[1-9]\d{4,})\.params")


def checkpoint_files(prefix: str, epoch: int) -> Tuple[str, str]:
    """Return the names of a checkpoint's symbol and parameters; the epoch must be a whole number from 0 on."""
    if type(epoch) is not int or epoch < 0:
        raise CheckpointError(f"epoch={epoch!r}: expected a whole number from 0 on, as in '{prefix}-0007.params'.")
    return f"{prefix}-symbol.json", f"{prefix}-{epoch:04d}.params"


def saved_epochs(prefix: str) -> List[int]:
    """Return the epochs with a file of parameters, in ascending order."""
    matches = [_EPOCH.fullmatch(file, len(prefix)) for file in glob(f"{escape(prefix)}-*.params")]
    return sorted(int(match[1]) for match in matches if match)


def describe_epochs(prefix: str) -> str:
    """Return a text on the epochs that exist, '' if there are none."""
    epochs = saved_epochs(prefix)
    one = "there is epoch" if len(epochs) == 1 else "there are epochs"
    return f"{one} {', '.join(map(str, epochs))}" if epochs else ""


def params_file_of(prefix: str, epoch: int) -> str:
    """Return the name of an existing file of parameters; if it is missing, the CheckpointError lists the epochs."""
    file = checkpoint_files(prefix, epoch)[1]
    if not os.path.lexists(file):
        epochs = describe_epochs(prefix)
        raise CheckpointError(f"{file}: there is no such file{epochs and '; '}{epochs}.")
    return file


def require_checkpoint(prefix: str, epoch: Optional[int] = None) -> None:
    """Check, before any work, that a symbol's file exists, and with an epoch that its parameters do."""
    require_file(f"{prefix}-symbol.json")
    if epoch is not None:
        params_file_of(prefix, epoch)


def check_out_prefix(prefix: str, out_prefix: str, argument: str = "out_prefix=") -> None:
    """Refuse, before any work, to write over the checkpoint itself or into a missing folder.

    ``argument`` is the text before ``out_prefix`` in the message.
    """
    if os.path.realpath(prefix) == os.path.realpath(out_prefix):
        raise CheckpointError(f"{argument}{out_prefix!r} is the prefix of the checkpoint itself; give another.")
    require_folder(out_prefix)


_LIST_MAGIC = 0x112
_V1, _V2, _V3 = 0xF993FAC8, 0xF993FAC9, 0xF993FACA  # with 64-bit sizes; with storage types; with numpy's shapes
_ITEM_BYTES = {0: 4, 1: 8, 2: 2, 3: 1, 4: 4, 5: 1, 6: 8, 7: 1, 12: 2}  # mshadow's type flags that can be loaded
_INT64 = 6  # the flag of all indices
_DEVICES = (1, 2, 3, 5)  # cpu, gpu, cpu_pinned, cpu_shared
_MAX_AXES = 32  # numpy's limit: an NDArray with more cannot be read


def check_arrays_file(file: str) -> int:
    """Check that a file of arrays has all that it declares; return the number of arrays.

    The CheckpointError names the entry by a number from 0, because names are at the end of the file. It says which size
    is declared and which is there. Values are not read. The indices of a sparse array must be places in it.
    """
    require_file(file)
    try:
        with open(file, "rb") as stream:
            return _Walk(file, stream).run()
    except CheckpointError:
        raise
    except OSError as e:
        raise CheckpointError(f"{file}: it cannot be read: {e.strerror or e}") from e


def check_array(data: bytes) -> None:
    """Check the bytes of one array, as a pickle has them, in the same way as those in a file."""
    walk = _Walk("a pickle", io.BytesIO(data))
    walk.where = "an array"
    walk.entry()
    walk.end()


class _Walk:
    """Reads the structure of a file, record by record."""

    def __init__(self, file: str, stream: BinaryIO) -> None:
        self._file, self._stream, self._size = file, stream, stream.seek(0, os.SEEK_END)
        stream.seek(0)
        self.where = "the header"  # for errors

    def run(self) -> int:
        magic, _ = self._numbers("QQ")
        if magic != _LIST_MAGIC:
            self._fail(f"found {magic:#x}, expected {_LIST_MAGIC:#x}, which a file of mx.nd.save begins with")
        count = self._count("arrays", 4)  # bytes of the smallest entry
        for number in range(count):
            self.where = f"entry {number}"
            self.entry()
        self.where = "the names"
        names = self._count("names", 8)
        if names not in (0, count):
            self._fail(f"found {names}, expected {count}, one for each array, or none")
        for number in range(names):
            self.where = f"the name of entry {number}"
            self._stream.seek(self._count("bytes", 1), os.SEEK_CUR)
        self.end()
        return count

    def end(self) -> None:
        """Refuse bytes after the last record."""
        self.where = "the end"
        if self._left:
            self._fail(f"found {self._left} bytes more, expected none")

    def entry(self) -> None:
        """Read the record of an array: shapes, device and dtypes; skip its values."""
        (magic,) = self._numbers("I")
        # The storage types are dense, row_sparse and csr, with as many arrays of indices.
        index_arrays = self._flag("storage type", (0, 1, 2)) if magic in (_V2, _V3) else 0
        stored_shape = self._shape() if index_arrays else None
        # Before V1 the number of axes is in the magic's place, and sizes have 32 bits.
        shape = self._shape() if magic in (_V1, _V2, _V3) else self._shape(magic, "I")
        if not shape and magic != _V3:
            return  # an empty NDArray, without values
        self._flag("device type", _DEVICES)
        self._numbers("i")  # of the device
        item_bytes = _ITEM_BYTES[self._flag("dtype number", _ITEM_BYTES)]
        index_shapes = [self._index_shape() for _ in range(index_arrays)]
        self._stream.seek(self._bytes(shape if stored_shape is None else stored_shape, item_bytes), os.SEEK_CUR)
        indices = [self._indices(sizes) for sizes in index_shapes]
        if stored_shape is not None:
            fits = are_rows if index_arrays == 1 else _are_rows_and_columns
            if not fits(shape, stored_shape, *indices):
                self._fail(f"{stored_shape} values have indices that are not places in an array of the shape {shape}")

    def _bytes(self, shape: Sequence[int], item_bytes: int) -> int:
        """Return the size of values; fail if the file has less."""
        size = math.prod(shape) * item_bytes
        if size > self._left:
            self._fail(f"the shape {shape} of {item_bytes} bytes each needs {size} bytes, found {self._left}")
        return size

    def _index_shape(self) -> Tuple[int, ...]:
        self._flag("dtype number of indices", (_INT64,))
        return self._shape()

    def _indices(self, shape: Sequence[int]) -> np.ndarray[Any, Any]:
        import numpy as np

        data = self._stream.read(self._bytes(shape, 8))
        return np.frombuffer(data, "<i8").reshape(shape)

    @property
    def _left(self) -> int:
        return self._size - self._stream.tell()

    def _fail(self, text: str) -> NoReturn:
        hint = "The file is truncated, damaged, or no file of parameters."
        raise CheckpointError(f"{self._file}: {self.where}: {text}. {hint}")

    def _numbers(self, form: str) -> Tuple[int, ...]:
        size = struct.calcsize("<" + form)
        if size > self._left:
            self._fail(f"the file ends; expected {size} bytes more, found {self._left}")
        return struct.unpack("<" + form, self._stream.read(size))

    def _count(self, things: str, smallest: int) -> int:
        (count,) = self._numbers("Q")  # no more than the file has room for
        if count * smallest > self._left:
            self._fail(f"{count} {things} declared, but {self._left} bytes are left in the file")
        return count

    def _shape(self, axes: Optional[int] = None, form: str = "q") -> Tuple[int, ...]:
        axes = self._numbers("i")[0] if axes is None else axes
        if not 0 <= axes <= _MAX_AXES:
            self._fail(f"found {axes} axes, expected 0 to {_MAX_AXES}")
        shape = self._numbers(form * axes)
        if min(shape, default=0) < 0:
            self._fail(f"found the shape {shape}, expected sizes from 0 on")
        return shape

    def _flag(self, field: str, expected: Any) -> int:
        (flag,) = self._numbers("i")
        if flag not in expected:
            self._fail(f"found the {field} {flag}, expected one of {sorted(expected)}")
        return flag


def are_rows(shape: Sequence[int], stored_shape: Sequence[int], rows: np.ndarray[Any, Any]) -> bool:
    """Return whether values of a shape are rows of a row_sparse array, in order, at indices that exist."""
    if not shape or rows.ndim != 1 or str(rows.dtype) != "int64" or tuple(stored_shape) != (len(rows), *shape[1:]):
        return False
    return bool((rows[1:] > rows[:-1]).all() and ((rows >= 0) & (rows < shape[0])).all())


def _are_rows_and_columns(
    shape: Sequence[int], stored_shape: Sequence[int], starts: np.ndarray[Any, Any], columns: np.ndarray[Any, Any]
) -> bool:
    """Return whether values of a shape are those of a csr array, with its row starts and column indices."""
    if len(shape) != 2 or starts.shape != (shape[0] + 1,) or not columns.shape == tuple(stored_shape) == (starts[-1],):
        return False
    ascends = starts[0] == 0 and (starts[1:] >= starts[:-1]).all()
    return bool(ascends and ((columns >= 0) & (columns < shape[1])).all())
