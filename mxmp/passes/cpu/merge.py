"""Convolutions of 1 x 1 and 3 x 3 that read one tensor and are concatenated, as one of 3 x 3, where a network infers.

The 1 x 1 kernel stands in the middle of the window, with zeros around it. `kernels.WINDOWS` has the kinds of processor
on which the one convolution is faster than the two and the Concat. All bits are the same for finite data. A value that
is not finite spreads to its neighbours, because 0 * inf is NaN.
"""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Optional, Tuple, Union

from ... import dtypes
from ...graph import Entry, Graph, GraphBuilder, Node, in_written_order
from ...processors import Kind
from ...rules.conditions import sizes_of, value_of
from ..base import rewritten
from ..facts import Facts
from .fit import params_of
from .kernels import WINDOWS, Windows


class Merged(NamedTuple):
    """A parameter that is made of those of several convolutions, one behind the other on the first axis.

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
    want = WINDOWS.get(kind)
    if want is None or any(node.subgraphs for node in graph.nodes):
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
        found = [layer for layer in layers if layer is not None]
        positions = [position for _, position in found]
        if len(found) < len(layers) or len({relu for relu, _ in found}) > 1 or not _is_same(graph, positions, want):
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

    return in_written_order(rewritten(graph, visit)), tuple(merged)


def _is_same(graph: Graph, positions: List[int], want: Windows) -> bool:
    """Return whether convolutions read one tensor, and give images of its size, by kernels of 1 x 1 and 3 x 3."""
    nodes = [graph.nodes[position] for position in positions]
    windows = [_window(node) for node in nodes]
    is_plain = all(
        int(node.get("num_group") or 1) == 1 and node.get("layout") in (None, "None", "NCHW") for node in nodes
    )
    fits = all(window in (((1, 1), (0, 0)), ((3, 3), (1, 1))) for window in windows)
    filters = [int(node.get("num_filter") or 0) for node in nodes]
    small = sum(count for count, (kernel, _) in zip(filters, windows) if kernel == (1, 1))
    fits = fits and small <= want.pointwise * sum(filters)
    steps = {tuple(sizes_of(dict(node.attrs), key) or (1, 1) for key in ("stride", "dilate")) for node in nodes}
    shared = len(set(positions)) == len(positions) > 1 and len({node.inputs[0] for node in nodes}) == 1
    return is_plain and fits and shared and len(steps) == 1 and all(dilate == (1, 1) for _, dilate in steps)


def _window(node: Node) -> Tuple[Tuple[int, ...], Tuple[int, ...]]:
    """Return the kernel and the padding of a convolution."""
    attrs = dict(node.attrs)
    kernel = sizes_of(attrs, "kernel")
    return kernel, sizes_of(attrs, "pad") or (0,) * len(kernel)
