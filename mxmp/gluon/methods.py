"""The methods of a converted net, which take the place of its class's own, and the class that has them.

The class of a converted net is made of `ConvertedBlock` and of the class that the user wrote. A block within the net
gets a class with `StoredPart` while the conversion stores parameters of it in low precision.
"""

from __future__ import annotations

import contextlib
import copy
import copyreg
import functools
from contextvars import ContextVar
from typing import Any, Callable, Dict, Iterator, Optional, Tuple, Type

import mxnet as mx
from mxnet import gluon

from .. import dtypes
from ..errors import ConvertError
from ..files import require_folder
from . import files, storage
from .blocks import (
    ATTRIBUTE,
    OWNER,
    PLAIN,
    RUNS_AS_WRITTEN,
    blocks_in,
    descendants,
    graph_kept,
    plain_class,
    set_op,
    unconverted,
    undone,
)
from .trace import MakingGraphs

# A net's attributes for its graphs. A cached operator cannot be copied.
GRAPHS = ("_cached_graph", "_cached_op", "_cached_op_args")

_EAGER: ContextVar[bool] = ContextVar("mxmp_eager", default=False)


class _Hybridized(int):
    """The value of a block's ``_active``: False within `eager`, else True. A copy of it is True."""

    def __bool__(self) -> bool:
        return not _EAGER.get()

    def __reduce__(self) -> Tuple[Any, ...]:
        return bool, (True,)


_HYBRIDIZED = _Hybridized(True)


@contextlib.contextmanager
def eager(net: gluon.HybridBlock) -> Iterator[None]:
    """Run a net and its blocks operator by operator within this context, without their graphs."""
    for block in blocks_in(net):
        if isinstance(block, gluon.HybridBlock) and block._active:
            block._active = _HYBRIDIZED  # it stays, because other threads see no difference
    flag_before = _EAGER.get()
    with unconverted(), undone(lambda: _EAGER.set(flag_before)):
        _EAGER.set(True)
        yield


def conversion_to_run(net: gluon.HybridBlock) -> Any:
    """Return the `Conversion` that runs a net; None within `unconverted`, where nets run as they were written.

    It is None too for a copy that is not complete yet.
    """
    return None if RUNS_AS_WRITTEN.get() else vars(net).get(ATTRIBUTE)


class StoredPart(gluon.HybridBlock):
    """A block within a converted net with parameters in low precision, or with such a block in it.

    A call of the block by itself runs its graph in float32, which casts those parameters.
    """

    def hybrid_forward(self, F: Any, x: Any, *args: Any, **params: Any) -> Any:
        """Run a call of a block that is not hybridized; a block without own parameters calls its blocks."""
        if F is not mx.nd or not self._reg_params or RUNS_AS_WRITTEN.get():
            return super().hybrid_forward(F, x, *args, **params)
        return vars(self)[OWNER].conversion_of_part(self).call(x, *args)

    def _call_cached_op(self, *args: Any) -> Any:
        """Run a call of a hybridized block on arrays."""
        if RUNS_AS_WRITTEN.get():
            return super()._call_cached_op(*args)
        return vars(self)[OWNER].conversion_of_part(self).call(*args)

    def __reduce_ex__(self, protocol: Any) -> Tuple[Any, ...]:
        """Return the state for pickle and copy, with the plain class: a copied net stores nothing in low precision."""
        return reduced(self, protocol, (OWNER,))


def _where_converted(method: Callable[..., Any]) -> Callable[..., Any]:
    """Give a method of `ConvertedBlock` the net's conversion; without one the net's own method runs."""
    name = method.__name__

    @functools.wraps(method)
    def run(net: gluon.HybridBlock, *args: Any, **kwargs: Any) -> Any:
        conversion = conversion_to_run(net)
        if conversion is None:
            return getattr(super(ConvertedBlock, net), name)(*args, **kwargs)
        return method(net, conversion, *args, **kwargs)

    return run


