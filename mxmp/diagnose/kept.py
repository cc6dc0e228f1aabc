"""Put a net back as it was found, conversion, values and gradients, after it was converted, run and perhaps trained."""

from __future__ import annotations

import contextlib
from typing import Any, Iterable, Iterator, List, Sequence, Tuple

import mxnet as mx
from mxnet import autograd, gluon

from ..gluon.api import restore
from ..gluon.blocks import blocks_in, conversions_of
from ..mxnet_private import is_fresh


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
