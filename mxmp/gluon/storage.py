"""Parameters stored in low precision: how they change from float32 and back, and how they save, load and set values."""

from __future__ import annotations

import contextlib
import sys
import threading
from types import FrameType
from typing import Any, ContextManager, Iterable, Iterator, List, Optional, Sequence

import mxnet as mx
from mxnet import autograd, gluon

from .. import dtypes
from ..arrays import to_float32
from ..devices.check import require_bfloat16
from ..errors import ConvertError
from ..mxnet_private import is_deferred, is_initialized
from ..symbol.params import round_to
from ..train.masters import (
    ParameterWithMasters,
    exact_value,
    float32_value,
    forget_masters,
    keep_masters,
    without_masters,
)
from ..train.window import plain
from .blocks import blocks_in, conversions_of, is_part, undone

_BLOCKS_FILE = gluon.HybridBlock.forward.__code__.co_filename  # MXNet's code that reads parameters for blocks
_LOCAL = threading.local()  # see `reading_stored` and `reading_float32`
_CLASS = "_mxmp_class"  # attribute of a low precision parameter: its class before


class LowPrecisionParameter(ParameterWithMasters):
    """A parameter stored in low precision; the values that it saves, loads and is set to are float32.

    It rounds such values to nearest even, and keeps them as its master. `store_low` gives a parameter this class.
    """

    _deferred_init: Any  # MXNet's

    def _reduce(self) -> mx.nd.NDArray:
        """Return the float32 value on the CPU; if contexts have different values, their mean.

        Within `reading_stored` it is the value as it is stored.
        """
        if getattr(_LOCAL, "reads_stored", False):
            stored: mx.nd.NDArray = super()._reduce()
            return stored
        with autograd.pause():
            values = [value.copyto(mx.cpu()) for value in exact_values(self)]
            are_equal = all((value == values[0]).min().asscalar() for value in values[1:])
            return values[0] if are_equal else mx.nd.add_n(*values) / len(values)

    def _load_init(self, data: Any, ctx: Any, cast_dtype: bool = False, dtype_source: str = "current") -> None:
        """Load a value of any floating point dtype. The parameter keeps its own dtype."""
        value = float32_value(data)
        super()._load_init(round_to(value, dtype_of(self)), ctx)
        self._keep(value)

    def _init_impl(self, data: Any, ctx_list: Any) -> None:
        """Set the initial value on the given contexts."""
        require_bfloat16(dtype_of(self), ctx_list, f"parameter '{self.name}'")
        value = float32_value(data)
        super()._init_impl(round_to(value, dtype_of(self)), ctx_list)
        self._keep(value)

    def _finish_deferred_init(self) -> None:
        """Initialize in float32, so that the values are those of a float32 parameter."""
        if self._deferred_init and self._deferred_init[3] is None:
            init, ctx, default_init, _ = self._deferred_init
            with autograd.pause():
                data = mx.nd.zeros(self.shape, ctx=mx.cpu())
                mx.init.create(default_init)(mx.init.InitDesc(self.name, {"__init__": init}), data)
            self._deferred_init = init, ctx, default_init, data
        super()._finish_deferred_init()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Return the state for pickle and copy: of a float32 parameter of the user's class, with the exact value."""
        state, dtype = without_masters(vars(self)), dtypes.to_numpy(dtypes.FLOAT32)
        values = [value.copy() for value in exact_values(self)] if is_initialized(self) else None
        gradients = self._grad
        state.update(_dtype=dtype, _data=values, _grad=gradients and list(map(to_float32, gradients)))
        return object.__new__, (state.pop(_CLASS),), state

    def data(self, ctx: Optional[mx.Context] = None) -> mx.nd.NDArray:
        """Return the value as it is stored; within `reading_float32` its float32 value.

        Raises:
            ConvertError: If a block that is not converted reads it.
        """
        if getattr(_LOCAL, "reads_float32", False):
            return exact_value(super().data(ctx), self)
        caller = sys._getframe(1)
        if caller.f_code.co_filename == _BLOCKS_FILE and not getattr(_LOCAL, "reads_stored", False):
            _require_converted(self, caller)
        return super().data(ctx)

    def cast(self, dtype: Any) -> None:
        """Store the parameter in another dtype, as ``Parameter.cast``, from its exact value."""
        name = dtypes.canonical(dtype)
        store_float32(self)
        if name in dtypes.LOW_PRECISION:
            store_low(self, name)
        elif name != dtypes.FLOAT32:
            self.cast(dtype)  # of the class that it has again


