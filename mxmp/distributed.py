"""Several machines: a kvstore that sums gradients over workers without overflow, and its engines.

`KVStore` is the kvstore of a trainer or a module. An `Engine` moves its arrays between workers: MXNet's parameter
server or Horovod.
"""

from __future__ import annotations

import abc
import atexit
import ctypes
import os
import threading
from typing import Any, Dict, List, Optional, Tuple, Union

import mxnet as mx
import numpy as np
from mxnet.base import _LIB, check_call

from .arrays import is_low_precision, round_into, to_float32
from .errors import DependencyError, TrainerError
from .launch import LAUNCHED
from .names import hooks as _hooks

globals().update(_hooks(__name__))

_NEEDED = ("DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT", "DMLC_NUM_SERVER", "DMLC_NUM_WORKER")

_FLAG = "mxmp.flag"

# A process can join a job once: MXNet waits for ever in a second mx.kv.create("dist_sync"). So an engine is held up to
# the end of the process, though the trainer that joined may be gone: by 'dist' or 'horovod', and by MXNet's KVStore.
_JOINED: Dict[Any, Engine] = {}
_JOINING = threading.Lock()  # over looking up and joining: a second thread gets what the first one joined


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
            key: The key that it was broadcast under.
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
            store._send_command_to_servers(1, "")  # kSetMultiPrecision of CommandType there
        if os.environ.get(LAUNCHED) == "1":
            # A worker that fails would wait at its end for others, which wait for its gradients.
            check_call(_LIB.MXKVStoreSetBarrierBeforeExit(store.handle, ctypes.c_int(0)))

    def broadcast(self, key: str, array: mx.nd.NDArray) -> None:
        """Give an array worker 0's value."""
        if array.dtype != np.float64:
            self._store.broadcast(key, array, out=array)
        else:
            parts = self._parts[key] = self._split(array)
            self._store.broadcast(key, parts, out=parts)
            _join(parts[0]).copyto(array)
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
    return mx.nd.add_n(*(part.astype("float64") for part in parts))


class Horovod(Engine):
    """Horovod, where it is installed and has started this process (``horovodrun``).

    Raises:
        DependencyError: If it is not installed for MXNet.
    """

    kind = "horovod"

    def __init__(self) -> None:
        try:
            import horovod.mxnet
        except ImportError as e:
            raise DependencyError(
                "kvstore 'horovod' needs Horovod, built for MXNet: HOROVOD_WITH_MXNET=1 HOROVOD_WITH_GLOO=1 "
                "pip install --no-build-isolation horovod==0.28.1 (tools/horovod.sh of mxmp has the rest)."
            ) from e
        self._horovod = horovod.mxnet
        self._horovod.init()
        self.rank, self.size = self._horovod.rank(), self._horovod.size()

    def broadcast(self, key: str, array: mx.nd.NDArray) -> None:
        """Give an array worker 0's value."""
        self._horovod.broadcast_(array, root_rank=0, name=f"{key}.broadcast")
        array.wait_to_read()

    def sum(self, key: str, array: mx.nd.NDArray, priority: int) -> None:
        """Give an array its sum over the workers."""
        self._horovod.allreduce_(array, op=self._horovod.Sum, name=f"{key}.sum", priority=priority)


class KVStore(mx.kvstore.KVStoreBase):
    """Sums over workers, for ``kvstore`` of a trainer or a module.

    MXNet's own kvstore sums float16 gradients in float16, where 40000 + 40000 is inf, and does
    not know how to sum bfloat16. This one sends float32, or float16 divided by the number of
    workers beforehand, so that no sum of finite values overflows; a gradient below 6e-8 times that
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
        if transport not in ("float32", "float16"):
            raise TrainerError(f"transport={transport!r}; expected 'float32' or 'float16'.")
        self._transport = transport
        self._engine = _make_engine(engine)
        # By the user's key the engine's, and the array of one dimension that travels. It is the same array at every
        # step, since MXNet sends it while the next operations are under way.
        self._slots: Dict[Any, Tuple[str, mx.nd.NDArray]] = {}

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
        """Give ``value`` the array of worker 0, and make the key known."""
        self.broadcast(key, value, value)

    def broadcast(self, key: Any, value: mx.nd.NDArray, out: Any, priority: int = 0) -> None:
        """Give ``out`` the ``value`` of worker 0, and make the key known.

        Waits until it is there: the first gradients must not overtake it.

        Args:
            key: A number or a string.
            value: Any shape; float16, bfloat16, float32 or float64.
            out: One array, or one for each context.
            priority: Not used.
        """
        with mx.autograd.pause():
            wide = to_float32(_flat(key, value)).copy()
            slot = self._open(wide)
            for array in _list(out):
                _write(wide, _dense(key, array))
            dtype = np.dtype(np.float64 if wide.dtype == np.float64 else self._transport)
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
        with mx.autograd.pause():
            total = mx.nd.add_n(*(to_float32(_flat(key, array)).as_in_context(buffer.ctx) for array in _list(value)))
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
        with mx.autograd.pause():
            flag = mx.nd.ones((1,)) if flag is None else flag
            if _FLAG not in self._slots:
                self._slots[_FLAG] = self._open(mx.nd.zeros_like(flag))
            name, buffer = self._slots[_FLAG]
            _write(1 - flag, buffer)
            self._engine.sum(name, buffer, 0)
            return buffer == 0

    def _open(self, array: mx.nd.NDArray) -> Tuple[str, mx.nd.NDArray]:
        """Give an array what worker 0 has, and let it travel from now on."""
        key = self._engine.new_key()
        self._engine.broadcast(key, array)
        return key, array


def distributed(kvstore: Any) -> bool:
    """Return whether ``kvstore`` of a trainer or module means one that `KVStore` is for."""
    if isinstance(kvstore, str):
        # MXNet's names of its synchronous one.
        return kvstore.lower() in ("dist", "dist_sync", "dist_device_sync", "dist_sync_device", Horovod.kind)
    return isinstance(kvstore, KVStore) or (
        isinstance(kvstore, mx.kv.KVStore) and "dist" in kvstore.type and "async" not in kvstore.type
    )


def _make_engine(engine: Any) -> Engine:
    if isinstance(engine, Engine):
        return engine
    if isinstance(engine, KVStore) or not distributed(engine):
        raise TrainerError(f"engine={engine!r}; expected 'dist_sync', 'horovod', a distributed KVStore or an Engine.")
    name = Horovod.kind if isinstance(engine, str) and engine.lower() == Horovod.kind else "dist"
    key = name if isinstance(engine, str) else engine
    with _JOINING:
        if key not in _JOINED:
            # Once Python takes its modules apart it may be too late to free MXNet's store, whose threads would then
            # end the process by SIGABRT.
            atexit.register(_JOINED.clear)
            _JOINED[key] = Horovod() if name == Horovod.kind else ParameterServer(engine)
            _JOINED.setdefault(name, _JOINED[key])  # a name means the job, whoever joined it
        return _JOINED[key]


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


def _write(source: mx.nd.NDArray, target: mx.nd.NDArray) -> None:
    """Round an array of one dimension into one of another dtype, context and shape."""
    put = round_into if is_low_precision(target) else mx.nd.NDArray.copyto
    put(source.as_in_context(target.ctx).reshape(target.shape), target)
