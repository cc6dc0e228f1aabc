"""The cache of a net's graphs: signatures of calls, converted graphs, and the cached operators that run them."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import warnings
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, OrderedDict, Sequence, Tuple, TypeVar

import mxnet as mx
from mxnet import gluon

from .. import dtypes
from ..errors import InferenceError, PassError
from ..graph import without_versions
from ..passes import ScaleLoss
from ..passes.base import without_blocks
from ..symbol import Converted
from ..symbol.rewrite import ShapeOutcomes
from ..train.loss_heads import HEAD_SCALE, loss_heads, own_gradients
from . import storage
from .blocks import plain_class
from .trace import Trace, without_constants

ONLY_INFER = ("MKLDNN", "MKLDNN_QUANTIZE", "TensorRT")
"""Backends whose operators have no gradients. Those of MKLDNN give zeros without an error."""

_STATIC = "static_shape"
_BULKS = {"forward_bulk_size": "FWD", "backward_bulk_size": "BWD"}
_BULK_VARIABLE = "MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN"
_BULK_SIZE = 15  # BulkExecMaxNodeTrainFwd and -Bwd, include/mxnet/imperative.h at tag 1.9.1

MAX_CALLS = 4096  # signatures in the cache; if verdicts depend on shapes, each shape has its own
MAX_GRAPHS = 32  # converted graphs in the cache, each with its cached operators

_Value = TypeVar("_Value")


class Signature(NamedTuple):
    """The properties of a call that decide which operator runs it."""

    training: bool
    recording: bool
    region: Optional[str]  # the precision of the innermost region around the call; None outside of regions
    on_cpu: bool
    adds: bool  # on a CPU: whether gradients are added to earlier ones (grad_req='add')
    nesting: Tuple[str, Any]  # of the inputs
    types: Tuple[Any, ...]
    shapes: Optional[Tuple[Any, ...]]  # None where no decision depends on them

    @property
    def trains(self) -> bool:
        """Whether the call is for more than inference."""
        return self.training or self.recording


class Call(NamedTuple):
    """A call of a net."""

    args: Tuple[Any, ...]
    arrays: List[Any]  # those in the arguments, flat
    signature: Signature


def on_cpu() -> bool:
    """Return whether the current context is a CPU."""
    return bool(mx.context.current_context().device_type != "gpu")


def as_input(arg: Any) -> Any:
    """Return an input, or nested inputs, as a cached graph takes them: low precision as float32, all on one context.

    A DataLoader's workers give arrays in shared memory (cpu_shared), which become arrays on the CPU.
    """
    if isinstance(arg, (list, tuple)):
        items = [as_input(item) for item in arg]
        return type(arg)(*items) if hasattr(arg, "_fields") else type(arg)(items)
    if not isinstance(arg, mx.nd.NDArray):
        return arg
    if arg.ctx.device_type in ("cpu_shared", "cpu_pinned"):
        arg = arg.as_in_context(mx.cpu())
    if dtypes.canonical(arg.dtype) in dtypes.LOW_PRECISION:
        # The operator: astype and amp_cast lose gradients under grad_req='add'.
        return (mx.npx.cast if isinstance(arg, mx.np.ndarray) else mx.nd.Cast)(arg, dtype=dtypes.FLOAT32)
    return arg


class LRUCache(OrderedDict[Any, _Value]):
    """A dictionary of at most ``size`` items that drops the least recently used one."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of a key and mark the key as used."""
        value = super().get(key, default)
        if value is not default:
            with contextlib.suppress(KeyError):  # another thread has dropped it
                self.move_to_end(key)
        return value

    def put(self, key: Any, value: _Value) -> Optional[_Value]:
        """Store a value. Return the least recently used value if it was dropped."""
        self[key] = value
        self.move_to_end(key)
        return self.popitem(last=False)[1] if len(self) > self.size else None


class Runner(NamedTuple):
    """A cached operator of a converted graph, and where its inputs come from."""

    graph: ConvertedGraph
    op: Any
    reads: Sequence[Tuple[bool, Any]]  # (True, number of an input) or (False, parameter), in its inputs' order
    is_static: bool  # whether it runs with static_shape


