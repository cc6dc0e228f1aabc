"""Second derivatives: what MXNet 1.9.1 lacks, and what it gets wrong without a word.

Measured on its CPU wheel against differences. It has them, right, for ``batch_dot``, ``elemwise_add``,
adding a scalar, ``transpose`` and functions of one array (``tanh``, ``sigmoid``, ``exp``, ``log``, ``sqrt``,
``square``, ``abs``, ``sin``, ...). Those of ``FullyConnected`` take the gradient of its output for a constant
(FullyConnectedGradGradCompute in src/operator/nn/fully_connected-inl.h fills that part with 0), which is
right for the last layer alone; likewise ``Dropout`` and ``clip``. Those of ``relu`` can end the process.
All others raise.
"""

from __future__ import annotations

import re
from typing import Callable, Optional, Set

from ..errors import TrainerError, mxnet_reason
from ..graph import Graph

_MISSING = re.compile(r"Operator _backward_(\w+) is non-differentiable")
_CACHED = "CachedOp does not support higher order gradients"
_HEAD = "_head_grad_"  # autograd.get_symbol calls so what autograd.grad started from

_WORKS = "batch_dot, elemwise_add, transpose and functions of one array such as tanh, sigmoid and square have them"
_WRONG = {
    "_backward_FullyConnected": "FullyConnected are wrong before the last layer",
    "_backward_Dropout": "Dropout are wrong before the last layer",
    "_backward_clip": "clip are wrong before the last layer",
    "_backward_relu": "relu end the process",
}


def second_derivative_error(error: Exception) -> Optional[TrainerError]:
    """Return what to raise for an error of MXNet's backward pass about second derivatives, None for any other."""
    reason = mxnet_reason(error)
    if _CACHED in reason:
        return TrainerError(
            "second derivatives: the net ran as a cached graph, through which MXNet has none; call it within "
            "`with mxmp.gluon.precision('float32'):`, with parameters stored in float32 ('O1', not 'O2'). A net that "
            "is not converted must not be hybridized."
        )
    found = _MISSING.search(reason)
    if found:
        return TrainerError(
            f"second derivatives: MXNet 1.9.1 has none of operator {found[1]}; {_WORKS}. A net that mxmp converted "
            f"must be called within `with mxmp.gluon.precision('float32'):`."
        )
    return None


def check_second_derivatives(history: str, parse: Callable[[str], Graph]) -> None:
    """Refuse a loss made of gradients (``create_graph=True``) whose own gradients MXNet 1.9.1 gets wrong.

    ``history`` holds the recorded operators that made it, as the text of a symbol; ``parse`` makes a graph of it.
    """
    if not any(f"Op:{op}," in history for op in _WRONG):
        return
    graph = parse(history)
    for node in graph.nodes:
        if node.op in _WRONG and not _starts(graph, node.inputs[0].node):
            raise TrainerError(f"second derivatives: in MXNet 1.9.1 those of {_WRONG[node.op]}; {_WORKS}.")


def _starts(graph: Graph, position: int) -> bool:
    """Return whether an output depends on nothing but what ``autograd.grad`` started from."""
    seen: Set[int] = set()
    waiting = [position]
    while waiting:
        current = waiting.pop()
        node = graph.nodes[current]
        if node.is_variable and not node.name.startswith(_HEAD):
            return False
        if current not in seen:
            seen.add(current)
            waiting += [entry.node for entry in node.inputs]
    return True
