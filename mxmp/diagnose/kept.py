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
from ..train.scaler import ScalerStatus
from ..train.step import scaler_of

_STATE = (gluon.Trainer, mx.optimizer.Optimizer, mx.optimizer.Updater, mx.lr_scheduler.LRScheduler)
_NO_STATE = (gluon.Parameter, gluon.Block, mx.kvstore.KVStore)  # of a trainer
_OURS = __name__.partition(".")[0] + "."


@contextlib.contextmanager
def kept(net: gluon.Block) -> Iterator[None]:
    """Give the net as it was written within this context, and as it was found after it, also after an exception.

    That includes its policy and graphs, whether it is hybridized, and the very arrays of its parameters, statistics and
    gradients, whose values are copied for that. What backward writes in it counts as no gradient for a trainer's step.
    """
    state = _State([net])
    try:
        restore(net)
        yield
    finally:
        state.put_back()


@contextlib.contextmanager
def kept_training(nets: Sequence[gluon.Block], trainers: Sequence[gluon.Trainer]) -> Iterator[None]:
    """Put nets and trainers back after this context, also after an exception, whatever steps are made in it.

    That is all that `kept` puts back, here with nets converted as they are, and of trainers: optimizer states, masters,
    update counts, learning rate schedule, loss scale, and hooks and methods of the one object. Observers of the
    trainers, such as logs, are told of none of these steps, and observe again after it.

    Not put back is what is outside of these: what step hooks, and logs that are not of mxmp, do; the state of random
    numbers; iterators that are read.

    Raises:
        TrainerError: If a trainer's kvstore is set up and updates weights by itself, or sums over workers: what it
            holds cannot be put back.
    """
    for trainer in trainers:
        _require_own_update(trainer)
    state = _State(nets, [param for trainer in trainers for param in trainer._params])
    with autograd.pause():
        for trainer in trainers:
            state.walk(trainer)
    for trainer in trainers:
        if isinstance(trainer, ScalerStatus):
            scaler_of(trainer).observers.clear()  # the state has them
    try:
        yield
    finally:
        state.put_back()


def _require_own_update(trainer: gluon.Trainer) -> None:
    is_ready = trainer._kv_initialized
    store = trainer._kvstore if is_ready else trainer._kvstore_params["kvstore"]
    if store and distributed(store):
        raise TrainerError("the trainer's kvstore sums over workers, where no dry run can be; check on one machine.")
    if is_ready and store and trainer._update_on_kvstore:
        raise TrainerError(
            "the trainer's kvstore is set up and updates weights by itself, which cannot be undone; check the loop "
            "before its first step, or make the trainer with update_on_kvstore=False."
        )


class _State:
    """The state of nets and of the objects that belong to them: classes, attributes, containers, values of arrays.

    ``others`` are further parameters.
    """

    def __init__(self, nets: Sequence[gluon.Block], others: Iterable[gluon.Parameter] = ()) -> None:
        self._seen: Set[int] = set()
        self._objects: List[Tuple[Any, type, Dict[str, Any]]] = []
        self._containers: List[Tuple[Any, Any]] = []  # dicts and lists, each with a copy
        self._arrays: List[Tuple[Any, Any, bool]] = []  # each with a copy, and whether its gradient is fresh
        inside = blocks_in(*nets)
        own = (param for net in nets for param in net.collect_params().values())
        params = list({id(param): param for param in (*own, *others)}.values())
        # Of blocks, conversions and parameters attributes are kept one level deep: they refer to one another.
        with autograd.pause():
            for each in (*inside, *conversions_of(inside), *params):
                self._keep(each)
                for value in vars(each).values():
                    if type(value) in (list, dict):
                        self._containers.append((value, value.copy()))
            for param in params:
                for array in (each for value in vars(param).values() for each in _arrays_in(value)):
                    self._keep_array(array)

    def walk(self, value: Any) -> None:
        """Keep the state of a trainer, and of all that it refers to but for nets, parameters and kvstores."""
        if id(value) in self._seen or isinstance(value, _NO_STATE):
            return
        self._seen.add(id(value))
        inner: Iterable[Any] = ()
        if isinstance(value, mx.nd.NDArray):
            self._keep_array(value)
        elif isinstance(value, (dict, list)):
            self._containers.append((value, value.copy()))
            inner = value.values() if isinstance(value, dict) else value
        elif isinstance(value, tuple):
            inner = value
        elif isinstance(value, _STATE) or (
            hasattr(value, "__dict__") and type(value).__module__.startswith(_OURS) and not isinstance(value, type)
        ):
            self._keep(value)
            inner = vars(value).values()
        for each in list(inner):
            self.walk(each)

    def _keep(self, value: Any) -> None:
        self._objects.append((value, type(value), dict(vars(value))))

    def _keep_array(self, array: mx.nd.NDArray) -> None:
        self._arrays.append((array, array.copy(), array._fresh_grad))

    def put_back(self) -> None:
        """Make all of it as it was. Nothing is emptied first: an interrupt at any line leaves objects that work."""
        for value, kind, attributes in self._objects:
            vars(value).update(attributes)
            if type(value) is not kind:  # has all attributes by now, and those of its former class until then
                value.__class__ = kind
            _keep_keys(vars(value), attributes)
        for container, copy in self._containers:
            if isinstance(container, dict):
                container.update(copy)
                _keep_keys(container, copy)
            else:
                container[:] = copy
        with autograd.pause():
            for array, copy, _ in self._arrays:
                copy.copyto(array)
        for array, _, was_fresh in self._arrays:
            if array._fresh_grad != was_fresh:
                array._fresh_grad = was_fresh


def _keep_keys(values: Dict[Any, Any], wanted: Dict[Any, Any]) -> None:
    """Delete the keys that are not in another dict."""
    for key in [key for key in values if key not in wanted]:
        del values[key]


def _arrays_in(value: Any) -> Iterable[mx.nd.NDArray]:
    """Yield the arrays in an attribute of a parameter: values, gradients and float32 masters."""
    items: Iterable[Any] = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return (each for each in items if isinstance(each, mx.nd.NDArray))
