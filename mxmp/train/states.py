"""Save and load everything that a resumed run needs except the weights.

The states and masters of every weight are saved, the counters, the fields of the optimizer (``lr``, ``momentum``, ...)
and of its scheduler, and the loss scale. As with MXNet's trainer, a loaded file decides about all of these. Fields that
a file cannot hold, such as functions, keep the value that the new optimizer was made with.

`mxmp.train.state_files` has the format of the file. Here the whole content is checked before anything is changed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import re
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np

from ..arrays import to_float32, tree_leaves
from ..dtypes import FLOAT32, LOW_PRECISION, canonical
from ..errors import LossScaleError, StateError, TrainerError, a_type_of
from ..loss_scale import NoOpLossScale
from ..mxnet_private import is_initialized
from .masters import Masters, keep_masters, require_masters, sync_masters_from_weights
from .multi_precision import master_and_state
from .scaler import Scaler
from .state_files import NOT_STATE, are_equal, content_of, read, unsupported_type, write

_LOG = logging.getLogger(__name__)


class WeightInfo(NamedTuple):
    """Name, shape and dtype of a weight that is no Parameter, for a file of states."""

    name: str
    shape: Tuple[int, ...]
    dtype: Any


@dataclasses.dataclass(frozen=True)
class Target:
    """The objects that states are saved from and loaded into.

    Attributes:
        optimizer: The user's optimizer.
        updaters: One for each context.
        masters: Those of each updater.
        contexts: The contexts.
        params: Parameters, or a `WeightInfo` for each weight, in the order of their indices.
    """

    optimizer: mx.optimizer.Optimizer
    updaters: Sequence[mx.optimizer.Updater]
    masters: Sequence[Masters]
    contexts: Sequence[mx.Context]
    params: Sequence[Any]


def _parameters(target: Target) -> List[mx.gluon.Parameter]:
    return [param for param in target.params if isinstance(param, mx.gluon.Parameter)]


def save(fname: str, target: Target, extra: Dict[str, Any]) -> None:
    """Write the states of an optimizer, and JSON data of the caller, to a file, whole or not at all.

    Copies every state to the host; those that are alike on every context are written once.

    Raises:
        StateError: If an optimizer of the user keeps states that a file cannot hold.
        TrainerError: If a parameter was written to past its master.
    """
    require_masters(_parameters(target))
    states = [updater.states for updater in target.updaters]
    masters = [each.arrays for each in target.masters]
    if unsupported_type(states) is not None:
        raise StateError(
            f"the states of {type(target.optimizer).__name__} hold a {unsupported_type(states)}, which a state file "
            "cannot; expected arrays, numbers, lists, tuples and dicts."
        )
    if all(are_equal([states[0], masters[0]], list(each)) for each in zip(states[1:], masters[1:])):
        del states[1:], masters[1:]
    params = [{"name": param.name, "shape": list(param.shape or ())} for param in target.params]
    content = {"params": params, **content_of(target.optimizer), "states": states, "masters": masters}
    write(fname, {"extra": extra, **content})


def restore(fname: str, target: Target, scaler: Scaler) -> None:
    """Put the states of a file in place, with the loss scale that `save` got from ``scaler.to_dict()``.

    It may also be a file that MXNet's own trainer, module or updater wrote, with the indices of the target. The file
    decides about every field. If it turns the loss scale off, a warning is logged.

    Raises:
        StateError: If the file is damaged or does not fit; then, as with all errors, nothing is changed.
        TrainerError: If the owner of the scaler cannot work with the file's loss scale.
        CheckpointError: If there is no such file; it is a FileNotFoundError too.
    """
    content, optimizer, before = read(fname), target.optimizer, scaler.loss_scale
    loaded = _FileContent(fname, content, target)
    fields = loaded.fields("fields", optimizer)
    scheduler_fields = loaded.fields("scheduler_fields", optimizer.lr_scheduler)
    counts, (states, masters) = loaded.counts(), loaded.states_and_masters()
    try:
        if "extra" in content:
            scaler.check_dict(content["extra"])
    except LossScaleError as e:
        raise StateError(f"{fname}: the loss scale does not load: {str(e):.400}") from e
    except TrainerError as e:
        raise TrainerError(f"{fname}: its loss scale does not fit, so that nothing of it is loaded: {e}") from e
    # Nothing fails from here on. An interrupt gives all objects their values back.
    owners = [scaler, scaler.shared, optimizer, optimizer.lr_scheduler, *target.updaters, *target.masters]
    with all_or_none([*owners, *_parameters(target)]):
        if "extra" in content:
            scaler.load_dict(content["extra"])
        for updater, placed in zip(target.updaters, states):
            updater.states = placed
            updater.states_synced = dict.fromkeys(placed, False)  # A module's group2ctxs may want other contexts.
        for each, arrays in zip(target.masters, masters):
            each.load(arrays)
        _link_masters(target)
        vars(optimizer).update(fields)
        if optimizer.lr_scheduler is not None:
            vars(optimizer.lr_scheduler).update(scheduler_fields)
        if counts is not None:
            optimizer._all_index_update_counts = counts
            optimizer._index_update_count = counts[0]
            optimizer.num_update = content["num_update"]
    if isinstance(scaler.loss_scale, NoOpLossScale) and not isinstance(before, NoOpLossScale):
        text = "%s turns the loss scale off (before: %s), so that nothing is checked; set loss_scale after loading."
        _LOG.warning(text, fname, before)


@contextlib.contextmanager
def all_or_none(objects: Iterable[Any]) -> Iterator[None]:
    """Give objects their present class and attributes back if an exception ends this context; None is left out.

    Only the attributes are given back, not the content of lists and dicts: replace these, do not change them.
    """
    before = [(each, type(each), dict(vars(each))) for each in objects if each is not None]
    try:
        yield
    except BaseException:
        for each, kind, attributes in before:
            present = vars(each)
            present.update(attributes)
            for name in present.keys() - attributes.keys():
                del present[name]
            if type(each) is not kind:
                each.__class__ = kind
        raise


class _FileContent:
    """The content of a file, checked part by part for a target. A StateError names the part that does not fit."""

    def __init__(self, fname: str, content: Dict[str, Any], target: Target) -> None:
        self._fname, self._content, self._target = fname, content, target
        self._has_optimizer = "optimizer" in content
        self._indices = self._match_params()
        if self._has_optimizer:
            self._require_class("optimizer", content["optimizer"], target.optimizer)
            self._require_class("lr_scheduler", content.get("scheduler"), target.optimizer.lr_scheduler)

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
        """Return the fields of an optimizer or a scheduler, or raise if it lacks one or has another type there."""
        present = {} if owner is None else vars(owner)
        fields = self._content.get(group, {})
        self._require(type(fields) is dict, group, fields, "a dict")
        for name, value in fields.items():
            if name not in present or name in NOT_STATE:
                raise self._error(f"{group}.{name}", repr(value), f"absent: {type(owner).__name__} has no such field")
            lacks_rate = name == "lr" and value is None and getattr(owner, "lr_scheduler", None) is None
            if lacks_rate or not _fits(name, value, present[name]):
                like = "a number or None" if present[name] is None else f"the like of {present[name]!r}"
                raise self._error(f"{group}.{name}", repr(value), like)
        # An optimizer may keep dicts by the indices of weights, as LBSGD does.
        return {name: _placed(self._by_index(value), self._target.contexts[0]) for name, value in fields.items()}

    def counts(self) -> Optional[Dict[int, Dict[int, int]]]:
        """Return how often each weight was updated, for each device; None if the file has no optimizer.

        A device that the file lacks gets the counts of the first device that has any.
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

    def states_and_masters(self) -> Tuple[List[Dict[int, Any]], List[Dict[int, mx.nd.NDArray]]]:
        """Return the states of each updater, and the masters of weights that are stored in low precision.

        States are in float32 for any dtype of a parameter, so a run may go on under another policy. A missing master is
        made from the parameter at its next update.
        """
        target, states, masters = self._target, self._by_context("states"), self._by_context("masters")
        if "masters" not in self._content:  # A file of MXNet, which keeps masters as a part of the states.
            split = functools.partial(master_and_state, target.optimizer)
            pairs = [{i: split(_widened(state)) for i, state in each.items()} for each in states]
            states = [{i: state for i, (_, state) in each.items()} for each in pairs]
            masters = [{i: master for i, (master, _) in each.items() if master is not None} for each in pairs]
        self._require(len(masters) == len(states), "the number of contexts with masters", len(masters), len(states))
        for number, each in enumerate(states):
            for index, state in each.items():
                self._require_shapes(f"states[{number}][{index}]", index, state)
        for number, each in enumerate(masters):
            for index, master in each.items():
                expected = f"{FLOAT32} {tuple(target.params[index].shape)}"
                self._require(_text(master) == expected, f"masters[{number}][{index}]", _text(master), expected)
        low_indices = [index for index, param in enumerate(target.params) if canonical(param.dtype) in LOW_PRECISION]
        indices = low_indices if target.masters[0].kept else ()
        masters = [{index: each[index] for index in indices if index in each} for each in masters]
        return self._placed(states), self._placed(masters)

    def _placed(self, values: List[Dict[int, Any]]) -> List[Dict[int, Any]]:
        """Return values with their arrays on each context, of which a file has one for all or as many."""
        contexts = self._target.contexts
        values = values * len(contexts) if len(values) == 1 else values
        return [_placed(each, ctx) for each, ctx in zip(values, contexts)]

    def _by_context(self, name: str) -> List[Dict[int, Any]]:
        """Return values by index, for each context or once for all, with the indices of the target."""
        values, count = self._content.get(name, [{}]), len(self._target.updaters)
        self._require(type(values) is list, name, values, "a list")
        fits = len(values) in (1, count)
        self._require(fits, f"the number of contexts with {name} of their own", len(values), f"{count}, or 1 for all")
        for number, each in enumerate(values):
            self._require(type(each) is dict, f"{name}[{number}]", type(each).__name__, "a dict")
            for index in each:
                is_known = _is_whole(index) and index < len(self._target.params)
                expected = f"an index from 0 to {len(self._target.params) - 1}"
                self._require(is_known, f"{name}[{number}][{index!r:.80}]", "of no parameter", expected)
        return [self._by_index(each) for each in values]

    def _require_shapes(self, where: str, index: int, state: Any) -> None:
        """Raise unless the arrays of a weight's state have its shape. A size may be 1, as in GroupAdaGrad's states."""
        shape = tuple(self._target.params[index].shape)
        for array in (each for each in tree_leaves(state) if isinstance(each, mx.nd.NDArray)):
            fits = len(array.shape) == len(shape) and all(size in (1, full) for size, full in zip(array.shape, shape))
            self._require(fits or array.size == 1, where, _text(array), f"arrays of {shape}")

    def _match_params(self) -> Dict[int, int]:
        """Return the index of the parameter for each index in the file, which has as many, of the same shapes."""
        saved, params = self._content.get("params", ()), self._target.params
        if saved == ():  # A file of MXNet.
            return {index: index for index in range(len(params))}
        self._require(type(saved) is list, "params", saved, "a list")
        self._require(len(saved) == len(params), "the number of parameters", len(saved), f"{len(params)}, as here")
        saved = [each if isinstance(each, dict) else {} for each in saved]
        names = [str(each.get("name")) for each in saved]
        keys = ([_natural(name) for name in each] for each in (names, [param.name for param in params]))
        orders = (sorted(range(len(each)), key=each.__getitem__) for each in keys)
        indices = dict(zip(*orders))
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


