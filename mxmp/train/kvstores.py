"""Kvstores of trainers and modules: which one is opened, who updates the weights, and what neither can do.

A kvstore of MXNet that updates does so inside the all-reduce: weight by weight, before the gradients are checked. So
trainers and modules update by themselves, and leave it to the kvstore only where MXNet can do no other, or where the
user chose it and nothing is to be checked.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, Optional, Sequence, Tuple

import mxnet as mx

from ..arrays import is_low_precision, round_into, to_float32
from ..distributed import KVStore, distributed
from ..errors import TrainerError, did_you_mean
from ..loss_scale import LossScale, NoOpLossScale, StaticLossScale
from ..mxnet_private import create_kvstore, parameters
from ..mxnet_private import kvstore_updater as updater_of
from .masters import (
    MasterState,
    MultiPrecision,
    copy_to_other_contexts,
    exact_value,
    forget_masters,
    keep_masters,
    needs_unscaled_gradients,
)

_KINDS = ("local", "device", "nccl", "dist_sync", "dist_async", "dist_device_sync", "p3store_dist", "horovod")


# ------------------------------------------------------------------ opening


def require_known(kvstore: Any) -> None:
    """Raise if ``kvstore`` of a trainer means nothing; MXNet takes any other name for 'local'."""
    if isinstance(kvstore, str):
        known = any(part in kvstore.lower() for part in ("local", "device", "nccl", "dist"))
        if not known and kvstore.lower() not in (*_KINDS, *mx.kvstore.KVStoreBase.kv_registry):
            raise TrainerError(f"unknown kvstore {kvstore!r}{did_you_mean(kvstore, _KINDS)}.")
    elif kvstore is not None and not isinstance(kvstore, mx.kvstore.KVStoreBase):
        raise TrainerError(f"kvstore is {kvstore!r}; expected a name, a KVStore or None.")


def open_for_trainer(kvstore: Any, compression: Any, params: Sequence[mx.gluon.Parameter]) -> Any:
    """Return the kvstore for a trainer that updates weights itself: ours where it is a distributed one.

    Raises TrainerError if the trainer has what cannot be summed over workers.
    """
    if not distributed(kvstore):
        return kvstore
    if compression:
        raise TrainerError(
            f"compression_params={compression!r}: MXNet compresses only where the kvstore updates the weights; "
            "leave it out, or take mxmp.distributed.KVStore(..., transport='float16')."
        )
    for param in params:
        storage = parameters.grad_storage_type(param)
        if storage != "default":
            raise TrainerError(
                f"parameter '{param.name}' has a {storage} gradient, which a distributed kvstore can sum "
                "only where it updates the weights; create the layer with sparse_grad=False."
            )
    return _open_distributed(kvstore)


def open_for_module(kvstore: Any, compression: Any, contexts: int, values: Dict[str, Any]) -> Tuple[Any, bool]:
    """Return the kvstore of a module, and whether it can update weights; one of mxmp where it is distributed.

    MXNet's own kvstores alone know ``compression_params``.
    """
    if distributed(kvstore) and not compression:
        return _open_distributed(kvstore), False
    store, capable = create_kvstore(kvstore, contexts, values)
    return store, bool(capable)


def _open_distributed(kvstore: Any) -> KVStore:
    return kvstore.scoped() if isinstance(kvstore, KVStore) else KVStore(kvstore)


def refuse_compression(compression: Any, scaled: bool, low: bool) -> None:
    """Raise if gradients are to be compressed under a loss scale, or where parameters have low precision."""
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


def any_sparse(params: Iterable[Any]) -> bool:
    """Return whether a parameter is row_sparse; non-Parameters count as dense."""
    return any(
        isinstance(param, mx.gluon.Parameter) and parameters.storage_type(param) != "default" for param in params
    )


# ------------------------------------------------------------------ who updates the weights


_CHOSEN = "update_on_kvstore=True"
_OF_SPARSE = "the kvstore of a row_sparse parameter"
_CURES = {
    _CHOSEN: "leave update_on_kvstore out, or ",
    _OF_SPARSE: "make the parameter with stype='default' (its gradient may be row_sparse), or ",
}


def choose_update(loss_scale: LossScale, kvstore: Any, choice: Optional[bool], sparse: bool) -> Optional[bool]:
    """Return ``update_on_kvstore`` for MXNet: False wherever it need not be left to MXNet.

    With a dynamic loss scale every update is checked first, so that a kvstore that must update is an error; with a
    static one too, unless the user chose it. MXNet can update row_sparse parameters on the kvstore alone.
    """
    # The servers of an asynchronous kvstore update at each push: there is no sum that a worker could pull.
    kind = kvstore if isinstance(kvstore, str) else getattr(kvstore, "type", "")
    causes = ((sparse, _OF_SPARSE), (choice, _CHOSEN), ("async" in kind, f"kvstore '{kind}'"))
    cause = next((name for updates, name in causes if updates), None)
    if cause is None:
        return False
    require_unchecked(loss_scale, choice, cause)
    return choice


def require_unchecked(loss_scale: LossScale, choice: Optional[bool], cause: str) -> None:
    """Raise if the kvstore cannot update under a loss scale; ``cause`` is why it updates.

    The user's ``choice`` of True accepts that under a static one nothing is checked.
    """
    if not (isinstance(loss_scale, NoOpLossScale) or (choice and isinstance(loss_scale, StaticLossScale))):
        raise TrainerError(
            f"{cause} updates weights inside the all-reduce, before their gradients are checked, so one overflow would "
            f"destroy them: {_CURES.get(cause, '')}give a static loss scale with update_on_kvstore=True, which checks "
            "nothing, or loss_scale=None."
        )


def updates_on_kvstore(kvstore: Any, capable: bool, checked: bool, low: bool) -> bool:
    """Return whether the kvstore updates the weights: where MXNet's own is distributed and nothing speaks against it.

    Raises TrainerError if it must, but gradients are ``checked`` first or parameters have ``low`` precision.
    """
    kind = kvstore.type if kvstore is not None else ""
    if "async" in kind and (checked or low):
        raise TrainerError(
            f"kvstore '{kind}' updates weights inside the all-reduce, before their gradients are checked and without "
            "float32 masters. Use a synchronous kvstore, or loss_scale=None and a policy with param_dtype='float32'."
        )
    return capable and "dist" in kind and not checked and not low


def require_updating_kvstore(choice: Optional[bool], kvstore: Any, contexts: int, sparse: bool) -> None:
    """Raise if the kvstore of a trainer is to update by the user's choice and MXNet makes none."""
    # For one context MXNet makes a kvstore only where it is distributed or a parameter is row_sparse, and silently
    # updates by itself (_create_kvstore in python/mxnet/model.py at tag 1.9.1).
    single = isinstance(kvstore, str) and "dist" not in kvstore and contexts == 1 and not sparse
    if choice and (kvstore is None or single):
        raise TrainerError(
            f"update_on_kvstore=True with kvstore={kvstore!r} and {contexts} context: MXNet makes no kvstore there; "
            "leave update_on_kvstore out."
        )