class ConvertedBlock(gluon.HybridBlock):
    """The methods of a converted net; ``super()`` is the class that the user wrote."""

    def hybrid_forward(self, F: Any, x: Any, *args: Any, **params: Any) -> Any:
        """Run a call of a net that is not hybridized; for symbols return the converted net's outputs.

        Such symbols are from the trace of a net around this one. If that trace is on a CPU context, the outputs are
        those of the graph for CPU, so that the outer net runs there. To export, convert the outermost net.
        """
        conversion = conversion_to_run(self)
        if conversion is None:
            return super().hybrid_forward(F, x, *args, **params)
        return conversion.call(x, *args) if F is mx.nd else conversion.compose(x, *args)

    def _call_cached_op(self, *args: Any) -> Any:
        """Run a call of a hybridized net on arrays."""
        conversion = conversion_to_run(self)
        return super()._call_cached_op(*args) if conversion is None else conversion.call(*args)

    @_where_converted
    def _get_graph(self, conversion: Any, *args: Any) -> Any:
        """Return the inputs and the converted symbol for a call."""
        if conversion.partitioned is not None:
            return conversion.partitioned
        graph = conversion.graph_for(*args)
        return graph.trace.inputs, graph.converted.symbol

    @_where_converted
    def _build_cache(self, conversion: Any, *args: Any) -> None:
        """Make the operator for a call with the net's backend, as ``optimize_for`` asks."""
        runner = conversion.new_runner(*args)
        set_op(self, runner.op, list(runner.reads))

    @_where_converted
    def _deferred_infer_shape(self, conversion: Any, *args: Any) -> None:
        """Infer the shapes of parameters, and initialize them."""
        conversion.graph_for(*args)

    @_where_converted
    def _clear_cached_op(self, conversion: Any) -> None:
        """Forget all graphs of the net."""
        super()._clear_cached_op()
        conversion.forget_calls()

    @_where_converted
    def collect_params(self, conversion: Any, select: Optional[str] = None) -> gluon.ParameterDict:
        """Return the net's parameters, in a dictionary whose ``zero_grad`` works in bfloat16."""
        params = super().collect_params(select)
        if type(params) is gluon.ParameterDict:
            params.__class__ = storage.CollectedParameters
        return params

    @_where_converted
    def cast(self, conversion: Any, dtype: Any) -> None:
        """Do nothing for float32 if no parameter is in low precision; else raise: MXNet's cast changes BatchNorm too.

        Scripts cast each net to the dtype of an option, which is float32 by default.
        """
        name, where = dtypes.canonical(dtype), f"block '{self.name}' is converted ({conversion.policy})"
        if name in dtypes.LOW_PRECISION:
            raise ConvertError(
                f"{where}; use mxmp.gluon.cast(net, {name!r}), which replaces this policy, or mxmp.gluon.restore(net) "
                f"first."
            )
        has_low = any(storage.dtype_of(param) in dtypes.LOW_PRECISION for param in conversion.params)
        if name != dtypes.FLOAT32 or has_low or not conversion.storage_is_fixed:
            raise ConvertError(
                f"{where}, whose policy sets the dtypes of parameters; leave cast({name!r}) out, or undo the "
                f"conversion by mxmp.gluon.restore(net) first."
            )

    @_where_converted
    def summary(self, conversion: Any, *inputs: Any) -> None:
        """Print the summary of the float32 net: it needs each block to run by itself."""
        op = self._cached_op, self._cached_op_args
        with unconverted(), storage.reading_float32(), graph_kept(self), undone(lambda: set_op(self, *op)):
            set_op(self, None, [])
            if conversion.own_graph is not None:  # of a SymbolBlock; the present one has casts
                self._cached_graph = conversion.own_graph
            super().summary(*inputs)

    @_where_converted
    def save_parameters(self, conversion: Any, filename: str, *args: Any, **kwargs: Any) -> None:
        """Save float32 values as MXNet does; the file is written whole or not at all."""
        conversion.wait_for_statistics()
        save = super().save_parameters
        files.save(filename, lambda name: save(name, *args, **kwargs))

    @_where_converted
    def save_params(self, conversion: Any, filename: str) -> None:
        """Save as `save_parameters`, under the name that MXNet deprecates."""
        conversion.wait_for_statistics()
        files.save(filename, super().save_params)

    @_where_converted
    def load_parameters(self, conversion: Any, filename: str, *args: Any, **kwargs: Any) -> None:
        """Check a file, and load it as MXNet does; parameters keep the dtypes that the policy gives them."""
        files.check(filename)
        in_float32 = [param for param in conversion.params if storage.dtype_of(param) == dtypes.FLOAT32]
        super().load_parameters(filename, *args, **kwargs)
        for param in in_float32:
            storage.widen(param)  # ``dtype_source='saved'`` gave it the dtype of the file

    @_where_converted
    def export(self, conversion: Any, path: str, epoch: int = 0, remove_amp_cast: bool = False) -> None:
        """Write the converted net with its casts for plain MXNet: both files or neither.

        It is the last graph of inference, or if the net was never called for inference, the last graph of training.
        """
        require_folder(path)
        conversion.wait_for_statistics()
        last_graphs = conversion.last_graph_by_mode
        graph = last_graphs.get(False, last_graphs.get(True, conversion.graph_without_shapes))
        if graph is None:
            raise ConvertError(
                f"block '{self.name}' has not been called yet outside of precision regions, so its parameters and "
                f"shapes are not known; run one batch before exporting."
            )
        files.export(self, graph, path, epoch, remove_amp_cast)

    @_where_converted
    def __repr__(self, conversion: Any) -> str:
        return f"{super().__repr__()}\nconverted by mxmp: {conversion.policy}"

    @_where_converted
    def __reduce_ex__(self, conversion: Any, protocol: Any) -> Tuple[Any, ...]:
        """Return the state for pickle, without graphs: a copy makes its own."""
        make, args, state, *rest = self._reduced(protocol)
        return (make, args, _LockedState(state) if type(state) is dict else state, *rest)

    def __deepcopy__(self, memo: Any) -> gluon.HybridBlock:
        """Return a copy. A first call in another thread, which changes blocks and parameters, waits meanwhile."""
        storage.wait_for_arrays(self)
        with MakingGraphs.lock:
            copied = getattr(super(), "__deepcopy__", None)  # the user's own, if there is one
            if copied is not None:
                return copied(memo)
            return copy._reconstruct(self, memo, *self._reduced(4))  # type: ignore[attr-defined]

    def _reduced(self, protocol: Any) -> Tuple[Any, ...]:
        storage.wait_for_arrays(self)
        with MakingGraphs.lock:
            for block in descendants(self):  # the user may have called it by itself
                if isinstance(block, gluon.HybridBlock) and block._cached_op is not None:
                    block._clear_cached_op()
            return reduced(self, protocol, GRAPHS)


