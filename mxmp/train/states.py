"""Save and load everything that a resumed run needs beside the weights.

That is the states and masters of every weight, the counters, the fields of the optimizer (``lr``, ``momentum``, ...)
and of its scheduler, and the loss scale. As with MXNet's trainer, a loaded file decides over all of these. Fields that
a file cannot hold, such as functions, keep the value that the new optimizer was made with.

`mxmp.train.state_files` has the format of the file. Here its content is compared with what it is to be loaded into,
all of it before anything is changed.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import logging
import re
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np

from ..arrays import to_float32
from ..dtypes import FLOAT32, LOW_PRECISION, canonical, to_numpy
from ..errors import LossScaleError, StateError, TrainerError
from ..loss_scale import DynamicLossScale, LossScale, NoOpLossScale
from ..mxnet_private import is_initialized, optimizers
from .masters import MasterState, MultiPrecision, follow_weights, keep_masters, require_masters
from .scaler import Scaler
from .state_files import NOT_STATE, content_of, foreign, read, same, write

_LOG = logging.getLogger(__name__)


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


def save(fname: str, target: Target, extra: Dict[str, Any]) -> None:
    """Write the states of an optimizer, and JSON data of the caller, to a file, whole or not at all.

    Copies every state to the host; those that are alike on every context are written once.

    Raises:
        StateError: If an optimizer of the user keeps states that a file cannot hold.
        TrainerError: If a parameter was written to past its master.
    """
    require_masters(param for param in target.params if isinstance(param, mx.gluon.Parameter))
    inner, states = target.optimizer.inner, [updater.states for updater in target.updaters]
    if foreign(states) is not None:
        raise StateError(
            f"the states of {type(inner).__name__} hold a {foreign(states)}, which a state file cannot; expected "
            "arrays, numbers, lists, tuples and dicts."
        )
    if all(same(states[0], each) for each in states[1:]):
        del states[1:]
    params = [{"name": param.name, "shape": list(param.shape or ())} for param in target.params]
    write(fname, {"extra": extra, "params": params, **content_of(inner), "states": states})


def restore(fname: str, target: Target, scaler: Scaler, default: LossScale = DynamicLossScale()) -> None:  # noqa: B008
    """Put the states of a file in place, with the loss scale that `save` got from ``scaler.to_dict()``.

    It may also be a file that MXNet's own trainer, module or updater wrote, with the indices of the target. The
    file decides over every field; the log tells where that is not what the caller set up. ``default`` is the loss
    scale of a caller who gave none, which another one in the file replaces without a word.

    Raises:
        StateError: If the file is damaged or does not fit; then, as with all errors, nothing is changed.
        TrainerError: If the owner of the scaler cannot work with the file's loss scale.
        FileNotFoundError: If there is no such file.
    """
    content, inner, before = read(fname), target.optimizer.inner, scaler.loss_scale
    loaded = _Loaded(fname, content, target)
    fields, scheduler_fields = loaded.fields("fields", inner), loaded.fields("scheduler_fields", inner.lr_scheduler)
    counts, states = loaded.counts(), loaded.states(fields)
    overruled = _overruled(inner, fields)
    try:
        if "extra" in content:
            scaler.load_dict(content["extra"])
    except LossScaleError as e:
        raise StateError(f"{fname}: the loss scale does not load: {str(e):.400}") from e
    except TrainerError as e:
        raise TrainerError(f"{fname}: its loss scale does not fit, so that nothing of it is loaded: {e}") from e
    # From here on nothing fails.
    for updater, placed in zip(target.updaters, states):
        updater.states = placed
        updater.states_synced = dict.fromkeys(placed, False)  # a kvstore may want them on another context
    _link_masters(target, states)
    vars(inner).update(fields)
    if inner.lr_scheduler is not None:
        vars(inner.lr_scheduler).update(scheduler_fields)
    if counts is not None:
        optimizers.all_update_counts.set(inner, counts)
        optimizers.update_counts.set(inner, counts[0])
        inner.num_update = content["num_update"]
    # Without a scale nothing is checked any more: that is never without a word.
    lost = isinstance(scaler.loss_scale, NoOpLossScale) and not isinstance(before, NoOpLossScale)
    if lost or _options(before) not in (_options(scaler.loss_scale), _options(default)):
        overruled.append(f"loss_scale={scaler.loss_scale} (not {before})")
    if overruled:
        _LOG.warning("%s decides over %s; to change that, set it after loading.", fname, ", ".join(overruled))


class _Loaded:
    """The content of a file, part by part as a target takes it; a StateError names the part that does not fit."""

    def __init__(self, fname: str, content: Dict[str, Any], target: Target) -> None:
        self._fname, self._content, self._target = fname, content, target
        self._has_optimizer = "optimizer" in content
        self._indices = self._match_params()
        inner = target.optimizer.inner
        if self._has_optimizer:
            self._require_class("optimizer", content["optimizer"], inner)
            self._require_class("lr_scheduler", content.get("scheduler"), inner.lr_scheduler)

    def _require(self, fits: bool, field: str, value: Any, expected: Any) -> None:
        if not fits:
            raise self._error(field, value, expected)

    def _error(self, field: str, value: Any, expected: Any) -> StateError:
        return StateError(f"{self._fname}: {field} is {value!s:.200}; expected {expected!s:.200}.")

    def _require_class(self, field: str, name: Any, owner: Any) -> None:
        """Raise unless an optimizer or a scheduler is of the class that was saved."""
        name, present = ("None" if each == "NoneType" else each for each in (name, type(owner).__name__))
        advice = f"{present}, as here: train with the {field} of the saved run"
        self._require(name == present, f"the {field}", name, advice)

    def fields(self, group: str, owner: Any) -> Dict[str, Any]:
        """Return the fields of an optimizer or a scheduler; none that it lacks, nor of another type."""
        present = {} if owner is None else vars(owner)
        fields, options = self._content.get(group, {}), _options_of(owner)
        self._require(type(fields) is dict, group, fields, "a dict")
        for name, value in fields.items():
            if name not in present or name in NOT_STATE:
                raise self._error(f"{group}.{name}", repr(value), f"absent: {type(owner).__name__} has no such field")
            # None fits what an optimizer computes, such as LARS's cur_lr before the first update.
            lacks = value is None and present[name] is not None and options.get(name) is not None
            if lacks or not _same_kind(name, value, present[name]) or (name in options and not _is_usable(name, value)):
                like = "a number or None" if present[name] is None else f"the like of {present[name]!r}"
                raise self._error(f"{group}.{name}", repr(value), like)
        # What an optimizer keeps of each weight on itself, as LBSGD does, is by index too.
        return {name: _placed(self._by_index(value), self._target.contexts[0]) for name, value in fields.items()}

    def counts(self) -> Optional[Dict[int, Dict[int, int]]]:
        """Return how often each weight was updated, for each device; None of a file that does not say.

        A device that the file lacks counts as the first that updated.
        """
        if not self._has_optimizer:
            return None
        number, saved = self._content.get("num_update"), self._content.get("counts", {})
        self._require(_is_whole(number), "num_update", number, "a whole number from 0 up")
        self._require(_are_counts(saved), "counts", saved, "whole numbers by device and index")
        # MXNet counts for each device by itself (Optimizer._set_current_context in optimizer.py at tag 1.9.1).
        saved = {device: self._by_index(counts) for device, counts in saved.items()}
        default: Dict[int, int] = next(filter(None, saved.values()), {})
        devices = sorted({0, *(ctx.device_id for ctx in self._target.contexts)})
        return {device: dict(saved.get(device) or default) for device in devices}

    def states(self, fields: Dict[str, Any]) -> List[Dict[int, Any]]:
        """Return the states of each updater, as its weights want them: with masters where these are low precision.

        States in float32 are the same whatever a parameter is stored in, so that a run may go on under another
        policy. A master that is missing is made of the parameter at its next update. The ``fields`` of the file
        decide over the states that the optimizer would make.
        """
        target, states = self._target, self._content.get("states", ())
        self._require(type(states) is list, "states", states, "a list")
        several = f"{len(target.updaters)}, or 1 for all"
        fits = len(states) in (1, len(target.updaters))
        self._require(fits, "the number of contexts with states of their own", len(states), several)
        make = _maker(target.optimizer.inner, fields)
        fitted: List[Dict[int, Any]] = []
        for number, loaded in enumerate(states):
            self._require(type(loaded) is dict, f"states[{number}]", type(loaded).__name__, "a dict")
            fitted.append({})
            for index, state in loaded.items():
                where, known = f"states[{number}][{index!r:.80}]", _is_whole(index) and index < len(target.params)
                self._require(known, where, "of no parameter", f"an index from 0 to {len(target.params) - 1}")
                fitted[-1][self._indices[index]] = self._fitted(where, self._indices[index], state, make)
        pairs = zip(fitted * len(target.contexts) if len(fitted) == 1 else fitted, target.contexts)
        return [{index: _placed(state, ctx) for index, state in each.items()} for each, ctx in pairs]

    def _match_params(self) -> Dict[int, int]:
        """Return the index of the parameter for each index in the file, which has as many, of the same shapes."""
        saved, params = self._content.get("params", ()), self._target.params
        if saved == ():  # of MXNet
            return {index: index for index in range(len(params))}
        self._require(type(saved) is list, "params", saved, "a list")
        self._require(len(saved) == len(params), "the number of parameters", len(saved), f"{len(params)}, as here")
        saved = [each if isinstance(each, dict) else {} for each in saved]
        names = [str(each.get("name")) for each in saved]
        indices = _matched(names, [param.name for param in params])
        for number, index in sorted(indices.items(), key=lambda pair: pair[1]):
            shape, expected = saved[number].get("shape"), list(params[index].shape or ())
            field = f"the shape of parameter '{params[index].name}' (number {index})"
            self._require(shape == expected, field, shape, f"{expected}; '{names[number]}' of the file goes there")
        return indices

    def _by_index(self, value: Any) -> Any:
        """Return a dict by the indices of the file as one by those of the parameters; any other value as it is."""
        if type(value) is not dict or not all(_is_whole(key) for key in value):
            return value
        return {self._indices.get(key, key): each for key, each in value.items()}

    def _fitted(self, where: str, index: int, state: Any, make: _Make) -> Any:
        """Return one state in the form that its parameter wants."""
        param = self._target.params[index]
        shape, dtype = tuple(param.shape), canonical(param.dtype)
        low, wide = dtype in LOW_PRECISION, f"{FLOAT32} {shape}"
        expected = make(index, shape, FLOAT32 if low else dtype)
        if not isinstance(state, MasterState):
            state = _of_mxnet(state, self._target.optimizer.inner, expected, wide)
        master, inner = state.master, state.inner
        self._require(master is None or _text(master) == wide, f"{where}.master", _text(master), wide)
        self._require(expected in (None, _text(inner)), where, _text(inner), expected)
        return MasterState(master if self._target.optimizer.masters else None, inner, is_loaded=True) if low else inner


def _matched(saved: Sequence[str], names: Sequence[str]) -> Dict[int, int]:
    """Return the index of the parameter for the index of each saved one, by names that may have changed since.

    The same names match each other. Others match in the order of their numbers where both lists are in the order of
    text, as those of a collected net: ``dense9_`` and ``dense10_`` are the ``dense8_`` and ``dense9_`` of a net that
    was made before. All else goes by position.
    """
    if set(saved) == set(names) and len(set(names)) == len(saved):
        key: Callable[[str], Any] = str
    elif all(list(texts) == sorted(texts) for texts in (saved, names)):
        key = _natural
    else:
        return {index: index for index in range(len(names))}
    orders = (sorted(enumerate(texts), key=lambda pair: key(pair[1])) for texts in (saved, names))
    return {number: index for (number, _), (index, _) in zip(*orders)}


def _natural(text: str) -> List[Any]:
    """Return a key by which the numbers within texts sort as numbers."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", text)]


