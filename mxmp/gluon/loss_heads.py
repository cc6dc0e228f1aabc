"""Loss heads inside of nets: no loss scale reaches their gradient, so a trainer that scales refuses them."""

from __future__ import annotations

from typing import Any, Iterable, Sequence, Tuple

from mxnet import gluon

from ..errors import TrainerError
from ..graph import Graph
from ..passes.scale_loss import is_loss_head

_ATTRIBUTE = "_mxmp_loss_head"


def loss_heads(graph: Graph) -> Tuple[str, ...]:
    """Return the loss heads of a graph (SoftmaxOutput, make_loss, ...), each by its name and operator."""
    return tuple(str(node) for node in graph.operators() if is_loss_head(node))


def mark(net: gluon.Block, heads: Sequence[str]) -> None:
    """Note on a net's trained parameters that a loss head gives their gradient, if ``heads`` has one."""
    if heads:
        for param in net.collect_params().values():
            if param.grad_req != "null":
                setattr(param, _ATTRIBUTE, f"block '{net.name}': node {heads[0]}")


def refuse(params: Iterable[Any]) -> None:
    """Refuse parameters whose gradient a loss head gives; what `mark` noted is forgotten then.

    Raises:
        TrainerError: If one of them was marked since the last look; it names block and operator.
    """
    found = [where for where in (vars(param).pop(_ATTRIBUTE, None) for param in params) if where is not None]
    if found:
        raise TrainerError(
            f"{found[0]} is a loss head: its gradient does not depend on that of its output, so no loss scale reaches "
            f"it. Take it off and use a loss of mx.gluon.loss, or train without a loss scale (loss_scale=None, with "
            f"'mixed_bfloat16'), or by mxmp.module.Module."
        )
