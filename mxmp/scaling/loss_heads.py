"""Detection of loss heads within nets, which ignore the gradient of their output and so the loss scale."""

from __future__ import annotations

from typing import Any, Iterable, Sequence, Tuple

from ..errors import TrainerError
from ..graph import Graph
from ..passes.scale_loss import is_loss_head

_ATTRIBUTE = "_mxmp_loss_head"


def loss_heads(graph: Graph) -> Tuple[str, ...]:
    """Return the loss heads of a graph (SoftmaxOutput, make_loss, ...), each by its name and operator."""
    return tuple(str(node) for node in graph.operators() if is_loss_head(node))


def mark(name: str, params: Sequence[Any], heads: Sequence[str]) -> None:
    """Note on a net's trained parameters whether a loss head gave their gradient in its last recorded call.

    The net runs as a cached graph, which autograd does not look into; ``heads`` are the loss heads of it.
    """
    if heads:
        for param in params:
            if param.grad_req != "null":
                setattr(param, _ATTRIBUTE, f"block '{name}': node {heads[0]}")
    elif any(_ATTRIBUTE in vars(param) for param in params):
        forget(params)


def forget(params: Iterable[Any]) -> None:
    """Forget what `mark` noted: at the end of a step, whose gradients are used."""
    for param in params:
        vars(param).pop(_ATTRIBUTE, None)


def refuse(params: Iterable[Any]) -> None:
    """Raise a TrainerError, which names block and operator, if `mark` noted a loss head of one of the parameters."""
    for param in params:
        where = vars(param).get(_ATTRIBUTE)
        if where is not None:
            raise refused(where)


def refused(where: str) -> TrainerError:
    """Return the error for a loss head; ``where`` names it."""
    return TrainerError(
        f"{where} is a loss head: its gradient does not depend on that of its output, so no loss scale reaches it. "
        f"Take it off and use a loss of mx.gluon.loss, or train without a loss scale (loss_scale=None, with "
        f"'mixed_bfloat16'), or by mxmp.module.Module."
    )
