"""Nets that only infer: their graphs without dropout, with BatchNorm folded into the layers before it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, FrozenSet, Mapping, Tuple

from mxnet import gluon

from ..arrays.write_counts import can_count
from ..errors import ConvertError
from ..mxnet_private import parameters
from ..policy import Policy
from ..symbol import Converted, convert_graph
from ..symbol.convert import ConvertedModel, convert_model
from ..symbol.for_inference import prepare
from ..symbol.inference import Dtypes, Shapes
from .graphs import ConvertedGraph


def convert_folded(
    symbol: Any,
    policy: Policy,
    shapes: Shapes,
    types: Dtypes,
    params: FrozenSet[str],
    storable: FrozenSet[str],
    stored: FrozenSet[str],
) -> Converted:
    """Return the conversion of a symbol for inference alone; its ``folds`` say how parameters are folded, in float32.

    Nothing is folded where it cannot be told that a parameter was written: each call would have to fold it again.

    Args:
        symbol: The symbol as it was traced.
        policy: The policy.
        shapes: Shapes of inputs and parameters, if known.
        types: Dtypes of inputs.
        params: Names of the parameters.
        storable: Names of those that may be stored in low precision.
        stored: Names of those that are.
    """
    found = prepare(symbol, params if can_count() else frozenset(), shapes, types)
    sources = {name for fold in found.folds for name in (fold.weight, fold.bias, *fold.sources.params)}
    read = set(found.symbol.list_inputs())
    known = {name: shape for name, shape in shapes.items() if name in read and name not in sources}
    known.update((fold.weight, shapes[fold.sources.weight]) for fold in found.folds if fold.sources.weight in shapes)
    converted = convert_graph(found.symbol, policy, known, types, storable - sources, stored - sources)
    return replace(converted.noting(found.removed), folds=found.folds)


def refuse_training(net: gluon.HybridBlock) -> None:
    """Raise a ConvertError that says why a net refuses a call that trains."""
    raise ConvertError(
        f"block '{net.name}' was converted with for_inference=True, but this call is recorded or in training mode; "
        f"call it outside of autograd.record() and autograd.train_mode(), or convert it without for_inference to "
        f"train it."
    )


def input_shapes(graph: ConvertedGraph) -> Dict[str, Tuple[int, ...]]:
    """Return the shapes of inputs that a graph was converted for."""
    facts, nodes = graph.converted.facts, graph.converted.graph.nodes
    inputs = {symbol.name for symbol in graph.traced.inputs}
    found = {node.name: facts.shapes.get((position, 0)) for position, node in enumerate(nodes) if node.name in inputs}
    return {name: shape for name, shape in found.items() if shape is not None}


def folded_model(graph: ConvertedGraph, policy: Policy) -> ConvertedModel:
    """Return the model to export: what ``convert_model`` with ``for_inference`` makes of the net's parameters."""
    shapes = input_shapes(graph)
    args, aux = _values(graph.traced.symbol, graph.traced.params)
    return convert_model(graph.traced.symbol, args, aux, policy, shapes, graph.traced.types, for_inference=True)


def _values(symbol: Any, params: Mapping[str, gluon.Parameter]) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """Return the values of a symbol's arguments and of its auxiliary states, in float32."""
    args = [name for name in symbol.list_arguments() if name in params]
    args_and_aux = (args, symbol.list_auxiliary_states())
    found, states = ({name: parameters.reduced(params[name]) for name in names} for names in args_and_aux)
    return found, states