class CollectedParameters(gluon.ParameterDict):
    """The parameters of a converted net, with a ``zero_grad`` that works in bfloat16.

    MXNet's operator for many arrays lacks bfloat16 (ResetArrays in src/operator/contrib/reset_arrays-inl.h at tag
    1.9.1). It raises no error at once, but at a later wait.
    """

    def zero_grad(self) -> None:
        """Set the gradients of all parameters to zero."""
        if all(dtype_of(param) != dtypes.BFLOAT16 for param in self.values()):
            super().zero_grad()
            return
        for param in self.values():
            param.zero_grad()


@contextlib.contextmanager
def _reading(flag: str) -> Iterator[None]:
    flag_before = getattr(_LOCAL, flag, False)
    with undone(lambda: setattr(_LOCAL, flag, flag_before)):
        setattr(_LOCAL, flag, True)
        yield


def reading_stored() -> ContextManager[None]:
    """Have this thread's blocks and exports read parameters as they are stored, within this context."""
    return _reading("reads_stored")


def reading_float32() -> ContextManager[None]:
    """Have this thread read parameters in float32 within this context, where blocks run as they were written."""
    return _reading("reads_float32")


def _require_converted(param: gluon.Parameter, caller: FrameType) -> None:
    """Raise a ConvertError if the block that reads a parameter runs its float32 operators.

    A converted block reads parameters as they are stored, and so do its parts. A hybridized block with a converted
    block in it does too.
    """
    calling: List[gluon.Block] = []  # the blocks that are being called, from the inside out
    frame: Optional[FrameType] = caller
    while frame is not None:
        block = frame.f_locals.get("self") if frame.f_code.co_filename == _BLOCKS_FILE else None
        if isinstance(block, gluon.Block):
            if not calling:
                has_graph = frame.f_code is not gluon.HybridBlock.forward.__code__
                if is_part(block) or conversions_of(blocks_in(block) if has_graph else [block]):
                    return
            calling.append(block)
        frame = frame.f_back
    if calling:
        raise ConvertError(
            f"block '{calling[0].name}' ({type(calling[0]).__name__}) reads parameter '{param.name}', which the "
            f"conversion of another block stores in {dtype_of(param)}. Convert block '{calling[-1].name}' too: "
            f"mxmp.gluon.convert(net, policy), with the same policy."
        )


def exact_values(param: gluon.Parameter) -> List[mx.nd.NDArray]:
    """Return the float32 value of an initialized low precision parameter on each of its contexts."""
    return [exact_value(weight, param) for weight in param.list_data()]


def dtype_of(param: gluon.Parameter) -> str:
    """Return the canonical name of a parameter's dtype."""
    return dtypes.canonical(param.dtype)


def contexts_of(params: Iterable[gluon.Parameter]) -> List[mx.Context]:
    """Return the contexts on which parameters have values, or will have them after the first call."""
    return [ctx for param in params if is_initialized(param) or is_deferred(param) for ctx in param.list_ctx()]


def wait_for_arrays(net: gluon.Block) -> None:
    """Wait until the parameters and gradients of a net are computed: before a copy, which reads them under a lock."""
    for param in net.collect_params().values():
        for array in (*(param._data or ()), *(plain(param._grad) or ())):
            array.wait_to_read()


def attach_gradients(params: Iterable[gluon.Parameter]) -> None:
    """Attach the gradients of copied parameters again: MXNet's copies lose them."""
    for param in params:
        arrays, gradients = param._data, param._grad
        if arrays is not None and gradients is not None and any(array.grad is None for array in arrays):
            autograd.mark_variables(arrays, gradients, param.grad_req)


def refuse_cast(net: gluon.Block) -> None:
    """Raise a ConvertError if ``net.cast`` has put all parameters of a net, except for norms, in low precision."""
    advice = cast_advice(net)
    if advice and all(dtype_of(param) in dtypes.LOW_PRECISION for param in _plain_params(net, norms=False)):
        raise ConvertError(f"block '{net.name}': {advice}")


