"""The graph that a net infers with, split in what its parameters alone decide and what each call runs.

Where `convert` has made it before the first call, training runs both parts as one, unless it is in bfloat16.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any, FrozenSet, Iterator, Mapping, Optional, Tuple

from mxnet import gluon

from ..graph import Graph, Key
from ..mxnet_private import NumpySymbol, parameters
from ..passes.split_params import SplitGraph, split_params
from ..symbol import Converted, from_graph
from ..symbol.rewrite import emulated

Params = Mapping[str, gluon.Parameter]


@dataclass(frozen=True, eq=False)
class InferenceGraph:
    """The graph that a conversion of a net runs for inference on one kind of context.

    Attributes:
        converted: The conversion.
        graph: The graph as a whole.
        fused: Whether a backend of MXNet partitions it.
        params: The names of the net's parameters.
        dense: Those of parameters that are not sparse: what depends on them alone is computed once.
    """

    converted: Converted
    graph: Graph
    fused: bool
    params: FrozenSet[str]
    dense: FrozenSet[str]

    @classmethod
    def of(cls, converted: Converted, params: Params, on_cpu: bool, fused: bool) -> InferenceGraph:
        """Return the graph for a net with these parameters, by name."""
        names = frozenset(params)
        graph = converted.graph_on_cpu(False, fused, names) if on_cpu else converted.graph_on_gpu()
        return cls(converted, graph, fused, names, _dense(params))

    @classmethod
    def early(cls, converted: Converted, params: Params, fused: bool) -> Optional[InferenceGraph]:
        """Return the graph on a CPU, its symbol loaded, of a conversion for inputs of unknown or guessed shape.

        None if it may be another for inputs of true shape, but for layouts in bfloat16, of which `runs` asks whether
        they are the same. None too if these are not known.
        """
        names = frozenset(params)
        if None in converted.extents.values():
            return None
        facts = replace(converted.facts, shapes=_UnknownShapes())
        try:
            graph = emulated(converted.graph, facts, converted.extents, fused=fused, written=names)
        except _ShapeWanted:
            return None
        found = cls(converted, graph, fused, names, _dense(params))
        _ = found.symbol  # loads it
        return found

    def runs(self, converted: Converted, params: Params, fused: bool) -> bool:
        """Return whether this runs a conversion: its own, or that of the same graph for inputs of some shape."""
        same_params = params.keys() == self.params and _dense(params) == self.dense
        same_graph = converted.graph is self.converted.graph and fused == self.fused
        return same_params and same_graph and converted.extents == self.converted.extents

    @property
    def trains(self) -> bool:
        """Whether this is the graph that trains too: what is for training alone finds nothing in it."""
        return not (self.converted.extents or self.converted.guards_training)

    @functools.cached_property
    def read(self) -> FrozenSet[str]:
        """Names of the variables that the part reads that each call runs."""
        return _variables(self.split.main)

    @property
    def folded(self) -> FrozenSet[str]:
        """Names of the parameters that are folded."""
        return frozenset(name for fold in self.converted.folds for name in (fold.weight, fold.bias))

    @functools.cached_property
    def constant(self) -> FrozenSet[str]:
        """Names of the variables that no graph writes: parameters without auxiliary states, and what is folded."""
        return self.dense.intersection(self.converted.symbol.list_arguments()) | self.folded

    @functools.cached_property
    def split(self) -> SplitGraph:
        """Its two parts."""
        return split_params(self.graph, self.constant)

    @functools.cached_property
    def symbol(self) -> Any:
        """The symbol of the part that each call runs."""
        main, converted = self.split.main, self.converted
        return converted.symbol if main is converted.graph else from_graph(main, converted.symbol)

    def whole_symbol(self) -> Any:
        """Return the symbol of both parts, which takes less long to compose than to load; its variables say nothing."""
        prepare, main, names = self.split.prepare, self.split.main, self.split.names
        if prepare is None:
            return self.symbol
        # Composing would give two of a name. Or it would change `symbol` itself: MXNet copies no nodes of a numpy
        # symbol (_Symbol.__deepcopy__ in python/mxnet/symbol/numpy/_symbol.py at tag 1.9.1).
        if _variables(prepare) & _variables(main) or isinstance(self.symbol, NumpySymbol):
            return from_graph(self.graph, self.converted.symbol)
        return self.symbol(**dict(zip(names, from_graph(prepare))))


def _variables(graph: Graph) -> FrozenSet[str]:
    return frozenset(node.name for node in graph.nodes if node.is_variable)


def _dense(params: Params) -> FrozenSet[str]:
    return frozenset(name for name, param in params.items() if parameters.storage_type(param) == "default")


class _ShapeWanted(Exception):
    """Raised where a shape is asked for that is not known yet."""


class _UnknownShapes(Mapping[Key, Tuple[int, ...]]):
    """The shapes of entries before any is known; who asks for one is stopped."""

    def __getitem__(self, key: Key) -> Tuple[int, ...]:
        raise _ShapeWanted

    def __iter__(self) -> Iterator[Key]:
        raise _ShapeWanted

    def __len__(self) -> int:
        raise _ShapeWanted
