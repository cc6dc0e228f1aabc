"""A block and its conversion: how to find it, and how to run a net without it for a while."""

from __future__ import annotations

import functools
from contextlib import contextmanager
from typing import Any, Callable, Iterator, List, Optional, Sequence, Type

from mxnet import gluon

from .trace import descendants

ATTRIBUTE = "_mxmp_conversion"
"""Where a block holds its conversion."""

PLAIN_CLASS = "_mxmp_plain_class"
"""Where the class of a converted net holds the one that it was written in."""


def net_method(method: Callable[..., Any]) -> Callable[..., Any]:
    """Make a method of a conversion stand in the place of its net's method of this name.

    One thread at a time is in a hook of a net, since the net's graph is handed to MXNet in the net's
    attributes. Where the calling thread has suspended the conversion, the net's own method runs.
    """

    @functools.wraps(method)
    def hooked(conversion: Any, *args: Any, **kwargs: Any) -> Any:
        with conversion.siblings.lock:
            if conversion.is_suspended:
                return getattr(type(conversion.net), method.__name__)(conversion.net, *args, **kwargs)
            return method(conversion, *args, **kwargs)

    return hooked


@functools.lru_cache(maxsize=None)
def converted_class(kind: Type[gluon.HybridBlock]) -> Type[gluon.HybridBlock]:
    """Return a class of converted nets, which is another but for what ``repr`` says.

    What it makes, as ``type(net)()`` and slices of a HybridSequential do, is not converted and of the other class.
    """

    def describe(net: gluon.HybridBlock) -> str:
        conversion = conversion_of(net)  # None if another's __dict__ is still to be filled in
        return kind.__repr__(net) + ("" if conversion is None else f"\nconverted by mxmp: {conversion.policy}")

    def make(_: Any, *args: Any, **kwargs: Any) -> gluon.HybridBlock:
        return kind(*args, **kwargs)

    names = {"__repr__": describe, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    meta = type(type(kind).__name__, (type(kind),), {"__call__": make})
    return meta(kind.__name__, (kind,), {**names, "__doc__": kind.__doc__, PLAIN_CLASS: kind})


def plain_class(net: gluon.HybridBlock) -> Type[gluon.HybridBlock]:
    """Return the class that a net was written in, converted or not."""
    return getattr(type(net), PLAIN_CLASS, type(net))


def conversion_of(block: gluon.Block) -> Optional[Any]:
    """Return the conversion of a block, None if it has none."""
    return vars(block).get(ATTRIBUTE)


def installed(blocks: Sequence[gluon.Block]) -> List[Any]:
    """Return the conversions of those blocks that have one."""
    found = (conversion_of(block) for block in blocks)
    return [conversion for conversion in found if conversion is not None]


@contextmanager
def suspended(conversions: Sequence[Any]) -> Iterator[None]:
    """Let this thread call blocks as they were written, whatever hooks they have."""
    for conversion in conversions:
        conversion.suspend(1)
    try:
        yield
    finally:
        for conversion in conversions:
            conversion.suspend(-1)


@contextmanager
def as_written(net: gluon.HybridBlock) -> Iterator[None]:
    """Let a net run operator by operator, neither converted nor hybridized, and nor do the blocks in it."""
    blocks = [net, *descendants(net)]
    active = [(block, block._active) for block in blocks if isinstance(block, gluon.HybridBlock)]
    with suspended(installed(blocks)):
        for block, _ in active:
            block._active = False
        try:
            yield
        finally:
            for block, was_active in active:
                block._active = was_active
