"""Trace and convert a net under a policy, once for each signature of a call, and store its parameters."""

from __future__ import annotations

import inspect
import traceback
from typing import Any, Callable, Dict, FrozenSet, List, Optional, Tuple

import mxnet as mx
from mxnet import gluon

from .. import dtypes
from ..arrays.write_counts import can_count
from ..errors import ConvertError, InferenceError, MxmpError
from ..graph import Graph, without_versions
from ..mxnet_private import blocks
from ..mxnet_private.parameters import is_initialized
from ..passes.fold_batchnorm import Sources
from ..policy import Policy
from ..symbol import Converted, convert_graph, to_graph
from ..symbol.rewrite import ShapeOutcomes
from . import block_regions, storage
from .folding import convert_folded
from .graphs import ConvertedGraph, GraphCache, TracedGraph, Unfolded, infers, known_inputs, known_shapes, signature_of
from .lookup import REPLACED, Siblings, conversions_of, descendants, suspended
from .precision import current_region

ONLY_INFER = ("MKLDNN", "MKLDNN_QUANTIZE", "TensorRT")
"""Backends whose operators have no gradients. Those of MKLDNN give zeros and say nothing."""


class TracedNet:
    """The graphs of a net under a policy; `BlockHooks` make the net run them."""

    net: gluon.HybridBlock
    policy: Policy
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
        outcome = folds, *traced.outcomes(known_shapes(shapes, traced.params))
        graph = self.graphs.converted(traced, outcome)
        if graph is None:
            converted = self._convert(traced.symbol, shapes, traced.types, folds=folds, graph=traced.source)
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
            source = to_graph(symbol)
            graph = without_versions(source)  # each trace counts versions further
            _, types = known_inputs(inputs, args)
            params = self._params_read_by(symbol)
            outcomes = ShapeOutcomes(symbol, self.policy.compute_dtype, types, frozenset(params), source)
            traced = TracedGraph(graph, source, inputs, symbol, blocks.formats(self.net), types, params, outcomes)
            traced = self.graphs.add_traced(signature, traced)
        return traced

    def _params_read_by(self, symbol: Any) -> Dict[str, gluon.Parameter]:
        """Return the parameters that a symbol reads, by name; a net may have others."""
        read = set(symbol.list_inputs())
        return {param.name: param for param in self._params() if param.name in read}

    def _params(self) -> List[gluon.Parameter]:
        """Return the net's parameters, as they were at its last trace."""
        if self.params is None:
            self.params = list(self.net.collect_params().values())
        return self.params

    def _trace(self, args: Tuple[Any, ...]) -> Tuple[Any, Any]:
        if self.own_graph is not None:
            inputs, symbol = self.own_graph
            with block_regions.entered(self.net, self.regions):
                return inputs, block_regions.in_current_region(symbol)
        self.params = None
        blocks.cached_graph.set(self.net, ())
        try:
            with suspended([self, *conversions_of(descendants(self.net))]), block_regions.entered(
                self.net, self.regions
            ):
                return tuple(self.original("get_graph", *args))
        except Exception as e:
            raise trace_error(self.net, e) from e
        finally:
            blocks.cached_graph.set(self.net, ())

    def _convert_for_symbols(self, args: Tuple[Any, ...]) -> Tuple[Converted, Any, Any]:
        """Return the net converted for symbols of unknown shape, its inputs and output format."""
        with blocks.graph_kept(self.net):  # with the scope that is entered; tracing enters it again
            inputs, symbol = self._trace(args)
            out_format = blocks.out_format(self.net)
        converted = self._convert(symbol, {}, {})
        if not all(is_initialized(param) for param in self._params() if param.name in converted.low_params):
            converted = self._convert(symbol, {}, {}, self.policy.replace(param_dtype=dtypes.FLOAT32))
        self._store(converted)
        return converted, inputs, out_format

    def _convert(
        self,
        symbol: Any,
        shapes: Any,
        types: Any,
        policy: Optional[Policy] = None,
        *,
        folds: Unfolded = None,
        graph: Optional[Graph] = None,
    ) -> Converted:
        params = self._params_read_by(symbol)
        stored = frozenset(name for name, p in params.items() if isinstance(p, storage.LowPrecisionParameter))
        may_change = current_region() is None  # a region holds for a call, not for what is stored
        trainable = stored | frozenset(name for name, p in params.items() if may_change and self._may_store(p))
        known, policy = known_shapes(shapes, params), policy or self.policy
        try:
            if folds is not None:
                return convert_folded(symbol, policy, known, types, frozenset(params), trainable, stored, folds)
            return convert_graph(symbol, policy, known, types, trainable, stored, graph=graph)
        except ConvertError as e:
            low = storage.cast_by_hand(self.net) if isinstance(e, InferenceError) else []
            advice = f" But {storage.cast_advice(low[0])}" if low else ""
            raise type(e)(f"block '{self.net.name}': {e}{advice}") from e

    def _may_store(self, param: gluon.Parameter) -> bool:
        return not isinstance(param, gluon.Constant) and id(param) not in self.siblings.recorded

    def _store(self, converted: Converted) -> None:
        """Store parameters in the dtypes that a graph wants; graphs for other dtypes are forgotten."""
        count = len(self.stored)
        for param in self._params() if converted.low_params else ():
            low = param.name in converted.low_params and self._may_store(param)
            if low and is_initialized(param) and storage.dtype_of(param) == dtypes.FLOAT32:
                self.stored.append(param)
                storage.store_low(param, self.policy.param_dtype)
        if len(self.stored) > count:
            self.graphs.keep_only(converted)
            self.current = self.current if self.graphs.holds(self.current) else None


def trace_early(net: gluon.HybridBlock) -> Optional[Any]:
    """Return the net's symbol for inputs that its signature suggests, None where it cannot be traced like this.

    A guess, which serves to report errors before the first batch: nothing is built on it.
    """
    if isinstance(net, gluon.SymbolBlock):
        return blocks.cached_graph(net)[1]
    count = _input_count(net)
    names = ["data"] if count == 1 else [f"data{i}" for i in range(count)]
    try:
        params = {name: param.var() for name, param in blocks.registered_params(net).items()}
        with net.name_scope():
            out = type(net).hybrid_forward(net, mx.sym, *(mx.sym.var(name) for name in names), **params)
        outputs, _ = blocks.flatten(out, "output")
        return mx.sym.Group(outputs)
    except Exception:
        return None


def _input_count(net: gluon.HybridBlock) -> int:
    own = blocks.registered_params(net)
    parameters = list(inspect.signature(type(net).hybrid_forward).parameters.values())[2:]
    inputs = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty and p.name not in own]
    return max(1, len(inputs))


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
        elif frame.f_code is gluon.Block.__call__.__code__ and (line.line or "").startswith("hook("):
            function = frame.f_locals["hook"]
            found, hook = block, getattr(function, "__qualname__", None) or type(function).__qualname__
    return found, hook
