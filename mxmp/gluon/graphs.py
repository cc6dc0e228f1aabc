"""Signatures of calls, and the bounded cache of the traced and converted graphs that one net has for them."""

from __future__ import annotations

import contextlib
import functools
import numbers
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Callable, Dict, Generic, Iterator, List, NamedTuple, Optional, Sequence, Tuple, TypeVar

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

from .. import dtypes
from ..errors import PassError
from ..graph import Graph, without_versions
from ..mxnet_private import blocks
from ..passes import ScaleLoss
from ..symbol import Converted
from ..symbol.monitors import NetworkNames
from ..symbol.rewrite import ShapeOutcomes
from ..train.loss_heads import HEAD_SCALE, loss_heads
from .precision import current_region
from .trace import Shape, Trace, Unfolded, known_shapes

_CONSTANTS = (numbers.Number, np.bool_, str)  # that a block's own ``forward`` may hand to ``hybrid_forward``

_Value = TypeVar("_Value")

MAX_CALLS = 4096  # signatures that are remembered; where verdicts depend on shapes, each shape is one
MAX_GRAPHS = 32  # converted graphs that are kept, each with its cached operators


class CallSignature(NamedTuple):
    """The properties of a call that decide which graph it runs."""

    training: bool
    folds: Unfolded  # not None if it runs a graph for inference alone, BatchNorm folded but for these
    nesting: str  # of its inputs
    region: Optional[str]  # the innermost around it, None outside of regions
    types: Tuple[Any, ...]
    shapes: Optional[Tuple[Any, ...]]  # None where no verdict depends on them


def signature_of(net: gluon.Block, args: Tuple[Any, ...], shaped: bool, folds: Unfolded = None) -> CallSignature:
    """Return the signature of a call of a net now, with these inputs; ``shaped`` if their shapes matter."""
    flat, nesting = _flatten(args)
    types, shapes = (tuple(getattr(a, name, None) for a in flat) for name in ("dtype", "shape"))
    # Layers of gluon.rnn note here whether they were called without states, and then return none.
    nesting = nesting, getattr(net, "skip_states", None)
    kind = autograd.is_training(), folds, str(nesting), current_region()
    return CallSignature(*kind, types, shapes if shaped else None)


def split_inputs(args: Tuple[Any, ...]) -> List[Any]:
    """Return the arrays or symbols among possibly nested arguments, None and constants left out."""
    flat, _ = _flatten(args)
    return [item for item in flat if item is not None]


def _flatten(args: Tuple[Any, ...]) -> Tuple[List[Any], Any]:
    """Return arguments as a flat list, and how they are nested, constants among it."""
    try:
        return blocks.flatten(args, "input")  # type: ignore[no-any-return]
    except ValueError:  # MXNet takes arrays, symbols and None alone
        flat, nesting = blocks.flatten(without_constants(args), "input")
        return flat, (nesting, repr(_constants_in(args)))


def without_constants(arg: Any) -> Any:
    """Return arguments with None in the place of plain numbers and texts, which are constants of a graph."""
    if isinstance(arg, (list, tuple)):
        return tuple(map(without_constants, arg))
    return None if isinstance(arg, _CONSTANTS) else arg


def _constants_in(arg: Any) -> Any:
    """Return the constants in arguments, nested as these are, with None for all else; None if there are none."""
    if isinstance(arg, (list, tuple)):
        items = tuple(map(_constants_in, arg))
        return items if any(item is not None for item in items) else None
    return arg if isinstance(arg, _CONSTANTS) else None


@contextlib.contextmanager
def constants_given(net: gluon.HybridBlock, args: Tuple[Any, ...]) -> Iterator[None]:
    """Have ``hybrid_forward`` get the constants among the arguments of a call while the net is traced within this.

    MXNet traces with symbols and None alone.
    """
    constants, hooked = _constants_in(args), vars(net).get("hybrid_forward")
    if constants is None:
        yield
        return

    def forward(F: Any, *inputs: Any, **params: Any) -> Any:
        return type(net).hybrid_forward(net, F, *_with_constants(inputs, constants), **params)

    vars(net)["hybrid_forward"] = forward
    try:
        yield
    finally:
        del vars(net)["hybrid_forward"]
        if hooked is not None:
            vars(net)["hybrid_forward"] = hooked


def _with_constants(inputs: Any, constants: Any) -> Any:
    if isinstance(constants, tuple):
        return [_with_constants(*pair) for pair in zip(inputs, constants)]
    return inputs if constants is None else constants


def infers() -> bool:
    """Return whether a call now is for inference alone: neither recorded nor in training mode."""
    return not (autograd.is_recording() or autograd.is_training())


def on_cpu() -> bool:
    """Return whether the current context is a CPU."""
    return bool(mx.context.current_context().device_type != "gpu")


