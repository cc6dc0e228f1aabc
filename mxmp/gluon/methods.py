"""The methods of a converted net, which stand in for those of its class, and the class that has them.

A converted net has a class of its own, made of `ConvertedBlock` and the class that it was written in. A block within
it gets a class of `StoredPart` while the conversion stores parameters in low precision.
"""

from __future__ import annotations

import contextlib
import copyreg
import functools
from contextvars import ContextVar
from typing import Any, Callable, Dict, Iterator, Optional, Tuple, Type

import mxnet as mx
from mxnet import gluon

from .. import dtypes
from ..errors import ConvertError
from . import files, storage
from .blocks import (
    ATTRIBUTE,
    OWNER,
    PLAIN,
    RUNS_AS_WRITTEN,
    blocks_in,
    descendants,
    plain_class,
    set_op,
    unconverted,
    undone,
)

# What a net holds for its graphs; a cached operator cannot be copied.
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
    """Run a net and the blocks in it operator by operator in this context, neither converted nor hybridized."""
    for block in blocks_in(net):
        if isinstance(block, gluon.HybridBlock) and block._active:
            block._active = _HYBRIDIZED  # for good: other threads see no difference
    flag_before = _EAGER.get()
    with unconverted(), undone(lambda: _EAGER.set(flag_before)):
        _EAGER.set(True)
        yield


def conversion_to_run(net: gluon.HybridBlock) -> Any:
    """Return the `Conversion` that runs a converted net; None where the net runs as it was written.

    A copy has none while it is being filled.
    """
    return None if RUNS_AS_WRITTEN.get() else vars(net).get(ATTRIBUTE)


class StoredPart(gluon.HybridBlock):
    """A block within a converted net, some of whose parameters are stored in low precision.

    A call of the block by itself runs its graph in float32, which casts those parameters.
    """

    def hybrid_forward(self, F: Any, x: Any, *args: Any, **params: Any) -> Any:
        """Run a call of a block that is not hybridized; one without parameters calls the blocks in it."""
        if F is not mx.nd or not self._reg_params or RUNS_AS_WRITTEN.get():
            return super().hybrid_forward(F, x, *args, **params)
        return vars(self)[OWNER].conversion_of_part(self).call(x, *args)

    def _call_cached_op(self, *args: Any) -> Any:
        """Run a call of a hybridized block on arrays."""
        if RUNS_AS_WRITTEN.get():
            return super()._call_cached_op(*args)
        return vars(self)[OWNER].conversion_of_part(self).call(*args)

    def __reduce_ex__(self, protocol: Any) -> Tuple[Any, ...]:
        """Return the state for pickle and copy: of a block of the plain class, as a copied net stores nothing yet."""
        return reduced(self, protocol, (OWNER,))


def _where_converted(method: Callable[..., Any]) -> Callable[..., Any]:
    """Give a method of `ConvertedBlock` the conversion of the net; where there is none, the net's own method runs."""
    name = method.__name__

    @functools.wraps(method)
    def run(net: gluon.HybridBlock, *args: Any, **kwargs: Any) -> Any:
        conversion = conversion_to_run(net)
        if conversion is None:
            return getattr(super(ConvertedBlock, net), name)(*args, **kwargs)
        return method(net, conversion, *args, **kwargs)

    return run


