"""What conversion puts on one block: hooks on its graph building, and its graphs.

A HybridBlock runs what its ``_get_graph`` returns (python/mxnet/gluon/block.py at tag 1.9.1).
The hooks stand on the one instance: what they return is what runs, what ``export`` writes and
what hybridizing again rebuilds. No function of MXNet is changed.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
from mxnet import autograd, gluon

from .. import dtypes
from ..errors import ConvertError, InferenceError
from ..graph import Graph, without_versions
from ..policy import Policy, check_matches
from ..report import Report
from ..symbol import Converted, convert_graph, to_graph
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


def conversion_of(block: gluon.Block) -> Optional["Conversion"]:
    """Return the conversion of a block, None if it has none."""
    return vars(block).get(_ATTRIBUTE)


def installed(blocks: Sequence[gluon.Block]) -> List["Conversion"]:
    """Return the conversions of those blocks that have one."""
    found = (conversion_of(block) for block in blocks)
    return [conversion for conversion in found if conversion is not None]


@contextmanager
def suspended(conversions: Sequence["Conversion"]) -> Iterator[None]:
    """Take the hooks off their blocks, so that these are traced as they were written."""
    for conversion in conversions:
        conversion.unhook()
    try:
        yield
    finally:
        for conversion in conversions:
            conversion.hook()


class _Mode(NamedTuple):
    """A net's graph for training or for inference, which may differ.

    Attributes:
        source: The traced graph, to tell whether both modes have one.
        inputs: The symbols of its inputs.
        converted: What it was converted to.
        formats: How the net's inputs and outputs are nested.
    """

    source: Graph
    inputs: Any
    converted: Converted
    formats: Tuple[Any, Any]


class Conversion:
    """The mixed precision of one HybridBlock: its policy, its graphs and the hooks on the block."""

    def __init__(self, net: gluon.HybridBlock, policy: Policy) -> None:
        """Trace and convert the net if its inputs can be guessed; change nothing."""
        self.net = net
        self.policy = policy
        self.unchecked = False
        self.modes: Dict[bool, _Mode] = {}  # by autograd.is_training()
        self.current: Optional[_Mode] = None
        self.building: Any = None
        self.source: Any = net._cached_graph if isinstance(net, gluon.SymbolBlock) else None
        previous = conversion_of(net)
        if previous is not None and previous.source is not None:
            self.source = previous.source
        self.active = previous.active if previous else net._active
        self.stored: List[gluon.Parameter] = []
        self.ops: Dict[Tuple[int, bool], Tuple[Any, List[Any]]] = {}  # by mode (its id) and kind of context
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
        self.modes, self.ops, self.current = {}, {}, None

    def _get_graph(self, *args: Any) -> Any:
        """Return the inputs and the converted symbol for these inputs."""
        if self.building is not None:
            return self.building
        mode = self._mode(args)
        self.current = mode
        self.net._cached_graph = mode.inputs, mode.converted.symbol
        self.net._in_format, self.net._out_format = mode.formats
        return self.net._cached_graph

    def _build_cache(self, *args: Any) -> None:
        """Build the cached operator for this kind of context."""
        inputs, symbol = self._get_graph(*args)
        converted = self._mode(args).converted
        self._initialize(args)
        self._store(converted)
        self.building = inputs, converted.on_cpu() if _on_cpu() else symbol
        try:
            self._original("_build_cache", *args)
        finally:
            self.building = None

    def _call_cached_op(self, *args: Any) -> Any:
        """Run the graph for this mode and context; inputs of low precision are taken as float32."""
        args = tuple(_as_float32(arg) for arg in args)
        self._get_graph(*args)
        key = id(self.current), _on_cpu()
        if key not in self.ops:
            self.net._cached_op, self.net._cached_op_args = None, []
            self._build_cache(*args)
            self.ops[key] = self.net._cached_op, self.net._cached_op_args
        self.net._cached_op, self.net._cached_op_args = self.ops[key]
        return self._original("_call_cached_op", *args)

    def hybrid_forward(self, F: Any, x: Any, *args: Any, **params: Any) -> Any:
        """Return the converted net applied to symbols, for a net that this one is part of.

        Within another net's trace on a CPU context the graph for CPU is given, so that the outer
        net runs there; convert the outermost net to export it.
        """
        inside = self.net._scope._old_scope is not None
        converted, inputs, out_format = self._for_symbols((x, *args))
        symbol = converted.on_cpu() if inside and _on_cpu() else converted.symbol
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
        converted = self.current.converted if self.current else self.early
        if converted is None:
            raise ConvertError(f"block '{self.net.name}' has to see one batch before its report is known.")
        return converted.report

    def _mode(self, args: Tuple[Any, ...]) -> _Mode:
        """Return the graph for training or inference, traced and converted when first needed."""
        training = autograd.is_training()
        if training not in self.modes:
            inputs, symbol = self._trace(args)
            # Each trace counts the versions of auxiliary states further.
            source, other = without_versions(to_graph(symbol)), self.modes.get(not training)
            if other is not None and other.source == source:
                self.modes[training] = other
            else:
                converted = self._convert(symbol, *_known(inputs, args))
                self._check_overrides(converted)
                self.modes[training] = _Mode(source, inputs, converted, (self.net._in_format, self.net._out_format))
        return self.modes[training]

    def _check_overrides(self, converted: Converted) -> None:
        if self.unchecked:
            nodes = [(row.op, row.name) for row in converted.report.rows]
            check_matches(self.policy, nodes, trace.prefixes(self.net))
            self.unchecked = False

    def _trace(self, args: Tuple[Any, ...]) -> Tuple[Any, Any]:
        if self.source is not None:
            return self.source
        inner = installed(trace.descendants(self.net))
        self.net._cached_graph = ()
        self.unhook()
        try:
            with suspended(inner):
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


def _on_cpu() -> bool:
    return bool(mx.context.current_context().device_type != "gpu")


def _known(inputs: Sequence[Any], args: Tuple[Any, ...]) -> Tuple[Dict[str, Tuple[int, ...]], Dict[str, str]]:
    """Return shapes and dtypes of those inputs that are arrays."""
    arrays = [(s.name, a) for s, a in zip(inputs, trace.split_inputs(args)) if isinstance(a, mx.nd.NDArray)]
    return {name: a.shape for name, a in arrays}, {name: dtypes.canonical(a.dtype) for name, a in arrays}


def _as_float32(arg: Any) -> Any:
    if isinstance(arg, (list, tuple)):
        return type(arg)(_as_float32(item) for item in arg)
    if isinstance(arg, mx.nd.NDArray) and dtypes.canonical(arg.dtype) in dtypes.LOW_PRECISION:
        return storage.round_to(arg, dtypes.FLOAT32)
    return arg
