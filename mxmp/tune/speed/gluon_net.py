"""A Gluon net as a workload: each plan is run by copies of its graphs, so that the net itself stays as it is."""

from __future__ import annotations

import inspect
import warnings
from contextlib import ExitStack
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

from ... import dtypes
from ...arrays import to_float32
from ...diagnose.subject import require_same_names
from ...errors import TuneError
from ...gluon.api import convert
from ...gluon.blocks import conversion_of, roots
from ...gluon.cache import as_input
from ...gluon.conversion import Conversion
from ...gluon.trace import flat_arguments
from ...mxnet_private import blocks, parameters
from ...policy import Policy, only_matching
from ...report import Decisions
from .problem import unwarned
from .stopwatch import Run

_DEFAULTS = {"static_alloc": False, "static_shape": False, "inline_limit": 2}
"""Of ``HybridBlock.hybridize`` (python/mxnet/gluon/block.py); None is that of all others."""

Forward = Callable[[gluon.Block, Any], Any]
"""Calls a net with a batch."""


class _Graph(NamedTuple):
    """One graph of a net, with the arrays that it was called with."""

    net: gluon.HybridBlock
    arrays: Sequence[mx.nd.NDArray]
    symbol: Any
    inputs: Sequence[Any]
    params: Dict[str, gluon.Parameter]
    nodes: Sequence[Tuple[str, str]]  # operator and name of each


class GluonWorkload:
    """A Gluon net and a batch.

    Args:
        net: An initialized net, converted or not. It is called once, for inference.
        batch: What ``forward`` is given.
        training: Whether forward and backward are run, or forward alone.
        forward: How the net is called; `call_with` by default.
    """

    def __init__(
        self, net: gluon.Block, batch: Any, training: bool, forward: Optional[Forward] = None
    ) -> None:
        self.training = training
        calls = _calls_of_roots(net, batch, call_with if forward is None else forward)
        with _mode(training):
            self._graphs = [_traced(root, args) for root, args in calls]
        arrays = [array for graph in self._graphs for array in graph.arrays]
        self.shapes = {name: array.shape for name, array in _inputs(self._graphs).items()}
        self.dtypes = {name: dtypes.canonical(array.dtype) for name, array in _inputs(self._graphs).items()}
        self.options = _options(self._graphs)
        self.symbols = tuple(graph.symbol for graph in self._graphs)
        self.on_cpu = any(array.ctx.device_type != "gpu" for array in arrays)

    def decide(self, policy: Policy) -> List[Decisions]:
        """Return what the conversion of each graph decides for the batch's shapes."""
        found = []
        for graph in self._graphs:
            block = self._copy(graph, policy)
            with _mode(self.training):
                found.append(conversion_of(block).graph_for(*graph.arrays).converted.decisions)
        return found

    def build(self, policy: Policy) -> Run:
        """Build copies of the graphs under a policy, hybridized as the net is."""
        copies = [(self._copy(graph, policy), graph.arrays) for graph in self._graphs]

        def run() -> None:
            for block, arrays in copies:
                with autograd.record() if self.training else autograd.predict_mode():
                    outputs, _ = blocks.flatten(block(*arrays), "output")
                if self.training:
                    autograd.backward(outputs)

        return run

    def _copy(self, graph: _Graph, policy: Policy) -> gluon.SymbolBlock:
        """Return a block of its own with a graph and copies of its parameters, converted."""
        values = {name: to_float32(parameters.reduced(own)) for name, own in graph.params.items()}
        params = gluon.ParameterDict()
        for name, own in graph.params.items():
            if dtypes.canonical(values[name].dtype) == dtypes.FLOAT32:  # of others the block guesses dtypes
                _add_like(params, name, own, values[name])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # MXNet infers dtypes here, and is told none of the inputs
            block = gluon.SymbolBlock(graph.symbol, list(graph.inputs), params)
        for name, value in values.items():
            copied = block.params[name]
            copied.cast(value.dtype)
            copied.shape, copied.grad_req = value.shape, graph.params[name].grad_req
            parameters.load_value(copied, value, [graph.arrays[0].ctx])
        block.hybridize(**dict(blocks.flags(graph.net)))
        blocks.backend.set(block, blocks.backend(graph.net))
        with unwarned():
            return convert(block, only_matching(policy, graph.nodes))


