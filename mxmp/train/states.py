"""Save and load everything that a resumed run needs beside the weights, in one .npz file with a JSON header.

That is the states and masters of every weight, the counters, the fields of the optimizer (``lr``, ``momentum``, ...)
and of its scheduler, and the loss scale. As with MXNet's trainer, a loaded file decides over all of these. Fields that
a file cannot hold, such as functions, keep the value that the new optimizer was made with. Nothing is pickled; what
MXNet's trainers and updaters have pickled is read, by classes that are named one by one (`MXNET_CLASSES`).

A value is None, a bool, an int, a float, a str, or a list, tuple or dict of values, a numpy scalar, an NDArray (dense
or row_sparse) or a `MasterState`. In the header plain scalars stand for themselves, everything else is
``{kind: content}``.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import inspect
import io
import json
import logging
import math
import os
import pickle
import zipfile
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np

from ..dtypes import BFLOAT16, FLOAT32, LOW_PRECISION, canonical, to_numpy
from ..errors import LossScaleError, StateError
from ..files import saving
from ..loss_scale import DynamicLossScale, LossScale, NoOpLossScale
from ..mxnet_private import copy_from_numpy, is_initialized, optimizers
from .masters import MasterState, MultiPrecision, follow_weights, keep_masters, require_masters
from .scaler import Scaler

_LOG = logging.getLogger(__name__)

FORMAT = "mxmp-optimizer-states"
VERSION = 1

_HEADER = "header"
_HEADER_TYPES = {
    "version": int,
    "extra": dict,
    "params": list,
    "optimizer": str,
    "num_update": int,
    "counts": list,
    "fields": dict,
    "scheduler_fields": dict,
    "states": list,
}
_FORMAT: Any = np.lib.format  # numpy gives its functions no types

# Set by the trainer, by MXNet or at every step; the counters are saved apart.
_NOT_STATE = {
    "param_dict",
    "sym_info",
    "idx2name",
    "lr_scheduler",
    "rescale_grad",
    "allow_np_array",
    "aggregate_num",
    "multi_precision",
    "num_update",
    optimizers.all_update_counts.name,
    optimizers.update_counts.name,
}

MXNET_CLASSES: Dict[Tuple[str, str], Any] = {
    (kind.__module__, kind.__name__): kind
    for kind in (
        bytearray,
        np.dtype,
        mx.nd.NDArray,
        mx.nd.sparse.RowSparseNDArray,
        MasterState,
        MultiPrecision,
        *(each for each in vars(mx.lr_scheduler).values() if inspect.isclass(each)),
        *(each for each in vars(mx.optimizer.optimizer).values() if inspect.isclass(each)),
    )
    if kind.__module__ not in ("mxnet.optimizer.utils",)
}
"""What a pickle may hold, by module and name, each exactly; and numpy's scalars, which its majors name differently."""
for _core in ("core", "_core"):
    MXNET_CLASSES[f"numpy.{_core}.multiarray", "scalar"] = np.float32(0).__reduce__()[0]


class Described(NamedTuple):
    """What saved states say of a weight that is no Parameter."""

    name: str
    shape: Tuple[int, ...]
    dtype: Any


@dataclasses.dataclass(frozen=True)
class Target:
    """What states are saved from and loaded into: an updater per context, parameters in the order of their indices."""

    optimizer: MultiPrecision
    updaters: Sequence[mx.optimizer.Updater]
    contexts: Sequence[mx.Context]
    params: Sequence[Any]

    def is_low(self, index: int) -> bool:
        """Return whether a parameter is stored in low precision."""
        return canonical(self.params[index].dtype) in LOW_PRECISION


# ------------------------------------------------------------------ values


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
        return {"dict": [[encode(item, arrays, prefix) for item in pair] for pair in value.items()]}
    if isinstance(value, mx.nd.sparse.RowSparseNDArray):
        parts = [encode(part, arrays, prefix) for part in (value.data, value.indices)]
        return {"row_sparse": [*parts, list(value.shape)]}
    if isinstance(value, mx.nd.NDArray) and value.stype == "default":
        dtype, array = canonical(value.dtype), value.asnumpy()
        name = f"{prefix}{len(arrays)}"
        arrays[name] = array.view(np.uint16) if dtype == BFLOAT16 else array
        return {"array": [name, dtype, list(value.shape)]}
    raise CannotEncodeError(type(value).__name__)


