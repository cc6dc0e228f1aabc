"""Hooks on a converted block: building its graph, calling it, tracing it in another net, hybridizing it.

A HybridBlock runs what its ``_get_graph`` returns (python/mxnet/gluon/block.py at tag 1.9.1). The hooks stand on the
one instance: what they return runs, is exported, and is rebuilt by hybridizing. No function of MXNet is changed.
"""

from __future__ import annotations

from typing import Any, Iterable, Optional, Tuple

import mxnet as mx
from mxnet import autograd, gluon

from .. import dtypes
from ..devices.check import require_bfloat16
from ..errors import ConvertError
from ..mxnet_private import blocks, compose, is_initialized
from ..symbol.arguments import require_kernels
from ..train import loss_heads
from . import storage
from .bulks import bulks_kept
from .cached_ops import BuiltOp, backend_chosen, context_of, op_key, plan_op
from .calls import NetCalls, calls_of
from .file_hooks import FileHooks
from .folding import refuse_symbols, refuse_training
from .graphs import ConvertedGraph, GraphCache, as_input, infers, on_cpu, op_hook_on, split_inputs, without_constants
from .lookup import as_written, conversion_of, net_method, suspended
from .plain_trainer import PlainTrainerCheck
from .precision import POLICY, current_region, precision
from .prepared import FoldRangeError


