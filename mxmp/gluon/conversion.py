"""What conversion puts on one block: hooks on its graph building, and its graphs.

A HybridBlock runs what its ``_get_graph`` returns (python/mxnet/gluon/block.py at tag 1.9.1).
The hooks stand on the one instance: what they return is what runs, what ``export`` writes and
what hybridizing again rebuilds. No function of MXNet is changed.
"""

from __future__ import annotations

import threading
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple

import mxnet as mx
from mxnet import autograd, gluon

from .. import dtypes
from ..errors import ConvertError, InferenceError
from ..graph import without_versions
from ..policy import Policy
from ..report import Report
from ..scaling import loss_heads
from ..symbol import Converted, to_graph
from ..symbol.contexts import require_kernels
from . import copies, modes, regions, storage, trace
from .graphs import Graphs
from .hooks import ATTRIBUTE, as_written, converted_class, net_method, plain_class, suspended
from .hooks import conversion_of as conversion_of
from .hooks import installed as installed
from .modes import Mode
from .plain_trainer import PlainTrainerCheck
from .precision import POLICY, current_region, precision
from .saving import FileHooks
from .siblings import Siblings

_HOOKS = (
    "_get_graph",
    "_build_cache",
    "_call_cached_op",
    "_clear_cached_op",
    "hybridize",
    "hybrid_forward",
    "save_parameters",
    "save_params",
    "load_parameters",
    "export",
    "cast",
    "summary",
)

# What each copy of a net begins with anew (`Conversion._start`).
_FRESH = ("graphs", "current", "building", "plain_trainer", "params", "ready", "noted", "suspension")


