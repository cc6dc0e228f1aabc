"""Bulks of a cached operator on a GPU: how many operators MXNet launches before it waits for the stream."""

from __future__ import annotations

import contextlib
import math
import os
from typing import Any, Iterator, List, Tuple

from mxnet import gluon

from ..graph import Graph
from ..mxnet_private import blocks
from .graphs import ConvertedGraph, on_cpu

_SIZES = {"forward_bulk_size": "FWD", "backward_bulk_size": "BWD"}
_VARIABLE = "MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN"
_DEFAULT_SIZE = 15  # BulkExecMaxNodeTrainFwd and -Bwd, include/mxnet/imperative.h at tag 1.9.1


def bulk_flags(flags: List[Tuple[str, Any]], before: Graph, after: Graph) -> List[Tuple[str, Any]]:
    """Return flags of ``hybridize`` with larger bulks, so that a converted graph is launched in no more than before.

    MXNet cuts a training graph into bulks of 15 operators and waits for the GPU after each. Casts are operators too:
    the 89 of a ResNet-50 under O1 would add six waits to its forward pass. A size that the user gave stays.
    """
    given = {name for name, _ in flags}
    ratio = len(after.operators()) / max(len(before.operators()), 1)
    added = {name: math.ceil(_default_size(suffix) * ratio) for name, suffix in _SIZES.items()}
    return [*flags, *((name, size) for name, size in added.items() if ratio > 1 and name not in given)]


def _default_size(suffix: str) -> int:
    return int(os.environ.get(f"{_VARIABLE}_{suffix}") or os.environ.get(_VARIABLE) or _DEFAULT_SIZE)


@contextlib.contextmanager
def bulks_kept(net: gluon.HybridBlock, graph: ConvertedGraph) -> Iterator[None]:
    """Have a net build the cached operator of a converted graph for a GPU with the bulks of its float32 graph."""
    flags = blocks.flags(net)
    if not on_cpu():
        blocks.flags.set(net, bulk_flags(flags, graph.traced.graph, graph.converted.graph))
    try:
        yield
    finally:
        blocks.flags.set(net, flags)
