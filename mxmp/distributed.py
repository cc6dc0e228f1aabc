"""Training on several machines: a kvstore that sums gradients over workers without overflow.

`KVStore` is the kvstore of a trainer or a module. Its `Engine` moves arrays between the workers: MXNet's parameter
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

# A process can join a job only once: MXNet waits for ever in a second mx.kv.create("dist_sync"). So an engine is kept
# until the process ends, even if the trainer that joined is gone. The keys are 'dist', 'horovod' and MXNet's KVStores.
_JOINED: Dict[Any, Engine] = {}
_JOINING = threading.Lock()  # over lookup and joining, so that a second thread gets the same engine


class Engine(abc.ABC):
    """Base of the engines: operations on arrays that every worker calls in the same order.

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
        """Return a new key. The n-th call returns the same key on every worker."""
        self._keys += 1
        return f"mxmp.{self._keys}"

    @abc.abstractmethod
    def broadcast(self, key: str, array: mx.nd.NDArray) -> None:
        """Give an array the value that worker 0 has, and wait for it. Call it once for a key, before `sum`."""

    @abc.abstractmethod
    def sum(self, key: str, array: mx.nd.NDArray, priority: int) -> None:
        """Replace an array by its sum over the workers, in the array's dtype; does not wait.

        Args:
            key: The key that it was broadcast under.
            array: The same NDArray at every call for a key.
            priority: A higher priority is sent sooner.
        """


class ParameterServer(Engine):
    """The engine of MXNet's synchronous parameter server: a server sums, and all workers get the same bytes.

    Args:
        store: 'dist_sync' or its like, or a KVStore of MXNet.

    Raises:
        TrainerError: If the environment variables that describe the job are missing.
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
        self._parts: Dict[str, mx.nd.NDArray] = {}  # arrays of float64 keys, which MXNet sends while other work goes on
        if self.rank == 0:
            # multi_precision_ of KVStoreDistServer is never initialized (src/kvstore/kvstore_dist_server.h). So it
            # depends on chance whether a server adds other dtypes in float32. This command sets it.
            store._send_command_to_servers(1, "")  # kSetMultiPrecision of CommandType there
        if os.environ.get(LAUNCHED) == "1":
            # A worker that fails would wait at its end for the others, and the others wait for its gradients.
            check_call(_LIB.MXKVStoreSetBarrierBeforeExit(store.handle, ctypes.c_int(0)))

    def broadcast(self, key: str, array: mx.nd.NDArray) -> None:
        """Give an array the value that worker 0 has."""
        if array.dtype != np.float64:
            self._store.broadcast(key, array, out=array)
        else:
            parts = self._parts[key] = self._split(array)
            self._store.broadcast(key, parts, out=parts)
            _join(parts[0]).copyto(array)
        # Without this wait the first gradients may be pushed before the value is pulled.
        array.wait_to_read()

    def sum(self, key: str, array: mx.nd.NDArray, priority: int) -> None:
        """Replace an array by its sum over the workers. A float64 sum has no error except float64's own rounding."""
        if array.dtype != np.float64:
            self._store.pushpull(key, array, out=array, priority=priority)
            return
        parts = self._parts[key]
        self._split(array).copyto(parts)
        self._store.pushpull(key, parts, out=parts, priority=priority)
        mx.nd.add_n(*(_join(row) for row in parts)).copyto(array)

    def _split(self, array: mx.nd.NDArray) -> mx.nd.NDArray:
        """Return a float64 array, (N,), as float32 parts, (workers, 3, N). All rows except this worker's are 0.

        The servers add in float32, in which a number plus zeros is exact. Three parts of 24 bits hold the 53 bits of a
        float64 number, from 1e-30 up to float32's largest number.
        """
        parts, rest = [], array
        for _ in range(3):
            parts.append(rest.astype("float32"))
            rest = rest - parts[-1].astype("float64")
        rows = mx.nd.zeros((self.size, 3, array.size), ctx=array.ctx)
        rows[self.rank] = mx.nd.stack(*parts)
        return rows


def _join(parts: mx.nd.NDArray) -> mx.nd.NDArray:
    """Return the float64 array, (N,), that was split into float32 parts, (3, N)."""
    return mx.nd.add_n(*(part.astype("float64") for part in parts))


