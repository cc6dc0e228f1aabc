"""Which conditions on shapes hold in a network, found by one shape inference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, FrozenSet, Tuple

from ..passes import EraseCasts, Facts
from ..passes.decide import depends_on_shapes, shape_outcome
from .inference import Dtypes, ShapeInference, Shapes, from_graph, infer_facts, to_graph
from .rewrite import input_dtypes


class ShapeOutcomes:
    """Tells for given shapes which conditions on shapes hold in a network.

    Two calls of a converted net need two conversions only where this differs.

    Args:
        symbol: A float32 network, or one that mxmp converted before.
        dtype: The low precision dtype in question.
        types: Dtypes of the inputs; float32 unless given here or declared by the variable.
        params: Names of the variables that are parameters.
    """

    def __init__(self, symbol: Any, dtype: str, types: Dtypes, params: FrozenSet[str]) -> None:
        erased = EraseCasts()(to_graph(symbol))
        self._graph, self._dtype = erased.graph, dtype
        self.depends = depends_on_shapes(self._graph, dtype)
        if self.depends:
            source = from_graph(self._graph, symbol) if erased.modified else symbol
            self._graph = to_graph(source) if erased.modified else self._graph
            self._inference = ShapeInference(source, self._graph, self._facts(source, types, params))

    def _facts(self, source: Any, types: Dtypes, params: FrozenSet[str]) -> Facts:
        """Return the dtypes of what bodies of control flow read, which their shape inference needs."""
        if not any(node.subgraphs for node in self._graph.nodes):
            return Facts({})
        known = input_dtypes(source, self._graph, {}, types, params)
        return replace(infer_facts(source, self._graph, {}, known, params), bodies={})

    def __call__(self, shapes: Shapes) -> Tuple[Any, ...]:
        """Return the outcomes of all conditions for given shapes of variables; nothing where there are no conditions.

        Raises:
            InferenceError: If MXNet cannot infer the others from them; it names the node.
        """
        return shape_outcome(self._graph, self._dtype, self._inference(shapes)) if self.depends else ()
