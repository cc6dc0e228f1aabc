"""Precision of single blocks: set_policy, and tracing each block in its region."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple, Union

import mxnet as mx
from mxnet import gluon

from .. import dtypes
from ..errors import ConvertError, PolicyError
from ..graph import Graph
from ..mxnet_private import blocks
from ..passes.attributes import PRECISION_ATTR
from ..passes.decide import LOW
from ..policy import Policy
from ..symbol import from_graph, to_graph
from .lookup import blocks_in
from .precision import POLICY, current_region, precision

_ATTRIBUTE = "_mxmp_policy"
_ENTRANCES = ("forward", "unroll")


class BlockRegion(NamedTuple):
    """The region that a block runs in, its own or that of the nearest block around it."""

    region: str  # as for `precision`
    dtype: Optional[str]  # the compute dtype that it was given with, None for any
    owner: int  # the id of the block that it was given to
    name: str  # of that block


BlockRegions = Dict[int, BlockRegion]
"""The regions of a net's blocks by the blocks' id; those without one are left out."""


def set_policy(block: gluon.Block, policy: Union[None, str, Policy]) -> gluon.Block:
    """Give a block a precision of its own within the net that it is part of, as Keras gives one to a layer.

    It holds for all within the block but what has one of its own, from the next ``convert`` of the
    block or of a net around it on; call ``convert`` again if the net is converted already. A
    ``precision`` region within ``hybrid_forward`` overrules it. The last layer in float32:
    ``set_policy(net.output, "float32")``. It holds for what the block does when it is called or, a
    recurrent cell, unrolled; operators that its other methods make go by what calls these.

    Args:
        block: Any Gluon block.
        policy: 'float32'; 'mixed_float16' or 'mixed_bfloat16', for what the net's own policy decides,
            which must be of that dtype (within a block that is float32); 'low' for low precision
            whatever the operators need; or None to take it away.

    Returns:
        The same block.

    Raises:
        ConvertError: If it is no block.
        PolicyError: If the policy has fields that cannot hold for one block alone.
    """
    if not isinstance(block, gluon.Block):
        raise ConvertError(f"set_policy: expected a Gluon block, found {type(block).__name__}.")
    if policy is None:
        vars(block).pop(_ATTRIBUTE, None)
    elif policy == LOW:
        vars(block)[_ATTRIBUTE] = LOW, None
    else:
        dtype = _dtype(block, Policy.parse(policy))
        vars(block)[_ATTRIBUTE] = (dtype, None) if dtype == dtypes.FLOAT32 else (POLICY, dtype)
    return block


def _dtype(block: gluon.Block, policy: Policy) -> str:
    """Return a policy's compute dtype, the one thing that a block can have for itself."""
    plain = Policy(compute_dtype=policy.compute_dtype)
    for field in dataclasses.fields(Policy):
        value = getattr(policy, field.name)
        # 'dynamic' stands in the policies that are known by name; a trainer reads it, no block.
        if value != getattr(plain, field.name) and (field.name, value) != ("loss_scale", "dynamic"):
            raise PolicyError(
                f"set_policy: block '{block.name}': {field.name}={value!r} cannot hold for one block alone; give "
                f"'float32', 'mixed_float16', 'mixed_bfloat16' or 'low', and {field.name} to the net's policy."
            )
    return policy.compute_dtype


def find_regions(net: gluon.Block) -> BlockRegions:
    """Return the regions of a net's blocks; one that stands under different ones has none: what calls it decides."""
    found: Dict[int, Set[Optional[BlockRegion]]] = {}
    waiting: List[Tuple[gluon.Block, Optional[BlockRegion]]] = [(net, None)]
    while waiting:
        block, inherited = waiting.pop()
        given = vars(block).get(_ATTRIBUTE)
        own = inherited if given is None else BlockRegion(given[0], given[1], id(block), block.name)
        if own not in found.setdefault(id(block), set()):
            found[id(block)].add(own)
            waiting += [(child, own) for child in reversed(blocks.children(block))]
    agreed = {number: next(iter(regions)) for number, regions in found.items() if len(regions) == 1}
    return {number: own for number, own in agreed.items() if own is not None}


def check_regions(regions: BlockRegions, policy: Policy) -> None:
    """Raise a PolicyError that names the first block whose region asks for another low precision dtype."""
    for own in regions.values():
        if own.dtype not in (None, policy.compute_dtype):
            raise PolicyError(
                f"block '{own.name}': set_policy gave it compute_dtype={own.dtype!r}, but the net's policy has "
                f"{policy.compute_dtype!r}; convert the net with 'mixed_{own.dtype}', or call set_policy again."
            )


@contextlib.contextmanager
def entered(net: gluon.HybridBlock, regions: BlockRegions) -> Iterator[None]:
    """Trace a net and the blocks in it in their own regions within this context.

    A block is entered through ``forward`` or ``unroll``, whoever calls it: a parent may call the blocks
    within one that has a region. What that block itself calls is in its region already.
    """
    inside: List[int] = []
    kept = []
    for block in blocks_in(net)[1:]:
        if id(block) in regions or isinstance(block, gluon.SymbolBlock):
            for name in _ENTRANCES:
                if hasattr(block, name):
                    kept.append((block, name, vars(block).get(name)))
                    vars(block)[name] = _within_region(block, name, regions.get(id(block)), inside)
    try:
        with _entered(regions.get(id(net)), inside):
            yield
    finally:
        for block, name, given in kept:
            del vars(block)[name]
            if given is not None:
                vars(block)[name] = given


def _within_region(block: gluon.Block, name: str, own: Optional[BlockRegion], inside: List[int]) -> Callable[..., Any]:
    method = getattr(block, name)

    def run(*args: Any, **kwargs: Any) -> Any:
        with _entered(own, inside), _source_in_region(block):
            return method(*args, **kwargs)

    return run


@contextlib.contextmanager
def _entered(own: Optional[BlockRegion], inside: List[int]) -> Iterator[None]:
    """Enter a region unless its block is being traced already; its id is in ``inside`` then."""
    if own is None or own.owner in inside:
        yield
        return
    inside.append(own.owner)
    try:
        with precision(own.region):
            yield
    finally:
        inside.pop()


@contextlib.contextmanager
def _source_in_region(block: gluon.Block) -> Iterator[None]:
    """Put the operators of a SymbolBlock, which exist already, in the current region within this context."""
    if not isinstance(block, gluon.SymbolBlock) or current_region() is None:
        yield
        return
    inputs, symbol = source = blocks.cached_graph(block)
    blocks.cached_graph.set(block, (inputs, in_current_region(symbol)))
    try:
        yield
    finally:
        blocks.cached_graph.set(block, source)


def in_current_region(symbol: Any) -> mx.sym.Symbol:
    """Return a symbol with the operators that are in no region put in the current one."""
    region = current_region()
    return symbol if region is None else from_graph(_within(to_graph(symbol), region), symbol)


def _within(graph: Graph, region: str) -> Graph:
    nodes = []
    for node in graph.nodes:
        if not node.is_variable and node.get(PRECISION_ATTR) is None:
            node = node.with_attrs({PRECISION_ATTR: region})
        bodies = tuple(_within(body, region) for body in node.subgraphs)
        nodes.append(node._replace(subgraphs=bodies))
    return dataclasses.replace(graph, nodes=tuple(nodes))
