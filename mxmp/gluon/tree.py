"""Walk the tree of blocks of a net: all blocks, and the outermost ones that have a graph."""

from __future__ import annotations

from typing import Dict, List

from mxnet import gluon

from ..errors import ConvertError
from ..mxnet_private import blocks


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
    """Return the outermost blocks of a net that have a graph: HybridBlocks with ``hybrid_forward``.

    Raises:
        ConvertError: If there is none; it names the block.
    """
    if not isinstance(net, gluon.Block):
        raise ConvertError(f"expected a Gluon block, found {type(net).__name__}.")
    found: Dict[int, gluon.HybridBlock] = {}
    _find_roots(net, found)
    if not found:
        raise ConvertError(
            f"block '{net.name}' ({type(net).__name__}) holds no HybridBlock, so there is no graph to convert."
        )
    return list(found.values())


def _find_roots(block: gluon.Block, found: Dict[int, gluon.HybridBlock]) -> None:
    if isinstance(block, gluon.HybridBlock) and _has_graph(block):
        found[id(block)] = block
        return
    for child in blocks.children(block):
        _find_roots(child, found)


def _has_graph(block: gluon.HybridBlock) -> bool:
    """Return whether a HybridBlock can be traced; one that overrides ``forward`` alone runs eagerly."""
    own = type(block).hybrid_forward is not gluon.HybridBlock.hybrid_forward
    return own or isinstance(block, gluon.SymbolBlock)


def prefixes(net: gluon.Block) -> List[str]:
    """Return the prefixes of a net's blocks, itself included."""
    return sorted({block.prefix for block in blocks_in(net) if block.prefix})
