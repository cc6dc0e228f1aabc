"""Save and load everything that a resumed run needs beside the weights.

That is the states and masters of every weight, the counters, the fields of the optimizer
(``lr``, ``momentum``, ...) and of its scheduler, and what the caller adds (the loss scale). As
with MXNet's trainer, a loaded file decides over all of these. Fields that a state file cannot
hold, such as functions, keep the value that the new optimizer was made with.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import json
import logging
from typing import Any, Callable, Dict, List, Optional, Sequence

import mxnet as mx
import numpy as np

from ..dtypes import canonical
from ..errors import LossScaleError, StateError
from ..loss_scale import DynamicLossScale, LossScale
from ..masters.copies import keep_masters
from ..masters.optimizer import MasterState, MultiPrecision
from ..scaling.scaler import Scaler
from . import state_file
from .model_states import ModelStates
from .state_file import StateFile

_LOG = logging.getLogger(__name__)

_DEFAULT = DynamicLossScale()

FORMAT = "mxmp-optimizer-states"
VERSION = 1

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
    "_all_index_update_counts",
    "_index_update_count",
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


@dataclasses.dataclass(frozen=True)
class Target:
    """What states are saved from and loaded into.

    Attributes:
        optimizer: The optimizer of all updaters.
        updaters: One per context.
        contexts: Where each updater's states live.
        params: The parameters, in the order of their indices.
    """

    optimizer: MultiPrecision
    updaters: Sequence[mx.optimizer.Updater]
    contexts: Sequence[mx.Context]
    params: Sequence[mx.gluon.Parameter]


@dataclasses.dataclass(frozen=True)
class Loaded:
    """A file of states that was read and found to fit.

    Attributes:
        extra: What the caller of `save` gave.
        overruled: Options of the optimizer that the file decides otherwise, as text.
        apply: Puts the states in place.
    """

    extra: Dict[str, Any]
    overruled: List[str]
    apply: Callable[[], None]


def save(fname: str, target: Target, extra: Dict[str, Any]) -> None:
    """Write the states of an optimizer to a file, whole or not at all.

    Copies every state to the host. States that are alike on every context are written once.

    Args:
        fname: The file to write; replaced only when the new one is complete.
        target: The optimizer with its updaters and parameters.
        extra: JSON data of the caller.

    Raises:
        StateError: If an optimizer of the user keeps states that a file cannot hold.
    """
    arrays: Dict[str, np.ndarray] = {}
    inner = target.optimizer.inner
    scheduler = inner.lr_scheduler
    header = {
        "format": FORMAT,
        "version": VERSION,
        "extra": extra,
        "params": [_describe(param) for param in target.params],
        "optimizer": type(inner).__name__,
        "masters": target.optimizer.masters,
        "num_update": inner.num_update,
        "counts": [[d, list(c.items())] for d, c in inner._all_index_update_counts.items()],
        "fields": _encode_fields(inner, arrays),
        "scheduler": _class_name(scheduler),
        "scheduler_fields": _encode_fields(scheduler, arrays),
        "states": _encode_states(target.updaters, arrays),
    }
    state_file.write(fname, header, arrays)


def load(fname: str, target: Target) -> Loaded:
    """Read and validate a file of states; `Loaded.apply` puts them in place.

    Args:
        fname: A file that `save` wrote.
        target: What the states are for. It is not changed here.

    Raises:
        StateError: If the file is damaged or does not fit.
    """
    file = StateFile(fname)
    _check_header(file)
    _check_target(file, target)
    inner = target.optimizer.inner
    fields = _decode_fields(file, "fields", inner, target.contexts[0])
    states = _decode_states(file, target, ModelStates(target.optimizer, fields, file.header["params"]))
    scheduler_fields = _decode_fields(file, "scheduler_fields", inner.lr_scheduler, target.contexts[0])
    counts = {d: dict(items) for d, items in file.header["counts"]}
    num_update = file.header["num_update"]

    def apply() -> None:
        for updater, loaded in zip(target.updaters, states):
            updater.states = loaded
            updater.states_synced = dict.fromkeys(loaded, False)  # a kvstore may want them on another context
        _link_masters(target.params, states)
        vars(inner).update(fields)
        if inner.lr_scheduler is not None:
            vars(inner.lr_scheduler).update(scheduler_fields)
        inner._all_index_update_counts = _counts_per_device(counts, target.contexts)
        inner._index_update_count = inner._all_index_update_counts[0]
        inner.num_update = num_update

    return Loaded(file.header["extra"], _overruled(inner, fields), apply)


def restore(fname: str, target: Target, scaler: Scaler, default: LossScale = _DEFAULT) -> None:
    """Put the states of a file in place, with the loss scale that `save` got from ``scaler.to_dict()``.

    The file decides over every field; the log tells where that is not what the caller set up.

    Args:
        fname: The file.
        target: What the states are for.
        scaler: What the loss scale is for.
        default: The loss scale of a caller who gave none, which the file replaces without a word.

    Raises:
        StateError: If the file is damaged or does not fit; then nothing is changed.
    """
    loaded = load(fname, target)
    before = scaler.loss_scale
    try:
        scaler.load_dict(loaded.extra)
    except LossScaleError as e:
        raise StateError(f"{fname}: the loss scale does not load: {e}") from e
    loaded.apply()
    overruled = list(loaded.overruled)
    if _options(before) not in (_options(scaler.loss_scale), _options(default)):
        overruled.append(f"loss_scale={scaler.loss_scale} (not {before})")
    if overruled:
        _LOG.warning("%s decides over %s; to change that, set it after loading.", fname, ", ".join(overruled))


def _link_masters(params: Sequence[mx.gluon.Parameter], states: Sequence[Dict[int, Any]]) -> None:
    """Let parameters keep the masters that were loaded for them."""
    for index, param in enumerate(params):
        found = [loaded.get(index) for loaded in states]
        masters = [state.master for state in found if isinstance(state, MasterState) and state.master is not None]
        if masters and isinstance(param, mx.gluon.Parameter):
            keep_masters(param, masters)


def _overruled(owner: Any, fields: Dict[str, Any]) -> List[str]:
    """Return the options of an optimizer's constructors whose values in a file are others."""
    signatures = (inspect.signature(cls.__init__) for cls in type(owner).__mro__ if cls is not object)
    options = {"lr", *(name for signature in signatures for name in signature.parameters)}
    plain = (bool, int, float, str, type(None))
    return [
        f"{name}={value!r} (not {vars(owner)[name]!r})"
        for name, value in fields.items()
        if name in options and isinstance(value, plain) and value != vars(owner)[name]
    ]


