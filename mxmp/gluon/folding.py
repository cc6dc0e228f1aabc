"""Nets that only infer: their graphs without dropout, with BatchNorm folded into the layers before it."""

from __future__ import annotations

from dataclasses import replace
from typing import Dict, FrozenSet, Mapping, Tuple

from mxnet import gluon

from ..errors import ConvertError
from ..mxnet_private import blocks, parameters
from ..passes.fold import Sources
from ..policy import Policy
from ..symbol import Converted, convert_graph
from ..symbol.arguments import Model, make_model
from ..symbol.convert import ConvertedModel, convert_models
from ..symbol.for_inference import folded_names, prepare
from ..symbol.inference import Dtypes, Shapes
from ..write_counts import can_count
from .graphs import ConvertedGraph
from .trace import Storage, Trace


def convert_folded(
    trace: Trace,
    policy: Policy,
    shapes: Shapes,
    types: Dtypes,
    params: FrozenSet[str],
    storage: Storage,
    unfolded: FrozenSet[Sources] = frozenset(),
    out_of_range: FrozenSet[str] = frozenset(),
) -> Converted:
    """Return the conversion of a net for inference alone; its ``folds`` say how parameters are folded, in float32.

    Nothing is folded where it cannot be told that a parameter was written: each call would have to fold it again.

    Args:
        trace: What the net was traced to.
        policy: The policy.
        shapes: Shapes of inputs and parameters, if known.
        types: Dtypes of inputs.
        params: Names of the parameters.
        storage: How they are stored.
        unfolded: What is not to be folded.
        out_of_range: Names of outputs of the symbol, as it was traced, with values beyond low precision's range.
    """
    foldable = params if can_count() else frozenset()
    found = prepare(trace.symbol, foldable, shapes, types, graph=trace.graph)
    left = frozenset(fold.norm for fold in found.folds if fold.sources in unfolded)
    if left:
        found = prepare(trace.symbol, foldable, shapes, types, left, trace.graph)
    gone = folded_names(found.folds)
    known = {name: shape for name, shape in shapes.items() if name not in gone}  # MXNet infers those of the others
    beyond = {name for name in out_of_range if name not in found.outputs}
    beyond.update(name for name, before in found.outputs.items() if before in out_of_range)
    storage = storage.without(gone)
    converted = convert_graph(
        found.symbol,
        policy,
        known,
        types,
        *storage,
        frozenset(beyond),
        graph=found.graph,
        inputs=trace.inputs(params),
        removed=found.removed,
    )
    return replace(converted, folds=found.folds)


def refuse_training(net: gluon.HybridBlock) -> None:
    """Raise a ConvertError that says why a net refuses a call that trains."""
    raise ConvertError(
        f"block '{net.name}' was converted with for_inference=True, but this call is recorded or in training mode; "
        f"call it outside of autograd.record() and autograd.train_mode(), or convert it without for_inference to "
        f"train it."
    )


def refuse_symbols(net: gluon.HybridBlock) -> None:
    """Raise a ConvertError that says why a net refuses symbols, which a net around it could train."""
    raise ConvertError(
        f"block '{net.name}' was converted with for_inference=True, but is called with symbols, as part of another net "
        f"that is hybridized. Convert the outermost net for inference, or this one without for_inference; export() "
        f"writes it by itself."
    )


def input_shapes(graph: ConvertedGraph) -> Dict[str, Tuple[int, ...]]:
    """Return the shapes of inputs that a graph was converted for."""
    facts, nodes = graph.converted.facts, graph.converted.graph.nodes
    inputs = {symbol.name for symbol in graph.traced.inputs}
    found = {node.name: facts.shapes.get((position, 0)) for position, node in enumerate(nodes) if node.name in inputs}
    return {name: shape for name, shape in found.items() if shape is not None}


def folded_model(net: gluon.HybridBlock, graph: ConvertedGraph, policy: Policy) -> ConvertedModel:
    """Return the model to export: a converted graph and its parameters, for inference alone."""
    model = make_model(graph.traced.symbol, input_shapes(graph), graph.traced.types)
    return convert_for_inference(net, model, graph.traced.params, policy)


def float32_model(net: gluon.HybridBlock) -> ConvertedModel:
    """Return the model to export for inference alone of a net that is not converted.

    Raises:
        ConvertError: If the net has no graph yet.
    """
    graph = blocks.cached_graph(net)
    if not graph:
        raise ConvertError(
            f"block '{net.name}' has no graph yet; convert it, or hybridize it, and run one batch before exporting."
        )
    symbol = graph[1]
    read = set(symbol.list_inputs())
    params = {name: param for name, param in net.collect_params().items() if name in read}
    return convert_for_inference(net, make_model(symbol), params, Policy.parse("float32"))


def convert_for_inference(
    net: gluon.HybridBlock, model: Model, params: Mapping[str, gluon.Parameter], policy: Policy
) -> ConvertedModel:
    """Return a net's model prepared for inference and then converted, from the exact values of its parameters."""
    states = set(model.symbol.list_auxiliary_states())
    values = {name: parameters.reduced(param) for name, param in params.items()}
    args = {name: value for name, value in values.items() if name not in states}
    aux = {name: value for name, value in values.items() if name in states}
    try:
        return convert_models([model], args, aux, policy, for_inference=True, check=False)[0]
    except ConvertError as e:
        raise type(e)(f"block '{net.name}': {e}") from e