_Make = Callable[[int, Tuple[int, ...], str], Optional[str]]


def _maker(inner: mx.optimizer.Optimizer, fields: Dict[str, Any]) -> _Make:
    """Return a function that says, as `_text`, which state an optimizer with other fields makes for a weight."""
    # The optimizer itself is not changed: one of the user may note on itself which states it has made.
    probe = object.__new__(type(inner))
    values = {**vars(inner), **fields}
    vars(probe).update({k: copy.copy(value) if type(value) in (dict, list) else value for k, value in values.items()})
    made: Dict[Tuple[Tuple[int, ...], str], Optional[str]] = {}

    def make(index: int, shape: Tuple[int, ...], dtype: str) -> Optional[str]:
        if (shape, dtype) not in made:
            try:
                weight = mx.nd.zeros(shape, ctx=mx.cpu(), dtype=to_numpy(dtype))
                made[shape, dtype] = _text(probe.create_state_multi_precision(index, weight))
            except Exception:  # an optimizer of the user may want a weight that means something
                made[shape, dtype] = None
        return made[shape, dtype]

    return make


def _of_mxnet(state: Any, inner: mx.optimizer.Optimizer, expected: Optional[str], wide: str) -> MasterState:
    """Return a state in float32, with the master that MXNet's ``multi_precision`` pairs it with, if it does."""
    if expected in (None, _text(state)):
        return MasterState(None, state)
    if type(state) is tuple and len(state) == 2:
        # These keep (state, master), all others (master, state): their create_state_multi_precision in
        # python/mxnet/optimizer/optimizer.py at tag 1.9.1. Shapes do not tell, where a state is one array.
        last = isinstance(inner, (mx.optimizer.SGD, mx.optimizer.NAG, mx.optimizer.LARS))
        own, master = state if last else state[::-1]
        if (_text(own), _text(master)) == (expected, wide):
            return MasterState(master, own)
    return MasterState(None, _widened(state))  # without multi_precision MXNet keeps the weight's dtype


