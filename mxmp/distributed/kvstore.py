"""A kvstore that sums gradients of all workers in float32, or in float16 without overflow."""

from __future__ import annotations

import atexit
import threading
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Union

import mxnet as mx
import numpy as np
from mxnet import autograd

from ..arrays.casts import is_low_precision, round_into, to_float32
from ..errors import TrainerError
from .engines import Engine, Horovod, ParameterServer

KINDS = ("dist", "dist_sync", "dist_device_sync", "dist_sync_device")
"""What MXNet calls its synchronous distributed kvstore."""

TRANSPORTS = ("float32", "float16")

_FLAG = "mxmp.flag"

# A process can join a job once: MXNet waits for ever in a second mx.kv.create("dist_sync"). So an engine is held up to
# the end of the process, though the trainer that joined may be gone: by 'dist' or 'horovod', and by MXNet's KVStore.
_JOINED: Dict[Any, Engine] = {}
_JOINING = threading.Lock()  # over looking up and joining: a second thread finds what the first one joined


class _Slot(NamedTuple):
    """Where the gradients of one key travel: the engine's key and an array of one dimension in the transport's dtype.

    It is the same array at every step, since MXNet sends it while the next operations are under way.
    """

    key: str
    buffer: mx.nd.NDArray


class KVStore(mx.kvstore.KVStoreBase):
    """Sums over workers, for ``kvstore`` of a trainer or a module.

    MXNet's own kvstore sums float16 gradients in float16, where 40000 + 40000 is inf, and does
    not know how to sum bfloat16. This one sends float32, or float16 divided by the number of
    workers beforehand, so that no sum of finite values overflows; what falls below 6e-8 times that
    number is lost then. Every key costs one array more.

    Args:
        engine: 'dist_sync' and MXNet's other names for it, 'horovod', a distributed KVStore of
            MXNet, or an `Engine`.
        transport: 'float32', or 'float16' for half the bytes. float64 gradients are sent as such.

    Raises:
        TrainerError: If an argument is none of these.
        DependencyError: If Horovod is not installed.
    """

    def __init__(self, engine: Union[str, mx.kv.KVStore, Engine] = "dist_sync", transport: str = "float32") -> None:
        if transport not in TRANSPORTS:
            raise TrainerError(f"transport={transport!r}; expected 'float32' or 'float16'.")
        self._transport = transport
        self._engine = _make_engine(engine)
        self._slots: Dict[Any, _Slot] = {}

    @property
    def type(self) -> str:
        """The engine's kind: 'dist_sync', 'horovod'."""
        return self._engine.kind

    @property
    def rank(self) -> int:
        """The number of this worker, from 0."""
        return self._engine.rank

    @property
    def num_workers(self) -> int:
        """How many workers there are."""
        return self._engine.size

    @staticmethod
    def is_capable(capability: str) -> bool:
        """Return False: weights are updated by the workers, all alike."""
        return False

    def scoped(self) -> KVStore:
        """Return a kvstore with the same workers and transport, and keys of its own."""
        return KVStore(self._engine, self._transport)

    def init(self, key: Any, value: mx.nd.NDArray) -> None:
        """Give ``value`` what worker 0 has, and make the key known."""
        self.broadcast(key, value, value)

    def broadcast(self, key: Any, value: mx.nd.NDArray, out: Any, priority: int = 0) -> None:
        """Give ``out`` what worker 0 has as ``value``, and make the key known.

        Waits until it is there: the first gradients must not overtake it.

        Args:
            key: A number or a string.
            value: Any shape; float16, bfloat16, float32 or float64.
            out: One array, or one for each context.
            priority: Not used.
        """
        with autograd.pause():
            wide = to_float32(_flat(key, value)).copy()
            slot = self._open(wide)
            for array in _list(out):
                _write(wide, _dense(key, array))
            dtype = self._travels_as(wide)
            self._slots[key] = slot if dtype == wide.dtype else self._open(mx.nd.zeros_like(wide).astype(dtype))

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Give ``out`` the sum of ``value`` over all contexts of all workers; does not wait.

        Args:
            key: A key that was broadcast.
            value: One array, or one for each context; float16, bfloat16, float32 or float64.
            out: Likewise; ``value`` if not given. Float32 holds sums that float16 does not.
            priority: The higher the sooner.
        """
        if key not in self._slots:
            raise TrainerError(f"pushpull: key {key!r} is not known; broadcast it first.")
        name, buffer = self._slots[key]
        with autograd.pause():
            total = _total([_flat(key, array) for array in _list(value)], buffer.ctx)
            divided = is_low_precision(buffer)
            _write(total / self.num_workers if divided else total, buffer)
            self._engine.sum(name, buffer, priority)
            total = to_float32(buffer) * self.num_workers if divided else buffer
            for array in _list(value if out is None else out):
                _write(total, _dense(key, array))

    def agree(self, flag: Optional[mx.nd.NDArray]) -> mx.nd.NDArray:
        """Return 1 if a flag is 1 on all workers, else 0; does not wait.

        Args:
            flag: Shape (1,), float32: 0 or 1. None: 1.
        """
        with autograd.pause():
            flag = mx.nd.ones((1,)) if flag is None else flag
            if _FLAG not in self._slots:
                self._slots[_FLAG] = self._open(mx.nd.zeros_like(flag))
            name, buffer = self._slots[_FLAG]
            _write(1 - flag, buffer)
            self._engine.sum(name, buffer, 0)
            return buffer == 0

    def _travels_as(self, array: mx.nd.NDArray) -> Any:
        return np.dtype(np.float64 if array.dtype == np.float64 else self._transport)

    def _open(self, array: mx.nd.NDArray) -> _Slot:
        """Give an array what worker 0 has, and let it travel from now on."""
        slot = _Slot(self._engine.new_key(), array)
        self._engine.broadcast(*slot)
        return slot


def distributed(kvstore: Any) -> bool:
    """Return whether ``kvstore`` of a trainer or module means one that `KVStore` is for."""
    if isinstance(kvstore, str):
        return kvstore.lower() in (*KINDS, Horovod.kind)
    kind = kvstore.type if isinstance(kvstore, mx.kv.KVStore) else ""
    return isinstance(kvstore, KVStore) or ("dist" in kind and "async" not in kind)


def _make_engine(engine: Any) -> Engine:
    if isinstance(engine, Engine):
        return engine
    if isinstance(engine, KVStore) or not distributed(engine):
        raise TrainerError(f"engine={engine!r}; expected 'dist_sync', 'horovod', a distributed KVStore or an Engine.")
    horovod = isinstance(engine, str) and engine.lower() == Horovod.kind
    name = Horovod.kind if horovod else "dist"
    known = name if isinstance(engine, str) else engine
    with _JOINING:
        if known not in _JOINED:
            if not _JOINED:
                # Once Python takes its modules apart it may be too late to free MXNet's store, whose threads would then
                # end the process by SIGABRT.
                atexit.register(_JOINED.clear)
            _JOINED[known] = Horovod() if horovod else ParameterServer(engine)
            _JOINED.setdefault(name, _JOINED[known])  # a name means the job, whoever joined it
        return _JOINED[known]


def _list(arrays: Any) -> List[mx.nd.NDArray]:
    return list(arrays) if isinstance(arrays, (list, tuple)) else [arrays]


def _dense(key: Any, array: mx.nd.NDArray) -> mx.nd.NDArray:
    """Return an array of mx.nd or mx.np as one of mx.nd."""
    if array.stype != "default":
        raise TrainerError(f"key {key!r} is {array.stype}; only dense arrays are summed over workers.")
    return array.as_nd_ndarray()


def _flat(key: Any, array: mx.nd.NDArray) -> mx.nd.NDArray:
    """Return a copy of one dimension, or a view.

    oneDNN lays out weights of convolutions in a way of its own. MXNet cannot copy a view of them then (CHECK(!is_view)
    in NDArray::GetMKLDNNData, src/ndarray/ndarray.cc); its operators can read them.
    """
    array = _dense(key, array)
    return mx.nd.Reshape(array, shape=(-1,)) if array.ndim > 1 and array.size else array.reshape(-1)


def _total(arrays: Sequence[mx.nd.NDArray], ctx: mx.Context) -> mx.nd.NDArray:
    total = to_float32(arrays[0]).as_in_context(ctx)
    for array in arrays[1:]:
        total = total + to_float32(array).as_in_context(ctx)
    return total


def _write(source: mx.nd.NDArray, target: mx.nd.NDArray) -> None:
    """Round an array of one dimension into one of another dtype, context and shape."""
    source = source.as_in_context(target.ctx).reshape(target.shape)
    if is_low_precision(target):
        round_into(source, target)
    else:
        source.copyto(target)
