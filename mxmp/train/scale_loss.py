"""``scale_loss``: losses times the loss scale, for backward passes within a block."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Dict, Iterator, List, Sequence

import mxnet as mx
import numpy as np
from mxnet import autograd

from ..arrays import all_finite, is_low_precision
from ..errors import TrainerError
from ..passes.scale_loss import is_loss_head
from .loss_heads import custom_refused, own_gradients, refused
from .recorded import recorded_nodes
from .scaled_loss import ScaledLoss, require_backward
from .scaler import Scaler

# Scaled losses of the open blocks of all scalers, to refuse scaling one twice.
_SCALED_LOSSES: Dict[int, mx.nd.NDArray] = {}

@contextlib.contextmanager
def scale_loss(
    loss: Any, scalers: Sequence[Scaler], finish: Callable[[List[ScaledLoss]], object] = require_backward
) -> Iterator[Any]:
    """Yield a loss, or nested lists and tuples of losses, times the scale of all scalers.

    The steps of the scalers, whose parameters the backward pass will reach, move on together; if the block
    raises, they are put back. ``finish`` gets the scaled losses at its end; by default a backward must have come
    through each. Without a loss scale losses are yielded as they are, and nothing else is done. A TrainerError
    if a scaler cannot scale now, or ``loss`` is none or, in a trainer's first step, comes from a loss head.
    """
    scalers = list(dict.fromkeys(scalers))
    for scaler in scalers:
        scaler.require_can_scale("scale_loss")
        if scaler.state.is_ready:
            scaler.factors.release()  # those of the last step, whose graphs are freed
    scale = _common_scale(scalers)
    # Also without a loss scale, where the step has one from a block with another trainer.
    working = [scaler for scaler in scalers if scaler.active or scale != 1.0]
    losses: List[ScaledLoss] = []
    arrays: List[mx.nd.NDArray] = []

    def multiply(path: str, array: mx.nd.NDArray) -> mx.nd.NDArray:
        arrays.append(array)
        if not working:
            return array
        losses.append(working[0].factors.multiply(path, array, _widened(array), scale))
        return losses[-1].scaled

    scaled = _mapped(loss, "loss", multiply)
    observed = [(each, scaler.state.is_ready) for scaler in scalers for each in scaler.observers.values()]
    if working and not working[0].has_looked:
        _refuse_loss_heads(losses)
        working[0].has_looked = True
    flag = all_finite([each.wide for each in losses]) if losses else None
    outputs = {id(each.scaled): each.scaled for each in losses}
    with contextlib.ExitStack() as stack:
        for scaler in scalers:
            stack.enter_context(scaler.block(scale, flag))
        _SCALED_LOSSES.update(outputs)
        try:
            yield scaled
            finish(losses)
            for observer, begins in observed:
                observer.on_losses(arrays, begins)
        except mx.MXNetError as e:
            _explain_unrecorded(losses, e)
            raise
        finally:
            for key in outputs:
                _SCALED_LOSSES.pop(key, None)


def _explain_unrecorded(losses: Sequence[ScaledLoss], error: mx.MXNetError) -> None:
    """Raise a TrainerError in the place of MXNet's if it is of a backward through a loss that is not recorded."""
    path = next((each.path for each in losses if each.factor is None), None)
    if path is not None and "not in a computational graph" in str(error):
        raise TrainerError(
            f"scale_loss: {path} was not recorded, so that it has no gradients; compute it within autograd.record(), "
            "and of outputs that are not detached."
        ) from error


def _refuse_loss_heads(losses: Sequence[ScaledLoss]) -> None:
    """Raise if a loss comes from an operator that ignores the gradient of its output, and ran outside of any graph."""
    for nodes in (recorded_nodes(each.wide) for each in losses):
        for node in filter(is_loss_head, nodes):
            raise refused(f"node {node}")
        # Arrays without gradients are null0, null1 (Imperative::RecordOp in src/imperative/imperative.cc at tag 1.9.1).
        variables = {node.name for node in nodes if node.is_variable and not node.name.startswith("null")}
        custom = own_gradients(nodes, variables)
        for node in nodes:
            if node.name in custom:
                raise custom_refused(f"node '{node.get('op_type')}'")


def _common_scale(scalers: Sequence[Scaler]) -> float:
    begun = {scaler.state.scale for scaler in scalers if scaler.state.is_scaled}
    if len(begun) > 1:
        raise TrainerError(
            f"scale_loss was given trainers whose gradients wait at different scales {sorted(begun)}; "
            "call step on them first."
        )
    values = [scaler.loss_scale.value for scaler in scalers if scaler.active]
    return begun.pop() if begun else min(values, default=1.0)


def _mapped(loss: Any, path: str, function: Callable[[str, mx.nd.NDArray], mx.nd.NDArray]) -> Any:
    """Return ``loss`` with every array mapped, the container kept."""
    if isinstance(loss, (list, tuple)):
        items = [_mapped(item, f"{path}[{i}]", function) for i, item in enumerate(loss)]
        return type(loss)(*items) if hasattr(loss, "_fields") else type(loss)(items)
    if not isinstance(loss, mx.nd.NDArray):
        raise TrainerError(
            f"scale_loss: {path} is a {type(loss).__name__}; expected an NDArray, or lists and tuples of them."
        )
    if not is_low_precision(loss) and loss.dtype not in (np.float32, np.float64):
        raise TrainerError(f"scale_loss: {path} has dtype {np.dtype(loss.dtype)}; expected a float.")
    if id(loss) in _SCALED_LOSSES:
        raise TrainerError(
            f"scale_loss: {path} is scaled by another trainer already. To scale one loss for several "
            "trainers call first.scale_loss(loss, second)."
        )
    return function(path, loss)


def _widened(loss: mx.nd.NDArray) -> mx.nd.NDArray:
    """Return a loss in float32, or float64; recorded outside of record() too."""
    if not is_low_precision(loss):
        return loss
    # The operator Cast. In MXNet 1.9.1 amp_cast (AMPCastExCPU) and astype (_copyto) lose gradients
    # that are added up, because their backward ignores kAddTo.
    cast = mx.npx.cast if isinstance(loss, mx.np.ndarray) else mx.nd.Cast
    with autograd.record():
        return cast(loss, dtype="float32")
