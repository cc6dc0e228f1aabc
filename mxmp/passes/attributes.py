"""Attributes that mxmp puts on nodes; MXNet ignores attributes spelled with two underscores, but for `CUSTOM`'s."""

from __future__ import annotations

from dataclasses import replace
from typing import Dict, Set

from ..errors import PassError
from ..graph import Graph, Node
from ..policy import BLOCKS_ATTR, blocks_on

MARK_ATTR = "__mxmp__"
"""Says what a node that mxmp inserted is for: one of the marks below. Erasing takes these nodes out."""

CAST_MARK = "cast"
OUTPUT_MARK = "output"
"""A cast that has the name of the operator that it reads, so that an output of the network keeps its name."""

FACTOR_MARK = "factor"
"""A multiplication in front of a stand-in, whose operator has no factor of its own."""

SCALE_MARK = "loss_scale"
"""Part of the multiplication of a gradient by the loss scale."""

DTYPE_ATTR = "__mxmp_dtype__"
"""On a variable whose dtype mxmp declared: the dtype's number that it declared before, empty if none.

It tells weights that a conversion stored in low precision from those that the network has so by itself.
"""

PRECISION_ATTR = "__mxmp_precision__"
"""Precision that ``mxmp.gluon.precision`` asks for, for the operators of a region."""

CUSTOM = "Custom"
"""The operator that hands all its attributes to the user's code as arguments, so that it must get none of mxmp.

(AttrParser in src/operator/custom/custom.cc at tag 1.9.1; an argument that the code does not have ends the process.) It
is left as it is in every region.
"""


def is_inserted(node: Node) -> bool:
    """Return whether a conversion has inserted a node: a cast, as a rule."""
    return node.get(MARK_ATTR) is not None


def changed(node: Node) -> PassError:
    """Return the error about a node whose attributes of mxmp are not as mxmp wrote them."""
    return PassError(f"node {node}: its attributes that begin with '__mxmp' were changed; convert the original again.")


def is_converted(graph: Graph) -> bool:
    """Return whether a node of a graph or of its bodies has an attribute of mxmp."""
    for node in graph.nodes:  # loops, because every conversion begins with this
        for key, _ in node.attrs:
            if key.startswith("__mxmp"):
                return True
    return any(is_converted(body) for node in graph.nodes for body in node.subgraphs)


def marked_blocks(graph: Graph) -> Set[str]:
    """Return the marks of blocks that the nodes of a graph, and of its bodies, have."""
    return {pattern for node in graph.operators() for pattern in blocks_on(node.attrs)}


def without_blocks(graph: Graph) -> Graph:
    """Return a graph without marks of blocks, which hold for one policy alone."""
    nodes = [node._replace(subgraphs=tuple(map(without_blocks, node.subgraphs))) for node in graph.nodes]
    return replace(graph, nodes=tuple(node.with_attrs({BLOCKS_ATTR: None}) for node in nodes))


def device_attrs(node: Node) -> Dict[str, str]:
    """Return the attributes that say on which device a node runs, which a node inserted beside it gets too."""
    return {key: value for key, value in node.attrs if key == "__ctx_group__"}