def require_rescaled(loss_scale: LossScale, optimizer: mx.optimizer.Optimizer) -> None:
    """Raise if ``rescale_grad``, which is all that a kvstore has, cannot take a loss scale out."""
    inner = optimizer.inner if isinstance(optimizer, MultiPrecision) else optimizer
    if not isinstance(loss_scale, NoOpLossScale) and needs_unscaled_gradients(inner):
        raise TrainerError(
            f"update_on_kvstore=True with a loss scale: {type(inner).__name__} needs gradients that are unscaled "
            "first; leave update_on_kvstore out."
        )


# ------------------------------------------------------------------ weights of the workers


def init_param(kvstore: Any, key: int, param: mx.gluon.Parameter) -> bool:
    """Give a kvstore that sums gradients a parameter, unless MXNet's trainer can do it; return whether it was done.

    All workers get the value of worker 0: its float32 master where it is trained in low precision.
    """
    weights = param.list_data()
    low = is_low_precision(weights[0])
    if isinstance(kvstore, KVStore) and low and param.grad_req != "null":
        # Weights that were rounded are alike where masters are not, and drift apart at the first steps.
        masters = [exact_value(weight, param) for weight in weights]
        kvstore.broadcast(key, masters[0], masters)
        for master, weight in zip(masters, weights):
            round_into(master, weight)
        keep_masters(param, masters)
    elif isinstance(kvstore, KVStore):
        kvstore.broadcast(key, weights[0], weights)
    elif isinstance(kvstore, mx.kv.KVStore) and low:
        kvstore.init(key, to_float32(weights[0]))  # it sums in the dtype that it is given first
        copy_to_other_contexts(weights)
    else:
        return False
    return True


def kvstore_updater(kvstore: Any) -> Optional[mx.optimizer.Updater]:
    """Return the updater within a kvstore of MXNet that updates the weights itself, None if there is none."""
    return updater_of(kvstore) if isinstance(kvstore, mx.kv.KVStore) else None


def adopt_kvstore_masters(kvstore: Any, params: Sequence[mx.gluon.Parameter]) -> None:
    """Let parameters keep the masters of a kvstore that updates, which works on a context of its own."""
    updater = kvstore_updater(kvstore)
    for index, state in (updater.states if updater else {}).items():
        if isinstance(state, MasterState) and state.master is not None:
            forget_masters(params[index], but=state.master.ctx)
