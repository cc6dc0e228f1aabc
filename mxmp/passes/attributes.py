"""Attributes that mxmp puts on nodes; MXNet ignores attributes spelled with two underscores."""

from __future__ import annotations

import json
from typing import Dict, Tuple

from ..graph import Node

MARK_ATTR = "__mxmp__"
"""Says what a node that mxmp inserted is for: ``CAST_MARK``, ``HEAD_MARK``, ``FACTOR_MARK`` or ``SCALE_MARK``."""

CAST_MARK = "cast"
HEAD_MARK = "head"
"""A cast at an output, which has the name of the node that it reads, so that the output keeps its name; that
node has another name."""

FACTOR_MARK = "factor"
"""A multiplication in front of a stand-in, whose operator has no factor of its own."""

SCALE_MARK = "loss_scale"
"""Part of the multiplication of a gradient by the loss scale."""

ABSORBED_ATTR = "__mxmp_absorbed__"
"""On a node some of whose inputs need no cast of mxmp, because something else gives the same: JSON, a list
for each of these inputs. ``[port]`` reads an equal cast of the network's own; ``[port, op, name]`` reads what
the network's own cast of that name widens."""

DECLARED_ATTR = "__mxmp_declared__"
"""On a variable whose dtype mxmp declares, because it is stored in low precision or because a cast behind it
hides its dtype from MXNet's inference: the dtype that it declared before, empty if it declared none."""

WIDENED_ATTR = "__mxmp_widened__"
"""On a node that reads low precision data and gives float32 without a cast: the attribute of the operator that
says so, followed by ``=`` and its value before, if it had one."""

REPLACED_ATTR = "__mxmp_replaced__"
"""On a node that stands in for one whose operator has no low precision kernel, or whose scalars are clamped: JSON,
that operator and its attributes."""

PRECISION_ATTR = "__mxmp_precision__"
"""Precision that ``mxmp.gluon.precision`` and ``set_policy`` ask for, for the operators of a region or block."""


def replaced(node: Node) -> Tuple[str, Dict[str, str]]:
    """Return the operator that a node stands in for, with its attributes; its own if it is no stand-in."""
    text = node.get(REPLACED_ATTR)
    if text is None:
        return node.op, dict(node.attrs)
    op, attrs = json.loads(text)
    return op, attrs


def device_attrs(node: Node) -> Dict[str, str]:
    """Return the attributes that say on which device a node runs, which a node inserted beside it gets too."""
    return {key: value for key, value in node.attrs if key == "__ctx_group__"}
