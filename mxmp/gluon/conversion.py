r"""The conversion of one net: the notes of `convert`, then its graphs, its stored parameters and its calls.

A call has a signature, which finds the operator that runs it. A new signature has the net traced, the trace converted
with true shapes, and the parameters initialized and stored as the policy says::

    call -> signature --found--> CachedOp
                      \--new--> trace -> convert -> initialize -> store -> CachedOp

`install` gives the net a class with the methods of `methods.ConvertedBlock`, which call this object.
"""

from __future__ import annotations

import threading
from operator import attrgetter
from typing import Any, Dict, FrozenSet, List, Mapping, Optional, Tuple

import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon.block import _BlockScope, _regroup

from .. import dtypes
from ..arrays import to_default_layout
from ..devices.check import require_bfloat16, warn_if_slow
from ..errors import ConvertError, InferenceError
from ..mxnet_private import is_deferred
from ..passes import EraseCasts
from ..policy import Policy
from ..symbol import Converted, convert_graph, from_graph, to_graph
from ..symbol.arguments import beyond_range
from ..symbol.inference import infer_shapes
from ..train import loss_heads
from ..train.masters import forget_masters
from ..train.running_stats import UntrainedStats
from ..train.step import NetCall, Observer, observers_of_calls
from . import methods, regions, storage
from .adoption import forget_policy, note_policy, warn_of_plain_trainers
from .blocks import (
    ATTRIBUTE,
    CONVERSIONS,
    OWNER,
    blocks_in,
    collected_params,
    conversion_of,
    descendants,
    frozen_model,
    join,
    leave,
    plain_class,
    set_graph,
)
from .cache import Call, ConvertedGraph, GraphCache, Runner, Signature, as_input, on_cpu
from .regions import current_region, outside_regions
from .siblings import Siblings
from .trace import MakingGraphs, Trace, dtype_advice, flat_arguments, trace

_trainer_of = attrgetter("_trainer")  # read for each parameter at each recorded call

_NOTES = ("net", "policy", "regions", "ranges", "siblings", "token", "own_graph", "_reads_stored")
"""The attributes of a conversion that `convert` decides."""


