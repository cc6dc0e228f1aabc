"""Private names of Gluon blocks: children, cached graphs, and the calls on the way of a hybridized block."""

from __future__ import annotations

import contextlib
from typing import Any, Dict, Iterator, List, Tuple

from mxnet import gluon

from .names import attribute, global_name, method

_HybridBlock = gluon.HybridBlock
_BlockScope = global_name(gluon.block, "_BlockScope", "the scope of the block that is being built or traced")

_children = attribute(gluon.Block, "_children", "the blocks within a block, by name")
registered_params = attribute(gluon.Block, "_reg_params", "the parameters of a block itself, by attribute")
_scope = attribute(gluon.Block, "_scope", "the scope that name_scope enters")
_outer_scope = attribute(_BlockScope, "_old_scope", "the scope around one that is entered; None outside of all")
_current_scope = attribute(_BlockScope, "_current", "the innermost scope of each thread")

is_active = attribute(_HybridBlock, "_active", "whether a block is hybridized")
cached_graph = attribute(_HybridBlock, "_cached_graph", "(inputs, symbol) of a block; () before it is traced")
cached_op = attribute(_HybridBlock, "_cached_op", "the operator that runs the graph; None before it is built")
cached_op_args = attribute(_HybridBlock, "_cached_op_args", "(is input, index or parameter) of the operator's inputs")
in_format = attribute(_HybridBlock, "_in_format", "how the inputs are nested")
out_format = attribute(_HybridBlock, "_out_format", "how the outputs are nested")
flags = attribute(_HybridBlock, "_flags", "what hybridize was given for the cached operator: pairs (name, value)")
backend = attribute(_HybridBlock, "_backend", "the backend that partitions the graph; None for none")
op_hook = attribute(_HybridBlock, "_callback", "what register_op_hook registered, None without one")

get_graph = method(_HybridBlock, "_get_graph", "gives the inputs and the symbol to run, traced at the first call")
build_cache = method(_HybridBlock, "_build_cache", "makes the cached operator of what _get_graph gives")
call_cached_op = method(_HybridBlock, "_call_cached_op", "runs a hybridized block on arrays")
clear_cached_op = method(_HybridBlock, "_clear_cached_op", "drops the cached graph and its operator")
infer_shapes = method(_HybridBlock, "_deferred_infer_shape", "infers the shapes of parameters from the inputs'")

flatten = global_name(gluon.block, "_flatten", "flattens nested inputs or outputs, and tells how they were nested")
regroup = global_name(gluon.block, "_regroup", "nests a flat list again")


def children(block: gluon.Block) -> List[gluon.Block]:
    """Return the blocks within a block."""
    return list(_children(block).values())


def collected_params(block: gluon.Block) -> Dict[str, gluon.Parameter]:
    """Return what ``collect_params`` gives, without its look for blocks in lists, which takes most of its time.

    That warns of such blocks: for a warning call the method itself.
    """
    found: Dict[str, gluon.Parameter] = {}
    waiting = [block]
    while waiting:
        each = waiting.pop()
        own = type(each).collect_params is not gluon.Block.collect_params
        for name, param in (each.collect_params() if own else each.params).items():
            if found.setdefault(name, param) is not param:
                return dict(block.collect_params().items())  # raises: two parameters have one name
        if not own:
            waiting.extend(reversed(children(each)))
    return found


def is_in_scope(block: gluon.Block) -> bool:
    """Return whether a block that is being traced is so within another one."""
    return _outer_scope(_scope(block)) is not None


def is_any_in_scope() -> bool:
    """Return whether any block is being built or traced in this thread."""
    return getattr(_current_scope(_BlockScope), "value", None) is not None


def formats(block: gluon.HybridBlock) -> Tuple[Any, Any]:
    """Return how a block's inputs and outputs are nested."""
    return in_format(block), out_format(block)


def set_graph(block: gluon.HybridBlock, graph: Tuple[Any, Any], nesting: Tuple[Any, Any]) -> None:
    """Give a block a graph, and how its inputs and outputs are nested."""
    _set(block, {cached_graph.name: graph, in_format.name: nesting[0], out_format.name: nesting[1]})


def set_op(block: gluon.HybridBlock, op: Any, args: List[Any]) -> None:
    """Give a block a cached operator and its arguments."""
    _set(block, {cached_op.name: op, cached_op_args.name: args})


def _set(block: gluon.HybridBlock, values: Dict[str, Any]) -> None:
    """Set attributes as each call does, past ``Block.__setattr__``, which looks for parameters and blocks."""
    vars(block).update(values)


@contextlib.contextmanager
def graph_kept(block: gluon.HybridBlock) -> Iterator[None]:
    """Put a block's graph, formats and scope, which tracing changes, back at the end of this context."""
    graph, nesting, scope = cached_graph(block), formats(block), dict(vars(_scope(block)))
    try:
        yield
    finally:
        set_graph(block, graph, nesting)
        vars(_scope(block)).update(scope)
