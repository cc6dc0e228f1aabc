"""A block and its conversion: how to find it, and how to run a net without it for a while."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterator, List, Optional, Sequence

from mxnet import gluon

from .trace import descendants

ATTRIBUTE = "_mxmp_conversion"
"""Where a block holds its conversion."""


def conversion_of(block: gluon.Block) -> Optional[Any]:
    """Return the conversion of a block, None if it has none."""
    return vars(block).get(ATTRIBUTE)


def installed(blocks: Sequence[gluon.Block]) -> List[Any]:
    """Return the conversions of those blocks that have one."""
    found = (conversion_of(block) for block in blocks)
    return [conversion for conversion in found if conversion is not None]


@contextmanager
def suspended(conversions: Sequence[Any]) -> Iterator[None]:
    """Take the hooks off their blocks, so that these are traced as they were written."""
    for conversion in conversions:
        conversion.unhook()
    try:
        yield
    finally:
        for conversion in conversions:
            conversion.hook()


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
