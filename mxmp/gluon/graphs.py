"""The graphs of one converted net: found by what a call reads, and no more of them than a bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

from ..graph import Graph
from ..lru_cache import LRUCache
from ..symbol import Converted
from ..symbol.outcomes import ShapeOutcomes
from .modes import Key, Mode

MAX_CALLS = 4096
"""Kinds of calls that are remembered; where verdicts depend on shapes, each shape is one."""

MAX_GRAPHS = 32
"""Converted graphs that are kept, each with its cached operators."""


@dataclass(frozen=True, eq=False)
class Source:
    """What a net was traced to, for kinds of calls that differ in shapes alone or not at all.

    Attributes:
        graph: The traced graph, to tell whether two kinds of calls have one.
        inputs: The symbols of its inputs.
        symbol: Its symbol.
        formats: How the net's inputs and outputs are nested.
        types: Dtypes of its inputs by name.
        params: The parameters that it reads, by name.
        outcomes: What shapes decide about it.
    """

    graph: Graph
    inputs: Any
    symbol: Any
    formats: Tuple[Any, Any]
    types: Dict[str, str]
    params: Dict[str, Any]
    outcomes: ShapeOutcomes

    def is_like(self, other: Source) -> bool:
        """Return whether two have the same conversions."""
        return self.types == other.types and self.formats == other.formats and self.graph == other.graph


class Graphs:
    """The graphs of a converted net.

    A call is looked up by its kind, shapes included where verdicts depend on them. New shapes cost
    one shape inference, and a conversion only where the conditions on shapes turn out as they
    have not before. A graph's casts are placed by the shapes that it was first made for.

    Attributes:
        shaped: Whether the verdicts on one of the graphs depend on shapes.
        ops: The cached operators, with their arguments, by graph (its id) and kind of context.
    """

    def __init__(self) -> None:
        self.shaped = False
        self.ops: Dict[Tuple[int, bool], Tuple[Any, List[Any]]] = {}
        self._calls: LRUCache[Mode] = LRUCache(MAX_CALLS)
        self._sources: LRUCache[Source] = LRUCache(MAX_GRAPHS)
        self._modes: LRUCache[Mode] = LRUCache(MAX_GRAPHS)

    @property
    def calls(self) -> Dict[Key, Mode]:
        """The graphs by kind of call, that called longest ago first."""
        return self._calls.items()

    def find(self, key: Key) -> Optional[Mode]:
        """Return the graph for a kind of call that was seen before."""
        mode = self._calls.get(key)
        if mode is not None:
            self._modes.get(mode.key)
        return mode

    def source(self, kind: Key) -> Optional[Source]:
        """Return what a kind of call, its shapes left out, was traced to before."""
        return self._sources.get(kind)

    def add_source(self, kind: Key, source: Source) -> Source:
        """Keep what a kind of call was traced to; return an earlier one that is like it, if there is one."""
        found = next((each for each in self._sources.items().values() if each.is_like(source)), source)
        self._sources.put(kind, found)
        self.shaped = self.shaped or found.outcomes.depends
        return found

    def converted(self, source: Source, outcome: Tuple[Any, ...]) -> Optional[Mode]:
        """Return the graph for a source and what shapes decide about it."""
        return self._modes.get((source, outcome))

    def add(self, source: Source, outcome: Tuple[Any, ...], converted: Converted) -> Mode:
        """Keep a conversion; return the graph, an earlier one of the same source if it is equal."""
        alike = (mode for (other, _), mode in self._modes.items().items() if other is source)
        mode = next((each for each in alike if each.converted.graph == converted.graph), None)
        if mode is None:
            mode = Mode(source.graph, source.inputs, converted, source.formats, (source, outcome))
        self._modes.put((source, outcome), mode)
        self._forget_others()
        return mode

    def add_call(self, key: Key, mode: Mode) -> None:
        """Remember which graph a kind of call has."""
        self._calls.put(key, mode)

    def keep_only(self, converted: Converted) -> None:
        """Forget all graphs but one, and what was traced, because parameters have other dtypes now."""
        self._modes.retain(lambda mode: mode.converted is converted)
        self._sources = LRUCache(MAX_GRAPHS)
        self._forget_others()

    def holds(self, mode: Optional[Mode]) -> bool:
        """Return whether a graph is still kept."""
        return any(mode is each for each in self._modes.items().values())

    def _forget_others(self) -> None:
        """Forget calls and cached operators of graphs that are not kept."""
        kept = {id(mode) for mode in self._modes.items().values()}
        self._calls.retain(lambda mode: id(mode) in kept)
        self.ops = {key: op for key, op in self.ops.items() if key[0] in kept}
