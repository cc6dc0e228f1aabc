"""A Gluon net: the same net, converted for as long as it is run under a policy and put back after it."""

from __future__ import annotations

import contextlib
from typing import Any, Dict, FrozenSet, Iterable, Iterator, List, NamedTuple, Tuple

from mxnet import autograd, gluon

from ... import dtypes
from ...arrays import to_float32
from ...errors import ConvertError
from ...gluon.api import convert
from ...gluon.blocks import conversion_of, roots
from ...gluon.cache import as_input
from ...gluon.conversion import Conversion
from ...gluon.trace import flat_arguments
from ...mxnet_private import parameters
from ...policy import Policy
from ...report import Decisions
from ...symbol import convert_graph
from ..kept import kept
from .names import require_same_names
from .network import BATCHES, GraphBatches, Network


class _Call(NamedTuple):
    """A call of a block that has a graph, as ``evaluate`` made it, with copies of its inputs; perhaps recorded."""

    block: gluon.HybridBlock
    inputs: Tuple[Any, ...]
    recorded: bool


class _Graph(NamedTuple):
    """A graph of the net, for inputs of the shapes that it was first called with."""

    symbol: Any
    shapes: Dict[str, Tuple[int, ...]]
    types: Dict[str, str]
    storable: FrozenSet[str]
    inputs: FrozenSet[str]


class GluonNet(Network):
    """A Gluon net, with one graph for each HybridBlock outside of all others, and perhaps for each kind of call."""

    def __init__(self, net: gluon.Block, calls: int = BATCHES) -> None:
        super().__init__()
        self._net = net
        self._noted = calls  # of each block
        self._roots = roots(net)
        self._calls: List[_Call] = []
        self._graphs: List[_Graph] = []
        require_values(net)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Note the first calls of each block that has a graph."""
        handles = [root.register_forward_pre_hook(self._note) for root in self._roots]
        try:
            yield
        finally:
            for handle in handles:
                handle.detach()
        if not self._calls:
            raise ConvertError(
                f"evaluate did not call block '{self._net.name}' ({type(self._net).__name__}), so nothing is known of "
                f"what it runs; call the net that evaluate is given."
            )

    def _note(self, block: gluon.HybridBlock, inputs: Tuple[Any, ...]) -> None:
        if sum(call.block is block for call in self._calls) < self._noted:
            recorded = autograd.is_recording()
            with autograd.pause():
                self._calls.append(_Call(block, tuple(map(_copied, inputs)), recorded))

    @property
    def called(self) -> List[Tuple[gluon.HybridBlock, bool]]:
        """The blocks of the calls that were noted, and whether autograd recorded each."""
        return [(call.block, call.recorded) for call in self._calls]

    @contextlib.contextmanager
    def under(self, policy: Policy) -> Iterator[Any]:
        """Give the net itself, converted."""
        with kept(self._net):
            # As it was written it is in float32, whatever `set_policy` says of blocks in it, but for graphs with casts.
            if policy.is_mixed or any(isinstance(root, gluon.SymbolBlock) for root in self._roots):
                convert(self._net, policy)
            yield self._net

    def symbols(self) -> List[Any]:
        """Return the graphs of the calls that were noted, one for each."""
        with kept(self._net), autograd.pause(train_mode=False):
            conversions = {id(root): Conversion(root, Policy()) for root in self._roots}
            calls = [(conversions[id(call.block)], tuple(map(as_input, call.inputs))) for call in self._calls]
            return [conversion.trace_for(inputs).symbol for conversion, inputs in calls]

    def _decide(self, policy: Policy) -> List[Decisions]:
        """Return the decisions on the graphs of the calls that were noted."""
        self._graphs = self._graphs or list(self._read_graphs(policy))
        return [
            convert_graph(each.symbol, policy, each.shapes, each.types, each.storable, inputs=each.inputs).decisions
            for each in self._graphs
        ]

    def _read_graphs(self, policy: Policy) -> Iterator[_Graph]:
        for _, traced, call in self._first_runs(policy):
            shapes = traced.shapes(flat_arguments(call.inputs).arrays)
            storable = frozenset(n for n, param in traced.params.items() if not isinstance(param, gluon.Constant))
            yield _Graph(traced.symbol, shapes, traced.types, storable, traced.variables.difference(traced.params))

    def _first_runs(self, policy: Policy) -> Iterator[Tuple[Any, Any, _Call]]:
        """Yield what `_run` does for the first call of each graph."""
        found: List[Any] = []
        for converted, traced, call in self._run(policy):
            if not any(traced is each for each in found):
                found.append(traced)
                yield converted, traced, call

    def _run(self, policy: Policy) -> Iterator[Tuple[Any, Any, _Call]]:
        """Run the calls that were noted under a policy; yield, of each, what was converted, what was traced, and it."""
        with self.under(policy), autograd.pause(train_mode=False):
            for call in self._calls:
                call.block(*call.inputs)
                graph = conversion_of(call.block).current
                yield graph.converted, graph.trace, call

    def comparisons(self, policy: Policy) -> Iterable[GraphBatches]:
        """Return a comparison for each graph, on the calls that were noted."""
        found: List[GraphBatches] = []
        with kept(self._net):
            params = {param.name: parameters.reduced(param) for param in self._net.collect_params().values()}
        names = {node.name for each in self.decisions(policy) for node in each.before.operators()}
        for number, (converted, traced, call) in enumerate(self._run(policy)):
            require_same_names(self._net, names, converted.decisions.before)
            inputs = flat_arguments(tuple(map(as_input, call.inputs))).arrays
            given = {symbol.name: array for symbol, array in zip(traced.inputs, inputs)}
            read = converted.read_dtypes  # an imported net may store in low precision what it reads in float32
            wide = {n: to_float32(each) if read.get(n) == dtypes.FLOAT32 else each for n, each in params.items()}
            values = {**wide, **given}
            known = [each for each in found if each.decisions is converted.decisions]
            if not known:
                found.append(GraphBatches(converted.decisions, inputs[0].ctx, out_format=traced.formats[1]))
            (known or found[-1:])[0].batches.append(values)
            (known or found[-1:])[0].numbers.append(number)
        return found


def require_values(net: gluon.Block) -> None:
    """Raise a ConvertError unless all parameters of a net have values."""
    for param in net.collect_params().values():
        if not parameters.is_initialized(param):
            raise ConvertError(
                f"block '{net.name}': parameter '{param.name}' has no values; load or train the net first, or run "
                f"one batch if its shapes are not known yet."
            )


def _copied(value: Any) -> Any:
    """Return an input, or nested inputs, with copies of all arrays: a reader may fill them again."""
    if isinstance(value, (list, tuple)):
        items = [_copied(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value.copy() if hasattr(value, "copy") else value
