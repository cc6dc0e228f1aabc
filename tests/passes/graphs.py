"""Graphs from text with facts on them, and conversions of symbols."""

from __future__ import annotations

from mxmp.passes import Facts
from mxmp.policy import Policy
from mxmp.symbol import convert_graph
from tests.graph.text import from_text


def with_facts(text, dtypes=None, shapes=None, **fields):
    """Return (graph, facts): all is float32 of unknown shape but for the dtypes and shapes given by node name."""
    graph = from_text(text)
    at = {node.name: (i, 0) for i, node in enumerate(graph.nodes)}
    known = {**Facts.assume_float32(graph).dtypes, **{at[name]: dtype for name, dtype in (dtypes or {}).items()}}
    sizes = {at[name]: shape for name, shape in (shapes or {}).items()}
    return graph, Facts(known, sizes, **{name: frozenset(value) for name, value in fields.items()})


def lines(text):
    """Return a text without the indentation of its lines."""
    return "\n".join(line.strip() for line in text.strip().splitlines())


def converted(net, shapes, policy="O1"):
    """Return a symbol's conversion, all its arguments float32."""
    types = dict.fromkeys(net.list_arguments(), "float32")
    return convert_graph(net, Policy.parse(policy), shapes, types, inputs=frozenset(shapes))


def precisions(net, shapes, policy="O1"):
    """Return the precision of each operator of a converted symbol, by name."""
    return {row.name: row.precision for row in converted(net, shapes, policy).report.rows}
