"""A net as graphs: traced and converted for each kind of call, with what its parameters are stored in."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Tuple

from mxnet import gluon

from .. import dtypes
from ..errors import ConvertError, InferenceError
from ..graph import without_versions
from ..policy import Policy
from ..symbol import Converted, convert_graph, to_graph
from ..symbol.outcomes import ShapeOutcomes
from . import modes, regions, storage, trace
from .graphs import Graphs, Source
from .hooks import installed, suspended
from .modes import Key, Mode
from .precision import current_region
from .siblings import Siblings


class TracedNet:
    """The graphs of a net under a policy; a conversion adds the hooks that make the net run them.

    Attributes:
        net: The net.
        policy: Its policy.
        marks: What ``set_policy`` said about the net and the blocks in it.
        source: The graph of a SymbolBlock, with its inputs; None of a net that is traced.
        graphs: The graphs.
        current: The graph that ran last outside of regions.
        see: Is shown each conversion; None if nobody looks.
        siblings: The conversions that may share parameters with this one.
        stored: The parameters that this one has put in low precision.
        early: The conversion for inputs of unknown shape; None if the net must be called first.
    """

    net: gluon.HybridBlock
    policy: Policy
    marks: regions.Marks
    source: Any
    graphs: Graphs
    current: Optional[Mode]
    see: Optional[Callable[[Converted], None]]
    siblings: Siblings
    stored: List[gluon.Parameter]
    early: Optional[Converted]

    @property
    def modes(self) -> Dict[Key, Mode]:
        """The graphs by kind of call."""
        return self.graphs.calls

    @property
    def ops(self) -> Dict[Tuple[int, bool], Tuple[Any, List[Any]]]:
        """The cached operators, with their arguments, by graph (its id) and kind of context."""
        return self.graphs.ops

    def _original(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(type(self.net), name)(self.net, *args, **kwargs)

    def _mode(self, args: Tuple[Any, ...]) -> Mode:
        """Return the graph for this kind of call, traced and converted when first needed."""
        mode = self.graphs.find(modes.make_key(self.net, args, self.graphs.shaped))
        return self._new_mode(args) if mode is None else mode

    def _new_mode(self, args: Tuple[Any, ...]) -> Mode:
        """Return the graph for a kind of call that is new, or new in its shapes."""
        source = self._source(args)
        shapes, _ = modes.known_inputs(source.inputs, args)
        outcome = source.outcomes(modes.known_shapes(shapes, source.params))
        mode = self.graphs.converted(source, outcome)
        if mode is None:
            converted = self._convert(source.symbol, shapes, source.types)
            if self.see is not None:
                self.see(converted)
            mode = self.graphs.add(source, outcome, converted)
        self.graphs.add_call(modes.make_key(self.net, args, self.graphs.shaped), mode)
        return mode

    def _source(self, args: Tuple[Any, ...]) -> Source:
        """Return what the net is traced to for this kind of call."""
        kind = modes.make_key(self.net, args, shaped=False)
        source = self.graphs.source(kind)
        if source is None:
            inputs, symbol = self._trace(args)
            formats = self.net._in_format, self.net._out_format
            graph = without_versions(to_graph(symbol))  # each trace counts versions further
            _, types = modes.known_inputs(inputs, args)
            params = self._read_params(symbol)
            outcomes = ShapeOutcomes(symbol, self.policy.compute_dtype, types, frozenset(params))
            source = self.graphs.add_source(kind, Source(graph, inputs, symbol, formats, types, params, outcomes))
        return source

    def _read_params(self, symbol: Any) -> Dict[str, gluon.Parameter]:
        """Return the parameters that a symbol reads, by name; a net may have others."""
        read = set(symbol.list_inputs())
        return {name: param for name, param in self.net.collect_params().items() if name in read}

    def _trace(self, args: Tuple[Any, ...]) -> Tuple[Any, Any]:
        if self.source is not None:
            inputs, symbol = self.source
            with regions.entered(self.net, self.marks):
                return inputs, regions.in_current_region(symbol)
        self.net._cached_graph = ()
        try:
            with suspended([self, *installed(trace.descendants(self.net))]), regions.entered(self.net, self.marks):
                return self._original("_get_graph", *args)
        except Exception as e:
            raise trace.trace_error(self.net, e) from e
        finally:
            self.net._cached_graph = ()

    def _for_symbols(self, args: Tuple[Any, ...]) -> Tuple[Converted, Any, Any]:
        """Return the net converted for symbols of unknown shape, its inputs and output format."""
        kept = self.net._cached_graph, self.net._in_format, self.net._out_format
        scope = dict(vars(self.net._scope))  # entered already; tracing enters it again
        try:
            inputs, symbol = self._trace(args)
            out_format = self.net._out_format
        finally:
            self.net._cached_graph, self.net._in_format, self.net._out_format = kept
            vars(self.net._scope).update(scope)
        converted = self._convert(symbol, {}, {})
        if not all(storage.is_initialized(self.net.collect_params()[name]) for name in converted.low_params):
            converted = self._convert(symbol, {}, {}, self.policy.replace(param_dtype=dtypes.FLOAT32))
        self._store(converted)
        return converted, inputs, out_format

    def _convert(self, symbol: Any, shapes: Any, types: Any, policy: Optional[Policy] = None) -> Converted:
        params = self._read_params(symbol)
        stored = frozenset(name for name, p in params.items() if isinstance(p, storage.LowPrecisionParameter))
        may_change = current_region() is None  # a region holds for a call, not for what is stored
        trainable = stored | frozenset(name for name, p in params.items() if may_change and self._may_store(p))
        known = modes.known_shapes(shapes, params)
        try:
            return convert_graph(symbol, policy or self.policy, known, types, trainable, stored)
        except ConvertError as e:
            low = storage.cast_by_hand(self.net) if isinstance(e, InferenceError) else []
            advice = f" But {storage.cast_advice(low[0])}" if low else ""
            raise type(e)(f"block '{self.net.name}': {e}{advice}") from e

    def _may_store(self, param: gluon.Parameter) -> bool:
        return not isinstance(param, gluon.Constant) and id(param) not in self.siblings.recorded

    def _store(self, converted: Converted) -> None:
        """Store the parameters in the dtypes that the graph wants; graphs for other dtypes are forgotten."""
        count = len(self.stored)
        for name, param in self.net.collect_params().items():
            low = name in converted.low_params and self._may_store(param)
            if low and storage.is_initialized(param) and storage.dtype_of(param) == dtypes.FLOAT32:
                self.stored.append(param)
                storage.store_low(param, self.policy.param_dtype)
        if len(self.stored) > count:
            self.graphs.keep_only(converted)
            self.current = self.current if self.graphs.holds(self.current) else None