class StateFile:
    """A file that was read, with its JSON header; errors, as of a file that `write` did not write, name the file."""

    def __init__(self, fname: str) -> None:
        self._fname = fname
        self.arrays = _read_arrays(fname)
        try:
            self.header: Dict[str, Any] = json.loads(str(self.arrays[_HEADER][()]))
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
        array = self.arrays.get(name)
        stored = np.dtype(np.uint16) if dtype == BFLOAT16 else np.dtype(dtype)
        if array is None or array.dtype != stored or array.shape != tuple(shape):
            found = "missing" if array is None else f"{array.dtype} {array.shape}"
            raise self.error(where, found, f"{dtype} {tuple(shape)}")
        loaded = mx.nd.empty(array.shape, ctx=ctx, dtype=to_numpy(dtype))
        copy_from_numpy(loaded, array.view(to_numpy(dtype)))
        return loaded


# ------------------------------------------------------------------ the file


def write(fname: str, header: Dict[str, Any], arrays: Dict[str, np.ndarray[Any, Any]]) -> None:
    """Write a file whole, or raise a CheckpointError and leave what was there as it was."""
    fname = os.fspath(fname)
    members = {_HEADER: np.array(json.dumps(header)), **arrays}
    with saving(f"{fname}: the states", fname) as (name,), zipfile.ZipFile(name, "w") as file:
        for member, array in members.items():  # as np.savez, which leaves its archive open where writing fails
            with file.open(f"{member}.npy", "w", force_zip64=True) as stream:
                _FORMAT.write_array(stream, array, allow_pickle=False)


def _read_arrays(fname: str) -> Dict[str, np.ndarray[Any, Any]]:
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


def _no_states(fname: str, e: Exception) -> StateError:
    return StateError(
        f"{fname}: not a file of optimizer states, or damaged ({str(e):.200}); expected one that save_states of mxmp "
        "or of MXNet wrote."
    )


class _Unpickler(pickle.Unpickler):
    """Makes what MXNet's optimizers are made of, so that nothing of a file is run."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in MXNET_CLASSES:
            raise pickle.UnpicklingError(f"it holds a {module}.{name}")
        kind = MXNET_CLASSES[module, name]
        # A pickle may set attributes of a class that it names: it gets one of its own.
        bases = mx.optimizer.Optimizer, mx.lr_scheduler.LRScheduler, MasterState
        own = isinstance(kind, type) and issubclass(kind, bases)
        return type(kind.__name__, (kind,), {"__module__": module}) if own else kind


@dataclasses.dataclass
class _Content:
    """What a file holds: states of each context, or of one that stands for all, and what it decides over beside them.

    ``params`` says of each parameter 'shape' and 'dtype'; None if the file does not say.
    """

    file: StateFile
    states: List[Any]
    params: Optional[List[Any]] = None
    fields: Dict[str, Any] = dataclasses.field(default_factory=dict)
    scheduler_fields: Dict[str, Any] = dataclasses.field(default_factory=dict)
    num_update: Optional[int] = None
    counts: Dict[int, Dict[int, int]] = dataclasses.field(default_factory=dict)
    extra: Optional[Dict[str, Any]] = None


def _read(fname: str, target: Target) -> _Content:
    """Return the content of a file, of mxmp or of MXNet, for an optimizer like the target's; a StateError if not."""
    fname = os.fspath(fname)
    if os.path.isfile(fname):
        with open(fname, "rb") as stream:
            if stream.read(1) == pickle.PROTO:
                return _read_pickle(fname, target)
    file = StateFile(fname)
    header, inner = file.header, target.optimizer.inner
    _check_header(file)
    _check_class(file, header["optimizer"], header.get("scheduler"), inner)
    if len(header["params"]) != len(target.params):
        raise file.error("the number of parameters", len(header["params"]), f"{len(target.params)}, as in this trainer")
    if len(header["states"]) not in (1, len(target.updaters)):
        number = len(header["states"])
        raise file.error("the number of contexts with states of their own", number, len(target.updaters))
    states = []
    for number, ctx in enumerate(target.contexts):
        k = min(number, len(header["states"]) - 1)
        states.append(file.decode(f"states[{k}]", header["states"][k], ctx))
    return _Content(
        file,
        states,
        header["params"],
        _decoded_fields(file, "fields", inner, target.contexts[0]),
        _decoded_fields(file, "scheduler_fields", inner.lr_scheduler, target.contexts[0]),
        header["num_update"],
        {device: dict(items) for device, items in header["counts"]},
        header["extra"],
    )


