"""Blocks of Gluon: the blocks of a net, the conversions that they have, and the private attributes that run them."""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import Any, Callable, Dict, Iterator, List, Sequence, Tuple

from mxnet import gluon

from ..errors import ConvertError
from ..train.window import Alive

ATTRIBUTE = "_mxmp_conversion"  # a net's attribute that has its conversion
FROZEN = "_mxmp_frozen"  # a frozen block's: its model, without parameters
OWNER = "_mxmp_owner"  # of a `StoredPart`: the conversion that stores its parameters
_PART = "_mxmp_part"  # of a block: the tokens of the conversions around it
PLAIN = "_mxmp_plain_class"  # of a converted net's class: the class that the user wrote

CONVERSIONS = Alive()
"""The conversions that nets have, and perhaps some that they had."""

RUNS_AS_WRITTEN: ContextVar[bool] = ContextVar("mxmp_runs_as_written", default=False)
"""Whether converted nets run as they were written, see `unconverted`."""


def blocks_in(*nets: gluon.Block) -> List[gluon.Block]:
    """Return nets and all blocks in them, each once, from the top down."""
    blocks_by_id: Dict[int, gluon.Block] = {}
    waiting = list(nets)
    while waiting:
        block = waiting.pop(0)
        if id(block) not in blocks_by_id:
            blocks_by_id[id(block)] = block
            waiting += children(block)
    return list(blocks_by_id.values())


def children(block: gluon.Block) -> List[gluon.Block]:
    """Return the blocks that a block has registered as its children."""
    return list(block._children.values())


def collected_params(block: gluon.Block) -> Dict[str, gluon.Parameter]:
    """Return the parameters of a block by name, as ``collect_params`` does, but without its search for blocks in lists.

    That search takes most of the time of ``collect_params``. It only warns of blocks that it finds in lists.
    """
    params: Dict[str, gluon.Parameter] = {}
    waiting = [block]
    while waiting:
        inner = waiting.pop()
        has_own = plain_class(inner).collect_params is not gluon.Block.collect_params
        for name, param in (inner.collect_params() if has_own else inner.params).items():
            if params.setdefault(name, param) is not param:
                return dict(block.collect_params().items())  # raises: two parameters have one name
        if not has_own:
            waiting.extend(reversed(children(inner)))
    return params


def set_graph(block: gluon.HybridBlock, graph: Tuple[Any, Any], formats: Tuple[Any, Any]) -> None:
    """Give a block a graph, and the nesting of its inputs and outputs.

    ``Block.__setattr__`` searches for parameters and blocks. It is left out, because each new kind of call sets these.
    """
    vars(block).update(_cached_graph=graph, _in_format=formats[0], _out_format=formats[1])


def set_op(block: gluon.HybridBlock, op: Any, args: List[Any]) -> None:
    """Give a block a cached operator and its arguments."""
    vars(block).update(_cached_op=op, _cached_op_args=args)


@contextlib.contextmanager
def graph_kept(block: gluon.HybridBlock) -> Iterator[None]:
    """Restore a block's graph, formats and scope, which tracing changes, at the end of this context."""
    graph, formats, scope = block._cached_graph, (block._in_format, block._out_format), dict(vars(block._scope))
    try:
        yield
    finally:
        set_graph(block, graph, formats)
        vars(block._scope).update(scope)


def descendants(block: gluon.Block) -> List[gluon.Block]:
    """Return all blocks in a block, each once, without the block itself."""
    return blocks_in(block)[1:]


def paths_in(net: gluon.Block) -> Dict[str, gluon.Block]:
    """Return all blocks in a net by their paths (``features.0``, as in ``load_parameters``), short paths first."""
    blocks_by_path: Dict[str, gluon.Block] = {}
    waiting = [("", net)]
    while waiting:
        prefix, block = waiting.pop(0)
        children_by_path = [(f"{prefix}{name}", child) for name, child in block._children.items()]
        blocks_by_path.update(children_by_path)
        waiting += [(f"{path}.", child) for path, child in children_by_path]
    return blocks_by_path


