"""Rewrites networks that only infer: one convolution replaces several, or replaces BatchNorm and relu.

`merge_windows`: convolutions of 1 x 1 and 3 x 3 that read one tensor and are concatenated become one of 3 x 3. The
1 x 1 kernel is in the middle of the window, with zeros around it. All bits are the same for finite data. A value that
is not finite spreads to its neighbours, because 0 * inf is NaN.

`find_norms`, `write_norms`: BatchNorm and relu in front of convolutions become one depthwise convolution. A BatchNorm
behind a Concat or a pooling, as in DenseNet, cannot be folded into a layer before it. For inference it is s x + b for
each channel, and relu(s x + b) = |s| relu(sign(s) x + b / |s|). The signs and b / |s| are the weight and bias of a
depthwise convolution of one pixel, into which MXNet fuses the relu. The |s| go into the weights of the convolutions
behind, in float32 and before these are rounded. So a bfloat16 network rounds nothing but b / |s|.

`kernels.WINDOWS` and `kernels.NORMS` have the kinds of processor on which these convolutions are faster.
"""

from __future__ import annotations

from typing import Dict, FrozenSet, List, NamedTuple, Optional, Tuple, Union

from ... import dtypes
from ...graph import Entry, Graph, GraphBuilder, Node, in_written_order
from ...graph.core import VARIABLE
from ...processors import Kind
from ...rules.conditions import sizes_of, value_of
from ..base import replacement, sweep
from ..facts import Facts
from ..fold import Statistics, statistics_of
from .fit import params_of
from .kernels import NORMS, WINDOWS


class Merged(NamedTuple):
    """A parameter that is the concatenation of those of several convolutions on the first axis.

    Attributes:
        name: Its name, that of the convolution of 3 x 3.
        sources: The names of the parameters, in the order of the Concat.
    """

    name: str
    sources: Tuple[str, ...]


def merge_windows(graph: Graph, facts: Facts, kind: Kind) -> Tuple[Graph, Tuple[Merged, ...]]:
    """Return the graph with merged convolutions, and how their parameters are made.

    The convolutions are in bfloat16. A kind of processor without a row in `kernels.WINDOWS` has the same graph.
    """
    share = WINDOWS.get(kind)
    if share is None or any(node.subgraphs for node in graph.nodes):
        return graph, ()
    readers, heads = graph.consumers(), {head.node for head in graph.heads}
    merged: List[Merged] = []
    filters: Dict[int, str] = {}  # of the convolutions that are kept
    kept: Dict[int, int] = {}  # what stands in the place of a Concat

    def is_read_once(position: int) -> bool:
        return len(readers.get((position, 0), ())) == 1 and position not in heads

    def layer_of(entry: Entry) -> Optional[Tuple[bool, int]]:
        """Return whether an entry is a relu, and the convolution that it comes from, if nothing else reads either."""
        position, node = entry.node, graph.nodes[entry.node]
        has_relu = node.op == "Activation" and node.get("act_type") == "relu" and is_read_once(position)
        position = node.inputs[0].node if has_relu else position
        is_low = facts.dtype(Entry(position)) == dtypes.BFLOAT16
        is_layer = graph.nodes[position].op == "Convolution" and is_low and is_read_once(position)
        return (has_relu, position) if is_layer else None

    for concat, node in enumerate(graph.nodes):
        if node.op != "Concat" or value_of(dict(node.attrs), "dim") not in (None, 1) or concat in heads:
            continue
        layers = [layer_of(entry) for entry in node.inputs]
        fused_layers = [layer for layer in layers if layer is not None]
        positions = [position for _, position in fused_layers]
        is_alike = len(fused_layers) == len(layers) and len({has_relu for has_relu, _ in fused_layers}) == 1
        if not is_alike or not _is_same(graph, positions, share):
            continue
        windows = [number for number, each in enumerate(positions) if _window(graph.nodes[each])[0] == (3, 3)]
        params = [params_of(graph, readers, heads, graph.nodes[each]) for each in positions]
        if not windows or any(names is None or len(names) != 2 for names in params):
            continue
        number, names = windows[-1], [each or [] for each in params]
        merged += [Merged(names[number][port], tuple(each[port] for each in names)) for port in (0, 1)]
        filters[positions[number]] = str(sum(int(graph.nodes[each].get("num_filter") or 0) for each in positions))
        kept[concat] = number
    if not kept:
        return graph, ()
    changed = {each.name for each in merged}

    def visit(builder: GraphBuilder, position: int, node: Node) -> Union[Node, Entry]:
        if position in kept:
            return node.inputs[kept[position]]
        if node.is_variable and node.name in changed:
            return node.with_attrs({"__shape__": None})
        return node.with_attrs({"num_filter": filters[position]}) if position in filters else node

    return in_written_order(sweep(graph, visit)), tuple(merged)


