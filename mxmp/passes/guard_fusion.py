"""A workaround for sums that MXNet's subgraph backend fuses wrongly, for graphs that only infer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Dict, FrozenSet

from ..graph import Entry, Graph, GraphBuilder, Key
from .attributes import device_attrs
from .base import Pass

_SUM = "elemwise_add"

_FUSED = frozenset({"BatchNorm", "Activation", "LeakyReLU", "clip", _SUM})
"""Operators that the backend puts into the convolution before them."""


@dataclass(frozen=True)
class GuardFusedSums(Pass):
    """Lets sums read a copy of a convolution's output that something else may be fused with.

    An example is x + f(relu(x)) with a convolution x, with BatchNorm behind it or not. MXNet 1.9.1 binds inference on a
    CPU with the backend MKLDNN, which first tries to fuse x with the sum, finds that this makes a circle, and begins
    again without the sum. Then it fuses x with relu, forgets that the sum reads x too, and lets it read the relu's
    output (SgMKLDNNConvSelector in src/operator/subgraph/mkldnn/mkldnn_conv_property.h, PreSelectSubgraphNodes in
    src/operator/subgraph/build_subgraph.cc): ResNet-18 v2 for small images is off by a tenth, in float32. The copy is
    BlockGrad, since the backend takes out identities. To be removed when the backend sees readers that it excludes.
    """

    name: ClassVar[str] = "guard-fused-sums"

    def run(self, graph: Graph) -> Graph:
        """Return the graph with copies."""
        shared = _shared(graph)
        builder = GraphBuilder(graph)
        copies: Dict[Key, Entry] = {}
        for position, node in enumerate(graph.nodes):
            inputs = list(builder.inputs(node))
            for port, entry in enumerate(node.inputs):
                if node.op == _SUM and entry.key in shared:
                    if entry.key not in copies:
                        source = graph.nodes[entry.node]
                        name = f"{source.name}_copy"
                        copies[entry.key] = builder.insert("BlockGrad", name, inputs[port], **device_attrs(source))
                    inputs[port] = copies[entry.key]
            builder.copy(position, node.rewired(tuple(inputs)))
        return builder.finish()


def _shared(graph: Graph) -> FrozenSet[Key]:
    """Return outputs of convolutions, or of BatchNorms behind them, that both a sum and another fused operator read."""
    found = set()
    for key, readers in graph.consumers().items():
        node = graph.nodes[key[0]]
        source = graph.nodes[node.inputs[0].node] if node.op == "BatchNorm" else node
        fused = [graph.nodes[reader].op for reader, _ in readers if graph.nodes[reader].op in _FUSED]
        if source.op == "Convolution" and len(fused) > 1 and _SUM in fused:
            found.add(key)
    return frozenset(found)
