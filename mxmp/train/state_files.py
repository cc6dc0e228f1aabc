"""The file of saved states: an .npz file with one dict of values as JSON, and the arrays of the dict. It has no pickle.

A value is None, a bool, an int, a float, a str, a numpy number, an NDArray (dense or row_sparse), or a list, tuple or
dict of values. JSON has the first five, and lists, and dicts whose keys are names; the others are written as
``{"$kind": content}``, as in::

    {"optimizer": "SGD", "states": [{"$dict": [[0, {"$array": "0"}], [1, {"$tuple": [{"$array": "1"}, null]}]]}]}

A pickle of MXNet's trainers and updaters is read into the same dict. Only the classes in `MXNET_CLASSES` are made, so
that no code of a file is run.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import pickletools
import zipfile
from typing import Any, BinaryIO, Callable, Dict, List, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np

from ..checkpoint import are_rows, check_array
from ..errors import StateError, a_type_of
from ..files import path_of, require_file, saving
from .multi_precision import MultiPrecision

FORMAT, VERSION = "mxmp-optimizer-states", 1

Arrays = Dict[str, "np.ndarray[Any, Any]"]

_HEADER = "header"
_NPY: Any = np.lib.format  # Its functions have no types.
_PLAIN = (type(None), bool, int, float, str)
_WITHOUT_ARRAYS = ("version", "extra", "params", "optimizer", "num_update", "counts", "scheduler")  # Parts of a file.
_MAX_DEPTH = 50  # Of values within values; states of optimizers have 5 at most.
_NO_TUPLES = frozenset(  # Opcodes of pickles that make no tuple.
    "SHORT_BINUNICODE BINUNICODE BINUNICODE8 SHORT_BINBYTES BINBYTES BINBYTES8 BYTEARRAY8 EMPTY_LIST EMPTY_DICT "
    "GLOBAL STACK_GLOBAL REDUCE NEWOBJ".split()
)

# Set by the trainer, by MXNet or at every step; the counters are saved apart.
NOT_STATE = {
    "param_dict",
    "sym_info",
    "idx2name",
    "lr_scheduler",
    "rescale_grad",
    "allow_np_array",
    "aggregate_num",
    "multi_precision",
    "num_update",
    "_all_index_update_counts",
    "_index_update_count",
}


class _Dtype:
    """A dtype of numbers in a pickle. In numpy's own a pickle can set flags, so that bytes are taken for pointers."""

    def __init__(self, name: str, *_: Any) -> None:
        self.dtype: Any = np.dtype(name)
        if self.dtype.kind not in "biuf":
            raise pickle.UnpicklingError(f"it holds the dtype {name}")

    def __setstate__(self, state: Tuple[Any, ...]) -> None:
        if state[:1] + state[2:] != (3, None, None, None, -1, -1, 0) or state[1] not in ("<", "|"):
            raise pickle.UnpicklingError("it holds a dtype that is no plain number's")


class _Scalar:
    """A number of numpy in a pickle; the constructor returns the number itself."""

    def __new__(cls, dtype: _Dtype, data: bytes) -> Any:
        """Return the number with these bytes."""
        (number,) = np.frombuffer(data, dtype.dtype)
        return number


_OPTIMIZERS = mx.optimizer.Optimizer, mx.lr_scheduler.LRScheduler
_OWNERS = (*_OPTIMIZERS, MultiPrecision)
_CLASSES = [bytearray, mx.nd.NDArray, mx.nd.sparse.RowSparseNDArray, MultiPrecision]
for _module in (mx.optimizer.optimizer, mx.lr_scheduler):
    _CLASSES += [kind for kind in vars(_module).values() if isinstance(kind, type) and issubclass(kind, _OPTIMIZERS)]

MXNET_CLASSES: Dict[Tuple[str, str], Any] = {(kind.__module__, kind.__name__): kind for kind in _CLASSES}
"""The classes that a pickle may hold, by module and name. Major versions of numpy name their scalars differently."""
MXNET_CLASSES["numpy", "dtype"] = _Dtype
for _core in ("core", "_core"):
    MXNET_CLASSES[f"numpy.{_core}.multiarray", "scalar"] = _Scalar


# ------------------------------------------------------------------ values


