"""Kvstores of trainers and modules: which one is opened, who updates the weights, and which options are refused.

A kvstore of MXNet updates inside the all-reduce: weight by weight, before the gradients are checked, and without
masters. So a trainer updates by itself, and refuses parameters that MXNet updates only on the kvstore. A Module leaves
the update to a distributed kvstore of MXNet if nothing is checked and all weights are float32.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, Sequence, Tuple

import mxnet as mx

from ..arrays import is_low_precision, round_into, to_float32
from ..distributed import KVStore, distributed
from ..errors import TrainerError, did_you_mean
from .masters import copy_to_other_contexts, exact_value, keep_masters

_KINDS = ("local", "device", "nccl", "dist_sync", "dist_async", "dist_device_sync", "p3store_dist", "horovod")


# ------------------------------------------------------------------ opening


def require_kvstore(kvstore: Any) -> None:
    """Raise if ``kvstore`` is no kvstore and no name of one. MXNet takes any unknown name for 'local'."""
    if isinstance(kvstore, str):
        is_known = any(part in kvstore.lower() for part in ("local", "device", "nccl", "dist"))
        if not is_known and kvstore.lower() not in (*_KINDS, *mx.kvstore.KVStoreBase.kv_registry):
            raise TrainerError(f"unknown kvstore {kvstore!r}{did_you_mean(kvstore, _KINDS)}.")
    elif kvstore is not None and not isinstance(kvstore, mx.kvstore.KVStoreBase):
        raise TrainerError(f"kvstore is {kvstore!r}; expected a name, a KVStore or None.")


def open_for_trainer(kvstore: Any, compression: Any, params: Sequence[mx.gluon.Parameter]) -> Any:
    """Return the kvstore for a trainer, which updates weights itself. A distributed one is replaced by mxmp's.

    Raises TrainerError if gradients are compressed or sparse, so that they cannot be summed over workers.
    """
    if not distributed(kvstore):
        return kvstore
    if compression:
        raise TrainerError(
            f"compression_params={compression!r}: MXNet compresses only where the kvstore updates the weights; "
            "leave it out, or take mxmp.distributed.KVStore(..., transport='float16')."
        )
    for param in params:
        storage = param._grad_stype
        if storage != "default":
            raise TrainerError(
                f"parameter '{param.name}' has a {storage} gradient, which a distributed kvstore can sum "
                "only where it updates the weights; create the layer with sparse_grad=False."
            )
    return _open_distributed(kvstore)


def open_for_module(kvstore: Any, compression: Any, contexts: int, values: Dict[str, Any]) -> Tuple[Any, bool]:
    """Return the kvstore of a module, and whether it can update weights.

    A distributed one is replaced by mxmp's, unless there are ``compression_params``, which only MXNet's own know.
    """
    if distributed(kvstore) and not compression:
        return _open_distributed(kvstore), False
    store, capable = mx.model._create_kvstore(kvstore, contexts, values)
    return store, bool(capable)


def _open_distributed(kvstore: Any) -> KVStore:
    return kvstore.with_own_keys() if isinstance(kvstore, KVStore) else KVStore(kvstore)


def refuse_compression(compression: Any, is_scaled: bool, is_low: bool) -> None:
    """Raise if gradients are to be compressed under a loss scale, or where parameters have low precision."""
    if compression and is_scaled:
        raise TrainerError(
            "compression_params compares gradients with a threshold while they are scaled, so that the loss scale "
            "would change the training; use loss_scale=None, or no compression."
        )
    if compression and is_low:
        raise TrainerError(
            "compression_params: MXNet compresses only float32 gradients; use a policy with param_dtype='float32', or "
            "no compression."
        )


# ------------------------------------------------------------------ who updates the weights


def refuse_update_on_kvstore(kvstore: Any, choice: Any, params: Iterable[Any]) -> None:
    """Raise a TrainerError if MXNet would update weights on the kvstore of a trainer.

    Args:
        kvstore: The kvstore or its name.
        choice: ``update_on_kvstore`` of the user.
        params: The parameters; MXNet updates row_sparse ones on the kvstore only.
    """
    parameters = [param for param in params if isinstance(param, mx.gluon.Parameter)]
    sparse = [param.name for param in parameters if param._stype != "default"]
    kind = kvstore if isinstance(kvstore, str) else getattr(kvstore, "type", "")
    if choice:
        cause, cure = "update_on_kvstore=True", "leave update_on_kvstore out"
    elif sparse:
        cause = f"parameter '{sparse[0]}' is row_sparse, so that its kvstore"
        cure = "make it with stype='default' (its gradient may be row_sparse)"
    elif "async" in kind:  # Its servers update at each push, so there is no sum that a worker could pull.
        cause, cure = f"kvstore '{kind}'", "take a synchronous kvstore"
    else:
        return
    raise TrainerError(
        f"{cause} updates weights inside the all-reduce, before their gradients are checked and without float32 "
        f"masters: {cure}; or train float32 parameters with mx.gluon.Trainer, without a loss scale."
    )


def updates_on_kvstore(kvstore: Any, can_update: bool, is_checked: bool, is_low: bool) -> bool:
    """Return whether the kvstore of a module updates the weights.

    Args:
        kvstore: The kvstore.
        can_update: Whether it can update weights. Only a distributed kvstore of MXNet does.
        is_checked: Whether gradients are checked before the update.
        is_low: Whether parameters are stored in low precision.

    Raises:
        TrainerError: If the kvstore is asynchronous, so that it has to update, but one of the last two is True.
    """
    kind = kvstore.type if kvstore is not None else ""
    if "async" in kind and (is_checked or is_low):
        raise TrainerError(
            f"kvstore '{kind}' updates weights inside the all-reduce, before their gradients are checked and without "
            "float32 masters. Use a synchronous kvstore, or loss_scale=None and a policy with param_dtype='float32'."
        )
    return can_update and "dist" in kind and not is_checked and not is_low


# ------------------------------------------------------------------ weights of the workers


def init_param(kvstore: Any, key: int, param: mx.gluon.Parameter) -> bool:
    """Give a kvstore that sums gradients a parameter, unless MXNet's trainer can do it; return whether it was done.

    All workers get the value of worker 0: its float32 master where it is trained in low precision.
    """
    weights = param.list_data()
    is_low = is_low_precision(weights[0])
    if isinstance(kvstore, KVStore) and is_low and param.grad_req != "null":
        # Equal weights may have different masters, from which they would drift apart in the first steps.
        masters = [exact_value(weight, param) for weight in weights]
        kvstore.broadcast(key, masters[0], masters)
        for master, weight in zip(masters, weights):
            round_into(master, weight)
        keep_masters(param, masters)
    elif isinstance(kvstore, KVStore):
        kvstore.broadcast(key, weights[0], weights)
    elif isinstance(kvstore, mx.kv.KVStore) and is_low:
        kvstore.init(key, to_float32(weights[0]))  # It sums in the dtype of the first value.
        copy_to_other_contexts(weights)
    else:
        return False
    return True
