"""convert, cast, restore: a net's graph through the passes, in place and reversible.

A HybridBlock runs what its ``_get_graph`` returns (python/mxnet/gluon/block.py at tag 1.9.1).
Conversion hooks that method, and those around it, on the one net: what it returns is what runs,
what ``export`` writes and what hybridizing again rebuilds. No function of MXNet is changed.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple, Union

import mxnet as mx
from mxnet import gluon

from .. import dtypes
from ..errors import ConvertError, InferenceError
from ..policy import Policy, check_matches
from ..report import Report, merge
from ..symbol import Converted, convert_graph
from . import storage, trace

_ATTRIBUTE = "_mxmp_conversion"

_HOOKS = (
    "_get_graph",
    "_build_cache",
    "_call_cached_op",
    "_clear_cached_op",
    "hybridize",
    "hybrid_forward",
    "export",
    "cast",
)


def convert(net: gluon.Block, policy: Union[str, Policy]) -> gluon.Block:
    """Convert a net in place, so that it trains and infers in mixed precision.

    The net keeps its parameters with their names, its API and its state of hybridization. It
    always runs as a graph from now on, hybridized or not. Works before and after ``initialize``.
    Blocks inside that were converted before are converted anew, with this policy. On CPU
    contexts float16 is emulated: float32 arithmetic, rounded to float16.

    Args:
        net: A HybridBlock, a SymbolBlock, or a Block with HybridBlocks inside (each of them gets
            a graph of its own, with float32 in between).
        policy: A policy or its name, such as 'O1', 'O2' or 'mixed_bfloat16'.

    Returns:
        The same net.

    Raises:
        PolicyError: If the policy is invalid, or one of its patterns matches nothing.
        ConvertError: If the net cannot be traced or its conversion does not type-check; the
            message names the block or node, and the net is as it was. A net whose inputs are not
            known yet is checked at its first call.
    """
    policy = Policy.parse(policy)
    found = trace.roots(net)
    if all(_conversion(root) is not None and _conversion(root).policy == policy for root in found):  # type: ignore[union-attr]
        return net
    inner = [block for root in found for block in trace.descendants(root) if _conversion(block) is not None]
    with _suspended([*found, *inner]):
        conversions = [Conversion(root, policy) for root in found]
        _check_overrides(net, policy, conversions)
    for block in (*found, *inner):
        if _conversion(block) is not None:
            _conversion(block).remove()  # type: ignore[union-attr]
    if policy.is_mixed:
        for conversion in conversions:
            conversion.install()
    return net


def cast(net: gluon.Block, dtype: str) -> gluon.Block:
    """Store and run a net in low precision, with BatchNorm, softmax and their like in float32.

    What ``net.cast(dtype)`` should be: parameters that low precision operators read are stored in
    ``dtype``, all others stay float32; inputs are cast where they are needed, integer inputs and
    labels never; outputs come back in float32.

    Args:
        net: The net.
        dtype: 'float16', 'bfloat16', or 'float32' to undo it.

    Returns:
        The same net.

    Raises:
        DtypeError: If the dtype is unknown.
        ConvertError: As ``convert``.
    """
    name = dtypes.canonical(dtype)
    if name == dtypes.FLOAT32:
        return restore(net)
    return convert(net, Policy(param_dtype=name, compute_dtype=name))


def restore(net: gluon.Block) -> gluon.Block:
    """Undo ``convert``: the net runs its own float32 graph again.

    Parameters that were stored in low precision become float32; their exact values come back
    where they have not changed since.
    """
    for block in (net, *trace.descendants(net)):
        conversion = _conversion(block)
        if conversion is not None:
            conversion.remove()
    return net


def report(net: gluon.Block) -> Report:
    """Return what the conversion of a net decided, and why.

    Raises:
        ConvertError: If the net is not converted, or has to see one batch first.
    """
    return merge([conversion.report() for conversion in _conversions(net)])


def export(net: gluon.HybridBlock, path: str, epoch: int = 0) -> Tuple[str, str]:
    """Write a converted net as a model that plain MXNet loads: ``net.export``.

    Returns:
        The paths written, ``<path>-symbol.json`` and ``<path>-<epoch>.params``.

    Raises:
        ConvertError: If the net is not converted or has not seen a batch yet.
    """
    conversion = _conversion(net)
    if conversion is None:
        raise ConvertError(f"block '{net.name}' is not converted; use net.export.")
    conversion.export(path, epoch)
    return f"{path}-symbol.json", f"{path}-{epoch:04d}.params"


def _conversion(block: gluon.Block) -> Optional["Conversion"]:
    return vars(block).get(_ATTRIBUTE)


def _conversions(net: gluon.Block) -> List["Conversion"]:
    found = [c for c in map(_conversion, (net, *trace.descendants(net))) if c is not None]
    if not found:
        raise ConvertError(f"block '{net.name}' ({type(net).__name__}) is not converted; call convert first.")
    return found


def _check_overrides(net: gluon.Block, policy: Policy, conversions: Sequence["Conversion"]) -> None:
    """Check the policy's patterns now if every graph is known, else at the first call."""
    early = [conversion.early for conversion in conversions]
    if all(converted is not None for converted in early):
        nodes = [(row.op, row.name) for converted in early if converted for row in converted.report.rows]
        check_matches(policy, nodes, trace.prefixes(net))
    elif len(conversions) == 1:
        conversions[0].unchecked = True


