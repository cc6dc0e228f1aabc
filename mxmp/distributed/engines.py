"""What moves arrays between workers: MXNet's parameter server, or Horovod."""

from __future__ import annotations

import abc
import ctypes
import os
from typing import Any, Dict, Union

import mxnet as mx
import numpy as np
from mxnet.base import check_call

from ..errors import DependencyError, TrainerError
from ..launch import LAUNCHED
from ..mxnet_private import library, send_command_to_servers

_NEEDED = ("DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT", "DMLC_NUM_SERVER", "DMLC_NUM_WORKER")

# kSetMultiPrecision of CommandType in src/kvstore/kvstore_dist_server.h at tag 1.9.1.
_SET_MULTI_PRECISION = 1


class Engine(abc.ABC):
    """Collective operations, which every worker calls in the same order.

    Attributes:
        kind: The name of the kvstore, as MXNet spells it.
        rank: The number of this worker, from 0.
        size: How many workers there are.
    """

    kind: str
    rank: int
    size: int
    _keys = 0

    def new_key(self) -> str:
        """Return a key that was not used before; the same on every worker that asks as often."""
        self._keys += 1
        return f"mxmp.{self._keys}"

    @abc.abstractmethod
    def broadcast(self, key: str, array: mx.nd.NDArray) -> None:
        """Give an array the value that worker 0 has; once for a key, before `sum`. Waits for it."""

    @abc.abstractmethod
    def sum(self, key: str, array: mx.nd.NDArray, priority: int) -> None:
        """Give an array its sum over the workers, in its own dtype; does not wait.

        Args:
            key: What it was broadcast as.
            array: The same NDArray at every call for a key.
            priority: The higher the sooner.
        """


class ParameterServer(Engine):
    """MXNet's own, synchronous: every worker gets the bytes that a server has summed.

    Args:
        store: 'dist_sync' or its like, or a KVStore of MXNet.

    Raises:
        TrainerError: If this process was not told of its job.
    """

    def __init__(self, store: Union[str, mx.kv.KVStore] = "dist_sync") -> None:
        if isinstance(store, str):
            missing = [name for name in _NEEDED if name not in os.environ]
            if missing:
                raise TrainerError(
                    f"kvstore '{store}' needs {', '.join(missing)} in the environment; start the script with "
                    "`mxmp launch -n 2 python SCRIPT`."
                )
            store = mx.kv.create(store)
        self._store = store
        self.kind, self.rank, self.size = store.type, store.rank, store.num_workers
        self._parts: Dict[str, mx.nd.NDArray] = {}  # of float64 keys; MXNet sends them while other work goes on
        if self.rank == 0:
            # The servers would add other dtypes in float32 or not, as their memory happens to be: multi_precision_ of
            # KVStoreDistServer is never initialized (src/kvstore/kvstore_dist_server.h). Now they do.
            send_command_to_servers(store, _SET_MULTI_PRECISION, "")
        if os.environ.get(LAUNCHED) == "1":
            # A worker that fails would wait at its end for others, which wait for its gradients.
            check_call(library.MXKVStoreSetBarrierBeforeExit(store.handle, ctypes.c_int(0)))

    def broadcast(self, key: str, array: mx.nd.NDArray) -> None:
        """Give an array worker 0's value."""
        sent = array
        if array.dtype == np.float64:
            sent = self._parts[key] = self._split(array)
        self._store.broadcast(key, sent, out=sent)
        if sent is not array:
            _join(sent[0]).copyto(array)
        # MXNet orders what is pulled here by nothing against the first gradients that are pushed.
        array.wait_to_read()

    def sum(self, key: str, array: mx.nd.NDArray, priority: int) -> None:
        """Give an array its sum over the workers; float64 exactly but for the rounding of float64 itself."""
        if array.dtype != np.float64:
            self._store.pushpull(key, array, out=array, priority=priority)
            return
        parts = self._parts[key]
        self._split(array).copyto(parts)
        self._store.pushpull(key, parts, out=parts, priority=priority)
        mx.nd.add_n(*(_join(row) for row in parts)).copyto(array)

    def _split(self, array: mx.nd.NDArray) -> mx.nd.NDArray:
        """Return a float64 array of one dimension as float32 parts, (workers, 3, N): 0 but in this worker's row.

        The servers add float32, in which a number and zeros add up exactly. Three parts of 24 bits hold the 53 of a
        float64 number, from 1e-30 up to float32's largest.
        """
        parts, rest = [], array
        for _ in range(3):
            parts.append(rest.astype("float32"))
            rest = rest - parts[-1].astype("float64")
        rows = mx.nd.zeros((self.size, 3, array.size), ctx=array.ctx)
        rows[self.rank] = mx.nd.stack(*parts)
        return rows


def _join(parts: mx.nd.NDArray) -> mx.nd.NDArray:
    """Return float32 parts, (3, N), as the float64 array of which they are."""
    high, middle, low = (part.astype("float64") for part in parts)
    return high + middle + low


class Horovod(Engine):
    """Horovod, where it is installed and has started this process (``horovodrun``).

    Raises:
        DependencyError: If it is not installed for MXNet.
    """

    kind = "horovod"

    def __init__(self) -> None:
        self._horovod = _import_horovod()
        self._horovod.init()
        self.rank, self.size = self._horovod.rank(), self._horovod.size()

    def broadcast(self, key: str, array: mx.nd.NDArray) -> None:
        """Give an array worker 0's value."""
        self._horovod.broadcast_(array, root_rank=0, name=f"{key}.broadcast")
        array.wait_to_read()

    def sum(self, key: str, array: mx.nd.NDArray, priority: int) -> None:
        """Give an array its sum over the workers."""
        self._horovod.allreduce_(array, op=self._horovod.Sum, name=f"{key}.sum", priority=priority)


def _import_horovod() -> Any:
    try:
        import horovod.mxnet
    except ImportError as e:
        raise DependencyError(
            "kvstore 'horovod' needs Horovod, built for MXNet: HOROVOD_WITH_MXNET=1 HOROVOD_WITH_GLOO=1 "
            "pip install --no-build-isolation horovod==0.28.1 (tools/horovod.sh of mxmp has the rest)."
        ) from e
    return horovod.mxnet