class Conversion:
    """The mixed precision of one HybridBlock: its graphs, its stored parameters, and its calls.

    Attributes:
        token: Stands for this object in the blocks within the net. It is copied with them, which an id is not.
        own_graph: The graph of a SymbolBlock before this conversion, (inputs, symbol); None for other blocks.
        graph_without_shapes: The graph of a SymbolBlock, converted without shapes; None for other blocks.
        stored: The parameters that this conversion has put in low precision.
        storage_is_fixed: Whether these are chosen for good: from the first call on.
        last_graph: The graph of the last call outside of regions, or that a net around it took.
        last_graph_by_mode: The graphs of the last calls outside of regions, in inference (False) and training mode
            (True).
        partitioned: The graph that MXNet gets while it partitions the net, (inputs, symbol); else None.
        observer: Is told of all calls, recorded or not, in place of the trainers' observers; None for those.
    """

    def __init__(
        self,
        net: gluon.HybridBlock,
        policy: Policy,
        marks: regions.BlockRegions,
        ranges: Optional[Mapping[str, float]] = None,
        siblings: Optional[Siblings] = None,
        reads_stored: bool = False,
    ) -> None:
        """Check that the policy suits the net; change and trace nothing.

        Args:
            net: The block.
            policy: Its policy.
            marks: The marks of the blocks in it, and perhaps of others.
            ranges: Largest magnitudes of outputs, by name.
            siblings: The conversions to which this one is added. If None, it has none.
            reads_stored: Whether the conversion of a net around the block may have stored parameters in low precision.
        """
        self.net, self.policy, self.ranges, self._reads_stored = net, policy, dict(ranges or {}), reads_stored
        self.regions = {block: marks[block] for block in blocks_in(net) if block in marks}
        contexts = storage.contexts_of(net.collect_params().values())
        require_bfloat16(policy.compute_dtype, contexts, f"block '{net.name}'")
        warn_if_slow(policy.compute_dtype)
        if policy.out_of_range != Policy().out_of_range:
            raise ConvertError(
                f"block '{net.name}': out_of_range={policy.out_of_range!r} is only for models: a net's weights "
                f"change in training. Keep the layer in float32 by a pattern of names, or freeze the net under this "
                f"policy."
            )
        if policy.param_dtype != dtypes.FLOAT32 and mx.util.is_np_array():
            raise ConvertError(
                f"block '{net.name}': under npx.set_np parameters can be stored only in float32, but the policy has "
                f"param_dtype={policy.param_dtype!r}; use one with param_dtype='float32', such as 'O1'."
            )
        self._forget_all()
        self.token = object()
        previous = conversion_of(net)
        self.own_graph = previous.own_graph if previous else None
        if self.own_graph is None and isinstance(net, gluon.SymbolBlock):
            self.own_graph = _without_casts(net) or net._cached_graph
            if frozen_model(net):  # the block's graph has guards and emulation
                self.own_graph = self.own_graph[0], frozen_model(net).symbol
        self.siblings = siblings or Siblings()
        self.siblings.conversions.append(self)

    def _forget_all(self) -> None:
        """Set all attributes but the notes of `convert`, as before the first call."""
        self.graph_without_shapes: Optional[ConvertedGraph] = None
        self.stored: List[gluon.Parameter] = []
        self.storage_is_fixed = self._reads_stored or self.policy.param_dtype == dtypes.FLOAT32
        self.partitioned: Optional[Tuple[Any, Any]] = None
        self.observer: Optional[Observer] = None
        self._has_trainer = False  # whether a trainer of its parameters was seen and checked
        self._statistics_pending = False  # whether a call with static_shape has trained since `wait_for_statistics`
        self._untrained_stats = UntrainedStats()
        self.forget_calls()

    def forget_calls(self) -> None:
        """Forget all graphs and traces, as if the net had not been called."""
        self._cache = GraphCache()
        self._parts: Dict[gluon.Block, Conversion] = {}
        self._net_params: Optional[List[gluon.Parameter]] = None
        self._has_gradients = False
        self.last_graph: Optional[ConvertedGraph] = None
        self.last_graph_by_mode: Dict[bool, ConvertedGraph] = {}

    def convert_symbol(self) -> None:
        """Convert the graph of a SymbolBlock."""
        with outside_regions():
            traced = trace(self.net, (), self.own_graph, self.regions)
        self.graph_without_shapes = self._convert(traced, {})

    @property
    def params(self) -> List[gluon.Parameter]:
        """The net's parameters at its last trace."""
        if self._net_params is None:
            self._net_params = list(collected_params(self.net).values())
        return self._net_params

    @property
    def changes_float32(self) -> bool:
        """Whether the net as it is written would not run in float32, because a graph in it has casts to low precision.

        Casts of mxmp are taken out. Casts of another library stay, and are emulated on a CPU.
        """
        graph = self.graph_without_shapes
        if graph is not None and graph.converted.decisions.facts.has(dtypes.FLOAT16):
            return True
        return any(_without_casts(block) for block in blocks_in(self.net))

    @property
    def converted(self) -> Optional[Converted]:
        """The conversion of the last graph that ran; of an uncalled SymbolBlock that without shapes; else None."""
        graph = self.last_graph or self.graph_without_shapes
        return None if graph is None else graph.converted

    # -------------------------------------------------------------- on and off the net

    def install(self) -> None:
        """Give the net the methods of a converted block, and store a SymbolBlock's parameters as the policy says.

        `remove` undoes it, also where an exception interrupted either of them.
        """
        vars(self.net)[ATTRIBUTE] = self
        CONVERSIONS.add(self)
        for block in descendants(self.net):
            join(block, self)
            imported = _without_casts(block)
            if imported:
                block._cached_graph = imported
        plain_class(self.net)._clear_cached_op(self.net)
        self.forget_calls()
        note_policy(self.params, self.policy)
        for param in self.params:
            for data in param._data or ():
                to_default_layout(data)
        if self.graph_without_shapes is not None:
            graph = self.graph_without_shapes
            self.net._cached_graph = (graph.trace.inputs, graph.converted.symbol)
            self._store(graph.converted)
        self.net.__class__ = methods.converted_class(plain_class(self.net))

    def remove(self) -> None:
        """Undo `install`: the net has its own methods, its own graph and float32 parameters again."""
        self.store_float32()
        for block in descendants(self.net):
            leave(block, self)
        forget_policy(self.params, self.policy)
        self.net.__class__ = plain_class(self.net)
        self.net._clear_cached_op()
        if self.own_graph is not None:
            self.net._cached_graph = self.own_graph
        vars(self.net).pop(ATTRIBUTE, None)  # last, so that `restore` finds it until then

    def store_float32(self) -> None:
        """Store all parameters in float32 again, as before the first call. The next call stores them anew."""
        storage.attach_gradients(self.params)
        for param in self.stored:
            storage.store_float32(param)
        for block in descendants(self.net):
            if vars(block).get(OWNER) is self:
                block.__class__ = plain_class(block)
                del vars(block)[OWNER]
        self.storage_is_fixed = self.policy.param_dtype == dtypes.FLOAT32
        self.forget_calls()
        self.stored.clear()

    def forget_exact_values(self) -> None:
        """Drop the float32 values of stored parameters that nothing trains."""
        for param in self.stored:
            if param.grad_req == "null":
                forget_masters(param)

    # -------------------------------------------------------------- calls

    def call(self, *args: Any) -> Any:
        """Run a call of the net on arrays. Inputs of low precision become float32 first."""
        call = self._call_of(args)
        runner = self._cache.runners.get(call.signature)
        if runner is not None:
            return self._run(runner, call)
        with MakingGraphs.lock:
            runner = self._runner_for(call)
            first_run = MakingGraphs.first_runs.setdefault(runner.graph, threading.RLock())
        # In its first run MXNet's operator searches for dynamic shapes, without a lock of its own
        # (CachedOp::CheckDynamicShapeExists in src/imperative/cached_op.cc at tag 1.9.1).
        with first_run:
            outputs = self._run(runner, call)
        with MakingGraphs.lock:
            self._cache.runners.put(self._call_of(call.args).signature, runner)  # it may have shapes now
        return outputs

    def _call_of(self, args: Tuple[Any, ...]) -> Call:
        """Return a call of the net with its signature."""
        args = tuple(map(as_input, args))
        arrays, nesting = flat_arguments(args)
        recording, training = autograd.is_recording(), autograd.is_training()
        cpu = on_cpu()
        signature = Signature(
            training,
            recording,
            current_region(),
            cpu,
            # On a CPU `GuardAmpCasts` needs to know whether gradients are added to earlier ones.
            cpu and (recording or training) and "add" in (param.grad_req for param in self.params),
            # A layer of gluon.rnn notes there that it was called without states. Then it returns none.
            (nesting, getattr(self.net, "skip_states", None)),
            tuple([getattr(each, "dtype", None) for each in arrays]),
            tuple([each.shape for each in arrays]) if self._cache.depends_on_shapes else None,
        )
        return Call(args, arrays, signature)

    def _run(self, runner: Runner, call: Call) -> Any:
        graph, signature, arrays = runner.graph, call.signature, call.arrays
        if signature.region is None:
            self.last_graph = self.last_graph_by_mode[signature.training] = graph
        if signature.recording:
            self._note_recorded(graph)
            if signature.region == dtypes.FLOAT32 and self.own_graph is None and graph.runs_as_written:
                with methods.eager(self.net):
                    return gluon.HybridBlock.forward(self.net, *call.args)  # a user's ``forward`` has called this
        if signature.trains:
            self._statistics_pending = self._statistics_pending or runner.is_static
        else:
            self.wait_for_statistics()
        if self.net._callback is not None:  # of ``register_op_hook``
            runner.op._register_op_hook(self.net._callback, self.net._monitor_all)
        outputs = runner.op(*(arrays[read] if is_input else read.data() for is_input, read in runner.reads))
        outputs = _regroup([outputs] if isinstance(outputs, mx.nd.NDArray) else outputs, graph.trace.formats[1])
        if signature.recording and graph.scaled_heads is not None:
            loss_heads.HEAD_SCALE.note_trainers(self.params)
        return self._told(graph, arrays, outputs) if signature.recording or self.observer is not None else outputs

    def wait_for_statistics(self) -> None:
        """Wait until a backward pass with ``static_shape`` has written the running statistics.

        MXNet's engine takes such a pass for a reader of the statistics, so nothing that reads them waits for it
        (CreateEngineOp in src/imperative/imperative_utils.h at tag 1.9.1: mutable inputs are in ``use_vars``). In plain
        MXNet a net's inference shares the buffers of its training, and waits for these. The operators here do not.
        """
        if self._statistics_pending:
            self._statistics_pending = False
            mx.nd.waitall()

    def _told(self, graph: ConvertedGraph, arrays: List[Any], outputs: Any) -> Any:
        """Tell the observers about a call of the net, and return its outputs, which observers may replace."""
        trainers = [each for each in dict.fromkeys(map(_trainer_of, self.params)) if hasattr(each, "_scaler")]
        observers = [each for trainer in trainers for each in observers_of_calls(trainer)]
        if self.observer is not None:
            observers = [self.observer]
        if not observers:
            if autograd.is_training():
                self._untrained_stats.check(self.net.name, self.params)
            return outputs
        context = next((each.ctx for each in arrays if isinstance(each, mx.nd.NDArray)), mx.context.current_context())
        inputs = [each.detach() if isinstance(each, mx.nd.NDArray) else each for each in arrays]
        call = NetCall(id(self.net), str(self.net.name), graph, inputs, outputs, context, autograd.is_training())
        for each in observers:
            call = call._replace(outputs=each.on_call(call))
        return call.outputs

    def compose(self, *args: Any) -> Any:
        """Return the outputs of the converted net for symbols, to a net around it that is traced."""
        with MakingGraphs.lock:
            return self._compose(args)

    def _compose(self, args: Tuple[Any, ...]) -> Any:
        # A SymbolBlock enters no scope of its own.
        scope = self.net._scope._old_scope if self.own_graph is None else getattr(_BlockScope._current, "value", None)
        is_traced_inside = scope is not None
        if is_traced_inside:
            require_bfloat16(self.policy.compute_dtype, [mx.context.current_context()], f"block '{self.net.name}'")
        traced = trace(self.net, args, self.own_graph, self.regions)
        self.last_graph = self._convert_and_store(traced, {})
        converted = self.last_graph.converted
        symbol = converted.symbol
        if is_traced_inside:  # the net around it may train
            symbol = (converted.on_cpu if on_cpu() else converted.on_gpu)(converted.guards_training)
        names = symbol.list_inputs()
        pairs = zip(traced.inputs, flat_arguments(args).arrays)
        symbol._compose(**{var.name: each for var, each in pairs if var.name in names})
        return _regroup(list(symbol), traced.formats[1])

    def _note_recorded(self, graph: ConvertedGraph) -> None:
        heads = () if graph.scaled_heads else graph.loss_heads
        loss_heads.mark(self.net.name, self.params, heads, graph.own_gradients)
        self._has_trainer = self._has_trainer or warn_of_plain_trainers(self.net, self.policy, self.params)
        if not self._has_gradients:  # a copy's gradients are attached when it first trains
            storage.attach_gradients(self.params)
            self._has_gradients = True

    def conversion_of_part(self, block: gluon.HybridBlock) -> Conversion:
        """Return the float32 conversion of a block within the net, for calls of the block by itself."""
        with MakingGraphs.lock:
            if block not in self._parts:
                marks = {block: (f"*={dtypes.FLOAT32}",)}  # the mark that `set_policy` makes
                policy = Policy(param_dtype=self.policy.param_dtype, compute_dtype=self.policy.compute_dtype)
                self._parts[block] = Conversion(block, policy, marks, reads_stored=True)
            return self._parts[block]

    # -------------------------------------------------------------- graphs

    def new_runner(self, *args: Any) -> Runner:
        """Make and return the operator for calls with such arguments, because the net's backend may be another now."""
        with flat_arguments(args).arrays[0].ctx, MakingGraphs.lock:
            runner = self._runner_for(self._call_of(args))
            self._cache.runners.put(self._call_of(args).signature, runner)
            return runner

    def _runner_for(self, call: Call) -> Runner:
        """Return the operator for calls of a new signature."""
        context = mx.context.current_context()  # the inputs' context
        require_bfloat16(self.policy.compute_dtype, [context], f"block '{self.net.name}'", runs=True)
        return self._graph_for(call).runner(self, call)

    def graph_for(self, *args: Any) -> ConvertedGraph:
        """Return the converted graph for a call with these arguments; it is made when first needed."""
        with MakingGraphs.lock:
            return self._graph_for(self._call_of(args))

    def _graph_for(self, call: Call) -> ConvertedGraph:
        if not self.storage_is_fixed and call.signature.region is not None:
            with outside_regions():  # a region is about a call, not about storage
                self._graph_for(self._call_of(call.args))
        traced = self._trace_for(call)
        shapes = self._shapes(traced, call.arrays)
        outcome = traced.outcomes(shapes)
        graph: Optional[ConvertedGraph] = self._cache.graphs.get((traced, outcome))
        if graph is None:
            graph = self._convert_and_store(traced, shapes)
            self._cache.put_graph((traced, outcome), graph)
        else:
            self._initialize(traced, shapes)
        if not self._reads_stored:
            set_graph(self.net, (traced.inputs, graph.converted.symbol), traced.formats)
        return graph

    def _trace_for(self, call: Call) -> Trace:
        """Return the net's trace for a call; calls whose graphs are equal share one trace."""
        signature = call.signature._replace(on_cpu=False, recording=False, adds=False, shapes=None)
        traced: Optional[Trace] = self._cache.traces.get(signature)
        if traced is None:
            traced = trace(self.net, call.args, self.own_graph, self.regions)
            traced = self._cache.put_trace(signature, traced, self.policy.compute_dtype)
            self._net_params = None
        return traced

    def _shapes(self, traced: Trace, arrays: List[Any]) -> Dict[str, Any]:
        """Return the shapes of inputs and parameters, by name, also of the parameters that this call initializes."""
        shapes = traced.shapes(arrays)
        deferred = [name for name, param in traced.params.items() if is_deferred(param)]
        if not deferred:
            return shapes
        try:
            inferred = infer_shapes(traced.symbol, shapes)
        except InferenceError as e:
            raise InferenceError(f"block '{self.net.name}': {e}") from e
        missing = [name for name in deferred if name not in inferred]
        if missing:
            raise ConvertError(
                f"block '{self.net.name}': MXNet cannot infer the shape of parameter '{missing[0]}' from the inputs; "
                "give it where its block is made (in_units, in_channels, ...)."
            )
        return {**shapes, **{name: inferred[name] for name in deferred}}

    def _initialize(self, traced: Trace, shapes: Mapping[str, Any]) -> None:
        """Finish deferred initialization, in the graph's order of inputs: random values are then those of MXNet."""
        for name in traced.symbol.list_inputs() if shapes else ():
            param = traced.params.get(name)
            if param is not None and is_deferred(param):
                param.shape = shapes[name]
                param._finish_deferred_init()

    def _convert_and_store(self, traced: Trace, shapes: Mapping[str, Any]) -> ConvertedGraph:
        """Return the converted graph of a trace, once parameters have values and are stored as the graph reads them."""
        graph = self._convert(traced, shapes)
        self._initialize(traced, shapes)
        self._store(graph.converted)
        self.storage_is_fixed = True
        return graph

    def _convert(self, traced: Trace, shapes: Any) -> ConvertedGraph:
        """Return the converted graph of a trace; the last one of all siblings is checked with theirs."""
        stored_names: FrozenSet[str] = frozenset()
        if self._reads_stored or conversion_of(self.net) is self:  # else an earlier conversion is still installed
            low_names = (n for n, p in traced.params.items() if isinstance(p, storage.LowPrecisionParameter))
            stored_names = frozenset(low_names)
        try:
            converted = convert_graph(
                traced.symbol,
                self.policy,
                shapes,
                traced.types,
                frozenset(traced.params),
                stored_names,
                beyond_range(self.ranges, self.policy),
                graph=traced.graph,
                inputs=traced.data,
                storable=self._storable(traced),
            )
        except ConvertError as e:
            advice = self._advice(traced) if isinstance(e, InferenceError) and "dtypes" in str(e) else ""
            raise type(e)(f"block '{self.net.name}': {e}{advice}") from e
        self.siblings.check(self, converted)
        return ConvertedGraph(traced, converted)

    def _advice(self, traced: Trace) -> str:
        """Return advice about a graph whose dtypes do not fit, or an empty text."""
        advice = storage.cast_advice(self.net)
        if advice:
            return f" But {advice}"
        return dtype_advice(traced.types)

    def _storable(self, traced: Trace) -> FrozenSet[str]:
        """Return the names of the parameters that may be put in low precision; none after the first call.

        A parameter that another net has read stays as it is: autograd may hold it. Autograd loses the gradients of a
        parameter that changes its dtype between two calls of one ``record``.
        """
        if self.storage_is_fixed or current_region() is not None:
            return frozenset()
        other_conversions = (each for each in self.siblings.conversions if each is not self and each.storage_is_fixed)
        fixed_ids = {id(param) for each in other_conversions for param in each.params}
        return frozenset(n for n, p in traced.params.items() if id(p) not in fixed_ids) - traced.data

    def _store(self, converted: Converted) -> None:
        """Store parameters in the dtypes that a graph reads.

        No earlier graph reads them in other dtypes: parameters of a net that was called are left out (`_storable`).
        """
        read_dtypes, count = converted.read_dtypes, len(self.stored)
        for param in self.params:
            if read_dtypes.get(param.name) == dtypes.FLOAT32:  # a file of an earlier conversion may be in low precision
                storage.widen(param)
        if converted.low_params and not self.storage_is_fixed:
            low_params = [param for param in self.params if param.name in converted.low_params]
            in_float32 = [param for param in low_params if storage.dtype_of(param) == dtypes.FLOAT32]
            exact = self.siblings.awaits_graphs  # their check may undo this
            storage.store_all_low(in_float32, self.policy.param_dtype, self.stored, exact)
        if len(self.stored) > count:
            self._claim_parts()

    def _claim_parts(self) -> None:
        """Have each block in the net that reads stored parameters run in float32 when it is called by itself."""
        for block in descendants(self.net):
            is_plain = isinstance(block, gluon.HybridBlock) and plain_class(block) is type(block)
            if is_plain and not set(self.stored).isdisjoint(collected_params(block).values()):
                vars(block)[OWNER] = self
                block.__class__ = methods.class_with(methods.StoredPart, plain_class(block))

    # -------------------------------------------------------------- copies

    def __getstate__(self) -> Dict[str, Any]:
        """Return the state for copies: the notes of `convert`. A copy is converted at its own first call."""
        notes = {name: vars(self)[name] for name in _NOTES}
        return {**notes, "own_graph": _pack_graph(self.own_graph)}

    def __setstate__(self, notes: Dict[str, Any]) -> None:
        """Restore a copied state. The net may have no attributes yet."""
        vars(self).update(notes, own_graph=_unpack_graph(notes["own_graph"]))
        self._forget_all()
        self.siblings.conversions.append(self)
        CONVERSIONS.add(self)
        vars(self.net).update(zip(methods.GRAPHS, (self.own_graph or (), None, [])))  # the net's state lacks these
        self.net.__class__ = methods.converted_class(plain_class(self.net))


def _without_casts(block: gluon.Block) -> Optional[Tuple[Any, Any]]:
    """Return the graph of an imported SymbolBlock without casts of mxmp; None if it has none, or for other blocks."""
    if not isinstance(block, gluon.SymbolBlock):
        return None
    inputs, symbol = block._cached_graph
    erased = EraseCasts()(to_graph(symbol))
    return (inputs, from_graph(erased.graph, symbol)) if erased.modified else None


def _pack_graph(graph: Optional[Tuple[Any, Any]]) -> Any:
    """Return the graph of a SymbolBlock for pickle, with its ``amp_cast`` nodes, which a pickled Symbol loses."""
    return None if graph is None else (graph[0], type(graph[1]), graph[1].tojson(remove_amp_cast=False))


def _unpack_graph(packed: Any) -> Optional[Tuple[Any, Any]]:
    """Return the graph that `_pack_graph` packed."""
    if packed is None:
        return None
    inputs, kind, text = packed
    symbol = mx.sym.load_json(text)
    return inputs, symbol if isinstance(symbol, kind) and kind is mx.sym.Symbol else symbol.as_np_ndarray()
