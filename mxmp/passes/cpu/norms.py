"""BatchNorm and relu in front of convolutions, as one depthwise convolution, in networks that only infer.

A BatchNorm behind a Concat or a pooling, as in DenseNet, cannot be folded into a layer before it. For inference it is
s x + b for each channel, and relu(s x + b) = |s| relu(sign(s) x + b / |s|). The signs and b / |s| are the weight and
bias of a depthwise convolution of one pixel, into which MXNet fuses the relu. The |s| go into the weights of the
convolutions behind, in float32 and before these are rounded. So a bfloat16 network rounds nothing but b / |s|.

`kernels.NORMS` has the kinds of processor on which the convolution is faster.
"""

from __future__ import annotations

from typing import Dict, FrozenSet, List, NamedTuple, Optional, Tuple

from ... import dtypes
from ...graph import Entry, Graph, GraphBuilder, Node
from ...graph.core import VARIABLE, make_attrs
from ...processors import Kind
from ...rules.conditions import flag_of, sizes_of, value_of
from ..attributes import device_attrs
from ..base import rewritten
from ..facts import Facts
from .kernels import NORMS


class Norm(NamedTuple):
    """One BatchNorm that becomes a depthwise convolution.

    Attributes:
        position: Its position.
        name: Its name, of which the names of the new parameters are made.
        gamma: Name of its factor, None if that is fixed to 1.
        beta: Name of its shift.
        mean: Name of its running mean.
        var: Name of its running variance.
        eps: Added to the variance.
        weights: Names of the weights of the convolutions behind.
    """

    position: int
    name: str
    gamma: Optional[str]
    beta: str
    mean: str
    var: str
    eps: float
    weights: Tuple[str, ...]

    @property
    def sign(self) -> str:
        """The name of the weight of the depthwise convolution, of shape (C, 1, 1, 1)."""
        return f"{self.name}_sign"

    @property
    def shift(self) -> str:
        """The name of its bias, of shape (C,)."""
        return f"{self.name}_shift"


def low_norms(graph: Graph, facts: Facts) -> FrozenSet[str]:
    """Return the names of the BatchNorms of a converted graph that read and give bfloat16."""
    norms = ((i, node) for i, node in enumerate(graph.nodes) if node.op == "BatchNorm")
    return frozenset(
        node.name
        for i, node in norms
        if {facts.dtype(entry) for entry in (Entry(i), node.inputs[0])} == {dtypes.BFLOAT16}
    )


def find_norms(graph: Graph, params: FrozenSet[str], kind: Kind) -> Tuple[Norm, ...]:
    """Return the BatchNorms of a float32 graph that are faster as depthwise convolutions on a kind of processor.

    ``params`` are the names of parameters and auxiliary states.
    """
    if kind not in NORMS:
        return ()
    readers, heads = graph.consumers(), {head.node for head in graph.heads}

    def only_reader(position: int) -> Optional[int]:
        found = {reader for reader, _ in readers.get((position, 0), ())}
        return found.pop() if len(found) == 1 and position not in heads else None

    def weight_of(position: int) -> Optional[str]:
        node = graph.nodes[position]
        kernel = sizes_of(dict(node.attrs), "kernel")
        is_plain = node.op == "Convolution" and int(node.get("num_group") or 1) == 1 and len(kernel) == 2
        if not is_plain or node.get("layout") not in (None, "None", "NCHW"):
            return None
        weight = graph.nodes[node.inputs[1].node]
        alone = len(readers[node.inputs[1].key]) == 1 and node.inputs[1].node not in heads
        return weight.name if alone and weight.name in params else None

    found: List[Norm] = []
    for position, node in enumerate(graph.nodes):
        relu = only_reader(position) if node.op == "BatchNorm" and len(node.inputs) == 5 else None
        if relu is None or graph.nodes[relu].get("act_type") != "relu" or relu in heads:
            continue
        attrs, behind = dict(node.attrs), readers.get((relu, 0), [])
        weights = [weight_of(reader) if port == 0 else None for reader, port in behind]
        names = [graph.nodes[entry.node].name for entry in node.inputs[1:]]
        others = any(readers.get((position, index)) for index in range(1, node.num_outputs))
        is_along_channels = value_of(attrs, "axis") in (None, 1)
        if others or not weights or None in weights or not set(names) <= params or not is_along_channels:
            continue
        gamma, beta, mean, var = names
        is_fixed, eps = flag_of(attrs, "fix_gamma", True), value_of(attrs, "eps")
        found.append(
            Norm(position, node.name, None if is_fixed else gamma, beta, mean, var, 1e-3 if eps is None else float(eps),
                 tuple(filter(None, weights)))
        )  # fmt: skip
    return tuple(found)


def write_norms(graph: Graph, norms: Tuple[Norm, ...], channels: Dict[str, int]) -> Graph:
    """Return the graph with depthwise convolutions in place of BatchNorms, whose ``channels`` are given by name."""
    at = {norm.position: norm for norm in norms}

    def visit(builder: GraphBuilder, position: int, node: Node) -> Node:
        if position not in at:
            return node
        norm, count = at[position], str(channels[node.name])
        params = [Entry(builder.add(Node(VARIABLE, name))) for name in (norm.sign, norm.shift)]
        attrs = {"kernel": "(1, 1)", "num_filter": count, "num_group": count, "no_bias": "False", **device_attrs(node)}
        return Node("Convolution", node.name, make_attrs(attrs), (node.inputs[0], *params))

    return rewritten(graph, visit)