def known_inputs(inputs: Sequence[Any], args: Tuple[Any, ...]) -> Tuple[Dict[str, Shape], Dict[str, str]]:
    """Return shapes and dtypes, by name, of those inputs that are arrays."""
    arrays = [(s.name, a) for s, a in zip(inputs, split_inputs(args)) if isinstance(a, mx.nd.NDArray)]
    return {name: a.shape for name, a in arrays}, {name: dtypes.canonical(a.dtype) for name, a in arrays}


def as_input(arg: Any) -> Any:
    """Return an input, or nested inputs, for a cached graph: low precision as float32, shared CPU memory as CPU.

    A cached graph wants all on one context, also what a DataLoader's workers give (cpu_shared).
    """
    if isinstance(arg, (list, tuple)):
        items = [as_input(item) for item in arg]
        return type(arg)(*items) if hasattr(arg, "_fields") else type(arg)(items)
    if not isinstance(arg, mx.nd.NDArray):
        return arg
    if arg.ctx.device_type in ("cpu_shared", "cpu_pinned"):
        arg = arg.as_in_context(mx.cpu())
    if dtypes.canonical(arg.dtype) in dtypes.LOW_PRECISION:
        # The operator: the gradients of astype and amp_cast are lost under grad_req='add'.
        return (mx.npx.cast if isinstance(arg, mx.np.ndarray) else mx.nd.Cast)(arg, dtype=dtypes.FLOAT32)
    return arg


@dataclass(frozen=True, eq=False)
class TracedGraph:
    """The graph that a net was traced to, for calls whose signatures differ in shapes alone or not at all."""

    trace: Trace
    inputs: Any  # symbols
    formats: Tuple[Any, Any]  # how inputs and outputs are nested
    types: Dict[str, str]  # dtypes of its inputs by name
    params: Dict[str, Any]  # those that it reads, by name
    outcomes: ShapeOutcomes  # evaluates the conditions on shapes in it

    @property
    def symbol(self) -> Any:
        """What the net was traced to."""
        return self.trace.symbol

    @functools.cached_property
    def graph(self) -> Graph:
        """Its graph without versions, to tell whether two calls have the same one."""
        return without_versions(self.trace.graph)

    def outcome(self, shapes: Dict[str, Shape]) -> Tuple[Any, ...]:
        """Return what the conditions on shapes give for those of the inputs."""
        return self.outcomes(known_shapes(shapes, self.params)) if self.outcomes.depends else ()

    def converts_like(self, other: TracedGraph) -> bool:
        """Return whether another traced graph has the same conversions."""
        return self.types == other.types and self.formats == other.formats and self.graph == other.graph


@dataclass(frozen=True, eq=False)
class ConvertedGraph:
    """A converted graph of a net."""

    traced: TracedGraph
    outcome: Tuple[Any, ...]  # whether BatchNorm is folded, and what the conditions on shapes give
    converted: Converted

    @functools.cached_property
    def loss_heads(self) -> Tuple[str, ...]:
        """The loss heads in it, by name and operator."""
        return loss_heads(self.traced.graph)

    @functools.cached_property
    def scaled_heads(self) -> Optional[Converted]:
        """The same with loss heads that read `HEAD_SCALE`; None without any, or if no scale can reach one of them."""
        if not self.loss_heads:
            return None
        try:
            scaled = ScaleLoss(self.converted.facts, HEAD_SCALE.name)(self.converted.graph)
        except PassError:
            return None
        return self.converted.with_graph(scaled.graph)

    @functools.cached_property
    def is_float32(self) -> bool:
        """Whether conversion changed nothing, so that the net may as well run as it was written."""
        same = without_versions(self.converted.graph) == self.traced.graph
        return same and self.converted.on_cpu() is self.converted.symbol

    @functools.cached_property
    def names(self) -> NetworkNames:
        """The net's names of its tensors, for op hooks on a GPU."""
        return NetworkNames(self.converted, self.converted.on_gpu(trains=True), on_cpu=False)

    @functools.cached_property
    def names_on_cpu(self) -> NetworkNames:
        """The same on a CPU; the graph that trains has all nodes that the one for inference has."""
        return NetworkNames(self.converted, self.converted.on_cpu(trains=True), on_cpu=True)


@contextlib.contextmanager
def op_hook_on(net: gluon.HybridBlock, graph: ConvertedGraph) -> Iterator[None]:
    """Pass the net's own names and float32 values to its op hook while it runs a converted graph."""
    callback = blocks.op_hook(net)
    if callback is None:
        yield
        return
    names = graph.names_on_cpu if on_cpu() else graph.names
    blocks.op_hook.set(net, names.wrap(callback))
    try:
        yield
    finally:
        blocks.op_hook.set(net, callback)


