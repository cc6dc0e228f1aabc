"""The graph that a net infers with, split in what its parameters alone decide and what each call runs."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, FrozenSet, Mapping

from mxnet import gluon

from ..graph import Graph
from ..mxnet_private import parameters
from ..passes.split_params import SplitGraph, split_params
from ..symbol import Converted, from_graph

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
        graph = converted.running_graph(on_cpu, fused=fused, written=names)
        return cls(converted, graph, fused, names, _dense(params))

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


def _variables(graph: Graph) -> FrozenSet[str]:
    return frozenset(node.name for node in graph.nodes if node.is_variable)


def _dense(params: Params) -> FrozenSet[str]:
    return frozenset(name for name, param in params.items() if parameters.storage_type(param) == "default")
