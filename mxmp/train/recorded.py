"""What autograd has recorded of an array: the operators that made it."""

from __future__ import annotations

import re
from typing import Dict, List, Sequence

import mxnet as mx
from mxnet import autograd

from ..graph import Entry, Node
from ..graph.core import VARIABLE, make_attrs
from ..mxnet_private import is_fresh

# What nnvm::Symbol::Print writes of a variable, and of an operator.
_NODE = re.compile(
    r"^(?:Variable:(?P<variable>.*)"
    r"|Op:(?P<op>.*), Name=(?P<name>.*)\nInputs:\n(?P<inputs>(?:\targ.*\n)*)(?:Attrs:\n(?P<attrs>(?:\t.*\n)*))?)",
    re.MULTILINE,
)
_INPUT = re.compile(r"\targ\[\d+\]=(.*)\((\d+)\)")
_ATTRIBUTE = re.compile(r"\t(.*?)=(.*)")


def is_recorded(array: mx.nd.NDArray) -> bool:
    """Return whether autograd has a node for an array; False again after a backward that freed its graph."""
    try:
        is_fresh.set(array, is_fresh(array))  # refused by MXNet where there is no node to keep it
    except mx.MXNetError:
        return False
    return True


def recorded_nodes(array: mx.nd.NDArray) -> Sequence[Node]:
    """Return the operators and variables that autograd recorded of an array, that which made it last; none if none.

    Entries have no versions. A cached graph is one operator, whose content is not seen here.
    """
    nodes: List[Node] = []
    positions: Dict[str, int] = {}
    for match in _NODE.finditer(_text(array)):
        if match["op"] is None:
            node = Node(VARIABLE, match["variable"])
        else:
            inputs = tuple(Entry(positions[name], int(index)) for name, index in _INPUT.findall(match["inputs"]))
            attrs = make_attrs(dict(_ATTRIBUTE.findall(match["attrs"] or "")))
            node = Node(match["op"], match["name"], attrs, inputs)
        positions[node.name] = len(nodes)
        nodes.append(node)
    return nodes


def _text(array: mx.nd.NDArray) -> str:
    """Return the recorded operators that made an array, as text; '' if nothing is recorded.

    ``tojson`` would do, but leaks half a kilobyte of memory for each operator in MXNet 1.9.1.
    """
    return str(autograd.get_symbol(array).debug_str()) if is_recorded(array) else ""
