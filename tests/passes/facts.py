"""Graphs from text with facts on them."""

from __future__ import annotations

from mxmp.graph import from_text
from mxmp.passes import Facts


def with_facts(text, dtypes=None, shapes=None, **fields):
    """Return (graph, facts): all is float32 of unknown shape but for the dtypes and shapes given by node name."""
    graph = from_text(text)
    at = {node.name: (i, 0) for i, node in enumerate(graph.nodes)}
    known = {**Facts.assume_float32(graph).dtypes, **{at[name]: dtype for name, dtype in (dtypes or {}).items()}}
    sizes = {at[name]: shape for name, shape in (shapes or {}).items()}
    return graph, Facts(known, sizes, **{name: frozenset(value) for name, value in fields.items()})
