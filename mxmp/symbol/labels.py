"""Which inputs of a symbol are labels."""

from __future__ import annotations

from typing import Any, FrozenSet, Mapping, Optional, Sequence

from ..passes.scale_loss import is_loss_head
from .inference import to_graph

SUFFIX = "label"
"""How the names of labels end that MXNet gives."""


def label_names(symbol: Any) -> FrozenSet[str]:
    """Return the names of a symbol's labels.

    They are the variables whose names end in 'label', and those that loss heads alone read, beside their data: in
    ``LinearRegressionOutput(out, target)`` it is 'target'. One that is reshaped before has to be named so.
    """
    graph = to_graph(symbol)
    labels, others = set(), {head.node for head in graph.heads}
    for node in graph.nodes:
        known = 1 if is_loss_head(node) else len(node.inputs)
        others |= {entry.node for entry in node.inputs[:known]}
        labels |= {entry.node for entry in node.inputs[known:]}
    named = {node.name for node in graph.nodes if node.is_variable and node.name.endswith(SUFFIX)}
    return frozenset(named | {graph.nodes[i].name for i in labels - others if graph.nodes[i].is_variable})


def sure_inputs(
    symbol: Any, params: FrozenSet[str], shapes: Mapping[str, Any], data_names: Optional[Sequence[str]] = None
) -> FrozenSet[str]:
    """Return the inputs of a symbol: all but its parameters, or its labels alone if nothing names the inputs."""
    named = shapes or data_names is not None
    return frozenset(symbol.list_arguments()) - params if named else label_names(symbol)