class Horovod(Engine):
    """The engine of Horovod, in a process that ``horovodrun`` has started.

    Raises:
        DependencyError: If Horovod is not installed for MXNet.
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
        """Give an array the value that worker 0 has."""
        self._horovod.broadcast_(array, root_rank=0, name=f"{key}.broadcast")
        array.wait_to_read()

    def sum(self, key: str, array: mx.nd.NDArray, priority: int) -> None:
        """Replace an array by its sum over the workers."""
        self._horovod.allreduce_(array, op=self._horovod.Sum, name=f"{key}.sum", priority=priority)


class KVStore(mx.kvstore.KVStoreBase):
    """A kvstore that sums gradients over workers without overflow, for ``kvstore`` of a trainer or a module.

    MXNet's own kvstore sums float16 gradients in float16, where 40000 + 40000 is inf. It cannot sum bfloat16. This
    kvstore sends float32. With ``transport="float16"`` it divides by the number of workers before it sends, so that no
    sum of finite values overflows. Gradients below 6e-8 times the number of workers become 0 then. Every key costs one
    more array.

    Args:
        engine: 'dist_sync' or another name that MXNet has for it, 'horovod', a distributed KVStore of MXNet, or an
            `Engine`.
        transport: The dtype that is sent: 'float32', or 'float16' for half the bytes. float64 gradients are sent in
            float64.

    Raises:
        TrainerError: If an argument is none of these.
        DependencyError: If Horovod is not installed.
    """

    def __init__(self, engine: Union[str, mx.kv.KVStore, Engine] = "dist_sync", transport: str = "float32") -> None:
        if transport not in ("float32", "float16"):
            raise TrainerError(f"transport={transport!r}; expected 'float32' or 'float16'.")
        self._transport = transport
        self._engine = _make_engine(engine)
        # By the user's key: the engine's key, and the array of one dimension that is sent. Each step sends this array,
        # because MXNet sends it while the next operations run.
        self._slots: Dict[Any, Tuple[str, mx.nd.NDArray]] = {}

    @property
    def type(self) -> str:
        """The name of the engine's kvstore: 'dist_sync' or 'horovod'."""
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
        """Return False, because every worker updates the weights itself, in the same way."""
        return False

    def with_own_keys(self) -> KVStore:
        """Return a kvstore with the same workers and transport, but with keys of its own."""
        return KVStore(self._engine, self._transport)

    def init(self, key: Any, value: mx.nd.NDArray) -> None:
        """Give ``value`` the array of worker 0, and make the key known."""
        self.broadcast(key, value, value)

    def broadcast(self, key: Any, value: mx.nd.NDArray, out: Any, priority: int = 0) -> None:
        """Give ``out`` the ``value`` of worker 0, and make the key known.

        It waits for the value, because the first gradients must not come before it.

        Args:
            key: A number or a string.
            value: An array of any shape; float16, bfloat16, float32 or float64.
            out: One array, or one for each context.
            priority: Ignored.
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
            out: One array, or one for each context; ``value`` unless given. Take float32, which holds larger sums than
                float16.
            priority: A higher priority is sent sooner.
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

    def all_workers(self, flag: Optional[mx.nd.NDArray]) -> mx.nd.NDArray:
        """Return 1 if a flag is 1 on all workers, else 0; does not wait.

        Args:
            flag: Shape (1,), float32: 0 or 1. None is 1.
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
        """Give an array the value that worker 0 has, under a new key; return the key and the array."""
        key = self._engine.new_key()
        self._engine.broadcast(key, array)
        return key, array


def distributed(kvstore: Any) -> bool:
    """Return whether a trainer's or module's argument ``kvstore`` means several synchronous workers."""
    if isinstance(kvstore, str):
        # MXNet's names of its synchronous kvstore.
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
            # The store has to be freed before Python clears its modules. Later its threads would end the process by
            # SIGABRT.
            atexit.register(_JOINED.clear)
            _JOINED[key] = Horovod() if name == Horovod.kind else ParameterServer(engine)
            _JOINED.setdefault(name, _JOINED[key])  # a name means the job, also if a KVStore joined it
        return _JOINED[key]


def _list(arrays: Any) -> List[mx.nd.NDArray]:
    return list(arrays) if isinstance(arrays, (list, tuple)) else [arrays]


def _dense(key: Any, array: mx.nd.NDArray) -> mx.nd.NDArray:
    """Return an array of mx.nd or mx.np as an array of mx.nd; refuse sparse arrays."""
    if array.stype != "default":
        raise TrainerError(f"key {key!r} is {array.stype}; only dense arrays are summed over workers.")
    return array.as_nd_ndarray()


def _flat(key: Any, array: mx.nd.NDArray) -> mx.nd.NDArray:
    """Return an array with one dimension: a view of the array, or a copy.

    MXNet cannot copy a view of a weight that oneDNN keeps in a layout of its own (CHECK(!is_view) in
    NDArray::GetMKLDNNData, src/ndarray/ndarray.cc). Its operators can read such a weight, so that Reshape copies it.
    """
    array = _dense(key, array)
    return mx.nd.Reshape(array, shape=(-1,)) if array.ndim > 1 and array.size else array.reshape(-1)


def _write(source: mx.nd.NDArray, target: mx.nd.NDArray) -> None:
    """Write an array into another array of the same size: its dtype, context and shape may differ."""
    put = round_into if is_low_precision(target) else mx.nd.NDArray.copyto
    put(source.as_in_context(target.ctx).reshape(target.shape), target)