def _read_pickle(fname: str, target: Target) -> _Content:
    """Return what ``gluon.Trainer.save_states`` or ``Updater.get_states`` wrote: states, perhaps with the optimizer."""
    file = object.__new__(StateFile)
    file._fname = fname
    try:
        with open(fname, "rb") as stream:
            found = _Unpickler(stream).load()
        states, saved = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
        content = _Content(file, [_copied(states, ctx) for ctx in target.contexts])
        saved = saved.inner if isinstance(saved, MultiPrecision) else saved
        if isinstance(saved, mx.optimizer.Optimizer):
            _read_optimizer(content, saved, target.optimizer.inner)
    except StateError:
        raise
    except Exception as e:  # a damaged pickle raises all sorts, and what it makes may lack all attributes
        raise _no_states(fname, e) from e
    if not isinstance(saved, (mx.optimizer.Optimizer, type(None))):
        raise file.error("the second part", f"a {type(saved).__name__}", "an optimizer")
    return content


def _read_optimizer(content: _Content, saved: mx.optimizer.Optimizer, inner: mx.optimizer.Optimizer) -> None:
    """Let a pickled optimizer decide over what a file of ours would."""
    file, scheduler = content.file, saved.lr_scheduler
    _check_class(file, type(saved).__name__, _class_name(scheduler), inner)
    content.fields = _state_fields(file, "fields", saved, inner)
    content.scheduler_fields = _state_fields(file, "scheduler_fields", scheduler, inner.lr_scheduler)
    content.num_update = saved.num_update
    content.counts = {device: dict(items) for device, items in optimizers.all_update_counts(saved).items()}
    numbers = [n for device, items in content.counts.items() for pair in items.items() for n in (device, *pair)]
    if not all(type(n) is int and n >= 0 for n in (*numbers, content.num_update)):
        raise file.error("counts", content.counts, "whole numbers from 0 up")


def _state_fields(file: StateFile, group: str, saved: Any, present: Any) -> Dict[str, Any]:
    """Return the fields of a pickled optimizer or scheduler that a file of ours would hold.

    Raises StateError if one is of another kind than that of the present one.
    """
    fields = {}
    for name, value in vars(saved).items() if saved is not None else ():
        if _is_state(name, value, vars(present)):
            if not _same_kind(value, vars(present)[name]) or (value is None and vars(present)[name] is not None):
                raise file.error(f"{group}.{name}", repr(value), f"the like of {vars(present)[name]!r}")
            fields[name] = value
    return fields


def _is_state(name: str, value: Any, present: Dict[str, Any]) -> bool:
    """Return whether a field of a pickled optimizer is one that a file of ours would hold."""
    with contextlib.suppress(CannotEncodeError):
        encode(value, {})
        return name in present and name not in _NOT_STATE
    return False


def _check_header(file: StateFile) -> None:
    """Raise a StateError unless a header has every field, of the right type."""
    header = file.header
    if header.get("format") != FORMAT:
        raise file.error("format", repr(header.get("format")), repr(FORMAT))
    for name, expected in _HEADER_TYPES.items():
        if type(header.get(name)) is not expected:
            raise file.error(name, repr(header.get(name)), f"a {expected.__name__}")
    if header["version"] != VERSION:
        raise file.error("version", header["version"], f"{VERSION}; it comes from another mxmp")
    try:
        numbers = [n for device, items in header["counts"] for k, n in items for n in (device, k, n)]
    except (TypeError, ValueError) as e:
        raise file.error("counts", header["counts"], "update counts per device") from e
    if not all(type(n) is int and n >= 0 for n in (*numbers, header["num_update"])):
        raise file.error("counts", header["counts"], "whole numbers from 0 up")


def _check_class(file: StateFile, optimizer: str, scheduler: Any, inner: mx.optimizer.Optimizer) -> None:
    for field, found, expected in (
        ("the optimizer", optimizer, type(inner).__name__),
        ("lr_scheduler", scheduler, _class_name(inner.lr_scheduler)),
    ):
        if found != expected:
            raise file.error(field, found, f"{expected}, as in this trainer")


def _class_name(scheduler: Any) -> Optional[str]:
    return None if scheduler is None else type(scheduler).__name__


