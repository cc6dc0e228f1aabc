"""How a trainer works with others on other machines."""

from __future__ import annotations

from typing import Any, Sequence

import mxnet as mx

from ..arrays.casts import is_low_precision, round_into
from ..distributed import KVStore, distributed
from ..errors import TrainerError
from ..masters.copies import exact_value, keep_masters


def open_kvstore(kvstore: Any, compression: Any, params: Sequence[mx.gluon.Parameter]) -> Any:
    """Return the kvstore for a trainer that updates weights itself: ours where it is a distributed one.

    Raises:
        TrainerError: If the trainer has what cannot be summed over workers.
    """
    if not distributed(kvstore):
        return kvstore
    if compression:
        raise TrainerError(
            f"compression_params={compression!r}: MXNet compresses only where the kvstore updates the weights; "
            "leave it out, or take mxmp.distributed.KVStore(..., transport='float16')."
        )
    for param in params:
        if param._grad_stype != "default":
            raise TrainerError(
                f"parameter '{param.name}' has a {param._grad_stype} gradient, which a distributed kvstore can sum "
                "only where it updates the weights; create the layer with sparse_grad=False."
            )
    return kvstore.scoped() if isinstance(kvstore, KVStore) else KVStore(kvstore)


def broadcast_param(kvstore: KVStore, key: int, param: mx.gluon.Parameter) -> None:
    """Give a parameter the value that it has on worker 0: its float32 master where it is low precision.

    Args:
        kvstore: Distributed.
        key: The parameter's.
        param: Initialized.
    """
    weights = param.list_data()
    if not is_low_precision(weights[0]) or param.grad_req == "null":
        kvstore.broadcast(key, weights[0], weights)
        return
    masters = [exact_value(weight, param) for weight in weights]
    kvstore.broadcast(key, masters[0], masters)
    for master, weight in zip(masters, weights):
        round_into(master, weight)
    keep_masters(param, masters)