def unsupported_type(value: Any) -> Optional[str]:
    """Return the type of the first thing in a value that a file cannot hold, None if it can hold all."""
    if isinstance(value, mx.nd.NDArray):
        return None if value.stype in ("default", "row_sparse") else type(value).__name__
    parts = _parts(value)
    if parts is None and type(value) not in _PLAIN and not isinstance(value, (np.number, np.bool_)):
        return type(value).__name__
    return next(filter(None, map(unsupported_type, parts or ())), None)


def _parts(value: Any) -> Optional[Sequence[Any]]:
    """Return the values within a value; None if it is not made of others."""
    if type(value) is dict:
        return (*value, *value.values())
    return value if type(value) in (list, tuple) else None


def _is_plain(value: Any) -> bool:
    """Return whether a value is made of plain ones, without arrays."""
    parts = _parts(value)
    return type(value) in _PLAIN if parts is None else all(map(_is_plain, parts))


def are_equal(one: Any, other: Any) -> bool:
    """Return whether two values are the same bit for bit, wherever their arrays are."""
    first: Arrays = {}
    second: Arrays = {}
    if _encode(one, first) != _encode(other, second):
        return False
    pairs = zip(first.values(), second.values())
    return all((a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes()) for a, b in pairs)


def _encode(value: Any, arrays: Arrays) -> Any:
    """Return JSON data for a value, whose arrays are added."""
    if type(value) in _PLAIN:
        return value
    if type(value) is list:
        return [_encode(each, arrays) for each in value]
    if type(value) is tuple:
        return {"$tuple": [_encode(each, arrays) for each in value]}
    if type(value) is dict:
        items = [[_encode(each, arrays) for each in pair] for pair in value.items()]
        is_object = all(type(key) is str and not key.startswith("$") for key in value)
        return dict(items) if is_object else {"$dict": items}
    if isinstance(value, mx.nd.sparse.RowSparseNDArray):
        return {"$row_sparse": [*(_encode(part, arrays) for part in (value.data, value.indices)), list(value.shape)]}
    is_number, name = isinstance(value, np.generic), str(len(arrays))
    arrays[name] = np.asarray(value) if is_number else value.asnumpy()
    return {"$number" if is_number else "$array": name}


class _Decoder:
    """Makes values of JSON data, innermost first, as the ``object_hook`` of `json.loads`."""

    def __init__(self, arrays: Arrays, size: int) -> None:
        self._arrays = arrays
        self._left = size  # Bytes of arrays that may still be made; at first the size of the file.
        self._kinds: Dict[str, Callable[[Any], Any]] = {
            "$tuple": tuple,
            "$dict": dict,
            "$row_sparse": lambda parts: self._row_sparse(*parts),
            "$number": self._number,
            "$array": self._array,
        }

    def __call__(self, data: Dict[str, Any]) -> Any:
        kind = next(iter(data), "")
        if len(data) != 1 or not kind.startswith("$"):
            return data
        try:
            return self._kinds[kind](data[kind])
        except Exception as e:  # A file that was edited can raise anything.
            raise ValueError(f"its header has a {kind} of {data[kind]!r:.80}: {e!r:.80}") from e

    def _number(self, name: str) -> Any:
        number = self._arrays[name][()]
        if not isinstance(number, (np.number, np.bool_)):
            raise TypeError("it is no number")
        return number

    def _array(self, name: str) -> mx.nd.NDArray:
        array = self._arrays[name]
        self._left -= array.nbytes
        if self._left < 0:  # The file names one array many times, to fill the memory with copies.
            raise ValueError("its arrays are larger than the file")
        loaded = mx.nd.empty(array.shape, mx.cpu(), array.dtype)
        loaded._sync_copyfrom(array)
        return loaded

    def _row_sparse(self, values: mx.nd.NDArray, rows: mx.nd.NDArray, shape: List[int]) -> mx.nd.NDArray:
        _require_rows(values, rows, shape)
        return mx.nd.sparse.row_sparse_array((values, rows), shape=tuple(shape))


def _require_rows(values: mx.nd.NDArray, rows: mx.nd.NDArray, shape: Sequence[int]) -> None:
    """Raise unless the rows of a row_sparse array are within its shape, because MXNet does not check their indices."""
    if not are_rows(shape, values.shape, rows.asnumpy()):
        raise ValueError(f"{values.shape} of rows that are not its own; expected rows of an array {shape}")


# ------------------------------------------------------------------ files


