"""A module's loss scale and optimizer, made from its arguments."""

from __future__ import annotations

import warnings
from typing import Any, Dict, List

import mxnet as mx

from ..errors import TrainerError
from ..loss_scale import parse
from ..optimizer import MultiPrecision
from ..policy import Policy
from ..scaling.scaler import Scaler
from ..scaling.source import OwnLossScale


def make_scaler(policy: Policy, loss_scale: Any) -> Scaler:
    """Return a scaler for a loss scale, or for the policy's own if ``loss_scale`` is 'policy'."""
    follows = isinstance(loss_scale, str) and loss_scale == "policy"
    return Scaler(OwnLossScale(parse(policy.loss_scale if follows else loss_scale)))


def make_optimizer(optimizer: Any, options: Dict[str, Any], symbol: Any, names: List[str], rescale: float) -> Any:
    """Return the optimizer that runs a module, wrapped for low precision weights.

    Args:
        optimizer: A name, an ``mx.optimizer.Optimizer``, or a `MultiPrecision`.
        options: ``optimizer_params``; with an instance ``multi_precision`` is the only one used.
        symbol: The network, whose attributes hold ``__lr_mult__`` and ``__wd_mult__``.
        names: Names of the parameters in the order of their indices.
        rescale: ``rescale_grad`` for an optimizer given by name, unless ``options`` has one.
    """
    options = dict(options)
    masters = options.pop("multi_precision", True)
    if isinstance(optimizer, str):
        options = {"rescale_grad": rescale, **options}
        optimizer = mx.optimizer.create(optimizer, sym=symbol, param_idx2name=dict(enumerate(names)), **options)
    elif not isinstance(optimizer, mx.optimizer.Optimizer):
        raise TrainerError(f"init_optimizer: optimizer is {optimizer!r}; expected a name or an mx.optimizer.Optimizer.")
    else:
        if optimizer.rescale_grad != rescale:
            warnings.warn(
                f"the optimizer's rescale_grad is {optimizer.rescale_grad}, not 1/batch_size = {rescale}; gradients "
                "are multiplied by it as it is. Is this intended?",
                stacklevel=3,
            )
        if not optimizer.idx2name:
            optimizer.idx2name = dict(enumerate(names))
    return optimizer if isinstance(optimizer, MultiPrecision) else MultiPrecision(optimizer, bool(masters))


def accumulates(grad_req: Any) -> bool:
    """Return whether gradients of any argument add up over several backwards; ``grad_req`` as for ``bind``."""
    if isinstance(grad_req, str):
        return grad_req == "add"
    return "add" in (grad_req.values() if isinstance(grad_req, dict) else grad_req)
