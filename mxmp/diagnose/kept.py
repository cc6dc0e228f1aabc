"""Put nets, and the trainers that step them, back as they were found: after a run, or steps that are not to count."""

from __future__ import annotations

import contextlib
from typing import Any, Dict, Iterable, Iterator, List, Sequence, Set, Tuple

import mxnet as mx
from mxnet import autograd, gluon

from ..distributed import distributed
from ..errors import TrainerError
from ..gluon.api import restore
from ..gluon.blocks import blocks_in, conversions_of
from ..mxnet_private import is_fresh
from ..mxnet_private import trainers as private
from ..train.scaler import ScalerStatus
from ..train.step import scaler_of

_STATE = (gluon.Trainer, mx.optimizer.Optimizer, mx.optimizer.Updater, mx.lr_scheduler.LRScheduler)
_FOUND_ELSEWHERE = (gluon.Parameter, gluon.Block, mx.kvstore.KVStore)
_OURS = __name__.partition(".")[0] + "."


@contextlib.contextmanager
def kept(net: gluon.Block) -> Iterator[None]:
    """Give the net as it was written within this context, and as it was found after it, also after an exception.

    That includes its policy and graphs, whether it is hybridized, and the very arrays of its parameters, statistics and
    gradients, whose values are copied for that. What backward writes in it counts as no gradient for a trainer's step.
    """
    found = Found([net])
    try:
        restore(net)
        yield
    finally:
        found.put_back()


class Found:
    """What nets and the objects that belong to them were like: classes, attributes and values of arrays.

    ``others`` are further parameters.
    """

    def __init__(self, nets: Sequence[gluon.Block], others: Iterable[gluon.Parameter] = ()) -> None:
        inside = blocks_in(*nets)
        own = (param for net in nets for param in net.collect_params().values())
        conversions, params = conversions_of(inside), list({id(param): param for param in (*own, *others)}.values())
        self._objects = [_Object(each) for each in (*inside, *conversions, *params)]
        arrays = {id(array): array for param in params for array in _arrays_of(param)}
        self._fresh = [(array, is_fresh(array)) for array in arrays.values()]
        with autograd.pause():
            self._values: List[Tuple[Any, Any]] = [(array, array.copy()) for array in arrays.values()]

    def put_back(self) -> None:
        """Make all of it as it was."""
        for each in self._objects:
            each.put_back()
        with autograd.pause():
            for array, value in self._values:
                value.copyto(array)
        for array, was_fresh in self._fresh:
            if is_fresh(array) != was_fresh:
                is_fresh.set(array, was_fresh)


class _Object:
    """An object's class and attributes, with copies of the lists and dicts among them."""

    def __init__(self, found: Any) -> None:
        self._found, self._class = found, type(found)
        self._attributes = {name: _copied(value) for name, value in vars(found).items()}

    def put_back(self) -> None:
        self._found.__class__ = self._class
        vars(self._found).clear()
        vars(self._found).update(self._attributes)


def _copied(value: Any) -> Any:
    """Return a list or dict as a copy, since it may be changed in place, and anything else as it is."""
    return value.copy() if type(value) in (list, dict) else value


def _arrays_of(param: gluon.Parameter) -> Iterable[mx.nd.NDArray]:
    """Yield a parameter's arrays: values, gradients and float32 masters."""
    for held in vars(param).values():
        several: Iterable[Any] = held.values() if isinstance(held, dict) else held if isinstance(held, list) else ()
        yield from (each for each in several if isinstance(each, mx.nd.NDArray))


# ---------------------------------------------------------------------- trainers


@contextlib.contextmanager
def kept_training(nets: Sequence[gluon.Block], trainers: Sequence[gluon.Trainer]) -> Iterator[None]:
    """Put nets and trainers back after this context, also after an exception, whatever steps are made in it.

    That is all that `kept` puts back, here with nets converted as they are, and of trainers: optimizer states, masters,
    update counts, learning rate schedule, loss scale, and hooks and methods of the one object. Observers of the
    trainers, such as logs and ledgers, are told of none of these steps, and observe again after it.

    Not put back is what is outside of these: what step hooks, and logs that are not of mxmp, do; the state of random
    numbers; iterators that are read.

    Raises:
        TrainerError: If a trainer's kvstore is set up and updates weights by itself, or sums over workers: what it
            holds cannot be put back.
    """
    for trainer in trainers:
        _require_own_update(trainer)
    found = Found(nets, [param for trainer in trainers for param in private.params(trainer)])
    state = _State(trainers)
    for trainer in trainers:
        if isinstance(trainer, ScalerStatus):
            scaler_of(trainer).observers.clear()  # the state has them
    try:
        yield
    finally:
        state.put_back()
        found.put_back()


def _require_own_update(trainer: gluon.Trainer) -> None:
    is_ready = private.is_kvstore_ready(trainer)
    store = private.kvstore(trainer) if is_ready else private.kvstore_params(trainer)["kvstore"]
    if store and distributed(store):
        raise TrainerError("the trainer's kvstore sums over workers, where no dry run can be; check on one machine.")
    if is_ready and store and private.updates_on_kvstore(trainer):
        raise TrainerError(
            "the trainer's kvstore is set up and updates weights by itself, which cannot be undone; check the loop "
            "before its first step, or make the trainer with update_on_kvstore=False."
        )


class _State:
    """What trainers and all that belongs to them were like: attributes, contents of containers, values of arrays."""

    def __init__(self, trainers: Sequence[Any]) -> None:
        self._seen: Set[int] = set()
        self._objects: List[Tuple[Any, type, Dict[str, Any]]] = []
        self._dicts: List[Tuple[Any, Dict[Any, Any]]] = []
        self._lists: List[Tuple[Any, List[Any]]] = []
        self._arrays: List[Tuple[Any, Any]] = []
        with autograd.pause():
            for trainer in trainers:
                self._find(trainer)

    def _find(self, value: Any) -> None:
        if id(value) in self._seen or isinstance(value, _FOUND_ELSEWHERE):
            return
        self._seen.add(id(value))
        if isinstance(value, mx.nd.NDArray):
            self._arrays.append((value, value.copy()))
        elif isinstance(value, dict):
            self._dicts.append((value, dict(value)))
            self._find_all(value.values())
        elif isinstance(value, list):
            self._lists.append((value, list(value)))
            self._find_all(value)
        elif isinstance(value, tuple):
            self._find_all(value)
        elif hasattr(value, "__dict__") and (
            isinstance(value, _STATE) or (type(value).__module__.startswith(_OURS) and not isinstance(value, type))
        ):
            self._objects.append((value, type(value), dict(vars(value))))
            self._find_all(vars(value).values())

    def _find_all(self, values: Any) -> None:
        for each in list(values):
            self._find(each)

    def put_back(self) -> None:
        """Make all of it as it was."""
        for value, kind, attributes in self._objects:
            if type(value) is not kind:
                value.__class__ = kind
            vars(value).clear()
            vars(value).update(attributes)
        for held, items in self._dicts:
            held.clear()
            held.update(items)
        for several, contents in self._lists:
            several[:] = contents
        with autograd.pause():
            for array, copy in self._arrays:
                copy.copyto(array)
