"""Conversion of one block to a policy: install the hooks, remove them, copy them with the block."""

from __future__ import annotations

import copyreg
import threading
from typing import Any, Dict, List, Mapping, Optional, Tuple, Type

import mxnet as mx
from mxnet import gluon

from .. import dtypes
from ..devices.check import warn_if_slow
from ..errors import ConvertError, InferenceError
from ..mxnet_private import blocks
from ..passes import EraseCasts
from ..passes.emulate import has_float16
from ..policy import Policy
from ..report import Report
from ..symbol import Converted, from_graph, to_graph
from . import block_regions, storage
from .adoption import forget_policy, note_policy
from .block_hooks import BlockHooks
from .graphs import GraphCache
from .lookup import (
    ATTRIBUTE,
    PART,
    REPLACED,
    Siblings,
    blocks_in,
    conversion_of,
    converted_class,
    descendants,
    plain_class,
)
from .plain_trainer import PlainTrainerCheck
from .precision import POLICY, precision
from .trace import Trace, trace_before_call

_REDUCE = "__reduce_ex__"

# What a net holds for its graphs; a cached operator cannot be copied.
_GRAPHS = (blocks.cached_graph.name, blocks.cached_op.name, blocks.cached_op_args.name)


class Conversion(BlockHooks):
    """The mixed precision of one HybridBlock: its policy, its graphs and the hooks on the block."""

    suspension: threading.local

    def __init__(
        self,
        net: gluon.HybridBlock,
        policy: Policy,
        regions: Optional[block_regions.BlockRegions] = None,
        for_inference: bool = False,
        ranges: Optional[Mapping[str, float]] = None,
    ) -> None:
        """Trace and convert the net if its inputs can be guessed; change nothing. Regions are looked up if None."""
        self.net = net
        self.policy = policy
        self.for_inference = for_inference
        self.ranges = dict(ranges or {})
        self.regions = block_regions.find_regions(net) if regions is None else regions
        block_regions.check_regions(self.regions, policy)
        self._require_kernels(storage.contexts_of(net.collect_params().values()))
        warn_if_slow(policy.compute_dtype)
        self.on_converted = None
        vars(self).update(_fresh_state(net, policy))
        previous = conversion_of(net)
        self.own_graph = previous.own_graph if previous else None
        if self.own_graph is None and isinstance(net, gluon.SymbolBlock):
            self.own_graph = _without_casts(net) or blocks.cached_graph(net)
        self.was_active = previous.was_active if previous else blocks.is_active(net)
        if policy.param_dtype != dtypes.FLOAT32 and mx.util.is_np_array():
            raise ConvertError(
                f"block '{net.name}': under npx.set_np parameters can be stored in float32 alone, but the policy has "
                f"param_dtype={policy.param_dtype!r}; use one with param_dtype='float32', such as 'O1'."
            )
        self.stored: List[gluon.Parameter] = []
        Siblings().add(self)
        self.early: Optional[Converted] = self._convert_early()

    def _convert_early(self) -> Optional[Converted]:
        """Return the conversion for inputs of unknown shape, None if the net must be called first."""
        with precision(POLICY):  # not in a region that the user may be in
            if self.own_graph is not None:
                return self._converted_early(self._trace(())[1])
            with block_regions.entered(self.net, self.regions):
                symbol = trace_before_call(self.net)
        try:
            return None if symbol is None else self._converted_early(symbol)
        except InferenceError:
            if storage.cast_by_hand(self.net):
                raise
            return None  # the inputs were guessed wrong

    def _converted_early(self, symbol: Any) -> Converted:
        """Return the conversion of a symbol for inputs of unknown shape."""
        return self._convert(Trace(symbol), {}, {}, folds=self._folds())

    @property
    def changes_float32(self) -> bool:
        """Whether the net would not run in float32 as it is written: mxmp or another has put casts into a graph in it.

        Those of mxmp are taken out. Those of another stay, and are emulated on a CPU.
        """
        if self.own_graph is not None and self.early is not None and has_float16(self.early.decisions.facts):
            return True
        return any(_without_casts(block) for block in blocks_in(self.net))

    def report(self) -> Report:
        """Return the report of the graph that ran last; of the early conversion before a call."""
        converted = self.current.converted if self.current else self.early
        if converted is None:
            raise ConvertError(f"block '{self.net.name}' has to see one batch before its report is known.")
        return converted.report

    def install(self) -> None:
        """Replace methods of the net by this object's, and store its parameters as the policy says."""
        setattr(self.net, ATTRIBUTE, self)
        for block in descendants(self.net):
            vars(block)[PART] = True
        for name, replaced in REPLACED.items():
            if name != "forward" or self.own_graph is not None:
                vars(self.net)[replaced] = getattr(self, name)
        vars(self.net)[_REDUCE] = self.reduce_net
        self.net.__class__ = converted_class(plain_class(self.net))
        blocks.is_active.set(self.net, True)
        self.clear_cached_op()
        for block in blocks_in(self.net)[1:]:
            imported = _without_casts(block)
            if imported:
                blocks.cached_graph.set(block, imported)
        note_policy(self.net.collect_params().values(), self.policy)
        if self.early is not None:
            if self.own_graph is not None:
                blocks.cached_graph.set(self.net, (self.own_graph[0], self.early.symbol))
            self._store(self.early)

    def remove(self) -> None:
        """Undo `install`: the net has its own methods, its own graph and float32 parameters again."""
        for name in (*REPLACED.values(), _REDUCE, ATTRIBUTE):
            vars(self.net).pop(name, None)
        for block in descendants(self.net):
            vars(block).pop(PART, None)
        self.net.__class__ = plain_class(self.net)
        forget_policy(self.net.collect_params().values(), self.policy)
        storage.attach_gradients(self._params())
        for param in self.stored:
            storage.store_float32(param)
        # What autograd held of them is void, so that they are stored anew where this is installed again.
        self.siblings.recorded.difference_update(map(id, self.stored))
        self.params_recorded = False
        self.stored.clear()
        blocks.is_active.set(self.net, self.was_active)
        blocks.clear_cached_op(self.net)
        if self.own_graph is not None:
            blocks.cached_graph.set(self.net, self.own_graph)

    def suspend(self, change: int) -> None:
        """Suspend the hooks for this thread (1), or end one suspension (-1)."""
        self.suspension.count = getattr(self.suspension, "count", 0) + change

    @property
    def is_suspended(self) -> bool:
        """Whether this thread calls the net as it was written."""
        return getattr(self.suspension, "count", 0) > 0

    def reduce_net(self, protocol: Any) -> Tuple[Any, ...]:
        """Return the net's state for pickle and copy, as ``__reduce_ex__``, without graphs: a copy makes its own."""
        with self.siblings.lock:
            for block in blocks_in(self.net)[1:]:  # which may have been called by itself
                if isinstance(block, gluon.HybridBlock) and blocks.cached_op(block) is not None:
                    blocks.clear_cached_op(block)
            kind: Any = type(self.net)
            make, args, state, *rest = kind.__reduce_ex__(self.net, protocol)
            if make is copyreg.__newobj__:  # type: ignore[attr-defined]  # pickle finds the plain class alone, by its name
                make, args = _make_empty, (plain_class(self.net), *args[1:])
            if isinstance(state, dict):
                state = {name: value for name, value in state.items() if name not in _GRAPHS}
            return (make, args, state, *rest)

    def __getstate__(self) -> Dict[str, Any]:
        """Return the state for copies, which make graphs of their own."""
        left_out = _fresh_state(self.net, self.policy)
        state = {name: value for name, value in vars(self).items() if name not in left_out}
        return {**state, "regions": _pack_regions(self.net, self.regions), "own_graph": _pack_graph(self.own_graph)}

    def __setstate__(self, state: Dict[str, Any]) -> None:
        """Restore a copied state; the net may have no attributes yet."""
        vars(self).update(state)
        self.regions, self.own_graph = _unpack_regions(self.regions), _unpack_graph(self.own_graph)
        vars(self).update(_fresh_state(self.net, self.policy))
        self.siblings.add(self)
        vars(self.net).update(zip(_GRAPHS, (self.own_graph or (), None, [])))  # which `_reduce_net` left out
        self.net.__class__ = converted_class(plain_class(self.net))


