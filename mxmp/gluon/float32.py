"""Reports of nets converted to a float32 policy, which run as they were written."""

from __future__ import annotations

from typing import Optional

from mxnet import gluon

from ..errors import ConvertError
from ..mxnet_private import blocks
from ..policy import Policy
from ..report import Report
from ..symbol import Converted, convert_graph

_ATTRIBUTE = "_mxmp_float32"


def remember_float32(net: gluon.HybridBlock, policy: Policy, converted: Optional[Converted]) -> None:
    """Keep the float32 policy of a net, and its report where its graph is known."""
    vars(net)[_ATTRIBUTE] = policy, None if converted is None else converted.report


def forget_float32(net: gluon.Block) -> None:
    """Drop the float32 policy of a net, if it has one."""
    vars(net).pop(_ATTRIBUTE, None)


def float32_report(net: gluon.Block) -> Optional[Report]:
    """Return the report of a net that has a float32 policy, None if it has none.

    Raises:
        ConvertError: If the net's inputs are not known, because it was never called as a graph.
    """
    if _ATTRIBUTE not in vars(net):
        return None
    report: Optional[Report]
    policy, report = vars(net)[_ATTRIBUTE]
    if report is not None:
        return report
    graph = blocks.cached_graph(net)
    if not graph:
        raise ConvertError(
            f"block '{net.name}' is float32, and its inputs are not known; hybridize it and run one batch before its "
            f"report."
        )
    return convert_graph(graph[1], policy).report
