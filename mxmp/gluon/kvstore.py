"""Where parameters are updated: by the trainer, or inside of the kvstore."""

from __future__ import annotations

from typing import Any, Iterable, Optional

import mxnet as mx

from ..errors import TrainerError
from ..loss_scale import LossScale, NoOpLossScale, StaticLossScale
from ..masters.optimizer import MultiPrecision, needs_unscaled_gradients
from ..policy import did_you_mean

_KINDS = ("local", "device", "nccl", "dist_sync", "dist_async", "dist_device_sync", "p3store_dist", "horovod")


def require_known(kvstore: Any) -> None:
    """Raise if ``kvstore`` of a trainer means nothing; MXNet takes any other name for 'local'.

    Raises:
        TrainerError: It quotes it.
    """
    if isinstance(kvstore, str):
        known = any(part in kvstore.lower() for part in ("local", "device", "nccl", "dist"))
        if not known and kvstore.lower() not in (*_KINDS, *mx.kvstore.KVStoreBase.kv_registry):
            raise TrainerError(f"unknown kvstore {kvstore!r}{did_you_mean(kvstore, _KINDS)}.")
    elif kvstore is not None and not isinstance(kvstore, mx.kvstore.KVStoreBase):
        raise TrainerError(f"kvstore is {kvstore!r}; expected a name, a KVStore or None.")


def choose_update(loss_scale: LossScale, kvstore: Any, choice: Optional[bool], sparse: bool) -> Optional[bool]:
    """Return ``update_on_kvstore`` for MXNet: False wherever it need not be left to MXNet.

    Args:
        loss_scale: The trainer's. With a dynamic one every update is checked first; with a static
            one too, unless the user wants the kvstore to update.
        kvstore: A name, a KVStore or None.
        choice: The user's ``update_on_kvstore``.
        sparse: Whether a parameter is row_sparse, which MXNet can only update on the kvstore.

    Raises:
        TrainerError: If the update would come before the check.
    """
    kind = kvstore if isinstance(kvstore, str) else getattr(kvstore, "type", "")
    for updates, what in (
        (choice, "update_on_kvstore=True"),
        ("async" in kind, f"kvstore '{kind}'"),
        (sparse, "the kvstore of a row_sparse parameter"),
    ):
        if updates:
            require_unchecked(loss_scale, choice, what)
            return choice
    return False


def require_unchecked(loss_scale: LossScale, choice: Optional[bool], what: str) -> None:
    """Raise if the kvstore cannot update under a loss scale.

    Args:
        loss_scale: What the gradients will be scaled by.
        choice: The user's ``update_on_kvstore``: True accepts that nothing is checked.
        what: That which makes the kvstore update.

    Raises:
        TrainerError: It says why, and what can be done.
    """
    if isinstance(loss_scale, NoOpLossScale) or (choice and isinstance(loss_scale, StaticLossScale)):
        return
    cure = (
        "Give update_on_kvstore=True to go without the check"
        if isinstance(loss_scale, StaticLossScale)
        else "Leave update_on_kvstore out, or give a static loss scale, which then checks nothing,"
    )
    raise TrainerError(
        f"{what} updates weights inside the all-reduce, before their gradients are checked, so one overflow would "
        f"destroy them. {cure} or loss_scale=None."
    )


def require_rescaled(loss_scale: LossScale, optimizer: mx.optimizer.Optimizer) -> None:
    """Raise if ``rescale_grad``, which is all that a kvstore has, cannot take a loss scale out.

    Raises:
        TrainerError: It names the optimizer.
    """
    inner = optimizer.inner if isinstance(optimizer, MultiPrecision) else optimizer
    if not isinstance(loss_scale, NoOpLossScale) and needs_unscaled_gradients(inner):
        raise TrainerError(
            f"update_on_kvstore=True with a loss scale: {type(inner).__name__} needs gradients that are unscaled "
            "first; leave update_on_kvstore out."
        )


def any_sparse(params: Iterable[Any]) -> bool:
    """Return whether a parameter is row_sparse; what is no parameter is not."""
    return any(getattr(param, "_stype", "default") != "default" for param in params)