class LRUCache(Generic[_Value]):
    """A dictionary of at most ``size`` items; to read or write one counts as a use."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._items: OrderedDict[Any, _Value] = OrderedDict()

    def get(self, key: Any) -> Optional[_Value]:
        """Return the value under a key and mark it as used; None if there is none."""
        value = self._items.get(key)
        if value is not None:
            self._items.move_to_end(key)
        return value

    def put(self, key: Any, value: _Value) -> None:
        """Store a value; the least recently used item is dropped if there are too many."""
        self._items[key] = value
        self._items.move_to_end(key)
        if len(self._items) > self._size:
            self._items.popitem(last=False)

    def retain(self, predicate: Callable[[_Value], bool]) -> None:
        """Keep only the values for which a predicate holds."""
        for key in [key for key, value in self._items.items() if not predicate(value)]:
            del self._items[key]

    def items(self) -> Dict[Any, _Value]:
        """Return a copy as a dict, the least recently used item first."""
        return dict(self._items)


class GraphCache:
    """Cache of the graphs of a converted net.

    A call is looked up by its signature, shapes included where verdicts depend on them. New shapes
    cost one shape inference, and a conversion only where the conditions on shapes turn out as they
    have not before. A graph's casts are placed by the shapes that it was first made for.
    """

    def __init__(self) -> None:
        self.shaped = False  # whether the verdicts on one of the graphs depend on shapes
        # The cached operators, `cached_ops.BuiltOp`, by graph (its id) and what else a `cached_ops.OpKey` says.
        self.ops: Dict[Tuple[int, bool, bool, bool], Any] = {}
        self._calls: LRUCache[ConvertedGraph] = LRUCache(MAX_CALLS)
        self._traced: LRUCache[TracedGraph] = LRUCache(MAX_GRAPHS)
        self._converted: LRUCache[ConvertedGraph] = LRUCache(MAX_GRAPHS)

    @property
    def calls(self) -> Dict[CallSignature, ConvertedGraph]:
        """The graphs by signature, least recently called first."""
        return self._calls.items()

    def find(self, signature: CallSignature) -> Optional[ConvertedGraph]:
        """Return the graph for a signature that was seen before."""
        found = self._calls.get(signature)
        if found is not None:
            self._converted.get((found.traced, found.outcome))
        return found

    def traced(self, signature: CallSignature) -> Optional[TracedGraph]:
        """Return the traced graph for a signature without shapes, None if it is new."""
        return self._traced.get(signature)

    def add_traced(self, signature: CallSignature, traced: TracedGraph) -> TracedGraph:
        """Keep a traced graph; return an earlier one with the same conversions, if there is one."""
        found = next((each for each in self._traced.items().values() if each.converts_like(traced)), traced)
        self._traced.put(signature, found)
        self.shaped = self.shaped or found.outcomes.depends
        return found

    def converted(self, traced: TracedGraph, outcome: Tuple[Any, ...]) -> Optional[ConvertedGraph]:
        """Return the conversion of a traced graph for an outcome of the conditions on shapes."""
        return self._converted.get((traced, outcome))

    def add_converted(self, traced: TracedGraph, outcome: Tuple[Any, ...], converted: Converted) -> ConvertedGraph:
        """Keep a conversion; return the graph, an earlier one of the same trace if it is equal."""
        alike = (each for each in self._converted.items().values() if each.traced is traced)
        new = ConvertedGraph(traced, outcome, converted)
        graph = next((each for each in alike if each.converted.graph == converted.graph), new)
        self._converted.put((traced, outcome), graph)
        self._forget_others()
        return graph

    def add_call(self, signature: CallSignature, graph: ConvertedGraph) -> None:
        """Remember which graph a signature has."""
        self._calls.put(signature, graph)

    def keep_only(self, converted: Converted) -> None:
        """Forget all graphs but one, and what was traced, because parameters have other dtypes now."""
        self._converted.retain(lambda graph: graph.converted is converted)
        self._traced = LRUCache(MAX_GRAPHS)
        self._forget_others()

    def holds(self, graph: Optional[ConvertedGraph]) -> bool:
        """Return whether a graph is still in the cache."""
        return any(graph is each for each in self._converted.items().values())

    def forget_prepared(self) -> None:
        """Free what was computed from parameters, which are about to change."""
        for built in self.ops.values():
            if built.prepared is not None:
                built.prepared.forget()

    def forget_left(self) -> None:
        """Free what was computed for contexts that parameters have left, and operators that ran on such alone."""
        for key, built in list(self.ops.items()):
            if built.prepared is not None and not built.prepared.forget_left():
                del self.ops[key]

    def _forget_others(self) -> None:
        """Forget signatures and cached operators of graphs that are not kept."""
        kept = {id(graph) for graph in self._converted.items().values()}
        self._calls.retain(lambda graph: id(graph) in kept)
        self.ops = {key: op for key, op in self.ops.items() if key[0] in kept}