def _fresh_state(net: gluon.HybridBlock, policy: Policy) -> Dict[str, Any]:
    """Return the attributes that each copy of a conversion begins with anew."""
    return {
        "graphs": GraphCache(),
        "current": None,
        "unfolded": frozenset(),
        "given_graph": None,
        "plain_trainer": PlainTrainerCheck(net, policy),
        "params": None,
        "is_initialized": False,
        "params_recorded": False,
        "calls": None,
        "calls_untrained": None,
        "suspension": threading.local(),
    }


def _without_casts(block: gluon.Block) -> Optional[Tuple[Any, Any]]:
    """Return the graph of an imported block that mxmp converted before it was exported, as it was before that.

    None for every other block.
    """
    if not isinstance(block, gluon.SymbolBlock):
        return None
    inputs, symbol = blocks.cached_graph(block)
    erased = EraseCasts()(to_graph(symbol))
    return (inputs, from_graph(erased.graph, symbol)) if erased.modified else None


def _make_empty(kind: Type[gluon.HybridBlock], *args: Any) -> gluon.HybridBlock:
    return kind.__new__(kind, *args)


def _pack_graph(graph: Optional[Tuple[Any, Any]]) -> Any:
    """Return the graph of a SymbolBlock for pickle, with the ``amp_cast`` nodes that a pickled Symbol loses."""
    return None if graph is None else (graph[0], type(graph[1]), graph[1].tojson(remove_amp_cast=False))


def _unpack_graph(packed: Any) -> Optional[Tuple[Any, Any]]:
    """Return the graph that `_pack_graph` packed."""
    if packed is None:
        return None
    inputs, kind, text = packed
    symbol = mx.sym.load_json(text)
    return inputs, symbol if isinstance(symbol, kind) and kind is mx.sym.Symbol else symbol.as_np_ndarray()


def _pack_regions(
    net: gluon.HybridBlock, regions: block_regions.BlockRegions
) -> List[Tuple[gluon.Block, block_regions.BlockRegion, Optional[gluon.Block]]]:
    """Return the regions of a net's blocks with the blocks themselves, since copies have other ids."""
    by_id = {id(block): block for block in blocks_in(net)}
    return [(by_id[i], region, by_id.get(region.owner)) for i, region in regions.items() if i in by_id]


def _unpack_regions(packed: Any) -> block_regions.BlockRegions:
    """Return the regions that `_pack_regions` packed, by the ids of the copied blocks."""
    return {id(block): region if owner is None else region._replace(owner=id(owner)) for block, region, owner in packed}
