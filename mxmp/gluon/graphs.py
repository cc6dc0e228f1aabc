"""Cache of the traced and converted graphs of one net, by the signature of a call; it is bounded."""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Optional, Tuple

from mxnet import gluon

from ..graph import Graph, without_versions
from ..lru_cache import LRUCache
from ..mxnet_private import blocks
from ..scaling.loss_heads import loss_heads
from ..symbol import Converted
from ..symbol.monitors import NetworkNames
from ..symbol.rewrite import ShapeOutcomes
from .calls import CallSignature, on_cpu

MAX_CALLS = 4096
"""Signatures of calls that are remembered; where verdicts depend on shapes, each shape is one."""

MAX_GRAPHS = 32
"""Converted graphs that are kept, each with its cached operators."""


@dataclass(frozen=True, eq=False)
class TracedGraph:
    """The graph that a net was traced to, for calls whose signatures differ in shapes alone or not at all.

    Attributes:
        graph: The traced graph, to tell whether two calls have the same one.
        inputs: The symbols of its inputs.
        symbol: Its symbol.
        formats: How the net's inputs and outputs are nested.
        types: Dtypes of its inputs by name.
        params: The parameters that it reads, by name.
        outcomes: Evaluates the conditions on shapes in it.
    """

    graph: Graph
    inputs: Any
    symbol: Any
    formats: Tuple[Any, Any]
    types: Dict[str, str]
    params: Dict[str, Any]
    outcomes: ShapeOutcomes

    def converts_like(self, other: TracedGraph) -> bool:
        """Return whether another traced graph has the same conversions."""
        return self.types == other.types and self.formats == other.formats and self.graph == other.graph


@dataclass(frozen=True, eq=False)
class ConvertedGraph:
    """A converted graph of a net.

    Attributes:
        traced: The graph that it was converted from.
        outcome: The outcomes of the conditions on shapes.
        converted: The conversion.
    """

    traced: TracedGraph
    outcome: Tuple[Any, ...]
    converted: Converted

    @functools.cached_property
    def loss_heads(self) -> Tuple[str, ...]:
        """The loss heads in it, by name and operator."""
        return loss_heads(self.traced.graph)

    @functools.cached_property
    def is_float32(self) -> bool:
        """Whether conversion changed nothing, so that the net may as well run as it was written."""
        same = without_versions(self.converted.graph) == self.traced.graph
        return same and self.converted.on_cpu() is self.converted.symbol

    @functools.cached_property
    def names(self) -> NetworkNames:
        """The net's names of its tensors, for op hooks on a GPU."""
        return NetworkNames(self.converted, self.converted.symbol, on_cpu=False)

    @functools.cached_property
    def names_on_cpu(self) -> NetworkNames:
        """The net's names of its tensors, for op hooks on a CPU."""
        return NetworkNames(self.converted, self.converted.on_cpu(), on_cpu=True)


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


class GraphCache:
    """Cache of the graphs of a converted net.

    A call is looked up by its signature, shapes included where verdicts depend on them. New shapes
    cost one shape inference, and a conversion only where the conditions on shapes turn out as they
    have not before. A graph's casts are placed by the shapes that it was first made for.

    Attributes:
        shaped: Whether the verdicts on one of the graphs depend on shapes.
        ops: The cached operators, with their arguments, by graph (its id) and whether for a CPU.
    """

    def __init__(self) -> None:
        self.shaped = False
        self.ops: Dict[Tuple[int, bool], Tuple[Any, List[Any]]] = {}
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
        graph = next((each for each in alike if each.converted.graph == converted.graph), None)
        if graph is None:
            graph = ConvertedGraph(traced, outcome, converted)
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

    def _forget_others(self) -> None:
        """Forget signatures and cached operators of graphs that are not kept."""
        kept = {id(graph) for graph in self._converted.items().values()}
        self._calls.retain(lambda graph: id(graph) in kept)
        self.ops = {key: op for key, op in self.ops.items() if key[0] in kept}
