"""What autograd recorded of a loss: operators that no loss scale, or no second derivative, comes through."""

from __future__ import annotations

from typing import Any, Iterable

import mxnet as mx
from mxnet import autograd

from ..graph import from_json
from ..rules import RULES
from .loss_heads import loss_heads, refused
from .second_derivative import check_second_derivatives

_LOSS_HEADS = tuple(f'"{rule.op}"' for rule in RULES if rule.loss_head)


def check(losses: Iterable[mx.nd.NDArray], scaled: bool) -> None:
    """Refuse losses that backward would get wrong without a word; looks at the recorded operators.

    A cached graph is one operator, whose content is not seen here.

    Args:
        losses: Recorded or not, of any shape.
        scaled: Whether they are multiplied by a loss scale.

    Raises:
        TrainerError: If a loss comes through a loss head, which ignores the scale; or holds second
            derivatives that MXNet 1.9.1 gets wrong. It names the operator.
    """
    for loss in losses:
        text = _history(loss)
        check_second_derivatives(text)
        if scaled and any(op in text for op in _LOSS_HEADS):
            for head in loss_heads(from_json(text)):
                raise refused(f"node {head}")


def came_through_graph(loss: Any) -> bool:
    """Return whether a cached graph is among the recorded operators that made a loss."""
    return isinstance(loss, mx.nd.NDArray) and '"_CachedOp"' in _history(loss)


def _history(loss: mx.nd.NDArray) -> str:
    """Return the recorded operators that made a loss, as the JSON text of a symbol; '' if nothing is recorded."""
    try:
        return str(autograd.get_symbol(loss).tojson())
    except mx.MXNetError:
        return ""
