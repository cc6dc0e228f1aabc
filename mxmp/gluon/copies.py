"""Copies of converted nets, by ``copy.deepcopy`` and pickle: converted too, with parameters of their own."""

from __future__ import annotations

import copyreg
from typing import Any, Dict, Iterable, List, Optional, Tuple, Type

import mxnet as mx
from mxnet import autograd, gluon

from ..mxnet_private import blocks, parameters
from .lookup import plain_class
from .regions import Mark, Marks
from .tree import blocks_in, descendants

# What a net holds for its graphs; a cached operator cannot be copied.
_GRAPHS = (blocks.cached_graph.name, blocks.cached_op.name, blocks.cached_op_args.name)


def reduce_net(net: gluon.HybridBlock, protocol: Any) -> Tuple[Any, ...]:
    """Return what pickle and copy make a converted net from: all but its graphs, which are made anew."""
    for block in descendants(net):  # which may have been called by itself
        if isinstance(block, gluon.HybridBlock) and blocks.cached_op(block) is not None:
            blocks.clear_cached_op(block)
    kind: Any = type(net)
    make, args, state, *rest = kind.__reduce_ex__(net, protocol)
    if make is copyreg.__newobj__:  # type: ignore[attr-defined]  # pickle finds the plain class alone, by its name
        make, args = _make_empty, (plain_class(net), *args[1:])
    if isinstance(state, dict):
        state = {name: value for name, value in state.items() if name not in _GRAPHS}
    return (make, args, state, *rest)


def _make_empty(kind: Type[gluon.HybridBlock], *args: Any) -> gluon.HybridBlock:
    return kind.__new__(kind, *args)


def empty_graphs(net: gluon.HybridBlock, own_graph: Optional[Tuple[Any, Any]]) -> None:
    """Give a net that is being made by pickle or copy what `reduce_net` left out."""
    vars(net).update(zip(_GRAPHS, (() if own_graph is None else own_graph, None, [])))


def pack_graph(graph: Optional[Tuple[Any, Any]]) -> Any:
    """Return the graph of a SymbolBlock for pickle, whose own way drops every ``amp_cast``."""
    return None if graph is None else (graph[0], type(graph[1]), graph[1].tojson(remove_amp_cast=False))


def unpack_graph(packed: Any) -> Optional[Tuple[Any, Any]]:
    """Return what `pack_graph` was given."""
    if packed is None:
        return None
    inputs, kind, text = packed
    symbol = mx.sym.load_json(text)
    return inputs, symbol if isinstance(symbol, kind) and kind is mx.sym.Symbol else symbol.as_np_ndarray()


def pack_marks(net: gluon.HybridBlock, marks: Marks) -> List[Tuple[gluon.Block, Mark, Optional[gluon.Block]]]:
    """Return the marks of a net's blocks with the blocks themselves, whose copies have other ids."""
    blocks = {id(block): block for block in blocks_in(net)}
    return [(blocks[i], mark, blocks.get(mark.owner)) for i, mark in marks.items() if i in blocks]


def unpack_marks(packed: Any) -> Marks:
    """Return what `pack_marks` was given, for the copies of the blocks."""
    return {id(block): mark if owner is None else mark._replace(owner=id(owner)) for block, mark, owner in packed}


def attach_gradients(params: Iterable[gluon.Parameter]) -> None:
    """Attach the gradients of copied parameters again, which MXNet's copies of them lose."""
    for param in params:
        arrays, gradients = parameters.arrays(param), parameters.gradients(param)
        if arrays is not None and gradients is not None and any(array.grad is None for array in arrays):
            autograd.mark_variables(arrays, gradients, param.grad_req)


def copied_state(conversion: Any, fresh: Iterable[str]) -> Dict[str, Any]:
    """Return the state of a conversion for copies, without what each makes for itself."""
    left_out = {*fresh, "marks", "own_graph"}
    state = {name: value for name, value in vars(conversion).items() if name not in left_out}
    marks = pack_marks(conversion.net, conversion.marks)
    return {**state, "marks": marks, "own_graph": pack_graph(conversion.own_graph)}