def content_of(optimizer: mx.optimizer.Optimizer) -> Dict[str, Any]:
    """Return the content of a file for an optimizer of MXNet and its scheduler: classes, counts and fields."""
    scheduler = optimizer.lr_scheduler
    return {
        "optimizer": type(optimizer).__name__,
        "num_update": optimizer.num_update,
        "counts": {device: dict(counts) for device, counts in optimizer._all_index_update_counts.items()},
        "fields": _fields(optimizer),
        "scheduler": type(scheduler).__name__,
        "scheduler_fields": {} if scheduler is None else _fields(scheduler),
    }


def _fields(owner: Any) -> Dict[str, Any]:
    fields = {name: value for name, value in vars(owner).items() if name not in NOT_STATE}
    return {name: value for name, value in fields.items() if unsupported_type(value) is None}


def write(fname: str, content: Dict[str, Any]) -> None:
    """Write a file whole. A CheckpointError leaves an older file as it was."""
    fname = path_of(fname)
    arrays: Arrays = {}
    header = _encode({"format": FORMAT, "version": VERSION, **content}, arrays)
    members = {_HEADER: np.array(json.dumps(header)), **arrays}
    with saving(f"{fname}: the states", fname) as (name,), zipfile.ZipFile(name, "w") as file:
        for member, array in members.items():  # np.savez leaves its archive open if writing fails.
            with file.open(f"{member}.npy", "w", force_zip64=True) as stream:
                _NPY.write_array(stream, array, allow_pickle=False)


def read(fname: str) -> Dict[str, Any]:
    """Return the content of a file, of mxmp or of MXNet, with arrays on the CPU.

    A pickle of MXNet may hold only the states. It has no ``params``, and no ``extra`` data of a caller.

    Raises:
        StateError: If it is neither of them, or damaged.
        CheckpointError: If ``fname`` is the path of a folder, or no path. If there is no such file, it is a
            FileNotFoundError too.
    """
    fname = path_of(fname)
    require_file(fname)
    with open(fname, "rb") as stream:
        is_pickle = stream.read(1) == pickle.PROTO
        stream.seek(0)
        try:
            content = _read_pickle(stream) if is_pickle else _read_archive(stream)
        except Exception as e:  # zipfile, numpy, json, pickle and unpickled classes raise all sorts.
            raise StateError(
                f"{fname}: not a file of optimizer states, or damaged ({str(e):.200}); expected one that save_states "
                "of mxmp or of MXNet wrote."
            ) from e
    if content.get("version", VERSION) != VERSION:
        version = f"{content['version']!r:.80}"
        raise StateError(f"{fname}: version is {version}; expected {VERSION}; it comes from another mxmp.")
    return content


def is_saved_by_mxmp(fname: Any) -> bool:
    """Return whether a file is an archive, as `write` makes it. A pickle of MXNet is none."""
    if not isinstance(fname, (str, os.PathLike)) or not os.path.isfile(fname):
        return False
    with open(fname, "rb") as stream:
        return stream.read(4) == b"PK\x03\x04"


