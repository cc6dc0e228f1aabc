"""Trace and convert a net under a policy, once for each signature of a call, and store its parameters."""

from __future__ import annotations

import traceback
from typing import Any, Callable, Dict, FrozenSet, List, Mapping, Optional, Tuple

from mxnet import gluon

from .. import dtypes
from ..errors import ConvertError, InferenceError, MxmpError
from ..mxnet_private import blocks, is_initialized
from ..passes.fold import Sources
from ..policy import Policy
from ..symbol import Converted, convert_graph
from ..symbol.arguments import beyond_range
from ..symbol.rewrite import ShapeOutcomes
from ..write_counts import can_count
from . import block_regions, storage
from .folding import convert_folded
from .graphs import (
    ConvertedGraph,
    GraphCache,
    TracedGraph,
    constants_given,
    infers,
    known_inputs,
    signature_of,
    without_constants,
)
from .lookup import REPLACED, Siblings, conversions_of, descendants, suspended
from .precision import current_region
from .trace import Storage, Trace, Unfolded, known_shapes

ONLY_INFER = ("MKLDNN", "MKLDNN_QUANTIZE", "TensorRT")
"""Backends whose operators have no gradients. Those of MKLDNN give zeros and say nothing."""

_BLOCK_CALL = gluon.Block.__call__.__code__  # MXNet's own: amp.init puts another in its place