def block_names(net: gluon.Block) -> List[str]:
    """Return the names by which a policy may mean a net's blocks: their paths and their prefixes."""
    return [*paths_in(net), *sorted({block.prefix for block in blocks_in(net) if block.prefix})]


def roots(net: gluon.Block) -> List[gluon.HybridBlock]:
    """Return the outermost blocks of a net that have a graph: HybridBlocks with ``hybrid_forward``."""
    if not isinstance(net, gluon.Block):
        raise ConvertError(f"expected a Gluon block, found {type(net).__name__}.")
    roots_by_id: Dict[int, gluon.HybridBlock] = {}
    waiting = [net]
    while waiting:
        block = waiting.pop()
        is_hybrid = isinstance(block, gluon.HybridBlock)
        # A HybridBlock that overrides only ``forward`` has no graph, and runs eagerly.
        has_graph = is_hybrid and plain_class(block).hybrid_forward is not gluon.HybridBlock.hybrid_forward
        if has_graph or isinstance(block, gluon.SymbolBlock):
            roots_by_id[id(block)] = block
        else:
            waiting += reversed(children(block))
    if not roots_by_id:
        raise ConvertError(
            f"block '{net.name}' ({type(net).__name__}) holds no HybridBlock, so there is no graph to convert."
        )
    return list(roots_by_id.values())


def conversion_of(block: gluon.Block) -> Any:
    """Return the `Conversion` of a block, None if it has none."""
    conversion = vars(block).get(ATTRIBUTE)
    # A block that copy.copy made has the other block's conversion. While a net is copied, its conversion has no net.
    return conversion if getattr(conversion, "net", None) is block else None


def conversions_of(among: Sequence[gluon.Block]) -> List[Any]:
    """Return the conversions of blocks; blocks that are not converted have none."""
    return [conversion for conversion in map(conversion_of, among) if conversion is not None]


def frozen_model(block: gluon.Block) -> Any:
    """Return the `ConvertedModel`, without parameters, of a block that `freeze` made; None if converted since."""
    return vars(block).get(FROZEN) if conversion_of(block) is None else None


def join(block: gluon.Block, conversion: Any) -> None:
    """Note in a block that it is within a converted net."""
    vars(block)[_PART] = vars(block).get(_PART, frozenset()) | {conversion.token}


def leave(block: gluon.Block, conversion: Any) -> None:
    """Remove the note that `join` made."""
    tokens = vars(block).get(_PART, frozenset()) - {conversion.token}
    if tokens:
        vars(block)[_PART] = tokens
    else:
        vars(block).pop(_PART, None)


def is_part(block: gluon.Block) -> bool:
    """Return whether a block is within a converted net."""
    return bool(vars(block).get(_PART))


def net_around(block: gluon.Block) -> Any:
    """Return the converted net that a part is within; None if there is none, as for the copy of a part."""
    tokens = vars(block)[_PART]
    nets = (each.net for each in CONVERSIONS if each.token in tokens and conversion_of(each.net) is each)
    return next((net for net in nets if block in descendants(net)), None)


@contextlib.contextmanager
def undone(undo: Callable[[], Any]) -> Iterator[None]:
    """Call ``undo`` when this context ends, twice: if KeyboardInterrupt stops the first call, the second one completes.

    ``undo`` must be idempotent.
    """
    try:
        try:
            yield
        finally:
            undo()
    finally:
        undo()


@contextlib.contextmanager
def unconverted() -> Iterator[None]:
    """Run the nets that are called in this context as they were written: to trace them, for example."""
    flag_before = RUNS_AS_WRITTEN.get()
    with undone(lambda: RUNS_AS_WRITTEN.set(flag_before)):
        RUNS_AS_WRITTEN.set(True)
        yield


def plain_class(net: gluon.HybridBlock) -> Any:
    """Return the class that the user wrote a block in, whether it is converted or not."""
    return getattr(type(net), PLAIN, type(net))
