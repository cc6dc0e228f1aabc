"""Losses times the loss scale: what a ``scale_loss`` block yields, and what it refuses."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, Dict, Iterator, List, Optional, Sequence

import mxnet as mx
import numpy as np
from mxnet import autograd

from ..errors import TrainerError
from . import history
from .finite import all_finite, merge_flags
from .masters import is_low_precision
from .scaler import Scaler, Stage
from .second_derivative import second_derivative_error


@contextlib.contextmanager
def scale_loss(loss: Any, scalers: Sequence[Scaler]) -> Iterator[Any]:
    """Yield a loss, or nested lists and tuples of losses, times the scale of all scalers.

    Args:
        loss: NDArrays of any shape and floating point dtype.
        scalers: Those whose parameters the backward pass will reach. Their windows move on
            together; if the block raises, they are put back.

    Raises:
        TrainerError: If a scaler cannot scale now, or ``loss`` holds something else.
    """
    scalers = list(dict.fromkeys(scalers))
    for scaler in scalers:
        scaler._require_can_open()
    scale = _common_scale(scalers)
    before = [dataclasses.replace(scaler.window) for scaler in scalers]
    leaves: List[mx.nd.NDArray] = []
    active = any(scaler.active for scaler in scalers)
    scaled = _map_losses(loss, "loss", scale if active else None, leaves)
    history.check(_ids(scaled).values(), scaled=active)
    flag = all_finite(leaves) if active and leaves else None
    outputs = _ids(scaled) if active else {}
    try:
        for scaler in scalers:
            scaler._open = True
            scaler.window.scale, scaler.window.stage = scale, Stage.SCALED
            if flag is not None:
                flags = [scaler.window.loss_flag, flag]
                scaler.window.loss_flag = merge_flags([f for f in flags if f is not None])
        Scaler._scaled_losses.update(outputs)
        yield scaled
    except BaseException as e:
        for scaler, window in zip(scalers, before):
            scaler.window = window
        explained = second_derivative_error(e) if isinstance(e, mx.MXNetError) else None
        if explained is not None:
            raise explained from e
        raise
    finally:
        for scaler in scalers:
            scaler._open = False
        for key in outputs:
            Scaler._scaled_losses.pop(key, None)


def _common_scale(scalers: Sequence[Scaler]) -> float:
    begun = {s.window.scale for s in scalers if s.window.stage is Stage.SCALED}
    if len(begun) > 1:
        raise TrainerError(
            f"scale_loss was given trainers whose gradients wait at different scales {sorted(begun)}; "
            "call step on them first."
        )
    values = [scaler.loss_scale.value for scaler in scalers if scaler.active]
    return begun.pop() if begun else min(values, default=1.0)


def _map_losses(loss: Any, path: str, scale: Optional[float], leaves: List[mx.nd.NDArray]) -> Any:
    """Return ``loss`` scaled (None: as it is), the container kept; ``leaves`` gets the wide losses."""
    if isinstance(loss, (list, tuple)):
        items = [_map_losses(item, f"{path}[{i}]", scale, leaves) for i, item in enumerate(loss)]
        return type(loss)(*items) if hasattr(loss, "_fields") else type(loss)(items)
    if not isinstance(loss, mx.nd.NDArray):
        raise TrainerError(
            f"scale_loss: {path} is a {type(loss).__name__}; expected an NDArray, or lists and tuples of them."
        )
    low = is_low_precision(loss)
    if not low and loss.dtype not in (np.float32, np.float64):
        raise TrainerError(f"scale_loss: {path} has dtype {np.dtype(loss.dtype)}; expected a float.")
    if id(loss) in Scaler._scaled_losses:
        raise TrainerError(
            f"scale_loss: {path} is scaled by another trainer already. To scale one loss for several "
            "trainers call first.scale_loss(loss, second)."
        )
    if scale is None:
        return loss
    # Recorded outside of record() too, where the forward pass has ended already.
    with autograd.record():
        wide = _widen(loss) if low else loss
        scaled = wide * scale
    leaves.append(wide)
    return scaled


def _widen(loss: mx.nd.NDArray) -> mx.nd.NDArray:
    # The operator Cast. In MXNet 1.9.1 amp_cast (AMPCastExCPU) and astype (_copyto) lose gradients
    # that are added up, because their backward ignores kAddTo.
    cast = mx.npx.cast if isinstance(loss, mx.np.ndarray) else mx.nd.Cast
    return cast(loss, dtype="float32")


def _ids(scaled: Any) -> Dict[int, mx.nd.NDArray]:
    if isinstance(scaled, (list, tuple)):
        return {key: array for item in scaled for key, array in _ids(item).items()}
    return {id(scaled): scaled}
