"""Attributes that mxmp puts on nodes; MXNet ignores attributes spelled with two underscores, but for `CUSTOM`'s."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any, Dict, Mapping, Sequence, Set

from ..errors import PassError
from ..graph import Graph, Node
from ..policy import BLOCKS_ATTR, blocks_on

MARK_ATTR = "__mxmp__"
"""Says what a node that mxmp inserted is for: ``CAST_MARK``, ``FACTOR_MARK`` or ``SCALE_MARK``."""

CAST_MARK = "cast"
FACTOR_MARK = "factor"
"""A multiplication in front of a stand-in, whose operator has no factor of its own."""

SCALE_MARK = "loss_scale"
"""Part of the multiplication of a gradient by the loss scale."""

BEFORE_ATTR = "__mxmp_before__"
"""On a node that mxmp changed: JSON of what it was before, for files, which hold no other trace of that.

``op``, ``name`` and ``attrs`` (null for none) are those that differ. ``ports`` are the inputs that read a cast of the
network's own where mxmp would have put one: ``[port]`` reads an equal cast, ``[port, op, name]`` what the widening cast
of that operator and name reads.
"""

PRECISION_ATTR = "__mxmp_precision__"
"""Precision that ``mxmp.gluon.precision`` asks for, for the operators of a region."""

_NO_TEXT = re.compile("[\0\ud800-\udfff]")  # characters that escapes of JSON give, and MXNet cannot read

CUSTOM = "Custom"
"""The operator that hands all its attributes to the user's code as arguments, so that it must get none of mxmp.

(AttrParser in src/operator/custom/custom.cc at tag 1.9.1; an argument that the code does not have ends the process.) It
is left as it is in every region.
"""


def noting(before: Node, after: Node, ports: Sequence[Sequence[Any]] = ()) -> Node:
    """Return the new form of a node with a note of the old one, if they differ or ``ports`` are to be noted."""
    if not ports and (before.op, before.name) == (after.op, after.name) and before.attrs == after.attrs:
        return after
    pairs = ("op", before.op, after.op), ("name", before.name, after.name)
    note: Dict[str, Any] = {key: old for key, old, new in pairs if old != new}
    was, now = dict(before.attrs), dict(after.attrs)
    note["attrs"] = {key: was.get(key) for key in {**was, **now} if was.get(key) != now.get(key)}
    note["ports"] = list(ports)
    return after.with_attrs({BEFORE_ATTR: json.dumps({k: v for k, v in note.items() if v}, sort_keys=True)})


def original(node: Node) -> Node:
    """Return a node as it was before mxmp changed it, but for its inputs."""
    note = note_of(node)
    if not note:
        return node
    changed = node._replace(op=note.get("op", node.op), name=note.get("name", node.name))
    return changed.with_attrs({**note.get("attrs", {}), BEFORE_ATTR: None})


def note_of(node: Node) -> Mapping[str, Any]:
    """Return what a node notes of how it was before mxmp changed it.

    Raises:
        PassError: If an attribute of mxmp is not as mxmp wrote it.
    """
    text = node.get(BEFORE_ATTR)
    is_whole = node.get(MARK_ATTR) is None or bool(node.inputs)
    if text is None and is_whole:
        return {}
    try:
        note: Mapping[str, Any] = json.loads(text or "")
        if is_whole and _is_note(node, note):
            return note
    except (ValueError, TypeError, AttributeError, RecursionError):
        pass  # no JSON, or of another form
    raise changed(node)


def _is_note(node: Node, note: Mapping[str, Any]) -> bool:
    """Return whether a note has the form in which mxmp writes it, or raise the errors of another one."""
    attrs = note.get("attrs", {})
    texts = [note.get("op", ""), note.get("name", ""), *attrs, *(text for text in attrs.values() if text is not None)]
    for port, *source in note.get("ports", ()):
        if type(port) is not int or not 0 <= port < len(node.inputs) or len(source) not in (0, 2):
            return False
        texts += source
    return all(isinstance(text, str) and not _NO_TEXT.search(text) for text in texts)


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