def _widened(state: Any) -> Any:
    """Return a state with its low precision arrays in float32."""
    if type(state) in (list, tuple):
        return type(state)(map(_widened, state))
    return to_float32(state) if isinstance(state, mx.nd.NDArray) else state


def _text(value: Any) -> str:
    """Return what of a state must be as the optimizer makes it: shapes and dtypes, and kinds of all else."""
    # Not how an array is stored: the state of a row_sparse weight is row_sparse, that of zeros is not.
    if isinstance(value, mx.nd.NDArray):
        return f"{canonical(value.dtype)} {value.shape}"
    if isinstance(value, (int, float, np.number)):
        return "a number"
    if isinstance(value, tuple):
        return f"({', '.join(map(_text, value))})"
    return "None" if value is None else f"a {type(value).__name__}"


# Fields of MXNet's optimizers that are numbers or None (python/mxnet/optimizer/optimizer.py at tag 1.9.1).
_NUMBERS_OR_NONE = {"lr", "clip_gradient", "clip_weights", "lower_bound", "upper_bound", "last_lr", "cur_lr"}


def _same_kind(name: str, a: Any, b: Any) -> bool:
    """Return whether a loaded field can stand where ``b`` stood; one may be None, as before the first update."""
    number = (int, float, np.number)
    if isinstance(a, number) and (isinstance(b, number) or name in _NUMBERS_OR_NONE):
        return isinstance(a, bool) == isinstance(b, bool)
    return a is None or (b is None and name not in _NUMBERS_OR_NONE) or type(a) is type(b)


