"""The graph without the BatchNorms that `find_folds` found; see there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Dict, Tuple

from ..graph import Entry, Graph, GraphBuilder, Node
from ..graph.core import VARIABLE, make_attrs
from .attributes import device_attrs
from .base import Pass
from .drop_dropout import name_heads
from .find_folds import LAYERS, Fold, activation_of


@dataclass(frozen=True)
class FoldBatchNorm(Pass):
    """Removes the BatchNorms of ``folds``, which `find_folds` found in the same graph; the layers get new parameters.

    Layers keep their names, and outputs of the network theirs: where one was a BatchNorm's, an identity of its name
    stands: BlockGrad, so that MXNet's subgraph backend, which does not count outputs as readers, sees one.
    """

    name: ClassVar[str] = "fold-batchnorm"
    folds: Tuple[Fold, ...] = ()

    def run(self, graph: Graph) -> Graph:
        """Return the graph without these BatchNorms; variables that nothing reads any more stay in it."""
        layers = {fold.layer: fold for fold in self.folds}
        norms = {fold.norm for fold in self.folds}
        builder = GraphBuilder(graph)
        known = {node.name: i for i, node in enumerate(graph.nodes) if node.is_variable}
        added: Dict[str, Entry] = {}
        for position, node in enumerate(graph.nodes):
            if position in norms:
                _remove(builder, position, node)
                continue
            inputs = builder.inputs(node)
            if position in layers:
                fold = layers[position]
                port = LAYERS[node.op].weight
                weight = graph.nodes[node.inputs[port].node]
                for name in (fold.weight, fold.bias):
                    if name in known:
                        added[name] = builder.mapped(Entry(known[name]))
                    elif name not in added:
                        attrs = weight.attrs if name == fold.weight else _bias_attrs(weight)
                        added[name] = Entry(builder.add(Node(VARIABLE, name, attrs)))
                inputs = (*inputs[:port], added[fold.weight], added[fold.bias])
                node = node.with_attrs({"no_bias": "False"})
            builder.copy(position, node.rewired(inputs))
        return builder.finish(name_heads(graph, builder, {i for i in norms if not activation_of(graph.nodes[i])}))


def _remove(builder: GraphBuilder, position: int, node: Node) -> None:
    """Let the readers of a BatchNorm read what it read, or the activation that it had within."""
    activation = activation_of(node)
    if not activation:
        builder.redirect(Entry(position), builder.mapped(node.inputs[0]))
        return
    attrs = make_attrs({"act_type": activation, **device_attrs(node)})
    builder.copy(position, Node("Activation", node.name, attrs, (builder.mapped(node.inputs[0]),)))


def _bias_attrs(weight: Node) -> Tuple[Tuple[str, str], ...]:
    dtype = {key: value for key, value in weight.attrs if key == "__dtype__"}
    return make_attrs({**dtype, **device_attrs(weight)})