class _LockedState(Dict[str, Any]):
    """The state of a net, a dict for pickle. A first call in another thread waits until its values are pickled."""

    def __reduce_ex__(self, protocol: Any) -> Tuple[Any, ...]:
        return dict, (), None, None, self._items_with_lock()

    def _items_with_lock(self) -> Iterator[Tuple[str, Any]]:
        with MakingGraphs.lock:
            yield from self.items()


class ConvertedSymbolBlock(ConvertedBlock):
    """The methods of a converted SymbolBlock, whose ``forward`` handles symbols without ``hybrid_forward``."""

    def forward(self, x: Any, *args: Any) -> Any:
        """Run a call on arrays; for symbols return the converted net's outputs to the net around it."""
        conversion = conversion_to_run(self) if isinstance(x, mx.sym.Symbol) else None
        return super().forward(x, *args) if conversion is None else conversion.compose(x, *args)


@functools.lru_cache(maxsize=None)
def converted_class(kind: Any) -> Type[gluon.HybridBlock]:
    """Return the class of a converted net that the user wrote in the class ``kind``."""
    return class_with(ConvertedSymbolBlock if issubclass(kind, gluon.SymbolBlock) else ConvertedBlock, kind)


@functools.lru_cache(maxsize=None)
def class_with(methods: Any, kind: Any) -> Type[gluon.HybridBlock]:
    """Return a subclass of a block's class ``kind`` with the methods of the class ``methods`` in front.

    A block that this subclass creates is of the class ``kind``: ``type(net)()``, or a slice of a HybridSequential.
    """

    def make(_: Any, *args: Any, **kwargs: Any) -> gluon.HybridBlock:
        return kind(*args, **kwargs)

    names: Dict[str, Any] = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    meta: Any = type(type(kind).__name__, (type(kind),), {"__call__": make})
    subclass: Type[gluon.HybridBlock] = meta(kind.__name__, (methods, kind), {**names, PLAIN: kind})
    return subclass


def reduced(net: gluon.HybridBlock, protocol: Any, left_out: Tuple[str, ...]) -> Tuple[Any, ...]:
    """Return the parts for pickle and copy of a block of its plain class, without some attributes."""
    kind = plain_class(net)
    make, args, state, *rest = kind.__reduce_ex__(net, protocol)
    if make is copyreg.__newobj__:  # type: ignore[attr-defined]  # pickle finds the plain class only, by name
        make, args = _make_empty, (kind, *args[1:])
    if isinstance(state, dict):
        state = {name: value for name, value in state.items() if name not in left_out}
    return (make, args, state, *rest)


def _make_empty(kind: Type[gluon.HybridBlock], *args: Any) -> gluon.HybridBlock:
    return kind.__new__(kind, *args)
