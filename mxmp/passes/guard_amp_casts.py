"""Workaround for gradients that MXNet's amp_cast loses on CPU.

In MXNet 1.9.1 the backward pass of amp_cast on CPU ignores the request to add to a gradient (kAddTo): AMPCastExCPU
(src/operator/tensor/amp_cast.cc) computes into a temporary that it never commits. With ``grad_req='add'`` the gradient
of a weight that is cast to bfloat16 stays zero. An identity in front takes the request instead and adds as it should.
To be removed when MXNet's amp_cast commits its output.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..graph import Graph, GraphBuilder
from .base import Pass


@dataclass(frozen=True)
class GuardAmpCasts(Pass):
    """Puts an identity in front of every amp_cast whose gradient may be added to another.

    That is one that reads a variable, whose ``grad_req`` is the user's, or a tensor with other readers, whose gradients
    MXNet may add up in place. Like emulation this is for running on CPU only, and never saved.
    """

    name: ClassVar[str] = "guard-amp-casts"

    def run(self, graph: Graph) -> Graph:
        """Return the graph with identities."""
        readers = graph.consumers()
        builder = GraphBuilder(graph)
        for position, node in enumerate(graph.nodes):
            inputs = tuple(builder.mapped(entry) for entry in node.inputs)
            if node.op == "amp_cast":
                source = node.inputs[0]
                shared = len(readers[source.node, source.index]) > 1
                if graph.nodes[source.node].is_variable or shared:
                    inputs = (builder.insert("_copy", f"{node.name}_guard", inputs[0]),)
            bodies = tuple(self.run(body) for body in node.subgraphs)
            builder.copy(position, node.rewired(inputs, bodies))
        return builder.finish(builder.mapped(head) for head in graph.heads)