class ConvertedBlock(gluon.HybridBlock):
    """The methods of a converted net. ``super()`` has those of the class that it was written in."""

    def hybrid_forward(self, F: Any, x: Any, *args: Any, **params: Any) -> Any:
        """Run a call of a net that is not hybridized; or give the converted net for symbols, to a net around it.

        Within another net's trace on a CPU context the graph for CPU is given, so that the outer net runs there;
        convert the outermost net to export it.
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
        """Have the operator made for a call, as ``optimize_for`` does: with the backend that it chose."""
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
        """Return the net's parameters, in a dictionary that knows bfloat16."""
        params = super().collect_params(select)
        if type(params) is gluon.ParameterDict:
            params.__class__ = storage.CollectedParameters
        return params

    @_where_converted
    def cast(self, conversion: Any, dtype: Any) -> None:
        """Do nothing for float32 if no parameter is in low precision; else refuse: MXNet's cast changes BatchNorm too.

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
                f"{where}, which decides over the dtypes of parameters; leave cast({name!r}) out, or undo the "
                f"conversion by mxmp.gluon.restore(net) first."
            )

    @_where_converted
    def summary(self, conversion: Any, *inputs: Any) -> None:
        """Print the summary of the float32 net, which needs every block to run by itself."""
        with unconverted(), storage.in_float32(conversion.stored):
            super().summary(*inputs)

    @_where_converted
    def save_parameters(self, conversion: Any, filename: str, *args: Any, **kwargs: Any) -> None:
        """Save float32 values as MXNet does, whole or not at all."""
        save = super().save_parameters
        files.save(filename, lambda name: save(name, *args, **kwargs))

    @_where_converted
    def save_params(self, conversion: Any, filename: str) -> None:
        """Save as `save_parameters`, under the name that MXNet deprecates."""
        files.save(filename, super().save_params)

    @_where_converted
    def load_parameters(self, conversion: Any, filename: str, *args: Any, **kwargs: Any) -> None:
        """Load a file as MXNet does once it is found whole; parameters keep the dtypes that the policy gives them."""
        files.check(filename)
        in_float32 = [param for param in conversion.params if storage.dtype_of(param) == dtypes.FLOAT32]
        super().load_parameters(filename, *args, **kwargs)
        for param in in_float32:
            storage.widen(param)  # with ``dtype_source='saved'`` it has the dtype of the file

    @_where_converted
    def export(self, conversion: Any, path: str, epoch: int = 0, remove_amp_cast: bool = False) -> None:
        """Write the converted net, its casts included, for plain MXNet: both files or neither.

        The graph of inference if the net has been called for inference; of several the one that ran last.
        """
        files.require_folder(path)
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
        """Return the net's state for pickle and copy, without graphs: a copy makes its own."""
        with conversion.siblings.lock:
            for block in descendants(self):  # which may have been called by itself
                if isinstance(block, gluon.HybridBlock) and block._cached_op is not None:
                    block._clear_cached_op()
            return reduced(self, protocol, GRAPHS)


class ConvertedSymbolBlock(ConvertedBlock):
    """The methods of a converted SymbolBlock, whose ``forward`` takes symbols past ``hybrid_forward``."""

    def forward(self, x: Any, *args: Any) -> Any:
        """Run a call on arrays, or give the converted net for symbols."""
        conversion = conversion_to_run(self) if isinstance(x, mx.sym.Symbol) else None
        return super().forward(x, *args) if conversion is None else conversion.compose(x, *args)


@functools.lru_cache(maxsize=None)
def class_with(methods: Any, kind: Any) -> Type[gluon.HybridBlock]:
    """Return a subclass of a block's class ``kind`` whose methods are first those of ``methods``.

    What it makes, as ``type(net)()`` and slices of a HybridSequential do, is of the class ``kind``.
    """

    def make(_: Any, *args: Any, **kwargs: Any) -> gluon.HybridBlock:
        return kind(*args, **kwargs)

    names: Dict[str, Any] = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    meta: Any = type(type(kind).__name__, (type(kind),), {"__call__": make})
    subclass: Type[gluon.HybridBlock] = meta(kind.__name__, (methods, kind), {**names, PLAIN: kind})
    return subclass


def reduced(net: gluon.HybridBlock, protocol: Any, left_out: Tuple[str, ...]) -> Tuple[Any, ...]:
    """Return what pickle and copy make a block of the plain class from, without some of its attributes."""
    kind = plain_class(net)
    make, args, state, *rest = kind.__reduce_ex__(net, protocol)
    if make is copyreg.__newobj__:  # type: ignore[attr-defined]  # pickle finds the plain class only, by name
        make, args = _make_empty, (kind, *args[1:])
    if isinstance(state, dict):
        state = {name: value for name, value in state.items() if name not in left_out}
    return (make, args, state, *rest)


def _make_empty(kind: Type[gluon.HybridBlock], *args: Any) -> gluon.HybridBlock:
    return kind.__new__(kind, *args)