class TracedNet:
    """The graphs of a net under a policy; `BlockHooks` make the net run them."""

    net: gluon.HybridBlock
    policy: Policy
    ranges: Mapping[str, float]  # magnitudes of outputs, measured
    for_inference: bool  # whether the net only infers, BatchNorm folded
    unfolded: FrozenSet[Sources]  # of BatchNorms that cannot be folded with the values that parameters have had
    regions: block_regions.BlockRegions  # what `set_policy` said about the net and the blocks in it
    params: Optional[List[gluon.Parameter]]  # the net's; None before they are asked for
    own_graph: Any  # the inputs and the symbol of a SymbolBlock; None of a net that is traced
    graphs: GraphCache
    current: Optional[ConvertedGraph]  # what ran last outside of regions
    on_converted: Optional[Callable[[Converted], None]]  # called with each conversion
    siblings: Siblings
    stored: List[gluon.Parameter]  # what this conversion has put in low precision
    early: Optional[Converted]  # for inputs of unknown shape; None if the net must be called first

    def original(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call the method of the net's class that a hook replaces; ``name`` is the hook's."""
        return getattr(type(self.net), REPLACED[name])(self.net, *args, **kwargs)

    def _graph_for(self, args: Tuple[Any, ...]) -> ConvertedGraph:
        """Return the converted graph for a call, traced and converted when first needed."""
        graph = self.graphs.find(signature_of(self.net, args, self.graphs.shaped, self._folds()))
        return self._new_graph(args) if graph is None else graph

    def _new_graph(self, args: Tuple[Any, ...]) -> ConvertedGraph:
        """Return the graph for a call whose signature is new, perhaps in its shapes alone."""
        traced = self.traced_for(args)
        shapes, _ = known_inputs(traced.inputs, args)
        folds = self._folds()
        outcome = folds, *traced.outcome(shapes)
        graph = self.graphs.converted(traced, outcome)
        if graph is None:
            converted = self._convert(traced.trace, shapes, traced.types, folds=folds)
            if self.on_converted is not None:
                self.on_converted(converted)
            graph = self.graphs.add_converted(traced, outcome, converted)
        self.graphs.add_call(signature_of(self.net, args, self.graphs.shaped, folds), graph)
        return graph

    def _folds(self) -> Unfolded:
        """Return which BatchNorms are left where the others are folded in a call now, None where none is.

        A backend would fold it too, in low precision, and keep weights that are not current.
        """
        by_backend = blocks.backend(self.net) in ONLY_INFER and infers() and can_count()
        return self.unfolded if self.for_inference or by_backend else None

    def traced_for(self, args: Tuple[Any, ...]) -> TracedGraph:
        """Return the traced graph for a call."""
        signature = signature_of(self.net, args, shaped=False)
        traced = self.graphs.traced(signature)
        if traced is None:
            inputs, symbol = self._trace(args)
            trace, (_, types) = Trace(symbol), known_inputs(inputs, args)
            params = self._params_read_by(trace)
            outcomes = ShapeOutcomes(symbol, self.policy.compute_dtype, types, frozenset(params), trace.graph)
            traced = TracedGraph(trace, inputs, blocks.formats(self.net), types, params, outcomes)
            traced = self.graphs.add_traced(signature, traced)
        return traced

    def _params_read_by(self, trace: Trace) -> Dict[str, gluon.Parameter]:
        """Return the parameters that a net's graph reads, by name; the net may have others."""
        read = {node.name for node in trace.graph.nodes if node.is_variable}
        return {param.name: param for param in self._params() if param.name in read}

    def _params(self) -> List[gluon.Parameter]:
        """Return the net's parameters, as they were at its last trace."""
        if self.params is None:
            self.params = list(blocks.collected_params(self.net).values())
        return self.params

    def _trace(self, args: Tuple[Any, ...]) -> Tuple[Any, Any]:
        if self.own_graph is not None:
            inputs, symbol = self.own_graph
            with block_regions.entered(self.net, self.regions):
                return inputs, block_regions.in_current_region(symbol)
        self.params = None
        blocks.cached_graph.set(self.net, ())
        try:
            inner = conversions_of(descendants(self.net))
            with suspended([self, *inner]), block_regions.entered(self.net, self.regions):
                with constants_given(self.net, args):
                    return tuple(self.original("get_graph", *without_constants(args)))
        except Exception as e:
            raise trace_error(self.net, e) from e
        finally:
            blocks.cached_graph.set(self.net, ())

    def _convert_for_symbols(self, args: Tuple[Any, ...]) -> Tuple[Converted, Any, Any]:
        """Return the net converted for symbols of unknown shape, its inputs and output format."""
        with blocks.graph_kept(self.net):  # with the scope that is entered; tracing enters it again
            inputs, symbol = self._trace(args)
            out_format = blocks.out_format(self.net)
        trace = Trace(symbol)
        converted = self._convert(trace, {}, {})
        if not all(is_initialized(param) for param in self._params() if param.name in converted.low_params):
            converted = self._convert(trace, {}, {}, self.policy.replace(param_dtype=dtypes.FLOAT32))
        self._store(converted)
        return converted, inputs, out_format

    def _convert(
        self,
        trace: Trace,
        shapes: Any,
        types: Any,
        policy: Optional[Policy] = None,
        *,
        folds: Unfolded = None,
    ) -> Converted:
        """Return the conversion of a trace."""
        params = self._params_read_by(trace)
        stored = self._storage(params)
        known, policy = known_shapes(shapes, params), policy or self.policy
        beyond = beyond_range(self.ranges, policy)
        try:
            if folds is not None:
                return convert_folded(trace, policy, known, types, frozenset(params), stored, folds, beyond)
            return convert_graph(
                trace.symbol, policy, known, types, *stored, beyond, graph=trace.graph, inputs=trace.inputs(params)
            )
        except ConvertError as e:
            low = storage.cast_by_hand(self.net) if isinstance(e, InferenceError) else []
            advice = f" But {storage.cast_advice(low[0])}" if low else ""
            raise type(e)(f"block '{self.net.name}': {e}{advice}") from e

    def _storage(self, params: Dict[str, gluon.Parameter]) -> Storage:
        """Return which parameters may be stored in low precision, and which are."""
        stored = frozenset(name for name, p in params.items() if isinstance(p, storage.LowPrecisionParameter))
        may_change = current_region() is None  # a region holds for a call, not for what is stored
        return Storage(stored | {name for name, p in params.items() if may_change and self._may_store(p)}, stored)

    def _may_store(self, param: gluon.Parameter) -> bool:
        return not isinstance(param, gluon.Constant) and id(param) not in self.siblings.recorded

    def _store(self, converted: Converted) -> None:
        """Store parameters in the dtypes that a graph wants; graphs for other dtypes are forgotten."""
        count = len(self.stored)
        read = converted.read_dtypes
        for param in self._params():
            if read.get(param.name) == dtypes.FLOAT32:  # low precision is what a file of an earlier conversion has
                storage.widen(param)
        for param in self._params() if converted.low_params else ():
            low = param.name in converted.low_params and self._may_store(param)
            if low and is_initialized(param) and storage.dtype_of(param) == dtypes.FLOAT32:
                self.stored.append(param)
                storage.store_low(param, self.policy.param_dtype)
        if len(self.stored) > count:
            self.graphs.keep_only(converted)
            self.current = self.current if self.graphs.holds(self.current) else None


def trace_error(net: gluon.HybridBlock, error: Exception) -> ConvertError:
    """Return the error for a net whose ``hybrid_forward`` failed on symbols; it names the block."""
    block, function = _failing_block(error, net)
    where = f"block '{block.name}' ({type(block).__name__})"
    if function is not None:
        return ConvertError(
            f"{where}: its forward hook {function!r} fails: {type(error).__name__}: {str(error).rstrip('.')}. Hooks on "
            f"the blocks within a converted net run once, when it is traced, and on symbols. Detach it, or register it "
            f"on '{net.name}' itself, where it gets arrays."
        )
    if isinstance(error, MxmpError):
        return ConvertError(f"{where}: {error}")
    text = f"{where} cannot be traced: {type(error).__name__}: {str(error).rstrip('.')}."
    if isinstance(error, TypeError) and "positional argument" in text:
        return ConvertError(text)
    return ConvertError(
        f"{text} Its hybrid_forward must work on symbols: no shapes, no values, no indexing. Rewrite it, or convert "
        f"the blocks around it."
    )


def _failing_block(error: Exception, found: gluon.Block) -> Tuple[gluon.Block, Optional[str]]:
    """Return the innermost block whose method raised an error, and the name of its hook, None if it was no hook."""
    hook: Optional[str] = None
    lines = traceback.extract_tb(error.__traceback__)
    for (frame, _), line in zip(traceback.walk_tb(error.__traceback__), lines):
        block, name = frame.f_locals.get("self"), frame.f_code.co_name
        if name in ("hybrid_forward", "forward") and isinstance(block, gluon.Block):
            found, hook = block, None
        elif frame.f_code is _BLOCK_CALL and (line.line or "").startswith("hook("):
            function = frame.f_locals["hook"]
            found, hook = block, getattr(function, "__qualname__", None) or type(function).__qualname__
    return found, hook