def make_operator(
    symbol: Any, inputs: Sequence[Any], params: Mapping[str, gluon.Parameter], flags: Iterable[Tuple[str, Any]]
) -> Tuple[Any, List[Tuple[bool, Any]]]:
    """Return a symbol's cached operator and its inputs: each is (True, number of an argument) or (False, parameter)."""
    places = {variable.name: place for place, variable in enumerate(inputs)}
    reads = [(True, places[name]) if name in places else (False, params[name]) for name in symbol.list_inputs()]
    varies = [is_input or read is HEAD_SCALE for is_input, read in reads]  # changes from call to call
    indices = {
        "data_indices": [place for place, each in enumerate(varies) if each],
        "param_indices": [place for place, each in enumerate(varies) if not each],
    }
    return mx.nd.CachedOp(symbol, [*indices.items(), *flags]), reads


class GraphCache:
    """The traces of one net, their converted graphs, and the operators that run calls.

    Attributes:
        traces: The traces, by signatures without the properties that no trace depends on.
        graphs: The converted graphs, by trace and by the outcome of the conditions on shapes in it.
        runners: The operators, by the signatures of calls.
        depends_on_shapes: Whether a trace has such a condition: then signatures have the shapes of inputs.
    """

    def __init__(self) -> None:
        self.traces: LRUCache[Trace] = LRUCache(MAX_GRAPHS)
        self.depends_on_shapes = False
        self.graphs: LRUCache[ConvertedGraph] = LRUCache(MAX_GRAPHS)
        self.runners: LRUCache[Runner] = LRUCache(MAX_CALLS)

    def put_trace(self, signature: Signature, traced: Trace, dtype: str) -> Trace:
        """Store a trace and return it; or an earlier one whose conversions to the low precision dtype are the same."""
        equal_trace = next((each for each in self.traces.values() if each.converts_like(traced)), None)
        if equal_trace is None:
            names = frozenset(traced.params)
            traced.outcomes = ShapeOutcomes(traced.symbol, dtype, traced.types, names, traced.data, traced.graph)
            self.depends_on_shapes = self.depends_on_shapes or traced.outcomes.depends
        traced = equal_trace or traced
        self.traces.put(signature, traced)
        return traced

    def put_graph(self, key: Any, graph: ConvertedGraph) -> None:
        """Store a converted graph; the operators of a graph that it displaces are forgotten."""
        dropped = self.graphs.put(key, graph)
        # A copy of the items: meanwhile other threads look calls up, which moves items.
        for call, runner in list(self.runners.items()) if dropped is not None else ():
            if runner.graph is dropped:
                self.runners.pop(call, None)


