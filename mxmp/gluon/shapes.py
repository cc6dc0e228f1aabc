"""Shapes of a net's inputs and parameters: those that are known, and those that inputs may come to have."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional, Tuple

from ..errors import InferenceError
from ..graph import Graph
from ..passes.facts import CAST_OPS
from ..symbol.inference import require_shapes

Shape = Tuple[int, ...]

_IMAGE_SIZES = (224, 299, 32, 28)
"""Of ImageNet, for Inception too, CIFAR and MNIST, in pixels."""

_KEEP_CHANNELS = frozenset({*CAST_OPS, "BatchNorm", "_plus_scalar", "_minus_scalar", "_mul_scalar", "_div_scalar"})
"""Operators that may stand between an image and the first convolution."""


def known_shapes(inputs: Mapping[str, Shape], params: Mapping[str, Any]) -> Dict[str, Shape]:
    """Return the shapes of inputs and parameters; none where those of the inputs are not known."""
    if not inputs:
        return {}
    known = {name: p.shape for name, p in params.items() if p.shape and all(size > 0 for size in p.shape)}
    return {**known, **inputs}


def guess_shapes(symbol: Any, graph: Graph, params: Mapping[str, Any]) -> Dict[str, Shape]:
    """Return shapes that the inputs of a net may have: one image each, of a usual size, that a convolution reads.

    Args:
        symbol: What the net was traced to.
        graph: Its graph.
        params: The parameters that it reads, by name.

    Returns:
        None of them, {}, where nothing tells an input's channels, or the net takes no image of these sizes.
    """
    channels = [(node.name, _channels(graph, i, params)) for i, node in enumerate(graph.nodes) if node.is_variable]
    inputs = {name: found for name, found in channels if name not in params}
    for size in _IMAGE_SIZES if all(inputs.values()) else ():
        shapes = {name: (1, found[0], *[size] * found[1]) for name, found in inputs.items() if found}
        try:
            require_shapes(symbol, known_shapes(shapes, params))
            return shapes
        except InferenceError:
            continue
    return {}


def _channels(graph: Graph, position: int, params: Mapping[str, Any]) -> Optional[Tuple[int, int]]:
    """Return how many channels and how many other axes a convolution that reads a node wants; None if unknown."""
    carriers = {position}
    for reader, node in enumerate(graph.nodes):
        if not node.inputs or node.inputs[0].node not in carriers:
            continue
        if node.op in _KEEP_CHANNELS:
            carriers.add(reader)
        weight = params.get(graph.nodes[node.inputs[1].node].name) if node.op == "Convolution" else None
        if weight is not None and node.get("layout") in (None, "None", "NCW", "NCHW", "NCDHW"):
            shape = weight.shape or ()
            if len(shape) > 2 and shape[1] > 0:
                return shape[1] * int(node.get("num_group") or 1), len(shape) - 2
    return None
