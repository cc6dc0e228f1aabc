"""Export of a net for inference alone: BatchNorm folded into the layers before it, no dropout."""

from __future__ import annotations

from typing import Optional

from mxnet import gluon

from ..errors import ConvertError
from ..mxnet_private import blocks
from ..policy import Policy
from ..symbol.arguments import make_model
from .conversion import Conversion
from .file_hooks import require_export_folder
from .folding import Source, folded_model, save_folded


def export_for_inference(net: gluon.HybridBlock, conversion: Optional[Conversion], path: str, epoch: int) -> None:
    """Write the graph that a net runs and its parameters, prepared for inference and then converted, both or neither.

    A net that is not converted is written in float32. Parameters are converted from their exact values.
    """
    require_export_folder(path)
    if conversion is None:
        source = _float32_source(net)
    else:
        source = folded_model(conversion.graph_to_export(path), conversion.policy)
    save_folded(net, source, path, epoch)


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
