"""Checks on the recorded autograd graph of a loss: loss heads, and second derivatives that MXNet gets wrong."""

from __future__ import annotations

import re
from typing import Any, Dict, Iterable, List, Optional, Sequence, Set

import mxnet as mx
from mxnet import autograd

from ..graph import Entry, Graph, Node
from ..graph.core import VARIABLE, make_attrs
from ..mxnet_private import is_fresh
from ..rules import RULES
from .loss_heads import loss_heads, refused
from .second_derivative import check_second_derivatives

_LOSS_HEADS = tuple(f"Op:{rule.op}," for rule in RULES if rule.loss_head)

# Steps between two looks at graphs of a kind that is known.
_LONGEST_GAP = 1024
# Kinds of graphs that are looked at as soon as they come.
_MOST_KINDS = 64

# What nnvm::Symbol::Print writes of a variable, and of an operator.
_NODE = re.compile(
    r"^(?:Variable:(?P<variable>.*)"
    r"|Op:(?P<op>.*), Name=(?P<name>.*)\nInputs:\n(?P<inputs>(?:\targ.*\n)*)(?:Attrs:\n(?P<attrs>(?:\t.*\n)*))?)",
    re.MULTILINE,
)
_INPUT = re.compile(r"\targ\[\d+\]=(.*)\((\d+)\)")
_ATTRIBUTE = re.compile(r"\t(.*?)=(.*)")


class GraphChecks:
    """Looks at what was recorded of the losses of one trainer, but not at every step.

    A look takes as long as the graph is large. So it is taken where the graph is of a new kind, told by
    the number of operators recorded since the trainer's last loss, which MXNet counts; and, whatever the
    number, at steps 1, 2, 4, ..., 1024 and every 1024th from there. Not seen in between is a loss head
    that took the place of another operator, with the number as before; and after 64 kinds (graphs that
    differ from batch to batch) one in a further kind.
    """

    def __init__(self) -> None:
        self._steps = 0
        self._last: Optional[int] = None
        self._kinds: Set[Optional[int]] = set()
        self._passed = True

    def check(self, losses: Iterable[mx.nd.NDArray]) -> None:
        """Check scaled losses as `check` if that is due; those that were refused are looked at again."""
        numbers = [number for number in map(_number, losses) if number is not None]
        if not numbers:
            return
        kind, self._last = None if self._last is None else max(numbers) - self._last, max(numbers)
        step = self._steps + 1
        regular = step % _LONGEST_GAP == 0 or step & (step - 1) == 0
        new = kind not in self._kinds and len(self._kinds) < _MOST_KINDS
        if regular or new or not self._passed:
            self._passed = False
            check(losses, scaled=True)
            self._passed = True
            if new:
                self._kinds.add(kind)
        self._steps = step


def check(losses: Iterable[mx.nd.NDArray], scaled: bool) -> None:
    """Refuse losses that backward would get wrong without a word; looks at all recorded operators.

    The TrainerError names the operator: a loss head, which ignores the scale, if the losses are ``scaled``; or
    a second derivative that MXNet 1.9.1 gets wrong. A cached graph is one operator, whose content is not seen here.
    """
    for loss in losses:
        text = _recorded_text(loss)
        check_second_derivatives(text, _graph)
        if scaled and any(op in text for op in _LOSS_HEADS):
            for head in loss_heads(_graph(text)):
                raise refused(f"node {head}")


def came_through_graph(loss: Any) -> bool:
    """Return whether a cached graph is among the recorded operators that made a loss."""
    return isinstance(loss, mx.nd.NDArray) and "Op:_CachedOp," in _recorded_text(loss)


def recorded_nodes(array: mx.nd.NDArray) -> Sequence[Node]:
    """Return the operators and variables that autograd recorded of an array, that which made it last; none if none."""
    return _graph(_recorded_text(array)).nodes


def recorded_names(losses: Iterable[mx.nd.NDArray]) -> Set[str]:
    """Return the names that autograd has for the operators that made losses."""
    return {found["name"] for loss in losses for found in _NODE.finditer(_recorded_text(loss)) if found["name"]}


def is_recorded(array: mx.nd.NDArray) -> bool:
    """Return whether autograd has a node for an array; False again after a backward that freed its graph."""
    try:
        is_fresh.set(array, is_fresh(array))  # refused by MXNet where there is no node to keep it
    except mx.MXNetError:
        return False
    return True


def node_name(array: mx.nd.NDArray) -> Optional[str]:
    """Return the name that autograd has for the operator or variable that gave an array; None if it is not recorded."""
    return str(autograd.get_symbol(array).name) if is_recorded(array) else None


def _number(loss: mx.nd.NDArray) -> Optional[int]:
    """Return the number of the operator that made an array, of all that were recorded; None for others."""
    prefix, _, number = (node_name(loss) or "").rpartition("_")
    return int(number) if prefix == "node" else None


def _recorded_text(loss: mx.nd.NDArray) -> str:
    """Return the recorded operators that made a loss, as text; '' if nothing is recorded.

    ``tojson`` would do, but leaks half a kilobyte of memory for each operator in MXNet 1.9.1.
    """
    return str(autograd.get_symbol(loss).debug_str()) if is_recorded(loss) else ""


def _graph(text: str) -> Graph:
    """Return the graph that a text of `_recorded_text` describes, without heads and versions."""
    nodes: List[Node] = []
    positions: Dict[str, int] = {}
    for found in _NODE.finditer(text):
        if found["op"] is None:
            node = Node(VARIABLE, found["variable"])
        else:
            inputs = tuple(Entry(positions[name], int(index)) for name, index in _INPUT.findall(found["inputs"]))
            attrs = make_attrs(dict(_ATTRIBUTE.findall(found["attrs"] or "")))
            node = Node(found["op"], found["name"], attrs, inputs)
        positions[node.name] = len(nodes)
        nodes.append(node)
    return Graph(tuple(nodes), ())
