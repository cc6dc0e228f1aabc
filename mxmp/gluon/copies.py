"""Support for ``copy.deepcopy`` and pickle: a copy of a converted net is converted, with parameters of its own."""

from __future__ import annotations

import copyreg
from typing import Any, Dict, Iterable, List, Optional, Tuple, Type

import mxnet as mx
from mxnet import autograd, gluon

from ..mxnet_private import blocks, parameters
from .block_regions import BlockRegion, BlockRegions
from .lookup import plain_class
from .tree import blocks_in, descendants

# What a net holds for its graphs; a cached operator cannot be copied.
_GRAPHS = (blocks.cached_graph.name, blocks.cached_op.name, blocks.cached_op_args.name)


def reduce_net(net: gluon.HybridBlock, protocol: Any) -> Tuple[Any, ...]:
    """Return a converted net's state for pickle and copy, without its graphs, which a copy makes anew."""
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
    """Set the graph attributes of a net that pickle or copy is making, which `reduce_net` left out."""
    vars(net).update(zip(_GRAPHS, (() if own_graph is None else own_graph, None, [])))


def pack_graph(graph: Optional[Tuple[Any, Any]]) -> Any:
    """Return the graph of a SymbolBlock for pickle, with the ``amp_cast`` nodes that a pickled Symbol loses."""
    return None if graph is None else (graph[0], type(graph[1]), graph[1].tojson(remove_amp_cast=False))


def unpack_graph(packed: Any) -> Optional[Tuple[Any, Any]]:
    """Return the graph that `pack_graph` packed."""
    if packed is None:
        return None
    inputs, kind, text = packed
    symbol = mx.sym.load_json(text)
    return inputs, symbol if isinstance(symbol, kind) and kind is mx.sym.Symbol else symbol.as_np_ndarray()


def pack_regions(
    net: gluon.HybridBlock, regions: BlockRegions
) -> List[Tuple[gluon.Block, BlockRegion, Optional[gluon.Block]]]:
    """Return the regions of a net's blocks with the blocks themselves, since copies have other ids."""
    blocks = {id(block): block for block in blocks_in(net)}
    return [(blocks[i], region, blocks.get(region.owner)) for i, region in regions.items() if i in blocks]


def unpack_regions(packed: Any) -> BlockRegions:
    """Return the regions that `pack_regions` packed, by the ids of the copied blocks."""
    return {id(block): region if owner is None else region._replace(owner=id(owner)) for block, region, owner in packed}


def attach_gradients(params: Iterable[gluon.Parameter]) -> None:
    """Attach the gradients of copied parameters again, which MXNet's copies of them lose."""
    for param in params:
        arrays, gradients = parameters.arrays(param), parameters.gradients(param)
        if arrays is not None and gradients is not None and any(array.grad is None for array in arrays):
            autograd.mark_variables(arrays, gradients, param.grad_req)


def copied_state(conversion: Any, fresh: Iterable[str]) -> Dict[str, Any]:
    """Return the state of a conversion for copies, without the attributes that each makes for itself."""
    left_out = {*fresh, "regions", "own_graph"}
    state = {name: value for name, value in vars(conversion).items() if name not in left_out}
    regions = pack_regions(conversion.net, conversion.regions)
    return {**state, "regions": regions, "own_graph": pack_graph(conversion.own_graph)}
