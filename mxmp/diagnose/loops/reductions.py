"""How a loss was made of a batch: as its mean, its sum, or one for each example; read from what autograd recorded."""

from __future__ import annotations

import re
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from ...graph import Node
from ...train.recorded import recorded_nodes

MEAN, SUM, EACH = "mean", "sum", "each"

_REDUCTIONS = {"mean": MEAN, "_npi_mean": MEAN, "sum": SUM, "_np_sum": SUM}
_MOVED = {"Reshape", "reshape_like", "transpose", "SwapAxis", "expand_dims", "Flatten", "squeeze", "_np_reshape"}
_MOVED |= {"_npi_squeeze", "_npi_swapaxes", "_npx_reshape", "_np_transpose", "_np_squeeze"}
_SAME = {"_copy", "_np_copy", "_npi_copy", "Cast", "amp_cast", "_npi_cast", "negative", "_npi_negative", "_copyto"}
_SAME |= {"_plus_scalar", "_minus_scalar", "_rminus_scalar"}
_SAME |= {"_npi_add_scalar", "_npi_subtract_scalar", "_npi_rsubtract_scalar"}
_TIMES = {"_mul_scalar", "_npi_multiply_scalar"}
_OVER = {"_div_scalar", "_npi_true_divide_scalar"}
_ADDED = {"elemwise_add", "elemwise_sub", "broadcast_add", "broadcast_sub", "_grad_add", "add_n"}
_ADDED |= {"_npi_add", "_npi_subtract"}
_JOINED = {"stack", "Concat", "_npi_stack", "_npi_concatenate"}
_PRODUCTS = {"elemwise_mul", "elemwise_div", "broadcast_mul", "broadcast_div", "_npi_multiply", "_npi_true_divide"}
_CACHED = "_CachedOp"

_MOST = 2000  # ways through a loss that are followed


class Part(NamedTuple):
    """One of the terms that a loss is the sum of.

    Attributes:
        kind: Whether the examples of a batch are averaged ('mean'), summed ('sum'), or each has its loss ('each');
            None if that cannot be told.
        factors: The numbers that it is multiplied by, whatever they mean; 1/n where it is divided by n.
        is_sure: Whether nothing was seen that might divide by the batch in another way.
        by_axis: Whether it is so only if the first axis is the batch.
    """

    kind: Optional[str]
    factors: Tuple[float, ...] = ()
    is_sure: bool = False
    by_axis: bool = False


class _Way(NamedTuple):
    """What lies between the loss and a node: its reductions, its factors."""

    kind: Optional[str] = None
    factors: Tuple[float, ...] = ()
    is_single: bool = False  # whether the node's array has one element
    is_moved: bool = False  # whether axes may have changed their places
    by_axis: bool = False


def parts_of(loss: Any, outputs: Mapping[str, int]) -> List[Part]:
    """Return the terms of a loss that depend on a net; none if none does.

    Args:
        loss: The loss, recorded and not yet backpropagated.
        outputs: The sizes of the nets' outputs, by the names of the nodes that autograd has for them.
    """
    nodes = recorded_nodes(loss)
    return list(_Reader(nodes, outputs).parts(loss.size == 1)) if nodes else []


class _Reader:
    """Follows what was recorded from the loss, its last node, to the outputs of the nets."""

    def __init__(self, nodes: Sequence[Node], outputs: Mapping[str, int]) -> None:
        self._nodes, self._outputs = nodes, outputs
        self._below: Dict[int, Set[str]] = {}  # what of this kind nodes that depend on a net have in and below them
        for position, node in enumerate(nodes):
            reached = [self._below[entry.node] for entry in node.inputs if entry.node in self._below]
            if node.name in outputs:
                self._below[position] = set()
            elif reached:
                self._below[position] = {*_dividing(node), *(each for one in reached for each in one)}

    def parts(self, is_single: bool) -> Iterator[Part]:
        """Yield the terms; one of no kind where they are too many."""
        waiting = [(len(self._nodes) - 1, _Way(is_single=is_single))]
        for _ in range(_MOST):
            if not waiting:
                return
            position, way = waiting.pop()
            if position not in self._below:
                continue
            on = None if self._nodes[position].name in self._outputs else _through(self._nodes[position], way)
            if on is None:
                yield self._ended(position, way)
            else:
                waiting += [(entry.node, on[1]) for entry in self._nodes[position].inputs[: on[0]]]
        yield Part(None)

    def _ended(self, position: int, way: _Way) -> Part:
        """Return the term at a node that is neither sum nor mean, or an output of a net."""
        node, below = self._nodes[position], self._below[position]
        size = self._outputs.get(node.name)
        is_unknown = size == 1 or SUM in below or (MEAN in below and way.kind != MEAN)
        if is_unknown or (way.kind is None and way.is_single):
            return Part(None)
        by_axis = way.by_axis or (size is None and node.op in _REDUCTIONS)
        is_sure = not below and size is None and node.op not in _PRODUCTS and not by_axis
        return Part(way.kind or EACH, way.factors, is_sure, by_axis)


def _through(node: Node, way: _Way) -> Optional[Tuple[Optional[int], _Way]]:
    """Return how many inputs of a node a way goes on through, None for all, and the way behind it; None if it ends."""
    if node.op in _REDUCTIONS:
        behind = _reduced(node, way)
        return None if behind is None else (1, behind)
    if node.op in _SAME:
        return 1, way
    if node.op in _MOVED:
        return 1, way._replace(is_moved=True)
    if node.op in _TIMES or node.op in _OVER:
        number = float(node.get("scalar") or "nan")
        factor = number if node.op in _TIMES else 1 / number if number else float("nan")
        return 1, way._replace(factors=(*way.factors, factor))
    if node.op in _ADDED:
        return None, way
    if node.op in _JOINED:
        return None, way._replace(is_single=False)
    return None


def _reduced(node: Node, way: _Way) -> Optional[_Way]:
    """Return a way behind a sum or a mean; None if it ends there."""
    inner, axes = _REDUCTIONS[node.op], _axes(node)
    excludes = node.get("exclude") == "True"  # all axes but the batch, as in MXNet's losses
    behind = way._replace(is_single=False)
    if way.kind == inner or (excludes and not way.is_single):
        return behind
    if axes is None or (way.kind is None and way.is_single):
        by_axis = way.by_axis
    elif way.is_moved:
        return None
    elif 0 not in axes:
        return behind._replace(by_axis=way.by_axis or way.kind is not None)
    else:
        by_axis = True
    if way.kind == MEAN:
        return None  # of sums, of which there may be any number
    return behind._replace(kind=inner, by_axis=by_axis)


def _dividing(node: Node) -> Set[str]:
    """Return what a node does that may depend on the size of a batch: 'mean', 'sum' or the name of a cached graph."""
    if node.op == _CACHED:
        return {_CACHED}
    axes = _axes(node) if node.op in _REDUCTIONS else ()
    is_whole = node.get("exclude") != "True" and (axes is None or 0 in axes)
    return {_REDUCTIONS[node.op]} if is_whole else set()


def _axes(node: Node) -> Optional[Tuple[int, ...]]:
    """Return the axes of a sum or mean, None for all; of mx.np an empty tuple is none."""
    text = node.get("axis") or "None"
    axes = tuple(map(int, re.findall(r"-?\d+", text)))
    return axes if axes or (text != "None" and node.op.startswith("_np")) else None
