"""Workaround for tensors on CPU whose memory has another layout than MXNet assumes.

Beside an array's shape MXNet keeps the layout that oneDNN has given to its memory. In MXNet 1.9.1 an operator that
reshapes in place leaves that layout as it was (SetupDefaultBlobsOut in src/common/exec_utils.h, MKLDNNReshapeForward in
src/operator/nn/mkldnn/mkldnn_reshape.cc): the array then has the new shape, and a layout for the old one. amp_cast
cannot read it ("could not create a primitive descriptor for a reorder primitive"), nor can what widens bfloat16 within
an operator (FallBackCompute in src/operator/nn/mkldnn/mkldnn_base.cc); others read it wrongly, in float32 too. It
happens to the gradient of Reshape in front of a convolution, as in PixelShuffle, and to Reshape itself behind a
convolution of volumes. To be removed when MXNet drops the layout.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Dict, FrozenSet

from ..graph import Entry, Graph, GraphBuilder, Node
from ..rules.conditions import value_of
from .attributes import device_attrs
from .base import Pass

# Operators that give their outputs or gradients a layout of their own.
_CHOOSE_LAYOUTS = ("Convolution", "Deconvolution", "Pooling")

# Operators whose gradient is reshaped in place (_backward_reshape, _backward_copy) ...
_BACKWARD = frozenset({"Reshape", "expand_dims", "reshape_like", "_np_reshape", "_npx_reshape"})

# ... those that reshape in place themselves, and those that do so with more than four axes.
_FORWARD = frozenset({"reshape_like", "_np_reshape", "_npx_reshape"})
_FORWARD_VOLUMES = frozenset({"Reshape", "expand_dims", "Flatten"})

# Operators whose output and whose gradient have the default layout, whatever surrounds them.
_DEFAULT_LAYOUT = frozenset({"amp_cast", "Cast", "FullyConnected", "SwapAxis", "transpose"})


@dataclass(frozen=True)
class GuardLayouts(Pass):
    """Puts a copy between an operator that reshapes in place and one that may choose a layout of its own.

    The copy is SwapAxis of an axis with itself, which copies into the default layout, forward and
    backward, and never in place. Graphs without convolutions and pooling stay as they are. Like
    emulation this is for running on CPU only, and never saved.
    """

    name: ClassVar[str] = "guard-layouts"

    def run(self, graph: Graph) -> Graph:
        """Return the graph with copies."""
        kernels = [value_of(dict(node.attrs), "kernel") for node in graph.operators() if node.op in _CHOOSE_LAYOUTS]
        volumes = any(isinstance(kernel, tuple) and len(kernel) == 3 for kernel in kernels)
        return _guarded(graph, _FORWARD | _FORWARD_VOLUMES if volumes else _FORWARD) if kernels else graph


def _guarded(graph: Graph, forward: FrozenSet[str]) -> Graph:
    readers = graph.consumers()
    builder = GraphBuilder(graph)
    copies: Dict[int, Entry] = {}  # by the position of what they copy
    for position, node in enumerate(graph.nodes):
        inputs = tuple(copies.get(entry.node, builder.mapped(entry)) for entry in node.inputs)
        if node.op in forward and not _has_default_layout(graph.nodes[node.inputs[0].node]):
            inputs = (_copy(builder, node, "input", inputs[0]), *inputs[1:])
        bodies = tuple(_guarded(body, forward) for body in node.subgraphs)
        new = builder.copy(position, node.rewired(inputs, bodies))
        ahead = (graph.nodes[reader] for reader, _ in readers.get((position, 0), ()))
        if node.op in _BACKWARD and not all(map(_has_default_layout, ahead)):
            copies[position] = _copy(builder, node, "output", Entry(new))
    return builder.finish(builder.mapped(head) for head in graph.heads)


def _has_default_layout(node: Node) -> bool:
    return node.is_variable or node.op in _DEFAULT_LAYOUT


def _copy(builder: GraphBuilder, node: Node, what: str, entry: Entry) -> Entry:
    return builder.insert("SwapAxis", f"{node.name}_{what}_guard", entry, dim1="0", dim2="0", **device_attrs(node))
