"""Find the blocks of a net and their conversions, suspend these, and say what they replace and share."""

from __future__ import annotations

import functools
import threading
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Sequence, Set, Tuple, Type

from mxnet import gluon

from ..errors import ConvertError
from ..mxnet_private import blocks

ATTRIBUTE = "_mxmp_conversion"  # where a block holds its conversion
PART = "_mxmp_part"  # set in the blocks within a converted one
PLAIN_CLASS = "_mxmp_plain_class"  # where the class of a converted net holds the one that it was written in

_PRIVATE = (blocks.get_graph, blocks.build_cache, blocks.call_cached_op, blocks.clear_cached_op)
_CALLS = ("hybridize", "hybrid_forward", "forward", "cast", "summary", "collect_params")
_FILES = ("save_parameters", "save_params", "load_parameters", "export")
REPLACED = {**{name: name for name in _CALLS + _FILES}, **{each.name.lstrip("_"): each.name for each in _PRIVATE}}
"""The methods of a block that its conversion replaces, by the name of the conversion's method."""


def blocks_in(*nets: gluon.Block) -> List[gluon.Block]:
    """Return nets and every block below them, each once, from the top down."""
    found: Dict[int, gluon.Block] = {}
    waiting = list(nets)
    while waiting:
        block = waiting.pop(0)
        if id(block) not in found:
            found[id(block)] = block
            waiting += blocks.children(block)
    return list(found.values())


def descendants(block: gluon.Block) -> List[gluon.Block]:
    """Return every block below a block, each once."""
    return blocks_in(block)[1:]


def roots(net: gluon.Block) -> List[gluon.HybridBlock]:
    """Return the outermost blocks of a net that have a graph: HybridBlocks with ``hybrid_forward``."""
    if not isinstance(net, gluon.Block):
        raise ConvertError(f"expected a Gluon block, found {type(net).__name__}.")
    found: Dict[int, gluon.HybridBlock] = {}
    waiting = [net]
    while waiting:
        block = waiting.pop()
        if isinstance(block, gluon.HybridBlock) and _has_graph(block):
            found[id(block)] = block
        else:
            waiting += reversed(blocks.children(block))
    if not found:
        raise ConvertError(
            f"block '{net.name}' ({type(net).__name__}) holds no HybridBlock, so there is no graph to convert."
        )
    return list(found.values())


def _has_graph(block: gluon.HybridBlock) -> bool:
    """Return whether a HybridBlock can be traced; one that overrides ``forward`` alone runs eagerly."""
    own = type(block).hybrid_forward is not gluon.HybridBlock.hybrid_forward
    return own or isinstance(block, gluon.SymbolBlock)


def net_method(method: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a conversion's method that replaces one of its net's; the net's own runs where a thread suspended it.

    One thread at a time: the net's graph is handed to MXNet in the net's attributes, hence the lock.
    """

    @functools.wraps(method)
    def hooked(conversion: Any, *args: Any, **kwargs: Any) -> Any:
        with conversion.siblings.lock:
            if conversion.is_suspended:
                return conversion.original(method.__name__, *args, **kwargs)
            return method(conversion, *args, **kwargs)

    return hooked


@functools.lru_cache(maxsize=None)
def converted_class(kind: Any) -> Type[gluon.HybridBlock]:
    """Return a subclass for converted nets, which differs in ``repr`` alone.

    What it makes, as ``type(net)()`` and slices of a HybridSequential do, is not converted and of the other class.
    """

    def describe(net: gluon.HybridBlock) -> str:
        conversion = conversion_of(net)  # None if another's __dict__ is still to be filled in
        text: str = kind.__repr__(net)
        return text + ("" if conversion is None else f"\nconverted by mxmp: {conversion.policy}")

    def make(_: Any, *args: Any, **kwargs: Any) -> gluon.HybridBlock:
        return kind(*args, **kwargs)

    names = {"__repr__": describe, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    meta: Any = type(type(kind).__name__, (type(kind),), {"__call__": make})
    found: Type[gluon.HybridBlock] = meta(kind.__name__, (kind,), {**names, "__doc__": kind.__doc__, PLAIN_CLASS: kind})
    return found


def plain_class(net: gluon.HybridBlock) -> Any:
    """Return the class that a net was written in, converted or not."""
    return getattr(type(net), PLAIN_CLASS, type(net))


def conversion_of(block: gluon.Block) -> Any:
    """Return the `Conversion` of a block, None if it has none."""
    return vars(block).get(ATTRIBUTE)


def is_part(block: gluon.Block) -> bool:
    """Return whether a block is within a converted one."""
    return PART in vars(block)


def holds_converted(block: gluon.Block) -> bool:
    """Return whether a block within another one is converted."""
    inner = blocks.children(block)
    return any(conversion_of(each) is not None for each in inner) or any(map(holds_converted, inner))


def conversions_of(among: Sequence[gluon.Block]) -> List[Any]:
    """Return the conversions of those blocks that have one."""
    return [conversion_of(block) for block in among if ATTRIBUTE in vars(block)]


@contextmanager
def suspended(conversions: Sequence[Any]) -> Iterator[None]:
    """Suspend conversions for this thread: it calls their blocks as they were written."""
    for conversion in conversions:
        conversion.suspend(1)
    try:
        yield
    finally:
        for conversion in conversions:
            conversion.suspend(-1)


@contextmanager
def as_written(net: gluon.HybridBlock) -> Iterator[None]:
    """Run a net and the blocks in it operator by operator, neither converted nor hybridized."""
    every = blocks_in(net)
    active = [(block, blocks.is_active(block)) for block in every if isinstance(block, gluon.HybridBlock)]
    with suspended(conversions_of(every)):
        for block, _ in active:
            blocks.is_active.set(block, False)
        try:
            yield
        finally:
            for block, was_active in active:
                blocks.is_active.set(block, was_active)


class Siblings:
    """The conversions of one call of ``convert``, which may share parameters; copies have siblings of their own."""

    def __init__(self) -> None:
        self.conversions: List[Any] = []
        self.recorded: Set[int] = set()  # ids of the parameters that autograd may hold, which must keep their dtypes
        self.lock = threading.RLock()  # held while a net is called, or changed

    def __reduce__(self) -> Tuple[Any, ...]:
        """Return what pickle and copy make new ones from: empty ones, to which the copied conversions are added."""
        return Siblings, ()

    def add(self, conversion: Any) -> None:
        """Add a conversion; it leaves the siblings that it had."""
        self.conversions.append(conversion)
        conversion.siblings = self