class ConvertedGraph:
    """A converted trace, with the cached operators that run it."""

    def __init__(self, trace: Trace, converted: Converted) -> None:
        self.trace, self.converted = trace, converted
        self._runners: Dict[Any, Runner] = {}

    @functools.cached_property
    def loss_heads(self) -> Tuple[str, ...]:
        """The loss heads in the graph, by name and operator."""
        return loss_heads(self.trace.graph)

    @functools.cached_property
    def own_gradients(self) -> Tuple[str, ...]:
        """The names of the ``Custom`` operators in the graph whose gradients no loss scale reaches."""
        return own_gradients(self.trace.graph.nodes, self.trace.params)

    @functools.cached_property
    def scaled_heads(self) -> Optional[Converted]:
        """The conversion with loss heads that read `HEAD_SCALE`; None if no scale can reach all heads."""
        if not self.loss_heads:
            return None
        try:
            scaled = ScaleLoss(self.converted.facts, HEAD_SCALE.name)(self.converted.graph)
        except PassError:
            return None
        return self.converted.with_graph(scaled.graph)

    @functools.cached_property
    def runs_as_written(self) -> bool:
        """Whether the net may run operator by operator: conversion changed nothing, and there is no loss head."""
        is_unchanged = without_versions(self.converted.graph) == without_versions(without_blocks(self.trace.graph))
        return is_unchanged and not self.loss_heads and self.converted.on_cpu() is self.converted.symbol

    @property
    def input_shapes(self) -> Dict[str, Tuple[int, ...]]:
        """The known shapes of the inputs that the graph was converted for, by name."""
        facts, nodes = self.converted.facts, self.converted.graph.nodes
        inputs = {symbol.name for symbol in self.trace.inputs}
        sizes = {node.name: facts.shapes.get((i, 0)) for i, node in enumerate(nodes) if node.name in inputs}
        return {name: size for name, size in sizes.items() if size is not None}

    def runner(self, conversion: Any, call: Call) -> Runner:
        """Return the operator for the calls of a net with the signature of one call."""
        backend, signature = conversion.net._backend, call.signature
        if backend in ONLY_INFER and signature.trains:
            backend = None
        # In training layouts are kept apart, see `SeparateLayouts`, and loss heads are scaled.
        is_bfloat16 = conversion.policy.compute_dtype == dtypes.BFLOAT16
        differs = backend or self.loss_heads or self.converted.guards_training or (is_bfloat16 and signature.on_cpu)
        key = signature.on_cpu, signature.adds, signature.trains if differs else None, backend
        if key not in self._runners:
            symbol = self._symbol_for(call, bool(backend))
            make = self._partition if backend else self._operator
            self._runners[key] = make(conversion, call, symbol)
        return self._runners[key]

    def _symbol_for(self, call: Call, fused: bool) -> Any:
        converted, signature = self.converted, call.signature
        if signature.trains and self.scaled_heads is not None:
            converted = self.scaled_heads
        if not signature.on_cpu:
            return converted.on_gpu(signature.trains)
        if signature.trains and self.converted.decisions.policy.compute_dtype == dtypes.BFLOAT16:
            arrays, converted_shapes = zip(self.trace.inputs, call.arrays), self.input_shapes
            shapes = {symbol.name: array.shape for symbol, array in arrays if symbol.name in converted_shapes}
            if shapes != converted_shapes:  # the first call was an inference, perhaps of one image
                with contextlib.suppress(InferenceError):  # MXNet raises the error when it runs
                    converted = converted.with_graph(converted.graph, shapes=shapes)
        overwritten = frozenset() if signature.adds else frozenset(self.trace.params)
        return converted.on_cpu(signature.trains, fused, overwritten)

    def _operator(self, conversion: Any, call: Call, symbol: Any) -> Runner:
        params = {**self.trace.params, HEAD_SCALE.name: HEAD_SCALE}
        unused = [param.name for param in conversion.params if param.name not in self.trace.params]
        if unused:  # MXNet warns of them in _build_cache, which is not called here
            text = f"block '{conversion.net.name}': {', '.join(unused)}: not used by any computation."
            warnings.warn(text, stacklevel=2)
        flags = self._flags(conversion.net, call.signature)
        operator, reads = make_operator(symbol, self.trace.inputs, params, flags)
        return Runner(self, operator, reads, bool(dict(flags).get(_STATIC)))

    def _partition(self, conversion: Any, call: Call, symbol: Any) -> Runner:
        """Have MXNet partition the graph by the net's backend, and return the operator."""
        net, flags = conversion.net, conversion.net._flags
        conversion.partitioned = self.trace.inputs, symbol
        try:
            net._flags = self._flags(net, call.signature)
            with storage.reading_stored():
                plain_class(net)._build_cache(net, *without_constants(call.args))
            return Runner(self, net._cached_op, list(net._cached_op_args), is_static=False)  # see `_flags`
        finally:
            conversion.partitioned = None
            net._flags = flags

    def _flags(self, net: gluon.HybridBlock, signature: Signature) -> List[Tuple[str, Any]]:
        """Return the flags of ``hybridize`` for the operator, without ``static_shape`` where MXNet is wrong with it.

        MXNet's engine takes ``foreach`` between two operators for finished before its body has run: CreateEngineOp
        (src/imperative/imperative_utils.h at tag 1.9.1) runs an operator of kSubgraphExec as any other. On a CPU, RNN
        and partitioned operators keep the form that they have made of their weights, also when the weights change
        (RNNOp::Init in src/operator/rnn-inl.h).

        On a GPU the bulks become larger. MXNet cuts a training graph into bulks of 15 operators and waits for the GPU
        after each. Casts are operators too: the 89 casts of a ResNet-50 under O1 would add six waits to its forward
        pass. So bulks grow with the number of operators. A size that the user gave stays.
        """
        flags = dict(net._flags)
        operators = self.converted.graph.operators()
        if signature.on_cpu and any(node.op == "RNN" for node in operators) or net._backend:
            flags.pop(_STATIC, None)
        if any(node.subgraphs for node in self.converted.graph.nodes):
            flags.pop(_STATIC, None)
        ratio = len(operators) / max(len(self.trace.graph.operators()), 1)
        for name, suffix in _BULKS.items() if ratio > 1 and not signature.on_cpu else ():
            size = int(os.environ.get(f"{_BULK_VARIABLE}_{suffix}") or os.environ.get(_BULK_VARIABLE) or _BULK_SIZE)
            flags.setdefault(name, math.ceil(size * ratio))
        return list(flags.items())
