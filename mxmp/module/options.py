"""What a module's arguments mean: its loss scale, its optimizer, and who updates the weights."""

from __future__ import annotations

import warnings
from typing import Any, Dict, List, Tuple

import mxnet as mx

from ..distributed import KVStore, distributed
from ..errors import TrainerError
from ..loss_scale import parse
from ..optimizer import MultiPrecision
from ..policy import Policy
from ..scaling.scaler import Scaler


def make_scaler(policy: Policy, loss_scale: Any) -> Scaler:
    """Return a scaler for a loss scale, or for the policy's own if ``loss_scale`` is 'policy'."""
    follows = isinstance(loss_scale, str) and loss_scale == "policy"
    return Scaler(parse(policy.loss_scale if follows else loss_scale))


def refuse_compression(compression: Any, scaled: bool, low: bool) -> None:
    """Raise if gradients cannot be compressed.

    Args:
        compression: ``compression_params``.
        scaled: Whether there is a loss scale.
        low: Whether parameters are stored in low precision.

    Raises:
        TrainerError: If there is compression and one of these.
    """
    if compression and scaled:
        raise TrainerError(
            "compression_params compares gradients with a threshold while they are scaled, so that the loss scale "
            "would change the training; use loss_scale=None, or no compression."
        )
    if compression and low:
        raise TrainerError(
            "compression_params: MXNet compresses float32 gradients alone; use a policy with param_dtype='float32', or "
            "no compression."
        )


def open_kvstore(kvstore: Any, compression: Any, contexts: int, values: Dict[str, Any]) -> Tuple[Any, bool]:
    """Return the kvstore of a module, and whether it can update weights; one of mxmp where it is distributed.

    Args:
        kvstore: As for ``init_optimizer``.
        compression: ``compression_params``, which MXNet's own kvstores alone know.
        contexts: Number of contexts.
        values: The parameters by name.
    """
    if distributed(kvstore) and not compression:
        return kvstore.scoped() if isinstance(kvstore, KVStore) else KVStore(kvstore), False
    return mx.model._create_kvstore(kvstore, contexts, values)


def updates_on_kvstore(kvstore: Any, capable: bool, checked: bool, low: bool) -> bool:
    """Return whether the kvstore updates the weights: where MXNet's own is distributed and nothing speaks against it.

    Args:
        kvstore: A KVStore or None.
        capable: Whether it can.
        checked: Whether gradients are checked before they are used.
        low: Whether parameters are stored in low precision.

    Raises:
        TrainerError: If it must, but the update would come before the check or lack masters.
    """
    kind = kvstore.type if kvstore is not None else ""
    if "async" in kind and (checked or low):
        raise TrainerError(
            f"kvstore '{kind}' updates weights inside the all-reduce, before their gradients are checked and without "
            "float32 masters. Use a synchronous kvstore, or loss_scale=None and a policy with param_dtype='float32'."
        )
    return capable and "dist" in kind and not checked and not low


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