class Conversion(FileHooks):
    """The mixed precision of one HybridBlock: its policy, its graphs and the hooks on the block.

    Args:
        net: The block.
        policy: The policy.
        marks: What ``set_policy`` said about the net and the blocks in it; looked up unless given.
    """

    def __init__(self, net: gluon.HybridBlock, policy: Policy, marks: Optional[regions.Marks] = None) -> None:
        """Trace and convert the net if its inputs can be guessed; change nothing."""
        self.net = net
        self.policy = policy
        self.marks = regions.find_marks(net) if marks is None else marks
        regions.check_marks(self.marks, policy)
        self._require_kernels(storage.contexts_of(net.collect_params().values()))
        self.see: Optional[Callable[[Converted], None]] = None  # is shown each conversion, to check overrides
        self._start()
        self.source: Any = net._cached_graph if isinstance(net, gluon.SymbolBlock) else None
        previous = conversion_of(net)
        if previous is not None and previous.source is not None:
            self.source = previous.source
        self.active = previous.active if previous else net._active
        if policy.param_dtype != dtypes.FLOAT32 and mx.util.is_np_array():
            raise ConvertError(
                f"block '{net.name}': under npx.set_np parameters can be stored in float32 alone, but the policy has "
                f"param_dtype={policy.param_dtype!r}; use one with param_dtype='float32', such as 'O1'."
            )
        self.stored: List[gluon.Parameter] = []
        Siblings().add(self)
        self.early: Optional[Converted] = self._convert_early()

    def _start(self) -> None:
        """Set what each copy of a net begins with anew."""
        self.graphs = Graphs()
        self.current: Optional[Mode] = None
        self.building: Any = None
        self.plain_trainer = PlainTrainerCheck(self.net, self.policy)
        self.params: Optional[List[gluon.Parameter]] = None
        self.ready = self.noted = False
        self.suspension = threading.local()

    def _convert_early(self) -> Optional[Converted]:
        """Return the conversion for inputs of unknown shape, None if the net must be called first."""
        with precision(POLICY):  # not in a region that the user may be in
            if self.source is not None:
                return self._convert(self._trace(())[1], {}, {})
            with regions.entered(self.net, self.marks):
                symbol = trace.trace_early(self.net)
        try:
            return None if symbol is None else self._convert(symbol, {}, {})
        except InferenceError:
            if storage.cast_by_hand(self.net):
                raise
            return None  # the inputs were guessed wrong

    @property
    def erases(self) -> bool:
        """Whether the net's own graph holds casts of mxmp, which even a float32 policy takes out."""
        if self.source is None or self.early is None:
            return False
        return without_versions(self.early.graph) != without_versions(to_graph(self.source[1]))

    # ------------------------------------------------------------------ life cycle

    def install(self) -> None:
        """Hook the net."""
        setattr(self.net, ATTRIBUTE, self)
        self.hook()
        self._clear_cached_op()
        if self.early is not None:
            if self.source is not None:
                self.net._cached_graph = (self.source[0], self.early.symbol)
            self._store(self.early)

    def remove(self) -> None:
        """Give the net back as it was."""
        self.unhook()
        delattr(self.net, ATTRIBUTE)
        copies.attach_gradients(self._params())
        for param in self.stored:
            storage.store_float32(param)
        self.stored.clear()
        self.net._active = self.active
        self.net._clear_cached_op()
        if self.source is not None:
            self.net._cached_graph = self.source

    def hook(self) -> None:
        """Put this object's methods in the place of the net's."""
        for name in _HOOKS if self.source is None else (*_HOOKS, "forward"):
            self.net.__dict__[name] = getattr(self, name)
        self.net.__dict__["__reduce_ex__"] = self.reduce_net
        self.net.__class__ = converted_class(plain_class(self.net))
        self.net._active = True

    def unhook(self) -> None:
        """Let the net's own methods be seen again."""
        for name in (*_HOOKS, "forward", "__reduce_ex__"):
            self.net.__dict__.pop(name, None)
        self.net.__class__ = plain_class(self.net)

    def suspend(self, change: int) -> None:
        """Count how often this thread has suspended the hooks."""
        self.suspension.count = getattr(self.suspension, "count", 0) + change

    @property
    def is_suspended(self) -> bool:
        """Whether this thread calls the net as it was written."""
        return getattr(self.suspension, "count", 0) > 0

    # ------------------------------------------------------------------ hooks

    @net_method
    def hybridize(self, active: bool = True, *args: Any, **kwargs: Any) -> None:
        """Hybridize as asked, but keep running the converted graph."""
        self._original("hybridize", active, *args, **kwargs)
        self.active = active
        self.net._active = True

    @net_method
    def cast(self, dtype: Any) -> None:
        """Refuse: MXNet's cast would give BatchNorm low precision parameters."""
        raise ConvertError(
            f"block '{self.net.name}' is converted ({self.policy}); use mxmp.gluon.cast(net, {str(dtype)!r}), or "
            f"mxmp.gluon.restore(net) first."
        )

    @net_method
    def _clear_cached_op(self) -> None:
        self._original("_clear_cached_op")
        self.graphs, self.current = Graphs(), None
        self.ready, self.params = False, None

    @net_method
    def _get_graph(self, *args: Any) -> Any:
        """Return the inputs and the converted symbol for these inputs."""
        if self.building is not None:
            return self.building
        return self._use(self._mode(args))

    def _use(self, mode: Mode) -> Any:
        """Make a mode's graph the net's."""
        if current_region() is None:
            self.current = mode
        self.net._cached_graph = mode.inputs, mode.converted.symbol
        self.net._in_format, self.net._out_format = mode.formats
        return self.net._cached_graph

    @net_method
    def _build_cache(self, *args: Any) -> None:
        """Build the cached operator for this kind of context."""
        inputs, symbol = self._get_graph(*args)
        converted = self._mode(args).converted
        self._store(converted)
        self.building = inputs, converted.on_cpu() if modes.on_cpu() else symbol
        try:
            self._original("_build_cache", *args)
        finally:
            self.building = None

    @net_method
    def _call_cached_op(self, *args: Any) -> Any:
        """Run the graph for this mode and context; inputs of low precision are taken as float32."""
        args = tuple(modes.as_input(arg) for arg in args)
        self._require_kernels([mx.context.current_context()])  # that of the inputs
        if not self.ready:
            self._get_ready(args)
        mode = self._mode(args)
        if autograd.is_recording():
            loss_heads.mark(self.net.name, self._params(), mode.loss_heads)
            self.plain_trainer.see(self._params())
            if current_region() == dtypes.FLOAT32 and self.source is None and mode.is_float32:
                self._note_recorded()
                with as_written(self.net):
                    return gluon.HybridBlock.forward(self.net, *args)  # the net's own one has called us
        self._use(mode)
        key = id(mode), modes.on_cpu()
        if key not in self.ops:
            self.net._cached_op, self.net._cached_op_args = None, []
            self._build_cache(*args)
            self.ops[key] = self.net._cached_op, self.net._cached_op_args
        if autograd.is_recording():
            self._note_recorded()
        self.net._cached_op, self.net._cached_op_args = self.ops[key]
        with modes.watched(self.net, mode):
            return self._original("_call_cached_op", *args)

    def _get_ready(self, args: Tuple[Any, ...]) -> None:
        """Initialize parameters and store in low precision what any of the siblings wants so.

        Before anything runs: autograd loses the gradients of a parameter that changes its dtype
        between two calls of one ``record``.
        """
        with precision(POLICY):  # a region holds for a call, not for what is stored
            copies.attach_gradients(self._params())
            self._mode(args)  # a net that cannot be traced says so, before MXNet infers shapes
            storage.initialize(self.net, args)
            for sibling in self.siblings.conversions:
                if sibling.early is not None and conversion_of(sibling.net) is sibling:
                    sibling._store(sibling.early)
            if self.early is None:
                self._store(self._mode(args).converted)
        self.ready = True

    def _note_recorded(self) -> None:
        """Note that autograd holds the net's parameters, which must keep their dtypes from now on."""
        if not self.noted:
            self.siblings.recorded.update(map(id, self._params()))
            self.noted = True

    def _params(self) -> List[gluon.Parameter]:
        if self.params is None:
            self.params = list(self.net.collect_params().values())
        return self.params

    def reduce_net(self, protocol: Any) -> Tuple[Any, ...]:
        """Return what pickle and copy make the net from."""
        with self.siblings.lock:
            return copies.reduce_net(self.net, protocol)

    def __getstate__(self) -> Dict[str, Any]:
        """Return the state for copies, which make graphs of their own."""
        return copies.copied_state(self, _FRESH)

    def __setstate__(self, state: Dict[str, Any]) -> None:
        """Take the state; the net may have none of its own yet."""
        vars(self).update(state)
        self.marks, self.source = copies.unpack_marks(self.marks), copies.unpack_source(self.source)
        self._start()
        self.siblings.add(self)
        copies.empty_graphs(self.net, self.source)
        self.net.__class__ = converted_class(plain_class(self.net))

    @net_method
    def hybrid_forward(self, F: Any, x: Any, *args: Any, **params: Any) -> Any:
        """Return the converted net applied to symbols, for a net that this one is part of.

        Arrays come here where a method of the net's own hands them over (``DropoutCell.unroll``), or
        where another thread had the net run operator by operator, as it was written.

        Within another net's trace on a CPU context the graph for CPU is given, so that the outer
        net runs there; convert the outermost net to export it.
        """
        if F is mx.nd:
            return gluon.HybridBlock.forward(self.net, x, *args)
        inside = self._inside_another()
        if inside:
            self._require_kernels([mx.context.current_context()])
        converted, inputs, out_format = self._for_symbols((x, *args))
        symbol = converted.on_cpu() if inside and modes.on_cpu() else converted.symbol
        symbol._compose(**{var.name: given for var, given in zip(inputs, trace.split_inputs((x, *args)))})
        return gluon.block._regroup(list(symbol), out_format)

    @net_method
    def forward(self, x: Any, *args: Any) -> Any:
        """Run a SymbolBlock, whose own ``forward`` takes symbols past ``hybrid_forward``."""
        if isinstance(x, mx.sym.Symbol):
            return self.hybrid_forward(mx.sym, x, *args)
        return self._original("forward", x, *args)

    @net_method
    def summary(self, *inputs: Any) -> None:
        """Print the summary of the float32 net, which needs every block to run by itself."""
        with suspended([self]), storage.in_float32(self.stored):
            self.net._active = self.active
            try:
                self._original("summary", *inputs)
            finally:
                self.net._active = True

    # ------------------------------------------------------------------ parts

    def report(self) -> Report:
        """Return what was decided last."""
        converted = self.current.converted if self.current else self.early
        if converted is None:
            raise ConvertError(f"block '{self.net.name}' has to see one batch before its report is known.")
        return converted.report

    def _require_kernels(self, contexts: Iterable[mx.Context]) -> None:
        require_kernels(self.policy, contexts, f"block '{self.net.name}'")

    def _inside_another(self) -> bool:
        """Return whether another net is being traced around this one."""
        if self.source is not None:  # a SymbolBlock enters no scope of its own
            return getattr(gluon.block._BlockScope._current, "value", None) is not None
        return self.net._scope._old_scope is not None


def join(conversions: Sequence[Conversion]) -> None:
    """Let the conversions of one net with several graphs know each other, since they may share parameters."""
    siblings = Siblings()
    for conversion in conversions:
        siblings.add(conversion)