def _read_archive(stream: BinaryIO) -> Dict[str, Any]:
    size = stream.seek(0, os.SEEK_END)
    with zipfile.ZipFile(stream) as file:
        declared = sum(info.file_size for info in file.infolist())
    if declared > size:  # It is compressed, to fill the memory; files of mxmp are not.
        raise ValueError(f"its arrays declare {declared} bytes, the file has {size}")
    stream.seek(-22, os.SEEK_END)  # The last record of an archive without a comment; zipfile would search for it.
    if stream.read(4) != b"PK\x05\x06":
        raise ValueError("it goes on after its end")
    stream.seek(0)
    with np.load(stream, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    content = json.loads(str(arrays.pop(_HEADER)[()]), object_hook=_Decoder(arrays, size))
    _require_sound(content, size)
    if content["format"] != FORMAT:
        raise ValueError(f"its format is {content['format']!r}, not {FORMAT!r}")
    for name in _WITHOUT_ARRAYS:
        if not _is_plain(content.get(name)):
            raise ValueError(f"its {name} holds an array")
    return dict(content)


class _Unpickler(pickle.Unpickler):
    """Makes only objects of MXNet's optimizers; all arrays together must not be larger than the file."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self._left = {"buffers": len(data), "arrays": len(data)}  # Bytes that may still be made.

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in MXNET_CLASSES:
            raise pickle.UnpicklingError(f"it holds a {module}.{name}")
        kind = MXNET_CLASSES[module, name]
        if kind is bytearray:
            return self._buffer
        if issubclass(kind, mx.nd.NDArray):
            return self._array_class(kind)
        # A pickle may set attributes of a class that it names, so it gets a subclass.
        return type(kind.__name__, (kind,), {"__module__": module})

    def _buffer(self, data: Any = b"") -> bytearray:
        """Return a bytearray of bytes. A length is refused, because it may be any."""
        if not isinstance(data, bytes):
            raise pickle.UnpicklingError(f"it holds a bytearray of {a_type_of(data)}")
        self._spend("buffers", len(data))
        return bytearray(data)

    def _array_class(self, kind: Any) -> Any:
        """Return a subclass that checks the bytes of an array before MXNet reads them, and gives it the class then."""

        class Array(kind):
            __slots__ = ()  # So that the class of an instance can be changed.

            def __setstate__(array, state: Dict[str, Any]) -> None:
                if state["handle"] is not None:
                    check_array(state["handle"])
                    self._spend("arrays", len(state["handle"]))
                super().__setstate__(state)
                array.__class__ = kind

        return Array

    def _spend(self, things: str, size: int) -> None:
        self._left[things] -= size
        if self._left[things] < 0:
            raise pickle.UnpicklingError(f"its {things} are larger than the file")


def _require_plain(data: bytes) -> None:
    """Raise unless a pickle uses each tuple once, except ``(None,)``, as MXNet's pickles do.

    If each of many tuples has the next one twice, the pickle is small, but it takes for ever to hash the outermost
    tuple as the key of a dict.
    """
    memo: Dict[int, bool] = {}  # By place, whether the object is surely no such tuple.
    before, last, end = "", "", 0
    for op, argument, place in pickletools.genops(data):
        name, end = op.name, int(place or 0) + 1
        if name in ("MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT"):
            number = len(memo) if argument is None else int(argument)
            memo[number] = last in _NO_TUPLES or (before, last) == ("NONE", "TUPLE1")
        elif name == "DUP" or (name in ("GET", "BINGET", "LONG_BINGET") and not memo.get(int(argument or 0))):
            raise pickle.UnpicklingError("it uses one tuple in several places")
        before, last = last, name
    if end != len(data):
        raise pickle.UnpicklingError("it goes on after its end")


def _read_pickle(stream: BinaryIO) -> Dict[str, Any]:
    """Return the states, perhaps with the optimizer, from ``gluon.Trainer.save_states`` or ``Updater.get_states``."""
    data = stream.read()
    _require_plain(data)
    states = _Unpickler(data).load()
    _require_sound(states, len(data))
    content = {}
    if isinstance(states, tuple):
        states, optimizer = states
        optimizer = optimizer.inner if isinstance(optimizer, MultiPrecision) else optimizer
        if not isinstance(optimizer, mx.optimizer.Optimizer):
            raise TypeError(f"its second part is {a_type_of(optimizer)}, no optimizer")
        content = content_of(optimizer)
    if unsupported_type(states) is not None:
        raise TypeError(f"its states hold a {unsupported_type(states)}")
    return {**content, "states": [states]}


def _require_sound(value: Any, most: int) -> None:
    """Raise if a file has more values than bytes, or if an array is not of its class.

    In a pickle a few lists within lists can be billions of values. MXNet would read memory that an array of another
    class does not have.
    """
    waiting, count = [(value, 0)], 0
    while waiting:
        each, depth = waiting.pop()
        count += 1
        if count > most or depth > _MAX_DEPTH:
            raise ValueError("it holds more values than it has bytes, or too many within each other")
        if type(each) is int and each.bit_length() > 64:
            raise ValueError("it holds a number of more than 64 bits")
        if isinstance(each, mx.nd.NDArray):
            _require_class(each)
        parts = vars(each).values() if isinstance(each, _OWNERS) else _parts(each) or ()
        waiting += [(part, depth + 1) for part in parts]


def _require_class(array: mx.nd.NDArray) -> None:
    if array.handle is None:
        raise TypeError("it holds an array without content")
    if (array.stype == "row_sparse") != isinstance(array, mx.nd.sparse.RowSparseNDArray):
        raise TypeError(f"it holds a {array.stype} array as {a_type_of(array)}")
