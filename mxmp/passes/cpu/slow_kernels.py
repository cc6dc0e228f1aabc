"""Runs operators in float32 on a CPU, between two casts, if bfloat16 takes longer.

That is so of some kernels, and of layers with few rows for a large weight that is cast from float32 at each step. A
layer's backward pass has two products as large as that of its forward pass, and casts the gradient of the weight.
`kernels.WEIGHTS` has the rates of each kind of processor. On an EPYC a weight earns its casts from 29 rows on, with AMX
from 41 rows on. With AMX a weight of four million elements earns them from 136 rows on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Dict, Set, Union

from ... import dtypes
from ...graph import Entry, Graph, GraphBuilder, Key, Node
from ...rules.conditions import VECTOR, value_of
from ...rules.core import Call
from ..base import Pass, insert_next_to, rule_of, sweep
from .kernels import WEIGHTS
from .layouts import BATCH_NORM, DEFAULT, OWN, Layouts

_FUSED = frozenset({BATCH_NORM, "clip", "abs"})
"""Operators of these that MXNet's subgraph backend may make a part of the layer before them."""

_BY_ELEMENT = frozenset(
    "relu _npx_relu clip abs negative _npi_absolute _npi_negative _maximum _minimum _maximum_scalar _minimum_scalar "
    "where max min _np_max _np_min "
    "floor ceil round rint fix trunc sign _npi_floor _npi_ceil _npi_rint _npi_fix _npi_trunc _npi_sign "
    "_equal _not_equal _greater _greater_equal _lesser _lesser_equal "
    "_equal_scalar _not_equal_scalar _greater_scalar _greater_equal_scalar _lesser_scalar _lesser_equal_scalar".split()
)
"""Operators of MXNet's own that select or compare values, so that float32 gives the same if scalars are bfloat16's."""

_DENSE = frozenset({"FullyConnected", "Convolution"})
"""Operators whose weight is their second input, with its output units on the first axis."""

_CAST = 1.2e-9  # seconds for an element of data that is cast, and for its gradient: 12 bytes of 10 GB a second
_LARGE = 2**16  # elements, whose casts take longer than calling operators


