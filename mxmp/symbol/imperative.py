"""Runs a graph operator by operator: for one that runs once, to load it as a symbol would take longer."""

from __future__ import annotations

from typing import Dict, List, Mapping

import mxnet as mx

from ..graph import Graph, Key, Node
from ..mxnet_private import invoke, operator_handle


def run_imperatively(graph: Graph, variables: Mapping[str, mx.nd.NDArray]) -> List[mx.nd.NDArray]:
    """Return the outputs of a graph without control flow, given its variables by name."""
    values: Dict[Key, mx.nd.NDArray] = {}
    for position, node in enumerate(graph.nodes):
        if node.is_variable:
            values[position, 0] = variables[node.name]
        else:
            outputs = _run(node, [values[entry.key] for entry in node.inputs])
            values.update(((position, index), output) for index, output in enumerate(outputs))
    return [values[head.key] for head in graph.heads]


def _run(node: Node, inputs: List[mx.nd.NDArray]) -> List[mx.nd.NDArray]:
    attrs = {key: text for key, text in node.attrs if not key.startswith("__")}  # these say what no kernel reads
    is_numpy = isinstance(inputs[0], mx.np.ndarray)
    found: List[mx.nd.NDArray] = invoke(
        operator_handle(node.op).value, inputs, list(attrs), list(attrs.values()), None, is_numpy, True
    )
    return found