def _is_same(graph: Graph, positions: List[int], share: float) -> bool:
    """Return whether convolutions read one tensor, and give images of its size, by kernels of 1 x 1 and 3 x 3."""
    nodes = [graph.nodes[position] for position in positions]
    windows = [_window(node) for node in nodes]
    is_plain = all(
        int(node.get("num_group") or 1) == 1 and node.get("layout") in (None, "None", "NCHW") for node in nodes
    )
    fits = all(window in (((1, 1), (0, 0)), ((3, 3), (1, 1))) for window in windows)
    filters = [int(node.get("num_filter") or 0) for node in nodes]
    small = sum(count for count, (kernel, _) in zip(filters, windows) if kernel == (1, 1))
    fits = fits and small <= share * sum(filters)
    steps = {tuple(sizes_of(dict(node.attrs), key) or (1, 1) for key in ("stride", "dilate")) for node in nodes}
    shared = len(set(positions)) == len(positions) > 1 and len({node.inputs[0] for node in nodes}) == 1
    return is_plain and fits and shared and len(steps) == 1 and all(dilate == (1, 1) for _, dilate in steps)


def _window(node: Node) -> Tuple[Tuple[int, ...], Tuple[int, ...]]:
    """Return the kernel and the padding of a convolution."""
    attrs = dict(node.attrs)
    kernel = sizes_of(attrs, "kernel")
    return kernel, sizes_of(attrs, "pad") or (0,) * len(kernel)


class Norm(NamedTuple):
    """One BatchNorm that becomes a depthwise convolution.

    Attributes:
        position: Its position.
        name: Its name, of which the names of the new parameters are made.
        statistics: Its parameters.
        weights: Names of the weights of the convolutions behind.
    """

    position: int
    name: str
    statistics: Statistics
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
    """Return the names of the BatchNorms of a converted graph whose input and output are bfloat16."""
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
        nodes = {reader for reader, _ in readers.get((position, 0), ())}
        return nodes.pop() if len(nodes) == 1 and position not in heads else None

    def weight_of(position: int) -> Optional[str]:
        node = graph.nodes[position]
        kernel = sizes_of(dict(node.attrs), "kernel")
        is_plain = node.op == "Convolution" and int(node.get("num_group") or 1) == 1 and len(kernel) == 2
        if not is_plain or node.get("layout") not in (None, "None", "NCHW"):
            return None
        weight = graph.nodes[node.inputs[1].node]
        alone = len(readers[node.inputs[1].key]) == 1 and node.inputs[1].node not in heads
        return weight.name if alone and weight.name in params else None

    norms: List[Norm] = []
    for position, node in enumerate(graph.nodes):
        relu = only_reader(position) if node.op == "BatchNorm" else None
        if relu is None or graph.nodes[relu].get("act_type") != "relu" or relu in heads:
            continue
        statistics, behind = statistics_of(graph, node, params), readers.get((relu, 0), [])
        weights = [weight_of(reader) if port == 0 else None for reader, port in behind]
        others = any(readers.get((position, index)) for index in range(1, node.num_outputs))
        is_along_channels = value_of(dict(node.attrs), "axis") in (None, 1)
        if statistics is not None and weights and None not in weights and not others and is_along_channels:
            norms.append(Norm(position, node.name, statistics, tuple(filter(None, weights))))
    return tuple(norms)


def write_norms(graph: Graph, norms: Tuple[Norm, ...], channels: Dict[str, int]) -> Graph:
    """Return the graph with depthwise convolutions in place of BatchNorms, whose ``channels`` are given by name."""
    at = {norm.position: norm for norm in norms}

    def visit(builder: GraphBuilder, position: int, node: Node) -> Node:
        if position not in at:
            return node
        norm, count = at[position], str(channels[node.name])
        params = [Entry(builder.add(Node(VARIABLE, name))) for name in (norm.sign, norm.shift)]
        attrs = {"kernel": "(1, 1)", "num_filter": count, "num_group": count, "no_bias": "False"}
        return replacement(node, "Convolution", node.inputs[0], *params, **attrs)

    return sweep(graph, visit)