def call_with(net: gluon.Block, batch: Any) -> Any:
    """Call a net with a batch: an array, or arrays of which the net takes the first, as many as it has inputs."""
    if isinstance(batch, mx.nd.NDArray):
        batch = [batch]
    if not isinstance(batch, (list, tuple)) or not batch:
        found = "an empty one" if isinstance(batch, (list, tuple)) else f"a {type(batch).__name__}"
        raise TuneError(f"batches: expected an NDArray or a list of them as a batch, found {found}; or give forward=.")
    least, most = _input_counts(net)
    if most is not None and least < len(batch) and least < most:
        raise TuneError(
            f"batches: the net takes {least} to {most} arrays, and a batch has {len(batch)}; say with forward= which "
            f"it gets: forward=lambda net, batch: net(batch[0])."
        )
    inputs = batch[:most]
    if any(isinstance(each, np.ndarray) for each in inputs):
        raise TuneError(
            "batches: expected NDArrays as inputs of the net, found an array of numpy; give mx.nd.array(...)."
        )
    if any(isinstance(each, mx.nd.NDArray) and not each.size for each in inputs):
        raise TuneError("batches: an input of the first batch has nothing in it; give batches of the real size.")
    return net(*inputs)


def _input_counts(net: gluon.Block) -> Tuple[int, Optional[int]]:
    """Return how many inputs a net needs, and how many it takes, None if as many as it is given."""
    if isinstance(net, gluon.SymbolBlock):
        count = len(blocks.cached_graph(net)[0])
        return count, count
    if isinstance(net, (gluon.nn.Sequential, gluon.nn.HybridSequential)):
        return 1, 1
    hybrid = isinstance(net, gluon.HybridBlock) and type(net).forward is gluon.HybridBlock.forward
    function = type(net).hybrid_forward if hybrid else type(net).forward
    own = blocks.registered_params(net) if hybrid else {}
    found = list(inspect.signature(function).parameters.values())[2 if hybrid else 1 :]
    if any(each.kind is each.VAR_POSITIONAL for each in found):
        return 0, None
    named = [each for each in found if each.kind is each.POSITIONAL_OR_KEYWORD and each.name not in own]
    return sum(each.default is each.empty for each in named), len(named)


def _calls_of_roots(net: gluon.Block, batch: Any, forward: Forward) -> List[Tuple[gluon.HybridBlock, Tuple[Any, ...]]]:
    """Call a net, and return those of its blocks that have a graph, with what each was called with first."""
    calls: Dict[int, Tuple[Any, ...]] = {}
    found = roots(net)

    def note(block: gluon.Block, args: Tuple[Any, ...]) -> None:
        calls.setdefault(id(block), args)

    with ExitStack() as stack:
        for root in found:
            stack.callback(root.register_forward_pre_hook(note).detach)
        with autograd.pause(train_mode=False):
            forward(net, batch)
    missing = [root.name for root in found if id(root) not in calls]
    if len(missing) == len(found):
        raise TuneError(f"batches: calling the net with a batch did not call {', '.join(missing)}; give forward=.")
    return [(root, calls[id(root)]) for root in found if id(root) in calls]


def _traced(root: gluon.HybridBlock, args: Tuple[Any, ...]) -> _Graph:
    """Return the float32 graph of a block for a call."""
    args = tuple(map(as_input, args))
    with blocks.graph_kept(root):
        traced = (conversion_of(root) or Conversion(root, Policy())).trace_for(args)
        again = Conversion(root, Policy()).trace_for(args)
    require_same_names(root, again, traced)
    nodes = [(node.op, node.name) for node in traced.graph.operators()]
    return _Graph(root, flat_arguments(args).arrays, traced.symbol, traced.inputs, traced.params, nodes)


def _add_like(params: gluon.ParameterDict, name: str, own: gluon.Parameter, value: mx.nd.NDArray) -> None:
    """Add a parameter like one of a net's; constants stay constants, which are never stored in low precision."""
    if isinstance(own, gluon.Constant):
        params.get_constant(name, value)
    else:
        params.get(name, shape=own.shape, grad_req=own.grad_req, grad_stype=parameters.grad_storage_type(own))


def _inputs(graphs: Sequence[_Graph]) -> Dict[str, mx.nd.NDArray]:
    """Return all inputs by name; of several graphs with the names of their blocks."""
    return {
        _named(graph, name.name, graphs): array
        for graph in graphs
        for name, array in zip(graph.inputs, graph.arrays)
    }


def _options(graphs: Sequence[_Graph]) -> Dict[str, str]:
    """Return what ``hybridize`` was given beyond its defaults, by name as inputs are."""
    found = {}
    for graph in graphs:
        for name, value in [*dict(blocks.flags(graph.net)).items(), ("backend", blocks.backend(graph.net))]:
            if value != _DEFAULTS.get(name):
                found[_named(graph, name, graphs)] = str(value)
    return found


def _named(graph: _Graph, name: str, graphs: Sequence[_Graph]) -> str:
    return name if len(graphs) == 1 else f"{graph.net.name} {name}"


def _mode(training: bool) -> Any:
    return autograd.train_mode() if training else autograd.predict_mode()
