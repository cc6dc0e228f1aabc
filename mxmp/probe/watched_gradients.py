"""A graph that shows the gradient of each of its activations while backward runs, and keeps none of them."""

from __future__ import annotations

import ctypes
from typing import Any, Callable, Dict, List, Mapping, Tuple

import mxnet as mx
from mxnet.base import NDArrayHandle, py_str

from .. import dtypes
from ..arrays import is_low_precision
from ..graph import Entry, Graph, GraphBuilder
from ..mxnet_private import register_op_hook
from ..passes.facts import Facts
from ..symbol.inference import from_graph, infer_facts, to_graph
from .gradient_probes import is_unwritten, read_outputs
from .running import in_float32

# What MXNet calls the gradient of an identity when its backward has run (DynamicBackward in src/imperative/
# cached_op.cc and ExecuteMonOutputCallback in src/common/utils.h at tag 1.9.1).
_GRADIENT = "_backward_0"


class WatchedGradients:
    """An operator that runs a network's graph in float32, and hands over the gradients of activations one by one.

    Behind each float32 output that an operator reads stands an identity, whose backward gives that output's gradient;
    MXNet reports it as it does any operator's output, and then uses its memory again.

    Attributes:
        outputs: The names of the activations that are watched.
        inputs: The names of the variables, in the order that the operator takes them in.
    """

    def __init__(
        self,
        symbol: Any,
        types: Mapping[str, str],
        heads: bool,
        on_gradient: Callable[[str, mx.nd.NDArray], None],
    ) -> None:
        """Build the operator.

        Args:
            symbol: The network.
            types: Dtypes of its variables by name; float32 unless given.
            heads: Whether its outputs are watched too, because a loss outside of it reads them.
            on_gradient: Called with the name of an activation and its gradient.
        """
        graph = to_graph(in_float32(symbol))
        types = {name: dtypes.FLOAT32 if dtype in dtypes.LOW_PRECISION else dtype for name, dtype in types.items()}
        watched, names = _watch(graph, infer_facts(from_graph(graph, symbol), graph, {}, types, frozenset()), heads)
        self.outputs = tuple(names.values())
        self.errors: List[BaseException] = []  # raised in calls by MXNet, through which none passes
        self._names, self._on_gradient = names, on_gradient
        running = from_graph(watched, symbol)
        self.inputs: List[str] = running.list_inputs()
        # MXNet would run a graph of one or two operators (cached_op.h) as if it were none, and report nothing.
        self._run = mx.nd.CachedOp(running, [("inline_limit", 0)])
        register_op_hook(self._run, self._report)

    def __call__(self, values: Mapping[str, Any]) -> List[Any]:
        """Return the network's outputs, for a value of each variable."""
        outputs = self._run(*[_wide(values[name]) for name in self.inputs])
        return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]

    def raise_errors(self) -> None:
        """Raise what went wrong in a call of ``on_gradient``."""
        if self.errors:
            raise self.errors.pop(0)

    def _report(self, name: bytes, _: bytes, handle: Any) -> None:
        array = mx.nd.NDArray(ctypes.cast(handle, NDArrayHandle), writable=False)  # which frees the handle
        output = self._names.get(py_str(name))
        if output is None:
            return
        try:
            self._on_gradient(output, array)
        except BaseException as e:
            self.errors.append(e)


def _wide(array: Any) -> Any:
    """Return an array in float32 if it has low precision; its gradient passes."""
    return mx.nd.amp_cast(array, dtype=dtypes.FLOAT32) if is_low_precision(array) else array


def _watch(graph: Graph, facts: Facts, heads: bool) -> Tuple[Graph, Dict[str, str]]:
    """Return a graph with identities, and the outputs that they stand behind by what MXNet calls their gradients."""
    readers, builder = graph.consumers(), GraphBuilder(graph)
    ends = {entry.key for entry in graph.heads} if heads else set()
    found: Dict[str, str] = {}
    for position, node in enumerate(graph.nodes):
        inputs = builder.inputs(node)
        if is_unwritten(node):
            inputs = tuple(builder.insert("BlockGrad", f"{node.name}_blocked", entry) for entry in inputs)
        new = builder.copy(position, node.rewired(inputs))
        for index in read_outputs(position, node, {**readers, **dict.fromkeys(ends)}):
            entry = Entry(position, index)
            if facts.dtype(entry) != dtypes.FLOAT32:
                continue
            copied = builder.insert("_copy", f"{node.name}_watched{index}", Entry(new, index))
            builder.redirect(entry, copied)
            found[builder.nodes[copied.node].name + _GRADIENT] = facts.output_names[position, index]
    return builder.finish(map(builder.mapped, graph.heads)), found
