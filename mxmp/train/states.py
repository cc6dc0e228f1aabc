"""Save and load everything that a resumed run needs beside the weights.

That is the states and masters of every weight, the counters, the fields of the optimizer
(``lr``, ``momentum``, ...) and of its scheduler, and what the caller adds (the loss scale). As
with MXNet's trainer, a loaded file decides over all of these. Fields that a state file cannot
hold, such as functions, keep the value that the new optimizer was made with.
"""

from __future__ import annotations

import dataclasses
import inspect
import logging
from typing import Any, Callable, Dict, List, Optional, Sequence

import mxnet as mx
import numpy as np

from ..errors import LossScaleError, StateError
from ..loss_scale import DynamicLossScale, LossScale
from ..mxnet_private import optimizers
from . import state_file
from .masters import MasterState, keep_masters
from .scaler import Scaler
from .state_file import StateFile, UpdaterFile
from .state_header import (
    FORMAT,
    VERSION,
    ModelStates,
    Target,
    check_header,
    check_states,
    check_target,
    class_name,
    decode_fields,
    decode_states,
    describe,
    encode_fields,
    encode_states,
)

_LOG = logging.getLogger(__name__)

_DEFAULT = DynamicLossScale()


@dataclasses.dataclass(frozen=True)
class Loaded:
    """A file of states that was read and found to fit.

    Attributes:
        extra: What the caller of `save` gave; None from a file that holds nothing of it.
        overruled: Options of the optimizer that the file decides otherwise, as text.
        apply: Puts the states in place.
    """

    extra: Optional[Dict[str, Any]]
    overruled: List[str]
    apply: Callable[[], None]


def save(fname: str, target: Target, extra: Dict[str, Any]) -> None:
    """Write the states of an optimizer, and JSON data of the caller, to a file, whole or not at all.

    Copies every state to the host; those that are alike on every context are written once. Raises StateError if
    an optimizer of the user keeps states that a file cannot hold.
    """
    arrays: Dict[str, np.ndarray[Any, Any]] = {}
    inner = target.optimizer.inner
    scheduler = inner.lr_scheduler
    header = {
        "format": FORMAT,
        "version": VERSION,
        "extra": extra,
        "params": [describe(param) for param in target.params],
        "optimizer": type(inner).__name__,
        "masters": target.optimizer.masters,
        "num_update": inner.num_update,
        "counts": [[d, list(c.items())] for d, c in optimizers.all_update_counts(inner).items()],
        "fields": encode_fields(inner, arrays),
        "scheduler": class_name(scheduler),
        "scheduler_fields": encode_fields(scheduler, arrays),
        "states": encode_states(target.updaters, arrays),
    }
    state_file.write(fname, header, arrays)


def load(fname: str, target: Target, of_updater: bool = False) -> Loaded:
    """Read and validate a file of states, or raise a StateError; `Loaded.apply` puts them in place.

    It may be one ``of_updater``, as MXNet's ``Updater.get_states`` gives it, with the indices of the target: it holds
    the states alone, and decides over nothing else.
    """
    if of_updater and UpdaterFile.is_one(fname):
        return _load_updater(UpdaterFile(fname), target)
    file = StateFile(fname)
    check_header(file)
    check_target(file, target)
    inner = target.optimizer.inner
    fields = decode_fields(file, "fields", inner, target.contexts[0])
    states = decode_states(file, target, ModelStates(target.optimizer, fields, file.header["params"]))
    scheduler_fields = decode_fields(file, "scheduler_fields", inner.lr_scheduler, target.contexts[0])
    counts = {d: dict(items) for d, items in file.header["counts"]}
    num_update = file.header["num_update"]

    def apply() -> None:
        _set_states(target, states)
        vars(inner).update(fields)
        if inner.lr_scheduler is not None:
            vars(inner.lr_scheduler).update(scheduler_fields)
        devices = _counts_per_device(counts, target.contexts)
        optimizers.all_update_counts.set(inner, devices)
        optimizers.update_counts.set(inner, devices[0])
        inner.num_update = num_update

    return Loaded(file.header["extra"], _overruled(inner, fields), apply)


def _load_updater(file: UpdaterFile, target: Target) -> Loaded:
    """Return what a file of one updater's states stands for: copies of them on each context."""
    saved = [describe(param) for param in target.params]
    check_states(file, "states", file.states, ModelStates(target.optimizer, {}, saved))
    states = [{index: _copied(state, ctx) for index, state in file.states.items()} for ctx in target.contexts]
    return Loaded(None, [], lambda: _set_states(target, states))


def _copied(state: Any, ctx: mx.Context) -> Any:
    if isinstance(state, mx.nd.NDArray):
        return state.copyto(ctx)
    if isinstance(state, MasterState):
        return MasterState(_copied(state.master, ctx), _copied(state.inner, ctx))
    return type(state)(_copied(each, ctx) for each in state) if isinstance(state, (list, tuple)) else state


def _set_states(target: Target, states: Sequence[Dict[int, Any]]) -> None:
    for updater, loaded in zip(target.updaters, states):
        updater.states = loaded
        updater.states_synced = dict.fromkeys(loaded, False)  # a kvstore may want them on another context
    _link_masters(target.params, states)


def restore(
    fname: str, target: Target, scaler: Scaler, default: LossScale = _DEFAULT, of_updater: bool = False
) -> None:
    """Put the states of a file in place, with the loss scale that `save` got from ``scaler.to_dict()``.

    The file decides over every field; the log tells where that is not what the caller set up. ``default`` is the loss
    scale of a caller who gave none, which the file replaces without a word; ``of_updater`` is as for `load`. A
    StateError changes nothing.
    """
    loaded = load(fname, target, of_updater)
    before = scaler.loss_scale
    try:
        if loaded.extra is not None:
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
    found = loss_scale.to_dict()
    return {key: value for key, value in found.items() if key not in state or found["kind"] == "static"}


def _counts_per_device(saved: Dict[int, Dict[int, int]], contexts: Sequence[mx.Context]) -> Dict[int, Any]:
    """Return the counts of each device; one that the file lacks counts as the first that updated."""
    default = next((count for count in saved.values() if count), {})
    devices = {0, *(ctx.device_id for ctx in contexts)}
    return {device: dict(saved.get(device) or default) for device in sorted(devices)}