def _natural(text: str) -> List[Any]:
    """Return a key by which the numbers within texts sort as numbers."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", text)]


def _widened(state: Any) -> Any:
    """Return a state with its low precision arrays in float32."""
    if type(state) in (list, tuple):
        return type(state)(map(_widened, state))
    return to_float32(state) if isinstance(state, mx.nd.NDArray) else state


def _text(value: Any) -> str:
    """Return the text of a value for messages: dtype and shape of an array, the type of any other value."""
    is_array = isinstance(value, mx.nd.NDArray)
    return f"{canonical(value.dtype)} {value.shape}" if is_array else f"{a_type_of(value)}"


# Fields of MXNet's optimizers that are numbers or None (python/mxnet/optimizer/optimizer.py at tag 1.9.1).
_NUMBERS_OR_NONE = {"lr", "clip_gradient", "clip_weights", "lower_bound", "upper_bound", "last_lr", "cur_lr"}


def _fits(name: str, value: Any, present: Any) -> bool:
    """Return whether a field of an optimizer or a scheduler can have a value in the place of its present one.

    A number must not be NaN, and a learning rate must be finite. None is possible for fields that are computed in the
    first update, and for numbers that an optimizer may lack.
    """
    numbers = (int, float, np.number)
    is_number = name in _NUMBERS_OR_NONE or isinstance(present, numbers)
    if value is None:
        return name in _NUMBERS_OR_NONE or not is_number
    if is_number and isinstance(value, numbers):
        is_usable = np.isfinite(value) if name in ("lr", "base_lr") else not np.isnan(value)
        return bool(is_usable) and isinstance(value, bool) == isinstance(present, bool)
    return type(value) is type(present) or (present is None and not is_number)


def _is_whole(number: Any) -> bool:
    return type(number) is int and number >= 0


def _are_counts(value: Any) -> bool:
    items = value.items() if type(value) is dict else ((None, None),)
    parts = ((device, *each, *each.values()) if type(each) is dict else (None,) for device, each in items)
    return all(_is_whole(number) for part in parts for number in part)


def _placed(value: Any, ctx: mx.Context) -> Any:
    """Return a value with its arrays on a context; arrays that are there already are not copied."""
    if isinstance(value, mx.nd.NDArray):
        return value.as_in_context(ctx)
    if type(value) is dict:
        return {key: _placed(each, ctx) for key, each in value.items()}
    return type(value)(_placed(each, ctx) for each in value) if type(value) in (list, tuple) else value


def _link_masters(target: Target) -> None:
    """Let parameters keep the masters that were loaded for them."""
    for index, param in enumerate(target.params):
        masters = [each.arrays[index] for each in target.masters if index in each.arrays]
        if masters and isinstance(param, mx.gluon.Parameter):
            # Weights are loaded before states, so that those that are not their master rounded were changed since.
            keep_masters(param, masters)
            if is_initialized(param):
                sync_masters_from_weights(param)
