"""The content of a file of states: what is written of an optimizer, and whether what is read fits one."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np

from ..dtypes import FLOAT32, LOW_PRECISION, canonical, to_numpy
from ..errors import StateError
from ..mxnet_private import optimizers
from . import state_file
from .masters import MasterState, MultiPrecision
from .state_file import StateFile

FORMAT = "mxmp-optimizer-states"
VERSION = 1

_UNKNOWN = object()  # a state of an optimizer that makes none for zeros

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

_HEADER_TYPES = {
    "version": int,
    "extra": dict,
    "params": list,
    "optimizer": str,
    "masters": bool,
    "num_update": int,
    "counts": list,
    "fields": dict,
    "scheduler_fields": dict,
    "states": list,
}


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


def class_name(scheduler: Any) -> Optional[str]:
    """Return the name of a scheduler's class, or None."""
    return None if scheduler is None else type(scheduler).__name__


def describe(param: Any) -> Dict[str, Any]:
    """Return what a file says of a parameter."""
    return {"name": param.name, "shape": list(param.shape or ()), "dtype": canonical(param.dtype)}


def encode_states(updaters: Sequence[Any], arrays: Dict[str, np.ndarray[Any, Any]]) -> List[Any]:
    """Encode the states of every updater, or of the first alone where all are alike."""
    trees: List[Any] = []
    parts: List[Dict[str, np.ndarray[Any, Any]]] = []
    for updater in updaters:
        parts.append({})
        try:
            trees.append(state_file.encode(updater.states, parts[-1], f"states{len(trees)}."))
        except state_file.CannotEncodeError as e:
            raise StateError(
                f"the states of {type(updater.optimizer.inner).__name__} hold a {e}, which a state file "
                "cannot; expected arrays, numbers, lists, tuples and dicts."
            ) from e
    texts = [json.dumps(tree).replace(f'"states{i}.', '"states0.') for i, tree in enumerate(trees)]
    alike = all(text == texts[0] for text in texts) and all(_alike(parts[0], part) for part in parts)
    count = 1 if alike else len(trees)
    for part in parts[:count]:
        arrays.update(part)
    return trees[:count]


def _alike(a: Dict[str, np.ndarray[Any, Any]], b: Dict[str, np.ndarray[Any, Any]]) -> bool:
    return all(x.tobytes() == y.tobytes() for x, y in zip(a.values(), b.values()))


def encode_fields(owner: Any, arrays: Dict[str, np.ndarray[Any, Any]]) -> Dict[str, Any]:
    """Return the fields of an optimizer or scheduler that a file can hold; their arrays are added to ``arrays``."""
    fields = {}
    for name, value in (vars(owner) if owner is not None else {}).items():
        if name not in _NOT_STATE:
            with contextlib.suppress(state_file.CannotEncodeError):
                fields[name] = state_file.encode(value, arrays, "fields.")
    return fields


def check_header(file: StateFile) -> None:
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


def check_target(file: StateFile, target: Target) -> None:
    """Raise a StateError, which names what differs, unless a file has an optimizer and parameters like the target's."""
    header, inner = file.header, target.optimizer.inner
    for field, found, expected in (
        ("the optimizer", header["optimizer"], type(inner).__name__),
        ("lr_scheduler", header.get("scheduler"), class_name(inner.lr_scheduler)),
        ("multi_precision", header["masters"], target.optimizer.masters),
        ("the number of parameters", len(header["params"]), len(target.params)),
    ):
        if found != expected:
            raise file.error(field, found, f"{expected}, as in this trainer")
    for i, (saved, param) in enumerate(zip(header["params"], target.params)):
        mine = describe(param)
        for key in ("dtype", "shape"):
            found = saved.get(key) if isinstance(saved, dict) else None
            if found != mine[key] and not (key == "shape" and _unknown(param) and _is_shape(found)):
                hint = "; take the policy that it was saved under" if key == "dtype" else ""
                raise file.error(f"the {key} of parameter '{param.name}' (number {i})", found, f"{mine[key]}{hint}")


def _is_shape(found: Any) -> bool:
    return type(found) is list and all(type(size) is int and size >= 0 for size in found)


def _unknown(param: Any) -> bool:
    return not param.shape or min(param.shape) <= 0


