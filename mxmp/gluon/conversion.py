r"""The conversion of one net: what runs its calls, and what stands in for its methods.

A call has a signature, which finds the operator that runs it. A new signature has the net traced, the trace converted
with true shapes, and the parameters initialized and stored as the policy says::

    call -> signature --found--> CachedOp
                      \--new--> trace -> convert -> initialize -> store -> CachedOp

`install` gives the net the class of `blocks.converted_class`, whose methods are those of this object.
"""

from __future__ import annotations

import copyreg
import os
import threading
from operator import attrgetter
from typing import Any, Callable, Dict, FrozenSet, Iterable, List, Mapping, Optional, Tuple, Type

import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon.block import _BlockScope, _regroup

from .. import dtypes
from ..devices.check import require_bfloat16, warn_if_slow
from ..errors import ConvertError, InferenceError
from ..mxnet_private import is_deferred
from ..passes import EraseCasts
from ..passes.emulate import has_float16
from ..policy import Policy
from ..symbol import Converted, convert_graph, from_graph, to_graph
from ..symbol.arguments import beyond_range, require_kernels
from ..symbol.inference import infer_shapes
from ..train import loss_heads
from ..train.running_stats import UntrainedStats
from ..train.step import NetCall, Observer, observers_of_calls
from ..train.window import Alive
from . import files, regions, storage
from .adoption import forget_policy, note_policy, warn_of_plain_trainers
from .blocks import (
    ATTRIBUTE,
    blocks_in,
    collected_params,
    conversion_of,
    converted_class,
    descendants,
    eager,
    frozen_model,
    join,
    leave,
    plain_class,
    set_graph,
    set_op,
    unconverted,
)
from .cache import ConvertedGraph, LRUCache, Runner, Signature, as_input, on_cpu
from .regions import current_region, outside_regions
from .trace import Trace, flat_arguments, trace

MAX_CALLS = 4096  # signatures that are remembered; where decisions depend on shapes, each shape is one
MAX_GRAPHS = 32  # converted graphs that are kept, each with its cached operators

_trainer_of = attrgetter("_trainer")  # asked of every parameter at every recorded call

# What a net holds for its graphs; a cached operator cannot be copied.
_GRAPHS = ("_cached_graph", "_cached_op", "_cached_op_args")


class Siblings:
    """The conversions of one call of ``convert``, which may share parameters; copies have siblings of their own."""

    _alive = Alive()  # all, whose locks a fork makes anew

    def __init__(self) -> None:
        self.conversions: List[Conversion] = []
        self.lock = threading.RLock()  # held while a graph is made, or a net copied
        self._alive.add(self)

    @classmethod
    def renew_locks(cls) -> None:
        """Give all siblings locks that nobody holds: those of other threads are never released after a fork."""
        for siblings in cls._alive:
            siblings.lock = threading.RLock()

    def __reduce__(self) -> Tuple[Any, ...]:
        """Return what pickle and copy make new ones from: empty ones, to which the copied conversions are added."""
        return Siblings, ()

    def add(self, conversion: Conversion) -> None:
        """Add a conversion."""
        self.conversions.append(conversion)
        conversion.siblings = self


os.register_at_fork(after_in_child=Siblings.renew_locks)


