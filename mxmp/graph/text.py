"""A graph as text, one line per node, for tests and diffs.

::

    data = null()
    weight = null() {__dtype__: 0}
    conv = Convolution(data, weight) {kernel: (3, 3); num_filter: 8}
    parts = SliceChannel(conv) {num_outputs: 2} x2
    return parts, parts#1

An entry is its node's name, with ``#index`` behind it unless the index is 0. Names must be
unique. Subgraphs, control dependencies and versions are not written.
"""

from __future__ import annotations

import re
from typing import Dict, List

from ..errors import GraphError
from .core import Attrs, Entry, Graph, Node, make_attrs, verify

_LINE = re.compile(r"^(?P<name>\S+) = (?P<op>\w+)\((?P<inputs>[^)]*)\)(?: \{(?P<attrs>.*)\})?(?: x(?P<outs>\d+))?$")


def to_text(graph: Graph) -> str:
    """Return the graph as text, one line per node and one for the outputs."""
    lines = []
    for node in graph.nodes:
        inputs = ", ".join(_entry_text(graph, entry) for entry in node.inputs)
        attrs = " {" + "; ".join(f"{k}: {v}" for k, v in node.attrs) + "}" if node.attrs else ""
        outs = f" x{node.num_outputs}" if node.num_outputs > 1 else ""
        lines.append(f"{node.name} = {node.op}({inputs}){attrs}{outs}")
    lines.append("return " + ", ".join(_entry_text(graph, head) for head in graph.heads))
    return "\n".join(lines)


def from_text(text: str) -> Graph:
    """Return the graph that the text describes; GraphError names the line that cannot be read."""
    nodes: List[Node] = []
    positions: Dict[str, int] = {}
    heads: List[Entry] = []
    for line in (stripped for stripped in map(str.strip, text.splitlines()) if stripped):
        if line.startswith("return "):
            heads = _entries(line[len("return ") :], positions, line)
            continue
        match = _LINE.match(line)
        if match is None:
            raise GraphError(f"cannot read graph line {line!r}; expected 'name = Op(inputs) {{key: value}}'.")
        inputs = tuple(_entries(match["inputs"], positions, line))
        nodes.append(Node(match["op"], match["name"], _attrs(match["attrs"]), inputs, int(match["outs"] or 1)))
        positions[match["name"]] = len(nodes) - 1
    graph = Graph(tuple(nodes), tuple(heads))
    verify(graph)
    return graph


def _entry_text(graph: Graph, entry: Entry) -> str:
    name = graph.nodes[entry.node].name
    return f"{name}#{entry.index}" if entry.index else name


def _entries(text: str, positions: Dict[str, int], line: str) -> List[Entry]:
    entries = []
    for item in (part.strip() for part in text.split(",") if part.strip()):
        name, _, index = item.partition("#")
        if name not in positions:
            raise GraphError(f"graph line {line!r} reads {name!r}, which no line before it defines.")
        entries.append(Entry(positions[name], int(index or 0)))
    return entries


def _attrs(text: str | None) -> Attrs:
    pairs = (item.split(": ", 1) for item in text.split("; ")) if text else ()
    return make_attrs({key: value for key, value in pairs})
