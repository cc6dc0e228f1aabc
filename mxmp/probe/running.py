"""Runs a graph that was built of a network's nodes, with values for its variables."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Dict, List, Mapping, Optional, Tuple

import mxnet as mx

from .. import dtypes
from ..errors import ConvertError, mxnet_reason
from ..graph import Graph
from ..passes import ScaleLoss
from ..passes.facts import Facts, declared_dtype
from ..report import Decisions
from ..symbol import Converted
from ..symbol.inference import from_graph, infer_facts, to_graph

SCALE = "loss_scale_of_heads"
"""The variable by which gradients of loss heads are scaled."""

Values = Mapping[str, Any]
"""NDArrays of all variables by name, parameters in float32."""


def runnable(
    graph: Graph, decisions: Decisions, values: Values, ctx: Any, *, trains: bool = False, scaled: bool = False
) -> Any:
    """Return the symbol that runs a graph with casts on a context: float16 emulated on a CPU.

    Args:
        graph: The graph.
        decisions: What was decided on the network that it was made of.
        values: Values of its variables, of which the shapes and dtypes are taken.
        ctx: The context.
        trains: Whether its backward pass is run too.
        scaled: Whether the gradients of loss heads are to be scaled by a variable `SCALE`, of shape (1,).
    """
    if scaled:
        graph = ScaleLoss(facts=facts_of(graph, values), variable=SCALE)(graph).graph
        values = {**values, SCALE: mx.nd.ones(1)}
    symbol = from_graph(graph)
    made = Converted(symbol, graph, facts_of(graph, values), frozenset(), replace(decisions, after=graph))
    return made.on_gpu(trains) if ctx.device_type == "gpu" else made.on_cpu(trains)


def in_float32(symbol: Any) -> Any:
    """Return a symbol that computes in float32 where a network computes in low precision of its own accord.

    Nothing overflows in it that float32 holds, and it runs on a CPU, where MXNet has no products in float16.
    """
    graph = to_graph(symbol)
    wide = _in_float32(graph)
    return symbol if wide == graph else from_graph(wide, symbol)


def _in_float32(graph: Graph) -> Graph:
    nodes = []
    for node in graph.nodes:
        changes: Dict[str, Optional[str]] = {}
        if node.get("dtype") in dtypes.LOW_PRECISION:
            changes["dtype"] = dtypes.FLOAT32
        if node.is_variable and declared_dtype(node) in dtypes.LOW_PRECISION:
            changes["__dtype__"] = dtypes.to_flag(dtypes.FLOAT32)
        nodes.append(node.with_attrs(changes)._replace(subgraphs=tuple(map(_in_float32, node.subgraphs))))
    return replace(graph, nodes=tuple(nodes))


def facts_of(graph: Graph, values: Values) -> Facts:
    """Return what MXNet infers of a graph for variables of the shapes and dtypes of these values."""
    symbol = from_graph(graph)
    read = {name: values[name] for name in symbol.list_inputs() if name in values}
    shapes = {name: array.shape for name, array in read.items()}
    types = {name: dtypes.canonical(array.dtype) for name, array in read.items()}
    return infer_facts(symbol, graph, shapes, types, frozenset())


class Runner:
    """A symbol that runs on values given by name, and always gives a list."""

    def __init__(self, symbol: Any) -> None:
        self.symbol = symbol
        self.names: List[str] = symbol.list_inputs()
        try:
            self._run = mx.nd.CachedOp(symbol)
        except mx.MXNetError as e:  # of an operator without a gradient, also if none is asked for
            raise ConvertError(f"MXNet cannot run the network in one piece: {mxnet_reason(e)}") from e

    def __call__(self, values: Values) -> List[Any]:
        """Return the outputs; ConvertError if the value of an input is missing."""
        for name in self.names:
            if name not in values:
                raise ConvertError(f"batches: a batch lacks the input '{name}'; give it, also if it is a label.")
        outputs = self._run(*[values[name] for name in self.names])
        return outputs if isinstance(outputs, list) else [outputs]


def values_on(decisions: Decisions, batch: Values, ctx: Any, copied: bool = False) -> Dict[str, Any]:
    """Return a batch's values on a context, without their gradients; ``copied`` auxiliary states may be written."""
    states = frozenset(from_graph(decisions.before).list_auxiliary_states()) if copied else ()
    found = {name: array.as_nd_ndarray().as_in_context(ctx).detach() for name, array in batch.items()}
    return {name: array.copy() if name in states else array for name, array in found.items()}


def zeros(shapes: Mapping[str, Tuple[int, ...]], ctx: Any) -> Dict[str, Any]:
    """Return zeros of the shapes given, by name, each with a gradient of its own; they share memory."""
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    memory = mx.nd.zeros(max(sizes.values(), default=1), ctx=ctx)
    found = {name: memory[: sizes[name]].reshape(shape) for name, shape in shapes.items()}
    for array in found.values():
        array.attach_grad()
    return found
