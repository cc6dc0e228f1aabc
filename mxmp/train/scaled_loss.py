"""A loss times its scale, which tells whether a backward pass came through."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

import mxnet as mx
import numpy as np
from mxnet import autograd

from ..errors import NoBackwardError, UnscaledLossError
from ..mxnet_private import is_fresh
from .recorded import is_recorded

_DO = (
    "Run backward on what scale_loss yields, inside its block (or on what get_scaled_loss returns): `with "
    "trainer.scale_loss(loss) as scaled: scaled.backward()`; for a list autograd.backward(scaled). An "
    "autograd.grad with retain_graph=True is not seen; call backward(retain_graph=True) in its place."
)


@dataclasses.dataclass
class ScaledLoss:
    """One loss, and what it was multiplied to.

    Attributes:
        path: What errors call it: 'loss', 'loss[1]'.
        wide: ``loss`` in float32, or float64.
        scaled: ``wide`` times the loss scale.
        factor: The loss scale as a variable of autograd, whose gradient every backward pass through
            ``scaled`` writes; None where autograd did not record the loss.
    """

    path: str
    loss: mx.nd.NDArray
    wide: mx.nd.NDArray
    scaled: mx.nd.NDArray
    factor: Optional[mx.nd.NDArray]

    @property
    def reached(self) -> bool:
        """Whether a backward pass came through; ``autograd.grad`` counts where it frees the graph."""
        # The flag of the product's own node is set when it is made and goes with the node.
        return self.factor is not None and bool(is_fresh(self.factor) or not is_fresh(self.scaled))


class Factors:
    """Loss scales as variables of autograd, made once and used again while the scale stays the same."""

    def __init__(self) -> None:
        self._scale: Optional[float] = None
        self._made: Dict[Tuple[Any, ...], List[mx.nd.NDArray]] = {}
        self._used: Dict[Tuple[Any, ...], int] = {}

    def multiply(self, path: str, loss: mx.nd.NDArray, wide: mx.nd.NDArray, scale: float) -> ScaledLoss:
        """Return a loss times the scale, recorded if ``wide`` is. One operator forward, one backward."""
        if not is_recorded(wide):
            return ScaledLoss(path, loss, wide, wide * scale, None)
        factor = self._next(wide, scale)
        # Recorded outside of record() too, where the forward pass has ended already.
        with autograd.record():
            scaled = wide * factor
        is_fresh.set(factor, False)
        is_fresh.set(scaled, True)
        return ScaledLoss(path, loss, wide, scaled, factor)

    def release(self) -> None:
        """Let the variables be used again: at the end of a step, whose graphs are freed."""
        self._used.clear()

    def _next(self, like: mx.nd.NDArray, scale: float) -> mx.nd.NDArray:
        if scale != self._scale:
            self._scale, self._made, self._used = scale, {}, {}
        shape = (1,) if like.ndim else ()
        key = like.ctx, np.dtype(like.dtype).name, shape, type(like)
        made, used = self._made.setdefault(key, []), self._used.get(key, 0)
        if used == len(made):
            made.append(_variable(like, shape, scale))
        self._used[key] = used + 1
        return made[used]


def _variable(like: mx.nd.NDArray, shape: Tuple[int, ...], scale: float) -> mx.nd.NDArray:
    with autograd.pause():
        pair = mx.nd.full(shape, scale, ctx=like.ctx, dtype=like.dtype), mx.nd.empty(shape, like.ctx, like.dtype)
    value, grad = (each.as_np_ndarray() if isinstance(like, mx.np.ndarray) else each for each in pair)
    autograd.mark_variables([value], [grad])
    return value


def require_backward(losses: Iterable[ScaledLoss], written: Callable[[], Optional[str]] = lambda: None) -> bool:
    """Check that backward came through all losses of a step that are recorded; return whether there are any.

    A loss that is not recorded is refused by MXNet's own backward, and may be a constant among others. The
    error says what was called instead; ``written`` names a parameter that a backward wrote in the meantime.
    """
    losses = list(losses)
    recorded = [each for each in losses if each.factor is not None]
    missed = [each for each in recorded or losses if not each.reached]
    if not missed:
        return bool(recorded)
    first = missed[0]
    if first.factor is not None and not is_recorded(first.loss):
        raise UnscaledLossError(
            f"backward was called on {first.path} itself, not on {first.path} times the loss scale, so that its "
            f"gradients are not scaled. {_DO}"
        )
    name = written() if len(missed) == len(recorded or losses) else None
    if name is not None:
        raise UnscaledLossError(
            f"no backward was called on {first.path} times the loss scale, but one of another loss, or of "
            f"{first.path} itself, wrote the gradient of parameter '{name}', which is not scaled. {_DO}"
        )
    if recorded:
        raise NoBackwardError(f"no backward was called on {first.path} times the loss scale. {_DO}")
    return False