@contextmanager
def _suspended(blocks: Sequence[gluon.Block]) -> Iterator[None]:
    """Take the hooks off blocks, so that they are traced as they were written."""
    hooked = [c for c in map(_conversion, blocks) if c is not None]
    for conversion in hooked:
        conversion.unhook()
    try:
        yield
    finally:
        for conversion in hooked:
            conversion.hook()


class Conversion:
    """The mixed precision of one HybridBlock: its policy, its graphs and the hooks on the block."""

    def __init__(self, net: gluon.HybridBlock, policy: Policy) -> None:
        """Trace and convert the net if its inputs can be guessed; change nothing."""
        self.net = net
        self.policy = policy
        self.unchecked = False
        self.converted: Optional[Converted] = None
        self.source: Any = net._cached_graph if isinstance(net, gluon.SymbolBlock) else None
        previous = _conversion(net)
        if previous is not None and previous.source is not None:
            self.source = previous.source
        self.active = previous.active if previous else net._active
        self.stored: List[gluon.Parameter] = []
        self.ops: Dict[bool, Tuple[Any, List[Any]]] = {}
        self.early = self._convert_early()

    def _convert_early(self) -> Optional[Converted]:
        """Return the conversion for inputs of unknown shape, None if the net must be called first."""
        if self.source is not None:
            return self._convert(self.source[1], {}, {})
        symbol = trace.trace_early(self.net)
        try:
            return None if symbol is None else self._convert(symbol, {}, {})
        except InferenceError:
            return None  # the inputs were guessed wrong

    # ------------------------------------------------------------------ life cycle

    def install(self) -> None:
        """Hook the net."""
        setattr(self.net, _ATTRIBUTE, self)
        self.hook()
        self._clear_cached_op()
        if self.early is not None:
            if self.source is not None:
                self.net._cached_graph = (self.source[0], self.early.symbol)
            self._store(self.early)

    def remove(self) -> None:
        """Give the net back as it was."""
        self.unhook()
        delattr(self.net, _ATTRIBUTE)
        for param in self.stored:
            storage.store_float32(param)
        self.net._active = self.active
        self.net._clear_cached_op()
        if self.source is not None:
            self.net._cached_graph = self.source

    def hook(self) -> None:
        """Put this object's methods in the place of the net's."""
        for name in _HOOKS:
            self.net.__dict__[name] = getattr(self, name)
        self.net._active = True

    def unhook(self) -> None:
        """Let the net's own methods be seen again."""
        for name in _HOOKS:
            self.net.__dict__.pop(name, None)

    def _original(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(type(self.net), name)(self.net, *args, **kwargs)

    # ------------------------------------------------------------------ hooks

    def hybridize(self, active: bool = True, *args: Any, **kwargs: Any) -> None:
        """Hybridize as asked, but keep running the converted graph."""
        self._original("hybridize", active, *args, **kwargs)
        self.active = active
        self.net._active = True

    def cast(self, dtype: Any) -> None:
        """Refuse: MXNet's cast would give BatchNorm low precision parameters."""
        raise ConvertError(
            f"block '{self.net.name}' is converted ({self.policy}); use mxmp.gluon.cast(net, {str(dtype)!r}), or "
            f"mxmp.gluon.restore(net) first."
        )

    def _clear_cached_op(self) -> None:
        self._original("_clear_cached_op")
        self.ops = {}
        self.converted = None

    def _get_graph(self, *args: Any) -> Any:
        """Return the inputs and the converted symbol for these inputs."""
        if self.converted is None or not self.net._cached_graph:
            inputs, symbol = self._trace(args)
            arrays = [a for a in trace.split_inputs(args)]
            shapes = {s.name: a.shape for s, a in zip(inputs, arrays) if isinstance(a, mx.nd.NDArray)}
            types = {s.name: dtypes.canonical(a.dtype) for s, a in zip(inputs, arrays) if isinstance(a, mx.nd.NDArray)}
            converted = self._convert(symbol, shapes, types)
            if self.unchecked:
                nodes = [(row.op, row.name) for row in converted.report.rows]
                check_matches(self.policy, nodes, trace.prefixes(self.net))
                self.unchecked = False
            self.converted = converted
            self.net._cached_graph = inputs, converted.symbol
        return self.net._cached_graph

    def _build_cache(self, *args: Any) -> None:
        """Build the cached operator, of the emulated graph if one is needed on this context."""
        graph = self._get_graph(*args)
        assert self.converted is not None
        self._initialize(args)
        self._store(self.converted)
        if self._emulates():
            self.net._cached_graph = graph[0], self.converted.emulated()
        try:
            self._original("_build_cache", *args)
        finally:
            if self._emulates():
                self.net._cached_graph = graph

    def _call_cached_op(self, *args: Any) -> Any:
        """Run the graph for this context; low precision inputs are accepted as float32 ones are."""
        args = tuple(_as_float32(arg) for arg in args)
        emulates = self._emulates()
        if emulates not in self.ops:
            self.net._cached_op, self.net._cached_op_args = None, []
            self._build_cache(*args)
            self.ops[emulates] = self.net._cached_op, self.net._cached_op_args
        self.net._cached_op, self.net._cached_op_args = self.ops[emulates]
        return self._original("_call_cached_op", *args)

    def hybrid_forward(self, F: Any, x: Any, *args: Any, **params: Any) -> Any:
        """Return the converted net applied to symbols, for a net that this one is part of.

        Within another net's trace on a CPU context the emulated graph is given, so that the outer
        net runs there; convert the outermost net to export it.
        """
        inside = self.net._scope._old_scope is not None
        converted, inputs, out_format = self._for_symbols((x, *args))
        symbol = converted.emulated() if inside and self._emulates() else converted.symbol
        symbol._compose(**{var.name: given for var, given in zip(inputs, trace.split_inputs((x, *args)))})
        return gluon.block._regroup(list(symbol), out_format)

    def export(self, path: str, epoch: int = 0, remove_amp_cast: bool = False) -> None:
        """Write the converted net, its casts included, for plain MXNet.

        Raises:
            ConvertError: If the net has not seen a batch yet.
        """
        if not self.ops:
            raise ConvertError(
                f"block '{self.net.name}' has not been called yet, so its parameters and shapes are not known; "
                f"run one batch before exporting."
            )
        self._original("export", path, epoch, remove_amp_cast=remove_amp_cast)

    # ------------------------------------------------------------------ parts

    def report(self) -> Report:
        """Return what was decided last."""
        converted = self.converted or self.early
        if converted is None:
            raise ConvertError(f"block '{self.net.name}' has to see one batch before its report is known.")
        return converted.report

    def _emulates(self) -> bool:
        on_cpu = mx.context.current_context().device_type != "gpu"
        return on_cpu and self.policy.compute_dtype == dtypes.FLOAT16

    def _trace(self, args: Tuple[Any, ...]) -> Tuple[Any, Any]:
        if self.source is not None:
            return self.source
        inner = [block for block in trace.descendants(self.net) if _conversion(block) is not None]
        self.net._cached_graph = ()
        self.unhook()
        try:
            with _suspended(inner):
                return self._original("_get_graph", *args)
        except Exception as e:
            raise trace.trace_error(self.net, e) from e
        finally:
            self.net._cached_graph = ()
            self.hook()

    def _for_symbols(self, args: Tuple[Any, ...]) -> Tuple[Converted, Any, Any]:
        """Return the net converted for symbols of unknown shape, its inputs and output format."""
        kept = self.net._cached_graph, self.net._in_format, self.net._out_format
        scope = dict(vars(self.net._scope))  # entered already; tracing enters it again
        try:
            inputs, symbol = self._trace(args)
            out_format = self.net._out_format
        finally:
            self.net._cached_graph, self.net._in_format, self.net._out_format = kept
            vars(self.net._scope).update(scope)
        return self._convert(symbol, {}, {}), inputs, out_format

    def _convert(self, symbol: Any, shapes: Any, types: Any) -> Converted:
        params = self.net.collect_params()
        trainable = frozenset(name for name, p in params.items() if not isinstance(p, gluon.Constant))
        try:
            return convert_graph(symbol, self.policy, self._shapes(shapes, params), types, trainable)
        except ConvertError as e:
            raise type(e)(f"block '{self.net.name}': {e}") from e

    @staticmethod
    def _shapes(shapes: Dict[str, Any], params: Any) -> Dict[str, Any]:
        if not shapes:
            return {}
        known = {name: p.shape for name, p in params.items() if p.shape and all(size > 0 for size in p.shape)}
        return {**known, **shapes}

    def _initialize(self, args: Tuple[Any, ...]) -> None:
        """Finish deferred initialization in float32, before anything is stored in low precision."""
        params = list(self.net.collect_params().values())
        if any(param._deferred_init for param in params):
            self.net._deferred_infer_shape(*args)
            for param in params:
                param._finish_deferred_init()

    def _store(self, converted: Converted) -> None:
        """Store the parameters in the dtypes that the graph wants."""
        for name, param in self.net.collect_params().items():
            low = name in converted.low_params
            if low and storage.is_initialized(param) and storage.dtype_of(param) == dtypes.FLOAT32:
                storage.store_low(param, self.policy.param_dtype)
                self.stored.append(param)


def _as_float32(arg: Any) -> Any:
    if isinstance(arg, (list, tuple)):
        return type(arg)(_as_float32(item) for item in arg)
    if isinstance(arg, mx.nd.NDArray) and dtypes.canonical(arg.dtype) in dtypes.LOW_PRECISION:
        return storage.round_to(arg, dtypes.FLOAT32)
    return arg