class Conversion:
    """The mixed precision of one HybridBlock.

    Attributes:
        shapeless: The graph of a SymbolBlock, converted without shapes; None for other blocks, which a call traces.
        stored: The parameters that it has put in low precision.
        is_decided: Whether it is decided which these are, for good: from the first call on.
        token: Stands for it in the blocks within the net; copied with them, as an id is not.
        current: The graph that ran last, outside of regions.
        ran: The graphs that ran last outside of regions, for inference (False) and in training mode (True).
        on_converted: Called with each conversion of a graph, before anything is changed.
        observer: Is told of all calls, recorded or not, in the place of the trainers' observers; None for these.
    """

    siblings: Siblings
    shapeless: Optional[ConvertedGraph]
    current: Optional[ConvertedGraph]
    ran: Dict[bool, ConvertedGraph]
    given_graph: Optional[Tuple[Any, Any]]  # for MXNet, while it partitions a graph
    has_trainer: bool  # that was looked for something that it lacks
    untrained_stats: UntrainedStats
    on_converted: Optional[Callable[[Converted], None]]
    observer: Optional[Observer]
    stored: List[gluon.Parameter]
    is_decided: bool
    _collected: Optional[List[gluon.Parameter]]
    _calls: LRUCache[Runner]
    _graphs: LRUCache[ConvertedGraph]
    _traces: LRUCache[Trace]
    _is_shaped: bool  # whether a decision depends on the shapes of inputs
    _has_gradients: bool

    def __init__(
        self,
        net: gluon.HybridBlock,
        policy: Policy,
        inside: Optional[regions.BlockRegions] = None,
        ranges: Optional[Mapping[str, float]] = None,
        siblings: Optional[Siblings] = None,
    ) -> None:
        """Check that the policy suits the net; change and trace nothing. Regions are looked up if None."""
        self.net, self.policy, self.ranges = net, policy, dict(ranges or {})
        self.regions = regions.find_regions(net, policy) if inside is None else inside
        self._require_kernels(storage.contexts_of(net.collect_params().values()))
        warn_if_slow(policy.compute_dtype)
        if policy.out_of_range != Policy().out_of_range:
            raise ConvertError(
                f"block '{net.name}': out_of_range={policy.out_of_range!r} is for models, whose values are known; the "
                f"weights of a net go on training. Keep a layer in float32 by name, or freeze the net under it."
            )
        if policy.param_dtype != dtypes.FLOAT32 and mx.util.is_np_array():
            raise ConvertError(
                f"block '{net.name}': under npx.set_np parameters can be stored in float32 alone, but the policy has "
                f"param_dtype={policy.param_dtype!r}; use one with param_dtype='float32', such as 'O1'."
            )
        vars(self).update(self._fresh_state())
        self.token, self.on_converted = object(), None
        previous = conversion_of(net)
        self.own_graph = previous.own_graph if previous else None
        if self.own_graph is None and isinstance(net, gluon.SymbolBlock):
            self.own_graph = _without_casts(net) or net._cached_graph
            if frozen_model(net):  # whose own graph is guarded and emulated
                self.own_graph = self.own_graph[0], frozen_model(net).symbol
        (siblings or Siblings()).add(self)

    def convert_symbol(self) -> None:
        """Convert the graph of a SymbolBlock; for other blocks do nothing."""
        if self.own_graph is None:
            return
        with outside_regions():
            traced = trace(self.net, (), self.own_graph, self.regions)
        self.shapeless = ConvertedGraph(traced, self._convert(traced, {}))
        if self.on_converted is not None:
            self.on_converted(self.shapeless.converted)

    @property
    def params(self) -> List[gluon.Parameter]:
        """The net's parameters, as they were at its last trace."""
        if self._collected is None:
            self._collected = list(collected_params(self.net).values())
        return self._collected

    @property
    def changes_float32(self) -> bool:
        """Whether the net would not run in float32 as it is written: mxmp or another has put casts into a graph in it.

        Those of mxmp are taken out. Those of another stay, and are emulated on a CPU.
        """
        if self.shapeless is not None and has_float16(self.shapeless.converted.decisions.facts):
            return True
        return any(_without_casts(block) for block in blocks_in(self.net))

    @property
    def converted(self) -> Optional[Converted]:
        """The conversion of the graph that ran last; of a SymbolBlock that was not called, the one without shapes."""
        graph = self.current or self.shapeless
        return None if graph is None else graph.converted

    # -------------------------------------------------------------- on and off the net

    def install(self) -> None:
        """Give the net the methods of this object, and store its parameters as the policy says.

        What is interrupted is undone by `remove`, at any line of both.
        """
        vars(self.net)[ATTRIBUTE] = self
        for block in descendants(self.net):
            join(block, self)
            imported = _without_casts(block)
            if imported:
                block._cached_graph = imported
        self.clear_cached_op()
        note_policy(self.params, self.policy)
        if self.shapeless is not None:
            self.net._cached_graph = (self.shapeless.trace.inputs, self.shapeless.converted.symbol)
            self._store(self.shapeless.converted)
        self.net.__class__ = converted_class(plain_class(self.net))

    def remove(self) -> None:
        """Undo `install`: the net has its own methods, its own graph and float32 parameters again."""
        storage.attach_gradients(self.params)
        for param in self.stored:
            storage.store_float32(param)
        for block in descendants(self.net):
            leave(block, self)
        forget_policy(self.params, self.policy)
        self.is_decided = self.policy.param_dtype == dtypes.FLOAT32
        self.net.__class__ = plain_class(self.net)
        self.net._clear_cached_op()
        if self.own_graph is not None:
            self.net._cached_graph = self.own_graph
        self.stored.clear()
        vars(self.net).pop(ATTRIBUTE, None)  # last: until then `restore` finds it

    # -------------------------------------------------------------- calls

    def call_cached_op(self, *args: Any) -> Any:
        """Run a call of a hybridized net on arrays; inputs of low precision are taken as float32."""
        args = tuple(map(as_input, args))
        arrays, nesting = flat_arguments(args)
        signature = self._signature(arrays, nesting)
        runner = self._calls.get(signature)
        if runner is not None:
            return self._run(runner, signature, args, arrays)
        with self.siblings.lock:
            runner = self._new_runner(signature, args, arrays)
            # Alone: in its first run MXNet's operator looks for dynamic shapes, without a lock of its own
            # (CachedOp::CheckDynamicShapeExists in src/imperative/cached_op.cc at tag 1.9.1).
            outputs = self._run(runner, signature, args, arrays)
            self._calls.put(self._signature(arrays, nesting), runner)  # which may have shapes now
            return outputs

    def _run(self, runner: Runner, signature: Signature, args: Tuple[Any, ...], arrays: List[Any]) -> Any:
        graph = runner.graph
        if signature.region is None:
            self.current = self.ran[signature.training] = graph
        if signature.recording:
            self._note_recorded(graph)
            if signature.region == dtypes.FLOAT32 and self.own_graph is None and graph.runs_as_written:
                with eager(self.net):
                    return gluon.HybridBlock.forward(self.net, *args)  # the net's own one has called us
        outputs = runner(self.net, arrays)
        if signature.recording and graph.scaled_heads is not None:
            loss_heads.HEAD_SCALE.note_trainers(self.params)
        return self._told(graph, arrays, outputs) if signature.recording or self.observer is not None else outputs

    def _told(self, graph: ConvertedGraph, arrays: List[Any], outputs: Any) -> Any:
        """Tell the observers of the net's trainers of a recorded call, and return the outputs that they give."""
        trainers = [each for each in dict.fromkeys(map(_trainer_of, self.params)) if hasattr(each, "_scaler")]
        observers = [each for trainer in trainers for each in observers_of_calls(trainer)]
        if self.observer is not None:
            observers = [self.observer]
        if not observers:
            if autograd.is_training():
                self.untrained_stats.check(self.net.name, self.params)
            return outputs
        context = next((each.ctx for each in arrays if isinstance(each, mx.nd.NDArray)), mx.context.current_context())
        inputs = [each.detach() if isinstance(each, mx.nd.NDArray) else each for each in arrays]
        call = NetCall(id(self.net), str(self.net.name), graph, inputs, outputs, context, autograd.is_training())
        for each in observers:
            call = call._replace(outputs=each.on_call(call))
        return call.outputs

    def hybrid_forward(self, F: Any, x: Any, *args: Any, **params: Any) -> Any:
        """Run a call of a net that is not hybridized; or give the converted net for symbols, to a net around it.

        Within another net's trace on a CPU context the graph for CPU is given, so that the outer
        net runs there; convert the outermost net to export it.
        """
        if F is mx.nd:
            return self.call_cached_op(x, *args)
        with self.siblings.lock:
            return self._compose((x, *args))

    def forward(self, x: Any, *args: Any) -> Any:
        """Run a SymbolBlock, whose ``forward`` takes symbols past ``hybrid_forward``; another's runs around it."""
        if isinstance(x, mx.sym.Symbol) and self.own_graph is not None:
            return self.hybrid_forward(mx.sym, x, *args)
        return plain_class(self.net).forward(self.net, x, *args)

    def _compose(self, args: Tuple[Any, ...]) -> Any:
        """Return the outputs of the converted net for symbols."""
        # A SymbolBlock enters no scope of its own.
        scope = self.net._scope._old_scope if self.own_graph is None else getattr(_BlockScope._current, "value", None)
        inside = scope is not None
        if inside:
            self._require_kernels([mx.context.current_context()])
        traced = trace(self.net, args, self.own_graph, self.regions)
        converted = self._convert(traced, {})
        self._store(converted)
        self.is_decided = True
        symbol = converted.symbol
        if inside:  # the outer net may train
            symbol = (converted.on_cpu if on_cpu() else converted.on_gpu)(converted.guards_training)
        names = symbol.list_inputs()
        pairs = zip(traced.inputs, flat_arguments(args).arrays)
        symbol._compose(**{var.name: each for var, each in pairs if var.name in names})
        return _regroup(list(symbol), traced.formats[1])

    def _signature(self, arrays: List[Any], nesting: str) -> Signature:
        recording, training = autograd.is_recording(), autograd.is_training()
        cpu = on_cpu()
        return Signature(
            training,
            recording,
            current_region(),
            cpu,
            # `GuardAmpCasts` has to know, on a CPU, where gradients are added to earlier ones.
            cpu and (recording or training) and "add" in (param.grad_req for param in self.params),
            # Layers of gluon.rnn note there whether they were called without states, and then return none.
            (nesting, getattr(self.net, "skip_states", None)),
            tuple([getattr(each, "dtype", None) for each in arrays]),
            tuple([each.shape for each in arrays]) if self._is_shaped else None,
        )

    def _note_recorded(self, graph: ConvertedGraph) -> None:
        heads = () if graph.scaled_heads else graph.loss_heads
        loss_heads.mark(self.net.name, self.params, heads, graph.own_gradients)
        self.has_trainer = self.has_trainer or warn_of_plain_trainers(self.net, self.policy, self.params)
        if not self._has_gradients:  # those of a copy are attached when it trains first
            storage.attach_gradients(self.params)
            self._has_gradients = True

    # -------------------------------------------------------------- graphs

    def _new_runner(self, signature: Signature, args: Tuple[Any, ...], arrays: List[Any]) -> Runner:
        """Return what runs calls of a new signature."""
        where = f"block '{self.net.name}'"
        context = mx.context.current_context()  # that of the inputs
        self._require_kernels([context])
        require_bfloat16(self.policy.compute_dtype, [context], where)
        graph = self._graph_for(signature, args, arrays)
        return graph.runner(self, signature, args)

    def graph_for(self, *args: Any) -> ConvertedGraph:
        """Return the converted graph for a call with these arguments, made when first needed."""
        args = tuple(map(as_input, args))
        arrays, nesting = flat_arguments(args)
        with self.siblings.lock:
            return self._graph_for(self._signature(arrays, nesting), args, arrays)

    def _graph_for(self, signature: Signature, args: Tuple[Any, ...], arrays: List[Any]) -> ConvertedGraph:
        if not self.is_decided and signature.region is not None:
            with outside_regions():  # a region holds for a call, not for what is stored
                self._graph_for(signature._replace(region=None), args, arrays)
        traced = self.trace_for(args)
        deferred = self._deferred_shapes(traced, arrays)
        shapes = {**traced.shapes(arrays), **deferred}
        outcome = traced.outcomes(self.policy.compute_dtype)(shapes)
        graph: Optional[ConvertedGraph] = self._graphs.get((traced, outcome))
        if graph is None:
            converted = self._convert(traced, shapes)
            if self.on_converted is not None:
                self.on_converted(converted)
            self._initialize(deferred, traced)
            self._store(converted)
            self.is_decided = True
            graph = ConvertedGraph(traced, converted)
            dropped = self._graphs.put((traced, outcome), graph)
            # A list: threads look calls up meanwhile, which moves them.
            for call, runner in list(self._calls.items()) if dropped is not None else ():
                if runner.graph is dropped:
                    self._calls.pop(call, None)
        elif deferred:
            self._initialize(deferred, traced)
        set_graph(self.net, (traced.inputs, graph.converted.symbol), traced.formats)
        return graph

    def trace_for(self, args: Tuple[Any, ...]) -> Trace:
        """Return the net's trace for a call; the same one for calls whose graphs are alike."""
        arrays, nesting = flat_arguments(args)
        signature = self._signature(arrays, nesting)._replace(on_cpu=False, recording=False, adds=False, shapes=None)
        traced: Optional[Trace] = self._traces.get(signature)
        if traced is None:
            traced = trace(self.net, args, self.own_graph, self.regions)
            alike = (each for each in self._traces.values() if each.converts_like(traced))
            traced = next(alike, traced)
            self._traces.put(signature, traced)
            self._collected = None
            self._is_shaped = self._is_shaped or traced.outcomes(self.policy.compute_dtype).depends
        return traced

    def _deferred_shapes(self, traced: Trace, arrays: List[Any]) -> Dict[str, Any]:
        """Return the shapes, by name, of the parameters that get their values in this call."""
        deferred = [name for name, param in traced.params.items() if is_deferred(param)]
        if not deferred:
            return {}
        given = {symbol.name: each.shape for symbol, each in zip(traced.inputs, arrays)}
        try:
            found = infer_shapes(traced.symbol, given)
        except InferenceError as e:
            raise InferenceError(f"block '{self.net.name}': {e}") from e
        missing = [name for name in deferred if name not in found]
        if missing:
            raise ConvertError(
                f"block '{self.net.name}': the shapes of parameters, such as '{missing[0]}', do not follow "
                "from those of the inputs; give them where the blocks are made (in_units, in_channels, ...)."
            )
        return {name: found[name] for name in deferred}

    def _initialize(self, shapes: Mapping[str, Any], traced: Trace) -> None:
        """Finish deferred initialization, in the order of the graph's inputs: random values are those MXNet gives."""
        for name, shape in shapes.items():
            traced.params[name].shape = shape
        for name in traced.symbol.list_inputs() if shapes else ():
            if name in shapes:
                traced.params[name]._finish_deferred_init()

    def _convert(self, traced: Trace, shapes: Any) -> Converted:
        """Return the conversion of a trace."""
        stored: FrozenSet[str] = frozenset()
        if conversion_of(self.net) is self:  # else those of the conversion before it, which is still to be removed
            low = (n for n, p in traced.params.items() if isinstance(p, storage.LowPrecisionParameter))
            stored = frozenset(low)
        try:
            return convert_graph(
                traced.symbol,
                self.policy,
                shapes,
                traced.types,
                frozenset(traced.params),
                stored,
                beyond_range(self.ranges, self.policy),
                graph=traced.graph,
                inputs=traced.data,
                storable=self._storable(traced),
            )
        except ConvertError as e:
            advice = self._advice(traced) if isinstance(e, InferenceError) and "dtypes" in str(e) else ""
            raise type(e)(f"block '{self.net.name}': {e}{advice}") from e

    def _advice(self, traced: Trace) -> str:
        """Return what to do about a graph whose dtypes do not fit, perhaps nothing."""
        low = storage.cast_by_hand(self.net)
        if low:
            return f" But {storage.cast_advice(low[0])}"
        other = {name: dtype for name, dtype in traced.types.items() if dtype != dtypes.FLOAT32}
        text = ". Input '{}' is {}: give x.astype('float32')"
        return "".join(text.format(name, dtype) for name, dtype in other.items())

    def _storable(self, traced: Trace) -> FrozenSet[str]:
        """Return the names of the parameters that may be put in low precision: none once that is decided.

        Nor those that another net has read, which autograd may hold: it loses the gradients of a parameter that
        changes its dtype between two calls of one ``record``.
        """
        if self.is_decided or current_region() is not None:
            return frozenset()
        others = (each for each in self.siblings.conversions if each is not self and each.is_decided)
        fixed = {id(param) for each in others for param in each.params}
        return frozenset(n for n, p in traced.params.items() if id(p) not in fixed) - traced.data

    def _store(self, converted: Converted) -> None:
        """Store parameters in the dtypes that a graph wants; graphs for other dtypes are forgotten."""
        read, count = converted.read_dtypes, len(self.stored)
        for param in self.params:
            if read.get(param.name) == dtypes.FLOAT32:  # low precision is what a file of an earlier conversion has
                storage.widen(param)
        if converted.low_params and not self.is_decided:
            chosen = [param for param in self.params if param.name in converted.low_params]
            wide = [param for param in chosen if storage.dtype_of(param) == dtypes.FLOAT32]
            storage.store_all_low(wide, self.policy.param_dtype, self.stored)
        if len(self.stored) > count:
            for sibling in self.siblings.conversions:  # which may read them
                sibling.forget_graphs()

    def forget_graphs(self) -> None:
        """Forget the graphs that were made, but not what they were traced to."""
        self._calls, self._graphs = LRUCache(MAX_CALLS), LRUCache(MAX_GRAPHS)

    def _require_kernels(self, contexts: Iterable[mx.Context]) -> None:
        require_kernels(self.policy, contexts, f"block '{self.net.name}'")

    # -------------------------------------------------------------- other methods of the net

    def get_graph(self, *args: Any) -> Any:
        """Return the inputs and the converted symbol for a call."""
        if self.given_graph is not None:
            return self.given_graph
        graph = self.graph_for(*args)
        return graph.trace.inputs, graph.converted.symbol

    def build_cache(self, *args: Any) -> None:
        """Have the operator made for a call, as ``optimize_for`` does: with the backend that it chose."""
        args = tuple(map(as_input, args))
        arrays, nesting = flat_arguments(args)
        with arrays[0].ctx, self.siblings.lock:
            runner = self._new_runner(self._signature(arrays, nesting), args, arrays)
            self._calls.put(self._signature(arrays, nesting), runner)  # in place of one without the backend
        set_op(self.net, runner.op, list(runner.reads))

    def deferred_infer_shape(self, *args: Any) -> None:
        """Infer the shapes of parameters, and initialize them."""
        self.graph_for(*args)

    def clear_cached_op(self) -> None:
        """Forget all graphs of the net."""
        plain_class(self.net)._clear_cached_op(self.net)
        self.forget_graphs()
        self._traces, self._is_shaped = LRUCache(MAX_GRAPHS), False
        self._collected, self.current, self.ran, self._has_gradients = None, None, {}, False

    def collect_params(self, select: Optional[str] = None) -> gluon.ParameterDict:
        """Return the net's parameters, in a dictionary that knows bfloat16."""
        params: gluon.ParameterDict = plain_class(self.net).collect_params(self.net, select)
        if type(params) is gluon.ParameterDict:
            params.__class__ = storage.CollectedParameters
        return params

    def cast(self, dtype: Any) -> None:
        """Do nothing for float32 if no parameter is in low precision; else refuse: MXNet's cast changes BatchNorm too.

        Scripts cast each net to the dtype of an option, which is float32 by default.
        """
        name, where = dtypes.canonical(dtype), f"block '{self.net.name}' is converted ({self.policy})"
        if name in dtypes.LOW_PRECISION:
            raise ConvertError(
                f"{where}; use mxmp.gluon.cast(net, {name!r}), which replaces this policy, or mxmp.gluon.restore(net) "
                f"first."
            )
        low = any(storage.dtype_of(param) in dtypes.LOW_PRECISION for param in self.params)
        if name != dtypes.FLOAT32 or low or not self.is_decided:
            raise ConvertError(
                f"{where}, which decides over the dtypes of parameters; leave cast({name!r}) out, or undo the "
                f"conversion by mxmp.gluon.restore(net) first."
            )

    def summary(self, *inputs: Any) -> None:
        """Print the summary of the float32 net, which needs every block to run by itself."""
        with unconverted(), storage.in_float32(self.stored):
            plain_class(self.net).summary(self.net, *inputs)

    def save_parameters(self, filename: str, *args: Any, **kwargs: Any) -> None:
        """Save float32 values as MXNet does, whole or not at all."""
        files.save(filename, lambda name: plain_class(self.net).save_parameters(self.net, name, *args, **kwargs))

    def save_params(self, filename: str) -> None:
        """Save as `save_parameters`, under the name that MXNet deprecates."""
        files.save(filename, lambda name: plain_class(self.net).save_params(self.net, name))

    def load_parameters(self, filename: str, *args: Any, **kwargs: Any) -> None:
        """Load a file as MXNet does once it is found whole; parameters keep the dtypes that the policy gives them."""
        files.check(filename)
        wide = [param for param in self.params if storage.dtype_of(param) == dtypes.FLOAT32]
        plain_class(self.net).load_parameters(self.net, filename, *args, **kwargs)
        for param in wide:
            storage.widen(param)  # with ``dtype_source='saved'`` it has the dtype of the file

    def export(self, path: str, epoch: int = 0, remove_amp_cast: bool = False) -> None:
        """Write the converted net, its casts included, for plain MXNet: both files or neither.

        The graph of inference if the net has been called for inference; of several the one that ran last.
        """
        files.require_folder(path)
        graph = self.ran.get(False, self.ran.get(True, self.shapeless))
        if graph is None:
            raise ConvertError(
                f"block '{self.net.name}' has not been called yet outside of precision regions, so its parameters and "
                f"shapes are not known; run one batch before exporting."
            )
        files.export(self.net, graph, path, epoch, remove_amp_cast)

    def repr(self) -> str:
        """Return the net's text, and that it is converted."""
        return f"{plain_class(self.net).__repr__(self.net)}\nconverted by mxmp: {self.policy}"

    # -------------------------------------------------------------- copies

    def reduce_ex(self, protocol: Any) -> Tuple[Any, ...]:
        """Return the net's state for pickle and copy, as ``__reduce_ex__``, without graphs: a copy makes its own."""
        with self.siblings.lock:
            for block in descendants(self.net):  # which may have been called by itself
                if isinstance(block, gluon.HybridBlock) and block._cached_op is not None:
                    block._clear_cached_op()
            kind: Any = plain_class(self.net)
            make, args, state, *rest = kind.__reduce_ex__(self.net, protocol)
            if make is copyreg.__newobj__:  # type: ignore[attr-defined]  # pickle finds the plain class alone, by name
                make, args = _make_empty, (kind, *args[1:])
            if isinstance(state, dict):
                state = {name: value for name, value in state.items() if name not in _GRAPHS}
            return (make, args, state, *rest)

    def __getstate__(self) -> Dict[str, Any]:
        """Return the state for copies: what `convert` noted, as a copy is converted at its own first call."""
        left_out = self._fresh_state()
        state = {name: value for name, value in vars(self).items() if name not in left_out}
        inside = regions.with_blocks(self.regions, blocks_in(self.net))
        return {**state, "regions": inside, "own_graph": _pack_graph(self.own_graph)}

    def __setstate__(self, state: Dict[str, Any]) -> None:
        """Restore a copied state; the net may have no attributes yet."""
        vars(self).update(state)
        self.regions, self.own_graph = regions.by_id(state["regions"]), _unpack_graph(self.own_graph)
        vars(self).update(self._fresh_state())
        self.siblings.add(self)
        vars(self.net).update(zip(_GRAPHS, (self.own_graph or (), None, [])))  # which `reduce_ex` left out
        self.net.__class__ = converted_class(plain_class(self.net))

    def _fresh_state(self) -> Dict[str, Any]:
        """Return the attributes that each copy of a conversion begins with anew."""
        return {
            "_calls": LRUCache(MAX_CALLS),
            "_graphs": LRUCache(MAX_GRAPHS),
            "_traces": LRUCache(MAX_GRAPHS),
            "_collected": None,
            "_is_shaped": False,
            "_has_gradients": False,
            "stored": [],
            "is_decided": self.policy.param_dtype == dtypes.FLOAT32,
            "shapeless": None,
            "given_graph": None,
            "current": None,
            "ran": {},
            "observer": None,
            "has_trainer": False,
            "untrained_stats": UntrainedStats(),
        }


def _without_casts(block: gluon.Block) -> Optional[Tuple[Any, Any]]:
    """Return the graph of an imported block that mxmp converted before it was exported, as it was before that.

    None for every other block.
    """
    if not isinstance(block, gluon.SymbolBlock):
        return None
    inputs, symbol = block._cached_graph
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
