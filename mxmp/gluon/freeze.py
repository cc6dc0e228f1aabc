"""Nets for inference alone: without dropout, BatchNorm folded in float32, weights stored as the policy says."""

from __future__ import annotations

from typing import Mapping

from mxnet import gluon

from ..errors import ConvertError
from ..mxnet_private import blocks, parameters
from ..policy import Policy
from ..symbol.arguments import Model, make_model
from ..symbol.convert import ConvertedModel, convert_models
from .blocks import conversion_of


def model_for_inference(net: gluon.HybridBlock, path: str) -> ConvertedModel:
    """Return the model to export: a net's graph and its parameters, for inference alone, by its policy or in float32.

    Raises:
        ConvertError: If the net has no graph yet.
    """
    conversion = conversion_of(net)
    if conversion is not None:
        graph = conversion.graph_to_export(path)
        model = make_model(graph.trace.symbol, graph.input_shapes, graph.trace.types, conversion.ranges)
        return _converted(net, model, graph.trace.params, conversion.policy)
    traced = blocks.cached_graph(net)
    if not traced:
        raise ConvertError(
            f"block '{net.name}' has no graph yet; convert it, or hybridize it, and run one batch before exporting."
        )
    symbol = traced[1]
    read = set(symbol.list_inputs())
    params = {name: param for name, param in net.collect_params().items() if name in read}
    return _converted(net, make_model(symbol), params, Policy.parse("float32"))


def _converted(
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