class ModelStates:
    """The states that an optimizer makes, by the shape and dtype of a parameter.

    The optimizer is not changed. ``fields`` of it a file decides over, which decide over its states; ``params`` is what
    the file says of the parameters: 'shape' and 'dtype' of each.
    """

    def __init__(self, optimizer: MultiPrecision, fields: Dict[str, Any], params: List[Dict[str, Any]]) -> None:
        inner = optimizer.inner
        self._masters, self._params = optimizer.masters, params
        self._inner = object.__new__(type(inner))
        own = {name: copy.copy(value) if type(value) in (dict, list) else value for name, value in fields.items()}
        vars(self._inner).update({**vars(inner), **own})
        self.count = len(params)
        self._made: Dict[Tuple[str, Tuple[int, ...]], Any] = {}

    def check(self, file: StateFile, where: str, index: int, state: Any) -> None:
        """Raise a StateError, which names the entry, unless the optimizer can go on with a state of a file."""
        dtype, shape = self._params[index]["dtype"], tuple(self._params[index]["shape"])
        if dtype in LOW_PRECISION:
            if not isinstance(state, MasterState):
                raise file.error(where, _text(state), f"the state of a {dtype} parameter, with its master")
            master = f"{FLOAT32} {shape}" if self._masters else "None"
            if _text(state.master) != master:
                raise file.error(f"{where}.master", _text(state.master), master)
            where, state, dtype = f"{where}.inner", state.inner, FLOAT32
        expected = self._make(index, dtype, shape)
        if expected is not _UNKNOWN:
            _compare(file, where, state, expected)

    def _make(self, index: int, dtype: str, shape: Tuple[int, ...]) -> Any:
        key = dtype, shape
        if key not in self._made:
            weight = mx.nd.zeros(shape, ctx=mx.cpu(), dtype=to_numpy(dtype))
            try:
                self._made[key] = self._inner.create_state_multi_precision(index, weight)
            except Exception:  # an optimizer of the user may want a weight that means something
                self._made[key] = _UNKNOWN
        return self._made[key]


def _compare(file: StateFile, where: str, found: Any, expected: Any) -> None:
    """Compare shapes and dtypes of arrays, lengths of tuples and kinds of everything else, which may change."""
    if _text(found) != _text(expected):
        raise file.error(where, _text(found), _text(expected))
    if isinstance(expected, tuple):
        for number, (one, other) in enumerate(zip(found, expected)):
            _compare(file, f"{where}[{number}]", one, other)


def _text(value: Any) -> str:
    if isinstance(value, mx.nd.NDArray):
        return f"{canonical(value.dtype)} {value.shape}"
    if isinstance(value, (int, float, np.number)):
        return "a number"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return "None" if value is None else f"a {type(value).__name__}"


def decode_states(file: StateFile, target: Target, model: ModelStates) -> List[Dict[int, Any]]:
    """Return the states of each updater, or raise a StateError if the optimizer makes others."""
    trees, number = file.header["states"], len(target.updaters)
    if len(trees) not in (1, number):
        raise file.error("the number of contexts with states of their own", len(trees), number)
    result = []
    for i, ctx in enumerate(target.contexts):
        k = min(i, len(trees) - 1)
        states = file.decode(f"states[{k}]", trees[k], ctx)
        check_states(file, f"states[{k}]", states, model)
        result.append(states)
    return result


def check_states(file: StateFile, where: str, states: Any, model: ModelStates) -> None:
    """Raise a StateError, which names the entry, unless the states of an updater are those of the parameters."""
    if not isinstance(states, dict):
        raise file.error(where, type(states).__name__, "a dict")
    for index, state in states.items():
        if type(index) is not int or not 0 <= index < model.count:
            raise file.error(f"{where}[{index!r}]", "of no parameter", f"an index from 0 to {model.count - 1}")
        model.check(file, f"{where}[{index!r}]", index, state)


def decode_fields(file: StateFile, group: str, owner: Any, ctx: mx.Context) -> Dict[str, Any]:
    """Return the fields of an optimizer or scheduler that a file holds.

    Raises StateError if the owner has no such field, or one of another type.
    """
    present = vars(owner) if owner is not None else {}
    result = {}
    for name, data in file.header[group].items():
        where = f"{group}.{name}"
        if name not in present or name in _NOT_STATE:
            raise file.error(where, repr(data), f"absent: {type(owner).__name__} has no such field")
        result[name] = file.decode(where, data, ctx)
        if not _same_kind(result[name], present[name]):
            raise file.error(where, repr(result[name]), f"the like of {present[name]!r}")
    return result


def _same_kind(a: Any, b: Any) -> bool:
    """Return whether a loaded field can stand where ``b`` stood; None fits everything."""
    if a is None or b is None:
        return True
    number = (int, float, np.number)
    if isinstance(a, number) and isinstance(b, number):
        return isinstance(a, bool) == isinstance(b, bool)
    return type(a) is type(b)