def _options(loss_scale: LossScale) -> Dict[str, Any]:
    """Return what a user sets of a loss scale, without its state."""
    state = {"value", "growth_tracker", "hysteresis_tracker", "floor_skips", "warming_up"}
    found = loss_scale.to_dict()
    return {key: value for key, value in found.items() if key not in state or found["kind"] == "static"}


def _counts_per_device(saved: Dict[int, Dict[int, int]], contexts: Sequence[mx.Context]) -> Dict[int, Any]:
    """Return the counts of each device; one that the file lacks counts as the first that updated."""
    default = next((count for count in saved.values() if count), {})
    devices = {0, *(ctx.device_id for ctx in contexts)}
    return {device: dict(saved.get(device) or default) for device in sorted(devices)}


def _class_name(scheduler: Any) -> Optional[str]:
    return None if scheduler is None else type(scheduler).__name__


def _describe(param: mx.gluon.Parameter) -> Dict[str, Any]:
    return {"name": param.name, "shape": list(param.shape or ()), "dtype": canonical(param.dtype)}


def _encode_states(updaters: Sequence[Any], arrays: Dict[str, np.ndarray]) -> List[Any]:
    """Encode the states of every updater, or of the first alone where all are alike."""
    trees: List[Any] = []
    parts: List[Dict[str, np.ndarray]] = []
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


def _alike(a: Dict[str, np.ndarray], b: Dict[str, np.ndarray]) -> bool:
    return all(x.tobytes() == y.tobytes() for x, y in zip(a.values(), b.values()))


def _encode_fields(owner: Any, arrays: Dict[str, np.ndarray]) -> Dict[str, Any]:
    fields = {}
    for name, value in (vars(owner) if owner is not None else {}).items():
        if name not in _NOT_STATE:
            with contextlib.suppress(state_file.CannotEncodeError):
                fields[name] = state_file.encode(value, arrays, "fields.")
    return fields


def _check_header(file: StateFile) -> None:
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


def _check_target(file: StateFile, target: Target) -> None:
    header, inner = file.header, target.optimizer.inner
    for field, found, expected in (
        ("the optimizer", header["optimizer"], type(inner).__name__),
        ("lr_scheduler", header.get("scheduler"), _class_name(inner.lr_scheduler)),
        ("multi_precision", header["masters"], target.optimizer.masters),
        ("the number of parameters", len(header["params"]), len(target.params)),
    ):
        if found != expected:
            raise file.error(field, found, f"{expected}, as in this trainer")
    for i, (saved, param) in enumerate(zip(header["params"], target.params)):
        mine = _describe(param)
        for key in ("dtype", "shape"):
            found = saved.get(key) if isinstance(saved, dict) else None
            if found != mine[key] and not (key == "shape" and _unknown(param) and _is_shape(found)):
                hint = "; take the policy that it was saved under" if key == "dtype" else ""
                raise file.error(f"the {key} of parameter '{param.name}' (number {i})", found, f"{mine[key]}{hint}")


def _is_shape(found: Any) -> bool:
    return type(found) is list and all(type(size) is int and size >= 0 for size in found)


def _unknown(param: mx.gluon.Parameter) -> bool:
    return not param.shape or min(param.shape) <= 0


def _decode_states(file: StateFile, target: Target, model: ModelStates) -> List[Dict[int, Any]]:
    trees, number = file.header["states"], len(target.updaters)
    if len(trees) not in (1, number):
        raise file.error("the number of contexts with states of their own", len(trees), number)
    result = []
    for i, ctx in enumerate(target.contexts):
        k = min(i, len(trees) - 1)
        states = file.decode(f"states[{k}]", trees[k], ctx)
        if not isinstance(states, dict):
            raise file.error(f"states[{k}]", type(states).__name__, "a dict")
        for index, state in states.items():
            where = f"states[{k}][{index!r}]"
            _check_index(file, where, index)
            model.check(file, where, index, state)
        result.append(states)
    return result


def _check_index(file: StateFile, where: str, index: Any) -> None:
    params = file.header["params"]
    if type(index) is not int or not 0 <= index < len(params):
        raise file.error(where, "of no parameter", f"an index from 0 to {len(params) - 1}")


def _decode_fields(file: StateFile, group: str, owner: Any, ctx: mx.Context) -> Dict[str, Any]:
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