def _decoded_fields(file: StateFile, group: str, owner: Any, ctx: mx.Context) -> Dict[str, Any]:
    """Return the fields of an optimizer or scheduler that a file holds.

    Raises StateError if the owner has no such field, or one of another type.
    """
    present = vars(owner) if owner is not None else {}
    fields = {}
    for name, data in file.header[group].items():
        where = f"{group}.{name}"
        if name not in present or name in _NOT_STATE:
            raise file.error(where, repr(data), f"absent: {type(owner).__name__} has no such field")
        fields[name] = file.decode(where, data, ctx)
        if not _same_kind(fields[name], present[name]):
            raise file.error(where, repr(fields[name]), f"the like of {present[name]!r}")
    return fields


def _same_kind(a: Any, b: Any) -> bool:
    """Return whether a loaded field can stand where ``b`` stood; None fits everything."""
    number = (int, float, np.number)
    if isinstance(a, number) and isinstance(b, number):
        return isinstance(a, bool) == isinstance(b, bool)
    return a is None or b is None or type(a) is type(b)


# ------------------------------------------------------------------ do the states fit?


class _Fitter:
    """Brings the states of a file into the form that a target's parameters want: with masters where these are low.

    States in float32 are the same whatever a parameter is stored in, so that a run may go on under another policy. A
    master that is missing is made of the parameter at its next update. The optimizer is not changed; the file's
    ``fields`` decide over the states that it would make.
    """

    def __init__(self, content: _Content, target: Target) -> None:
        self._file, self._saved, self._target = content.file, content.params, target
        inner = target.optimizer.inner
        self._inner = object.__new__(type(inner))
        fields = content.fields.items()
        own = {name: copy.copy(value) if type(value) in (dict, list) else value for name, value in fields}
        vars(self._inner).update({**vars(inner), **own})
        self._made: Dict[Tuple[int, ...], Any] = {}

    def fitted(self, where: str, states: Any) -> Dict[int, Any]:
        """Return the states of an updater; a StateError, which names the entry, if they are not the parameters'."""
        if not isinstance(states, dict):
            raise self._file.error(where, type(states).__name__, "a dict")
        count = len(self._target.params)
        for index in states:
            if type(index) is not int or not 0 <= index < count:
                raise self._file.error(f"{where}[{index!r}]", "of no parameter", f"an index from 0 to {count - 1}")
        return {index: self._fit(f"{where}[{index!r}]", index, state) for index, state in states.items()}

    def _fit(self, where: str, index: int, state: Any) -> Any:
        shape, saved_low = self._shape(index)
        expected = self._expected(index, shape)
        if not isinstance(state, MasterState) and saved_low:  # as mxmp writes no other
            raise self._file.error(where, _text(state), "the state of a low precision parameter, with its master")
        if not isinstance(state, MasterState):
            state = _of_mxnet(state, expected, shape)
        master, inner = (state.master, state.inner) if isinstance(state, MasterState) else (None, state)
        if master is not None and _text(master) != f"{FLOAT32} {shape}":
            raise self._file.error(f"{where}.master", _text(master), f"{FLOAT32} {shape}")
        wrong = _mismatch(where if not isinstance(state, MasterState) else f"{where}.inner", inner, expected)
        if wrong is not None:
            raise self._file.error(*wrong)
        if not self._target.is_low(index):
            return inner
        return MasterState(master if self._target.optimizer.masters else None, inner, is_loaded=True)

    def _shape(self, index: int) -> Tuple[Tuple[int, ...], bool]:
        """Return the shape that a parameter was saved with, and whether mxmp saved it in low precision."""
        param = self._target.params[index]
        if self._saved is None:
            return tuple(param.shape or ()), False
        saved = self._saved[index]
        found = saved.get("shape") if isinstance(saved, dict) else None
        dtype = saved.get("dtype") if isinstance(saved, dict) else None
        unknown = not param.shape or min(param.shape) <= 0
        where = f"of parameter '{param.name}' (number {index})"
        if found != list(param.shape or ()) and not (unknown and _is_shape(found)):
            raise self._file.error(f"the shape {where}", found, list(param.shape or ()))
        if dtype != canonical(param.dtype) and dtype not in (FLOAT32, *LOW_PRECISION):
            raise self._file.error(f"the dtype {where}", dtype, canonical(param.dtype))
        return tuple(found or ()), dtype in LOW_PRECISION

    def _expected(self, index: int, shape: Tuple[int, ...]) -> Any:
        """Return the state that the optimizer makes for a float32 weight; `_UNKNOWN` if it makes none for zeros."""
        if shape not in self._made:
            param = self._target.params[index]
            dtype = FLOAT32 if self._target.is_low(index) else canonical(param.dtype)
            try:
                weight = mx.nd.zeros(shape, ctx=mx.cpu(), dtype=to_numpy(dtype))
                self._made[shape] = self._inner.create_state_multi_precision(index, weight)
            except Exception:  # an optimizer of the user may want a weight that means something
                self._made[shape] = _UNKNOWN
        return self._made[shape]