def cast_advice(net: gluon.Block) -> str:
    """Return advice about the parameters that ``net.cast`` has put in low precision; an empty text if there are none.

    Parameters of SymbolBlocks are left out.
    """
    for param in _plain_params(net):
        dtype = dtype_of(param)
        if dtype in dtypes.LOW_PRECISION:
            return (
                f"parameter '{param.name}' is {dtype} already, as net.cast({dtype!r}) leaves it, and a load with "
                f"dtype_source='saved'; call net.cast('float32') first, and mxmp.gluon.cast(net, {dtype!r}) in its "
                f"place to store weights in {dtype}."
            )
    return ""


def _plain_params(net: gluon.Block, norms: bool = True) -> List[gluon.Parameter]:
    """Return the parameters of a net's blocks that no conversion stores; on request without those of norms."""
    casts = (gluon.Block.cast, gluon.HybridBlock.cast)
    plain_blocks = [block for block in blocks_in(net) if not isinstance(block, gluon.SymbolBlock)]
    chosen_blocks = [block for block in plain_blocks if norms or type(block).cast in casts]
    params = [param for block in chosen_blocks for param in block._reg_params.values()]
    return [param for param in params if not isinstance(param, LowPrecisionParameter)]


def store_low(param: gluon.Parameter, dtype: str, keeps_exact: bool = False) -> None:
    """Store a float32 parameter in low precision, at once, or when it gets a value.

    A parameter that is trained keeps its float32 value as a master; with ``keeps_exact`` each one does. The class
    changes first. So `store_float32` undoes an interrupted call.
    """
    require_bfloat16(dtype, contexts_of([param]), f"parameter '{param.name}'")
    kind = vars(param)[_CLASS] = type(param)
    if kind is gluon.Parameter:
        param.__class__ = LowPrecisionParameter
    else:
        param.__class__ = type(kind.__name__, (LowPrecisionParameter, kind), {"__module__": kind.__module__})
    if not is_initialized(param):
        param._dtype = dtypes.to_numpy(dtype)
        return
    exact = [array.detach() for array in param.list_data()]  # without float32 gradients
    if keeps_exact or param.grad_req != "null":
        keep_masters(param, exact)
    _replace(param, dtype, [round_to(array, dtype) for array in exact])


def store_all_low(
    params: Sequence[gluon.Parameter], dtype: str, stored: List[gluon.Parameter], keeps_exact: bool
) -> None:
    """Store float32 parameters in low precision, or none of them; each is added to ``stored`` before its change."""
    exact, count_before = [param._data for param in params], len(stored)
    try:
        for param in params:
            stored.append(param)
            store_low(param, dtype, keeps_exact)
    except BaseException:
        for param, arrays in zip(stored[count_before:], exact):
            store_float32(param)
            if arrays is not None:
                _replace(param, dtypes.FLOAT32, arrays)
        del stored[count_before:]
        raise


def store_float32(param: gluon.Parameter) -> None:
    """Store a low precision parameter in float32, with its exact value if it has one."""
    if not isinstance(param, LowPrecisionParameter):
        return
    if is_initialized(param):
        _replace(param, dtypes.FLOAT32, exact_values(param))
    else:
        param._dtype = dtypes.to_numpy(dtypes.FLOAT32)
    param.__class__ = vars(param)[_CLASS]
    forget_masters(param)


def widen(param: gluon.Parameter) -> None:
    """Store a parameter in float32 that a file has put in low precision, unless a conversion stores it so."""
    is_low = is_initialized(param) and dtype_of(param) in dtypes.LOW_PRECISION
    if is_low and not isinstance(param, LowPrecisionParameter):
        _replace(param, dtypes.FLOAT32, [to_float32(array) for array in param.list_data()])


def _replace(param: gluon.Parameter, dtype: str, arrays: List[mx.nd.NDArray]) -> None:
    """Give a parameter other arrays and a dtype, as ``Parameter.cast`` does."""
    with autograd.pause():
        gradients = param._grad
        if gradients is not None:
            gradients = [each if dtypes.canonical(each.dtype) == dtype else round_to(each, dtype) for each in gradients]
        # One statement, so that no interrupt leaves a part. The dtype is equal to its name and to its type.
        vars(param).update(_dtype=dtypes.to_numpy(dtype), _data=arrays, _grad=gradients)
        if gradients is not None:
            autograd.mark_variables(arrays, gradients, param.grad_req)
