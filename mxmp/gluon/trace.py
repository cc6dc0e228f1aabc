"""Traces of nets: the graph of a net for a call. An error names the block that cannot be traced."""

from __future__ import annotations

import contextlib
import numbers
import os
import threading
import traceback
import weakref
from contextvars import ContextVar
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import gluon
from mxnet.gluon.block import _flatten
from mxnet.symbol.numpy import _Symbol as NumpySymbol

from .. import dtypes
from ..errors import ConvertError, MxmpError
from ..symbol import to_graph
from ..symbol.rewrite import ShapeOutcomes
from . import regions
from .blocks import collected_params, graph_kept, unconverted, undone

Shape = Tuple[int, ...]

_CONSTANTS = (numbers.Number, np.bool_, str)  # a block's own ``forward`` may pass these to ``hybrid_forward``
_BLOCK_CALL = gluon.Block.__call__.__code__  # MXNet's method, which amp.init replaces
_GIVEN: ContextVar[Any] = ContextVar("mxmp_constants", default=None)  # of the call that is traced now


class MakingGraphs:
    """The locks of nets that are called for the first time.

    Attributes:
        lock: Held while a net is traced and converted: this replaces methods of blocks, which nets may share. Nobody
            waits for MXNet's engine meanwhile: a ``Custom`` operator that runs there may call a converted net.
        first_runs: A lock for each `gluon.cache.ConvertedGraph`, held while an operator of it runs for the first time.
    """

    lock = threading.RLock()
    first_runs: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    @classmethod
    def renew(cls) -> None:
        """Make the locks anew in a forked process, where the threads that held them do not exist."""
        cls.lock, cls.first_runs = threading.RLock(), weakref.WeakKeyDictionary()


os.register_at_fork(after_in_child=MakingGraphs.renew)


class Arguments(NamedTuple):
    """The arguments of a call, flat.

    Attributes:
        arrays: The arrays or symbols among them, without None.
        nesting: Their nesting, and the constants among them: calls that differ in these need graphs of their own.
    """

    arrays: List[Any]
    nesting: str


def flat_arguments(args: Tuple[Any, ...]) -> Arguments:
    """Return the arguments of a call, which may be nested and have None and constants among them, flat."""
    try:
        flat, nesting = _flatten(args, "input")
    except ValueError:  # MXNet takes only arrays, symbols and None
        flat, nesting = _flatten(without_constants(args), "input")
        nesting = nesting, repr(_constants_in(args))
    return Arguments([each for each in flat if each is not None], str(nesting))


def without_constants(arg: Any) -> Any:
    """Return arguments with None in place of numbers and texts, which are constants of a graph."""
    if isinstance(arg, (list, tuple)):
        return tuple(map(without_constants, arg))
    return None if isinstance(arg, _CONSTANTS) else arg


def _constants_in(arg: Any) -> Any:
    """Return the constants in arguments, nested as the arguments, with None for the rest; None without constants."""
    if isinstance(arg, (list, tuple)):
        items = tuple(map(_constants_in, arg))
        return items if any(item is not None for item in items) else None
    return arg if isinstance(arg, _CONSTANTS) else None


class Trace:
    """The graph of a net, for calls that differ at most in shapes.

    Attributes:
        symbol: The net's symbol.
        inputs: The symbols of its inputs.
        formats: The nesting of inputs and outputs.
        params: The parameters that the graph reads, by name.
        types: The dtypes of its inputs, by name.
        data: The names of inputs, and of parameters that nothing trains, which are data too.
        constants: The constants among the arguments of the call, nested as these are.
        graph: The graph of the symbol.
        outcomes: The evaluator of the graph's conditions on shapes, of a trace in a `gluon.cache.GraphCache`.
    """

    outcomes: ShapeOutcomes

    def __init__(
        self,
        symbol: Any,
        inputs: Sequence[Any],
        formats: Tuple[Any, Any],
        params: Mapping[str, gluon.Parameter],
        arrays: Sequence[Any],
        constants: Any,
    ) -> None:
        """Take a traced symbol, the parameters of its net, and the arrays and constants of the call."""
        self.symbol, self.inputs, self.formats, self.constants = symbol, inputs, formats, constants
        self.graph, variables = to_graph(symbol), frozenset(symbol.list_inputs())
        self.params = {name: param for name, param in params.items() if name in variables}
        self.types = {s.name: dtypes.canonical(a.dtype) for s, a in zip(inputs, arrays) if isinstance(a, mx.nd.NDArray)}
        trained = {
            name
            for name, param in self.params.items()
            if param._differentiable and not isinstance(param, gluon.Constant)
        }
        self.data = variables - trained

    @property
    def arguments(self) -> Tuple[Any, ...]:
        """The arguments of the call, with the symbols of inputs in place of arrays."""
        return arguments(self.inputs, self.formats[0], self.constants)

    def converts_like(self, other: Trace) -> bool:
        """Return whether another trace has the same conversions."""
        if self.types != other.types or self.formats != other.formats:
            return False
        return bool(self.symbol.tojson(remove_amp_cast=False) == other.symbol.tojson(remove_amp_cast=False))

    def shapes(self, arrays: Sequence[Any]) -> Dict[str, Shape]:
        """Return the shapes of inputs and parameters for the arrays of a call; none for symbols."""
        input_shapes = {s.name: each.shape for s, each in zip(self.inputs, arrays) if isinstance(each, mx.nd.NDArray)}
        if not input_shapes:
            return {}
        shapes = {name: param.shape for name, param in self.params.items() if param.shape}
        return {**{name: shape for name, shape in shapes.items() if min(shape) > 0}, **input_shapes}