_UNKNOWN = object()


def _mismatch(where: str, found: Any, expected: Any) -> Optional[Tuple[str, str, str]]:
    """Return where two states differ, and what they are there; None where one can stand for the other.

    Shapes and dtypes of arrays are compared, lengths of tuples and kinds of everything else, which may change.
    """
    if expected is _UNKNOWN:
        return None
    if _text(found) != _text(expected):
        return where, _text(found), _text(expected)
    parts = enumerate(zip(found, expected)) if isinstance(expected, tuple) else ()
    wrong = (_mismatch(f"{where}[{number}]", *pair) for number, pair in parts)
    return next((each for each in wrong if each is not None), None)


def _of_mxnet(state: Any, expected: Any, shape: Tuple[int, ...]) -> Any:
    """Return a state with the master that MXNet's ``multi_precision`` pairs it with, in either order, if it does."""
    if isinstance(state, tuple) and len(state) == 2 and _mismatch("", state, expected) is not None:
        for inner, master in (state, state[::-1]):
            if _text(master) == f"{FLOAT32} {shape}" and _mismatch("", inner, expected) is None:
                return MasterState(master, inner)
    return state


def _is_shape(found: Any) -> bool:
    return type(found) is list and all(type(size) is int and size >= 0 for size in found)


def _text(value: Any) -> str:
    if isinstance(value, mx.nd.NDArray):
        return f"{canonical(value.dtype)} {value.shape}"
    if isinstance(value, (int, float, np.number)):
        return "a number"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return "None" if value is None else f"a {type(value).__name__}"


# ------------------------------------------------------------------ save and load


def save(fname: str, target: Target, extra: Dict[str, Any]) -> None:
    """Write the states of an optimizer, and JSON data of the caller, to a file, whole or not at all.

    Copies every state to the host; those that are alike on every context are written once. Raises StateError if
    an optimizer of the user keeps states that a file cannot hold.
    """
    require_masters(param for param in target.params if isinstance(param, mx.gluon.Parameter))
    arrays: Dict[str, np.ndarray[Any, Any]] = {}
    inner = target.optimizer.inner
    counts = optimizers.all_update_counts(inner)
    params = [{"name": p.name, "shape": list(p.shape or ()), "dtype": canonical(p.dtype)} for p in target.params]
    header = {
        "format": FORMAT,
        "version": VERSION,
        "extra": extra,
        "params": params,
        "optimizer": type(inner).__name__,
        "num_update": inner.num_update,
        "counts": [[device, list(items.items())] for device, items in counts.items()],
        "fields": _encoded_fields(inner, arrays),
        "scheduler": _class_name(inner.lr_scheduler),
        "scheduler_fields": _encoded_fields(inner.lr_scheduler, arrays),
        "states": _encoded_states(target.updaters, arrays),
    }
    write(fname, header, arrays)


def _encoded_states(updaters: Sequence[Any], arrays: Dict[str, np.ndarray[Any, Any]]) -> List[Any]:
    """Encode the states of every updater, or of the first alone where all are alike."""
    trees: List[Any] = []
    parts: List[Dict[str, np.ndarray[Any, Any]]] = []
    for updater in updaters:
        parts.append({})
        try:
            trees.append(encode(updater.states, parts[-1], f"states{len(trees)}."))
        except CannotEncodeError as e:
            raise StateError(
                f"the states of {type(updater.optimizer.inner).__name__} hold a {e}, which a state file "
                "cannot; expected arrays, numbers, lists, tuples and dicts."
            ) from e
    texts = [json.dumps(tree).replace(f'"states{i}.', '"states0.') for i, tree in enumerate(trees)]
    bits = [[array.tobytes() for array in part.values()] for part in parts]
    count = 1 if all((text, each) == (texts[0], bits[0]) for text, each in zip(texts, bits)) else len(trees)
    for part in parts[:count]:
        arrays.update(part)
    return trees[:count]


def _encoded_fields(owner: Any, arrays: Dict[str, np.ndarray[Any, Any]]) -> Dict[str, Any]:
    """Return the fields of an optimizer or scheduler that a file can hold; their arrays are added to ``arrays``."""
    fields = {}
    for name, value in (vars(owner) if owner is not None else {}).items():
        if name not in _NOT_STATE:
            with contextlib.suppress(CannotEncodeError):
                fields[name] = encode(value, arrays, "fields.")
    return fields