def _is_usable(name: str, option: Any) -> bool:
    """Return whether an option is no NaN, and a learning rate finite; a clipping may be inf."""
    if not isinstance(option, (float, np.floating)):
        return True
    return bool(np.isfinite(option) if name in ("lr", "base_lr") else not np.isnan(option))


def _is_whole(number: Any) -> bool:
    return type(number) is int and number >= 0


def _are_counts(value: Any) -> bool:
    items = value.items() if type(value) is dict else ((None, None),)
    parts = ((device, *each, *each.values()) if type(each) is dict else (None,) for device, each in items)
    return all(_is_whole(number) for part in parts for number in part)


def _placed(value: Any, ctx: mx.Context) -> Any:
    """Return a value with its arrays on a context; those that are there are not copied."""
    if isinstance(value, mx.nd.NDArray):
        return value.as_in_context(ctx)
    if isinstance(value, MasterState):
        parts = {name: _placed(getattr(value, name), ctx) for name in ("master", "inner")}
        return dataclasses.replace(value, **parts)
    if type(value) is dict:
        return {key: _placed(each, ctx) for key, each in value.items()}
    return type(value)(_placed(each, ctx) for each in value) if type(value) in (list, tuple) else value


def _link_masters(target: Target, states: Sequence[Dict[int, Any]]) -> None:
    """Let parameters keep the masters that were loaded for them."""
    for index, param in enumerate(target.params):
        loaded = [each.get(index) for each in states]
        masters = [state.master for state in loaded if isinstance(state, MasterState) and state.master is not None]
        if masters and isinstance(param, mx.gluon.Parameter):
            # What a parameter keeps wins over a state's master. Weights are loaded before states, so that those that
            # are not their master rounded were changed since.
            keep_masters(param, masters)
            if is_initialized(param):
                follow_weights(param)


def _options_of(owner: Any) -> Dict[str, Any]:
    """Return the options of the constructors of an optimizer or a scheduler, with their defaults."""
    inits = [vars(cls)["__init__"] for cls in type(owner).__mro__[-2::-1] if "__init__" in vars(cls)]
    parameters = [each for init in inits for each in inspect.signature(init).parameters.values()]
    scheduler = getattr(owner, "lr_scheduler", None)  # with which lr may be None
    return {**{each.name: each.default for each in parameters}, "lr": 0.01 if scheduler is None else None}


def _overruled(owner: Any, fields: Dict[str, Any]) -> List[str]:
    """Return the options of an optimizer whose values in a file are others."""
    options, plain = _options_of(owner), (bool, int, float, str, type(None))
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