class BlockHooks(FileHooks):
    """The methods of a conversion that replace its net's methods."""

    was_active: bool  # whether the net is hybridized as far as its user knows
    given_graph: Optional[Tuple[Any, Any]]  # what ``_get_graph`` gives while a cached operator is built; None else
    plain_trainer: PlainTrainerCheck
    is_initialized: bool  # whether the parameters have values, stored in the dtypes that the policy gives them
    calls: Optional[NetCalls]  # what its recorded calls are noted by; None for its trainer
    calls_untrained: Optional[NetCalls]  # likewise, where no trainer trains it
    params_recorded: bool  # whether it is noted that autograd may hold the parameters

    @net_method
    def hybridize(self, active: bool = True, *args: Any, **kwargs: Any) -> None:
        """Hybridize as asked, but keep running the converted graph."""
        self.original("hybridize", active, *args, **kwargs)
        self.was_active = active
        blocks.is_active.set(self.net, True)

    @net_method
    def collect_params(self, select: Optional[str] = None) -> gluon.ParameterDict:
        """Return the net's parameters, in a dictionary that knows bfloat16."""
        found: gluon.ParameterDict = self.original("collect_params", select)
        if type(found) is gluon.ParameterDict:
            found.__class__ = storage.CollectedParameters
        return found

    @net_method
    def cast(self, dtype: Any) -> None:
        """Refuse: MXNet's cast would give BatchNorm low precision parameters."""
        raise ConvertError(
            f"block '{self.net.name}' is converted ({self.policy}); use mxmp.gluon.cast(net, {str(dtype)!r}), or "
            f"mxmp.gluon.restore(net) first."
        )

    @net_method
    def clear_cached_op(self) -> None:
        """Forget all graphs of the net."""
        self.original("clear_cached_op")
        self.graphs, self.current, self.unfolded = GraphCache(), None, frozenset()
        self.is_initialized, self.params, self.params_recorded = False, None, False

    @net_method
    def get_graph(self, *args: Any) -> Any:
        """Return the inputs and the converted symbol for these inputs."""
        return self._use(self._graph_for(args)) if self.given_graph is None else self.given_graph

    def _use(self, graph: ConvertedGraph) -> Any:
        """Set a converted graph as the graph of the net, and return it."""
        if current_region() is None:
            self.current = graph
        own = graph.traced.inputs, graph.converted.symbol
        blocks.set_graph(self.net, own, graph.traced.formats)
        return own

    @net_method
    def build_cache(self, *args: Any) -> None:
        """Build the cached operator for this kind of context."""
        with context_of(args):  # ``optimize_for`` calls this without
            if not self.is_initialized:
                self._initialize(args)
            while True:
                try:
                    return self._build(args)
                except FoldRangeError as e:
                    self.unfolded |= e.sources

    def _build(self, args: Tuple[Any, ...]) -> None:
        graph = self._graph_for(args)
        inputs, _ = self._use(graph)
        self._store(graph.converted)
        key = op_key(graph)
        dtype = self.policy.compute_dtype
        chosen = backend_chosen(self.net, graph.converted.graph, self.for_inference, bool(self.unfolded))
        with bulks_kept(self.net, graph), chosen:
            plan = plan_op(self.net, graph, dtype)
            # Training keeps layouts apart, see `SeparateLayouts`, and scales loss heads.
            differs = (on_cpu() and dtype == dtypes.BFLOAT16) or bool(graph.loss_heads)
            differs = differs or graph.converted.guards_training
            other = None if differs else self.graphs.ops.get(key.of_other_mode)
            if plan.prepared is None and other and other.prepared is None and not blocks.backend(self.net):
                self.graphs.ops[key] = other
                return
            self.given_graph = inputs, plan.symbol
            try:
                blocks.set_op(self.net, None, list(plan.args))
                with storage.reading_stored():
                    self.original("build_cache", *without_constants(args))
            finally:
                self.given_graph = None
        op, read = blocks.cached_op(self.net), blocks.cached_op_args(self.net)
        self.graphs.ops[key] = BuiltOp(op, read, plan.prepared, plan.keeps_weights)

    @net_method
    def call_cached_op(self, *args: Any) -> Any:
        """Run the graph for this call and context; inputs of low precision are taken as float32."""
        if self.for_inference and not infers():
            refuse_training(self.net)
        args = tuple(as_input(arg) for arg in args)
        self._require_kernels([mx.context.current_context()])  # that of the inputs
        require_bfloat16(self.policy.compute_dtype, [mx.context.current_context()], f"block '{self.net.name}'")
        if not self.is_initialized:
            self._initialize(args)
        graph = self._graph_for(args)
        recording = autograd.is_recording()
        if recording:
            loss_heads.mark(self.net.name, self._params(), () if graph.scaled_heads else graph.loss_heads)
            self.plain_trainer.check(self._params())
            written = current_region() == dtypes.FLOAT32 and self.own_graph is None and graph.is_float32
            if written and not graph.loss_heads:
                self._note_recorded()
                with as_written(self.net):
                    return gluon.HybridBlock.forward(self.net, *args)  # the net's own one has called us
        self._use(graph)
        if recording:
            self._note_recorded()
            self.graphs.forget_prepared()
        graph, built = self._op_for(graph, args)
        blocks.set_op(self.net, built.op, built.args)
        with op_hook_on(self.net, graph), storage.reading_stored():
            outputs = self.original("call_cached_op", *without_constants(args))
        calls = (self.calls or calls_of(self._params()) or self._calls_untrained()) if recording else None
        return outputs if calls is None else calls.note(self.net, graph, args, outputs)

    def _calls_untrained(self) -> Optional[NetCalls]:
        self.calls_untrained = self.calls_untrained or NetCalls.of_untrained()
        return self.calls_untrained

    def _op_for(self, graph: ConvertedGraph, args: Tuple[Any, ...]) -> Tuple[ConvertedGraph, BuiltOp]:
        """Return the cached operator that runs a graph now, with what it reads of parameters as they are.

        And the graph: another one with fewer BatchNorms folded, where folded values are out of range.
        """
        ops, key = self.graphs.ops, op_key(graph)
        if key not in ops or not ops[key].is_current():
            built = ops.pop(key, None)  # not to be found again if this is interrupted
            self.graphs.forget_left()
            if built is not None and built.renew():
                ops[key] = built
            else:
                del built
                self._free_stale()
                self.build_cache(*args)
                graph = self._graph_for(args)
        return graph, self.graphs.ops[op_key(graph)]

    def _free_stale(self) -> None:
        """Free the operators that keep what they have made of earlier values of parameters.

        MXNet counts the end of an operator as a write to all that it has read (DeleteOperator in
        src/engine/threaded_engine.cc at tag 1.9.1). So all of them end before new values are computed, which would be
        taken for stale otherwise. Siblings' do too, which may read the same parameters.
        """
        for conversion in self.siblings.conversions:
            ops = conversion.graphs.ops
            stale = [key for key, op in ops.items() if op.is_stale()]
            for key in stale:
                del ops[key]
            if stale or conversion is self:
                blocks.set_op(conversion.net, None, [])

    def _initialize(self, args: Tuple[Any, ...]) -> None:
        """Initialize parameters, and store those in low precision that any of the siblings stores so.

        Before anything runs: autograd loses the gradients of a parameter that changes its dtype
        between two calls of one ``record``.
        """
        with precision(POLICY):  # a region holds for a call, not for what is stored
            traced = self._graph_for(args).traced  # a net that cannot be traced says so, before MXNet infers shapes
            names = traced.symbol.list_inputs()  # MXNet's inference refuses others
            pairs = [pair for pair in zip(traced.inputs, split_inputs(args)) if pair[0].name in names]
            self.given_graph = [symbol for symbol, _ in pairs], traced.symbol  # with all parameters
            try:
                storage.initialize(self.net, self._params(), tuple(array for _, array in pairs), names)
            finally:
                self.given_graph = None
            for sibling in self.siblings.conversions:
                if sibling.early is not None and conversion_of(sibling.net) is sibling:
                    sibling._store(sibling.early)
            if self.early is None:
                self._store(self._graph_for(args).converted)
        # Not if some have never been initialized, which the call is about to say.
        self.is_initialized = all(map(is_initialized, traced.params.values()))

    def _note_recorded(self) -> None:
        """Record that autograd holds the net's parameters, which must keep their dtypes from now on.

        Those that were copied get their gradients attached first.
        """
        if not self.params_recorded:
            storage.attach_gradients(self._params())
            self.siblings.recorded.update(map(id, self._params()))
            self.params_recorded = True

    @net_method
    def hybrid_forward(self, F: Any, x: Any, *args: Any, **params: Any) -> Any:
        """Return the converted net applied to symbols, for a net that this one is part of.

        Arrays come here where a method of the net's own hands them over (``DropoutCell.unroll``), or
        where another thread had the net run operator by operator, as it was written.

        Within another net's trace on a CPU context the graph for CPU is given, so that the outer
        net runs there; convert the outermost net to export it.
        """
        if F is mx.nd:
            return gluon.HybridBlock.forward(self.net, x, *args)
        if self.for_inference:
            refuse_symbols(self.net)
        # A SymbolBlock enters no scope of its own.
        inside = blocks.is_in_scope(self.net) if self.own_graph is None else blocks.is_any_in_scope()
        if inside:
            self._require_kernels([mx.context.current_context()])
        converted, inputs, out_format = self._convert_for_symbols((x, *args))
        symbol = converted.symbol
        if inside:  # the outer net may train
            symbol = (converted.on_cpu if on_cpu() else converted.on_gpu)(converted.guards_training)
        names, given = symbol.list_inputs(), zip(inputs, split_inputs((x, *args)))
        compose(symbol, **{var.name: each for var, each in given if var.name in names})
        return blocks.regroup(list(symbol), out_format)

    @net_method
    def forward(self, x: Any, *args: Any) -> Any:
        """Run a SymbolBlock, whose own ``forward`` takes symbols past ``hybrid_forward``."""
        if isinstance(x, mx.sym.Symbol):
            return self.hybrid_forward(mx.sym, x, *args)
        return self.original("forward", x, *args)

    @net_method
    def summary(self, *inputs: Any) -> None:
        """Print the summary of the float32 net, which needs every block to run by itself."""
        with suspended([self]), storage.in_float32(self.stored):
            blocks.is_active.set(self.net, self.was_active)
            try:
                self.original("summary", *inputs)
            finally:
                blocks.is_active.set(self.net, True)

    def _require_kernels(self, contexts: Iterable[mx.Context]) -> None:
        require_kernels(self.policy, contexts, f"block '{self.net.name}'")
