"""``set_policy``: blocks with a precision of their own, and how they are traced in it."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, Callable, ContextManager, Dict, Iterator, List, NamedTuple, Optional, Set, Union

import mxnet as mx
from mxnet import gluon

from .. import dtypes
from ..errors import ConvertError, PolicyError
from ..graph import Graph
from ..mxnet_private import blocks
from ..passes.attributes import PRECISION_ATTR
from ..passes.verdict import LOW
from ..policy import Policy
from ..symbol import from_graph, to_graph
from .precision import POLICY, current_region, precision
from .tree import blocks_in

_ATTRIBUTE = "_mxmp_policy"
_ENTRANCES = ("forward", "unroll")


class Mark(NamedTuple):
    """What a block, or the nearest marked one around it, is to run in.

    Attributes:
        region: As for ``precision``.
        dtype: The compute dtype that it was given with, None for any.
        owner: The marked block, by id.
        name: Its name.
    """

    region: str
    dtype: Optional[str]
    owner: int
    name: str


Marks = Dict[int, Mark]
"""The marks of a net's blocks by the blocks' id; those without one are left out."""


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


def find_marks(net: gluon.Block) -> Marks:
    """Return the marks of a net's blocks, itself included.

    A block that stands in several places under different marks has none: what calls it decides.
    """
    found: Dict[int, Set[Optional[Mark]]] = {}
    _find_marks(net, None, found)
    agreed = {block: next(iter(marks)) for block, marks in found.items() if len(marks) == 1}
    return {block: mark for block, mark in agreed.items() if mark is not None}


def _find_marks(block: gluon.Block, inherited: Optional[Mark], found: Dict[int, Set[Optional[Mark]]]) -> None:
    own = vars(block).get(_ATTRIBUTE)
    mark = inherited if own is None else Mark(own[0], own[1], id(block), block.name)
    if mark not in found.setdefault(id(block), set()):
        found[id(block)].add(mark)
        for child in blocks.children(block):
            _find_marks(child, mark, found)


def check_marks(marks: Marks, policy: Policy) -> None:
    """Check that a net with this policy can have these marks.

    Raises:
        PolicyError: Naming the first block that asks for another low precision dtype.
    """
    for mark in marks.values():
        if mark.dtype not in (None, policy.compute_dtype):
            raise PolicyError(
                f"block '{mark.name}': set_policy gave it compute_dtype={mark.dtype!r}, but the net's policy has "
                f"{policy.compute_dtype!r}; convert the net with 'mixed_{mark.dtype}', or call set_policy again."
            )


@contextlib.contextmanager
def entered(net: gluon.HybridBlock, marks: Marks) -> Iterator[None]:
    """Let a net and the blocks in it be traced in their own regions.

    A block is entered through ``forward`` or ``unroll``, whoever calls it: a parent may call the
    blocks within a marked one past it. What the marked block itself calls is in its region already,
    where ``hybrid_forward`` may have opened another one.
    """
    inside: List[int] = []
    kept = []
    for block in blocks_in(net)[1:]:
        if id(block) in marks or isinstance(block, gluon.SymbolBlock):
            for name in _ENTRANCES:
                if hasattr(block, name):
                    kept.append((block, name, vars(block).get(name)))
                    vars(block)[name] = _within_region(block, name, marks.get(id(block)), inside)
    try:
        with _entered(marks.get(id(net)), inside):
            yield
    finally:
        for block, name, own in kept:
            del vars(block)[name]
            if own is not None:
                vars(block)[name] = own


def _within_region(block: gluon.Block, name: str, mark: Optional[Mark], inside: List[int]) -> Callable[..., Any]:
    method = getattr(block, name)

    def run(*args: Any, **kwargs: Any) -> Any:
        with _entered(mark, inside), _marked_source(block):
            return method(*args, **kwargs)

    return run


@contextlib.contextmanager
def _entered(mark: Optional[Mark], inside: List[int]) -> Iterator[None]:
    """Enter the region of a mark unless its block is being traced already; its id is in ``inside`` then."""
    if mark is None or mark.owner in inside:
        yield
        return
    inside.append(mark.owner)
    try:
        with precision(mark.region):
            yield
    finally:
        inside.pop()


def _marked_source(block: gluon.Block) -> ContextManager[None]:
    """Let the operators of a SymbolBlock, which exist already, be in the current region for a while."""
    if not isinstance(block, gluon.SymbolBlock) or current_region() is None:
        return contextlib.nullcontext()
    return _swapped_source(block)


@contextlib.contextmanager
def _swapped_source(block: gluon.SymbolBlock) -> Iterator[None]:
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
        nodes.append(dataclasses.replace(node, subgraphs=bodies))
    return dataclasses.replace(graph, nodes=tuple(nodes))
