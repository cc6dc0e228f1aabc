"""Export of a net for inference alone: BatchNorm folded into the layers before it, no dropout."""

from __future__ import annotations

from typing import Dict, Optional, Tuple

from mxnet import gluon

from ..errors import ConvertError
from ..graph import Entry
from ..mxnet_private import blocks, parameters
from ..policy import Policy
from ..symbol import save_checkpoint
from ..symbol.arguments import Model, make_model
from ..symbol.convert import convert_known
from .conversion import Conversion
from .file_hooks import require_export_folder

Source = Tuple[Model, Dict[str, gluon.Parameter], Policy]


def export_for_inference(net: gluon.HybridBlock, conversion: Optional[Conversion], path: str, epoch: int) -> None:
    """Write the graph that a net runs and its parameters, prepared for inference and then converted, both or neither.

    A net that is not converted is written in float32. Parameters are converted from their exact values.
    """
    require_export_folder(path)
    model, params, policy = _float32_source(net) if conversion is None else _converted_source(conversion, path)
    states = set(model.symbol.list_auxiliary_states())
    values = {name: parameters.reduced(param) for name, param in params.items()}
    args = {name: value for name, value in values.items() if name not in states}
    aux = {name: value for name, value in values.items() if name in states}
    try:
        found = convert_known(model, args, aux, policy, for_inference=True, must_match=False)
    except ConvertError as e:
        raise type(e)(f"block '{net.name}': {e}") from e
    save_checkpoint(path, epoch, *found)


def _converted_source(conversion: Conversion, path: str) -> Source:
    graph = conversion.graph_to_export(path)
    traced, facts = graph.traced, graph.converted.facts
    inputs = {position: node.name for position, node in enumerate(graph.converted.graph.nodes) if node.is_variable}
    shapes = {name: facts.shape(Entry(i)) for i, name in inputs.items() if name not in traced.params}
    known = {name: shape for name, shape in shapes.items() if shape}
    return make_model(traced.symbol, known, traced.types), traced.params, conversion.policy


def _float32_source(net: gluon.HybridBlock) -> Source:
    graph = blocks.cached_graph(net)
    if not graph:
        raise ConvertError(
            f"block '{net.name}' has no graph yet; convert it, or hybridize it, and run one batch before exporting."
        )
    symbol = graph[1]
    read = set(symbol.list_inputs())
    params = {name: param for name, param in net.collect_params().items() if name in read}
    return make_model(symbol), params, Policy.parse("float32")