def trace(
    net: gluon.HybridBlock, args: Tuple[Any, ...], own_graph: Optional[Tuple[Any, Any]], marks: regions.BlockRegions
) -> Trace:
    """Return the graph of a net for a call.

    The net's own graph and scope are the same afterwards. ``own_graph`` is the graph of a SymbolBlock, None for other
    blocks. ``marks`` are the marks of the blocks in the net.

    Raises:
        ConvertError: If its ``hybrid_forward`` fails on symbols. The text names the block.
    """
    constants = _constants_in(args)
    with MakingGraphs.lock, regions.scopes_kept(), graph_kept(net), regions.entered(net, marks):
        if own_graph is None:
            net._cached_graph = ()
            try:
                with unconverted(), _constants_given(net, constants):
                    inputs, symbol = net._get_graph(*_numpy_arrays(without_constants(args)))
            except Exception as e:
                raise _trace_error(net, e) from e
        else:
            inputs, symbol = own_graph[0], regions.in_current_region(own_graph[1])
        formats, arrays = (net._in_format, net._out_format), flat_arguments(args).arrays
        return Trace(symbol, inputs, formats, collected_params(net), arrays, constants)


def _numpy_arrays(arg: Any) -> Any:
    """Return arguments with arrays in place of numpy symbols: MXNet makes numpy symbols only of arrays."""
    if isinstance(arg, (list, tuple)):
        return tuple(map(_numpy_arrays, arg))
    return mx.np.zeros(1) if isinstance(arg, NumpySymbol) else arg


def arguments(inputs: Sequence[Any], nesting: Any, constants: Any = None) -> Tuple[Any, ...]:
    """Return arguments to trace a net with again: its inputs, nested as MXNet notes, and constants."""
    remaining = iter(inputs)

    def fill(fmt: Any) -> Any:
        if isinstance(fmt, int):  # -1 for None, 0 for an array, n for a symbol of n outputs
            return None if fmt < 0 else next(remaining)
        return [fill(each) for each in fmt]

    filled = [fill(each) for each in nesting] if isinstance(nesting, list) else [fill(nesting)]
    return tuple(filled if constants is None else _with_constants(filled, constants))


@contextlib.contextmanager
def _constants_given(net: gluon.HybridBlock, constants: Any) -> Iterator[None]:
    """Give ``hybrid_forward`` the constants of a call while the net is traced within this context.

    MXNet traces only with symbols and None.
    """
    if constants is None:
        yield
        return

    def forward(F: Any, *inputs: Any, **params: Any) -> Any:
        if _GIVEN.get() is constants:  # else another thread calls it
            inputs = tuple(_with_constants(inputs, constants))
        return type(net).hybrid_forward(net, F, *inputs, **params)

    def put_back() -> None:
        _GIVEN.set(constants_before)
        vars(net).pop("hybrid_forward", None)

    constants_before = _GIVEN.get()
    with undone(put_back):
        _GIVEN.set(constants)
        vars(net)["hybrid_forward"] = forward
        yield


def _with_constants(inputs: Any, constants: Any) -> Any:
    if isinstance(constants, tuple):
        return [_with_constants(*pair) for pair in zip(inputs, constants)]
    return inputs if constants is None else constants


def dtype_advice(types: Mapping[str, str]) -> str:
    """Return advice about the inputs, by name with their dtypes, that are not float32; an empty text if all are."""
    text = ". Input '{}' is {}: give x.astype('float32')"
    return "".join(text.format(name, dtype) for name, dtype in types.items() if dtype != dtypes.FLOAT32)


def _trace_error(net: gluon.HybridBlock, error: Exception) -> ConvertError:
    """Return the error for a net whose ``hybrid_forward`` failed on symbols; it names the block."""
    block, function = _failing_block(error, net)
    where = f"block '{block.name}' ({type(block).__name__})"
    if function is not None:
        return ConvertError(
            f"{where}: its forward hook {function!r} fails: {type(error).__name__}: {str(error).rstrip('.')}. Hooks on "
            f"the blocks within a converted net run once, when it is traced, and on symbols. Detach it, or register it "
            f"on '{net.name}' itself, where it gets arrays."
        )
    if isinstance(error, MxmpError):
        return ConvertError(f"{where}: {error}")
    text = f"{where} cannot be traced: {type(error).__name__}: {str(error).rstrip('.')}."
    if isinstance(error, TypeError) and "positional argument" in text:
        return ConvertError(text)
    return ConvertError(
        f"{text} Its hybrid_forward must work on symbols: no shapes, no values, no indexing. Rewrite it, or convert "
        f"the blocks around it; mxmp.gluon.restore(net) has the net run as before."
    )


def _failing_block(error: Exception, outermost: gluon.Block) -> Tuple[gluon.Block, Optional[str]]:
    """Return the innermost block whose method raised an error, and its hook's name if a hook raised it."""
    failing, hook = outermost, None
    lines = traceback.extract_tb(error.__traceback__)
    for (frame, _), line in zip(traceback.walk_tb(error.__traceback__), lines):
        block, name = frame.f_locals.get("self"), frame.f_code.co_name
        if name in ("hybrid_forward", "forward") and isinstance(block, gluon.Block):
            failing, hook = block, None
        elif frame.f_code is _BLOCK_CALL and (line.line or "").startswith("hook("):
            function = frame.f_locals["hook"]
            failing, hook = block, getattr(function, "__qualname__", None) or type(function).__qualname__
    return failing, hook