def restore(fname: str, target: Target, scaler: Scaler, default: LossScale = DynamicLossScale()) -> None:  # noqa: B008
    """Put the states of a file in place, with the loss scale that `save` got from ``scaler.to_dict()``.

    It may also be a file that MXNet's own trainer, module or updater wrote, with the indices of the target. The
    file decides over every field; the log tells where that is not what the caller set up. ``default`` is the loss
    scale of a caller who gave none, which the file replaces without a word. A StateError changes nothing.
    """
    content = _read(fname, target)
    fitter, inner = _Fitter(content, target), target.optimizer.inner
    number = len(content.states) if content.params is None else len(content.file.header["states"])
    states = [fitter.fitted(f"states[{min(k, number - 1)}]", each) for k, each in enumerate(content.states)]
    overruled, before = _overruled(inner, content.fields), scaler.loss_scale
    try:
        if content.extra is not None:
            scaler.load_dict(content.extra)
    except LossScaleError as e:
        raise StateError(f"{fname}: the loss scale does not load: {e}") from e
    for updater, loaded in zip(target.updaters, states):
        updater.states = loaded
        updater.states_synced = dict.fromkeys(loaded, False)  # a kvstore may want them on another context
    _link_masters(target.params, states)
    vars(inner).update(content.fields)
    if inner.lr_scheduler is not None:
        vars(inner.lr_scheduler).update(content.scheduler_fields)
    if content.num_update is not None:
        devices = _counts_per_device(content.counts, target.contexts)
        optimizers.all_update_counts.set(inner, devices)
        optimizers.update_counts.set(inner, devices[0])
        inner.num_update = content.num_update
    lost = isinstance(scaler.loss_scale, NoOpLossScale) and not isinstance(before, NoOpLossScale)
    if lost or _options(before) not in (_options(scaler.loss_scale), _options(default)):
        overruled.append(f"loss_scale={scaler.loss_scale} (not {before})")
    if overruled:
        _LOG.warning("%s decides over %s; to change that, set it after loading.", fname, ", ".join(overruled))


def _copied(state: Any, ctx: mx.Context) -> Any:
    if isinstance(state, mx.nd.NDArray):
        return state.copyto(ctx)
    if isinstance(state, MasterState):
        return MasterState(_copied(state.master, ctx), _copied(state.inner, ctx))
    if type(state) is dict:
        return {key: _copied(each, ctx) for key, each in state.items()}
    return type(state)(_copied(each, ctx) for each in state) if type(state) in (list, tuple) else state


def _link_masters(params: Sequence[Any], states: Sequence[Dict[int, Any]]) -> None:
    """Let parameters keep the masters that were loaded for them."""
    for index, param in enumerate(params):
        found = [loaded.get(index) for loaded in states]
        masters = [state.master for state in found if isinstance(state, MasterState) and state.master is not None]
        if masters and isinstance(param, mx.gluon.Parameter):
            keep_masters(param, masters)
            if is_initialized(param):
                follow_weights(param)


def _overruled(owner: Any, fields: Dict[str, Any]) -> List[str]:
    """Return the options of an optimizer's constructors whose values in a file are others."""
    inits = (vars(cls)["__init__"] for cls in type(owner).__mro__[:-1] if "__init__" in vars(cls))
    options = {"lr", *(name for init in inits for name in inspect.signature(init).parameters)}
    plain = (bool, int, float, str, type(None))
    return [
        f"{name}={value!r} (not {vars(owner)[name]!r})"
        for name, value in fields.items()
        if name in options and isinstance(value, plain) and value != vars(owner)[name]
    ]


def _options(loss_scale: LossScale) -> Dict[str, Any]:
    """Return what a user sets of a loss scale, without its state."""
    state = {"value", "growth_tracker", "hysteresis_tracker", "floor_skips", "warming_up"}
    fields = loss_scale.to_dict()
    return {key: value for key, value in fields.items() if key not in state or fields["kind"] == "static"}


def _counts_per_device(saved: Dict[int, Dict[int, int]], contexts: Sequence[mx.Context]) -> Dict[int, Any]:
    """Return the counts of each device; one that the file lacks counts as the first that updated."""
    default = next((count for count in saved.values() if count), {})
    devices = {0, *(ctx.device_id for ctx in contexts)}
    return {device: dict(saved.get(device) or default) for device in sorted(devices)}