@dataclass(frozen=True)
class WidenSlowKernels(Pass):
    """Runs operators in float32 that take longer from bfloat16 to bfloat16 than in float32 with two casts.

    MXNet's own kernels convert element by element, and no compiler has made vectors of that. Examples are relu
    (``F.relu``), clip (MobileNetV2's relu6), maximum and where. They take 3 to 11 times as long to train as with the
    casts. BatchNorm of two dimensions or of another axis takes 3 to 7 times as long. The kernel of oneDNN for BatchNorm
    of data outside blocks of 16 channels (ncsp_bnorm) takes 1.7 to 2.5 times as long to train, and 1.3 to 1.5 times to
    infer. These are figures of an AMD EPYC with AVX512-BF16, two threads.

    Values do not change, except through the order in which another kernel of BatchNorm sums. So an operator with a
    scalar that bfloat16 does not have stays, because the bfloat16 kernel would truncate the scalar. Outputs of the
    network stay too, and BatchNorms within bodies of control flow, where layouts are not known. The values that an
    operator in float32 keeps for its backward pass take twice the memory.

    A layer whose weight costs more to cast than the layer gains reads its inputs in float32. Its values are more exact
    than in bfloat16.

    Attributes:
        layouts: Those of the graph.
        fused: Whether MXNet's subgraph backend partitions the graph. Operators that it may fuse stay then.
        trains: Whether the graph trains.
    """

    layouts: Layouts = field(default_factory=Layouts)
    fused: bool = False
    trains: bool = False

    def run(self, graph: Graph) -> Graph:
        """Return the graph with casts around slow operators."""
        dense = self._find_dense(graph)
        slow = self._find(graph) | dense
        if not slow and not any(node.subgraphs for node in graph.nodes):
            return graph
        in_float32: Dict[Key, Entry] = {}  # what has the values of bfloat16 entries in float32

        def visit(builder: GraphBuilder, position: int, node: Node) -> Union[Node, Entry]:
            if position not in slow:
                return node
            inputs = list(node.inputs)
            for port, entry in enumerate(graph.nodes[position].inputs):
                exact = self.layouts.source(graph, entry) if position in dense else None
                if exact is not None:
                    inputs[port] = builder.mapped(exact)
                elif self.layouts.is_low(graph, entry):
                    if entry.key not in in_float32:
                        in_float32[entry.key] = _cast(builder, node, dtypes.FLOAT32, inputs[port])
                    inputs[port] = in_float32[entry.key]
            new = Entry(builder.copy(position, node.rewired(tuple(inputs))))
            if node.op in _BY_ELEMENT:
                in_float32[position, 0] = new
            return _cast(builder, node, dtypes.BFLOAT16, new)

        return sweep(graph, visit, body=self.run)

    def _find(self, graph: Graph) -> Set[int]:
        """Return the bfloat16 operators that are slow and are no outputs of the network."""
        outputs, stay = self.layouts.outputs(graph), {head.node for head in graph.heads}
        if self.fused:
            stay |= {position for position, node in enumerate(graph.nodes) if node.op in _FUSED}
        low = (i for i, _ in enumerate(graph.nodes) if i not in stay and self.layouts.is_low(graph, Entry(i)))
        return {i for i in low if _is_by_element(graph.nodes[i]) or self._is_slow_batch_norm(graph, i, outputs)}

    def _find_dense(self, graph: Graph) -> Set[int]:
        """Return the layers whose weight costs more to cast than it gains; layers that share a cast go together."""
        slow: Set[int] = set()
        readers, stay = graph.consumers(), {head.node for head in graph.heads}
        for cast in range(len(graph.nodes) if self.trains else 0):
            shape = self.layouts.shape(graph, Entry(cast)) if self.layouts.source(graph, Entry(cast)) else None
            if shape is None or len(shape) not in (2, 4):  # weights of other axes cannot be set once oneDNN moves them
                continue
            ports = readers.get((cast, 0), [])
            if any(port != 1 or graph.nodes[i].op not in _DENSE or i in stay for i, port in ports):
                continue
            layers = [layer for layer, _ in ports]
            outputs = [self._elements(graph, Entry(layer)) for layer in layers]
            inputs = [self._elements(graph, graph.nodes[layer].inputs[0]) for layer in layers]
            if math.prod(shape) < _LARGE or not all(outputs):
                continue
            rates, weight, rows = WEIGHTS[self.layouts.kind], math.prod(shape), sum(outputs) / shape[0]
            fewest = 0 if len(shape) == 2 else rates.pointwise if math.prod(shape[2:]) == 1 else rates.windows
            loses = weight * (rates.cast(weight) - rows * rates.gain) > _CAST * sum(outputs + inputs)
            if rows < fewest or not fewest and loses:
                slow.update(layers)
        return slow

    def _elements(self, graph: Graph, entry: Entry) -> int:
        """Return the number of elements of a bfloat16 entry, 0 where it is not known."""
        return math.prod(self.layouts.shape(graph, entry) or (0,))

    def _is_slow_batch_norm(self, graph: Graph, position: int, outputs: Dict[Key, str]) -> bool:
        """Return whether a node is a BatchNorm for whose data oneDNN has no fast kernel."""
        node = graph.nodes[position]
        shape = self.layouts.shape(graph, node.inputs[0]) if node.op == BATCH_NORM else None
        if shape is None:
            return False
        axis = value_of(dict(node.attrs), "axis")
        if len(shape) == 2 or (1 if axis is None else axis) % len(shape) != 1 or shape[1] % VECTOR:
            return True
        return len(shape) == 4 and outputs.get(node.inputs[0].key, DEFAULT) in (DEFAULT, OWN)


def _is_by_element(node: Node) -> bool:
    """Return whether an operator gives the same values in float32 as in bfloat16, where it is slow."""
    if node.op not in _BY_ELEMENT:
        return False
    rule = rule_of(node)
    if rule is None or not rule.preserves_grid:
        return False
    return rule.forbids(Call(dict(node.attrs), (), dtypes.BFLOAT16)) is None


def _cast(builder: GraphBuilder, node: Node, dtype: str, entry: Entry) -> Entry:
    return insert_next_to(builder, node, "amp_cast", f"wide_{dtype}", entry, dtype=dtype)
