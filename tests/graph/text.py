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

import re

from mxmp.graph import Entry, Graph, Node, make_attrs, verify

LINE = re.compile(r"^(?P<name>\S+) = (?P<op>\w+)\((?P<inputs>[^)]*)\)(?: \{(?P<attrs>.*)\})?(?: x(?P<outs>\d+))?$")


def to_text(graph):
    """Return the graph as text, one line per node and one for the outputs."""
    lines = []
    for node in graph.nodes:
        inputs = ", ".join(entry_text(graph, entry) for entry in node.inputs)
        attrs = " {" + "; ".join(f"{key}: {value}" for key, value in node.attrs) + "}" if node.attrs else ""
        outs = f" x{node.num_outputs}" if node.num_outputs > 1 else ""
        lines.append(f"{node.name} = {node.op}({inputs}){attrs}{outs}")
    return "\n".join([*lines, "return " + ", ".join(entry_text(graph, head) for head in graph.heads)])


def from_text(text):
    """Return the graph that the text describes."""
    nodes, positions, heads = [], {}, []
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.startswith("return "):
            heads = entries(line[len("return ") :], positions)
            continue
        match = LINE.match(line)
        attrs = dict(item.split(": ", 1) for item in match["attrs"].split("; ")) if match["attrs"] else {}
        inputs = tuple(entries(match["inputs"], positions))
        nodes.append(Node(match["op"], match["name"], make_attrs(attrs), inputs, int(match["outs"] or 1)))
        positions[match["name"]] = len(nodes) - 1
    graph = Graph(tuple(nodes), tuple(heads))
    verify(graph)
    return graph


def entry_text(graph, entry):
    """Return an entry as text."""
    name = graph.nodes[entry.node].name
    return f"{name}#{entry.index}" if entry.index else name


def entries(text, positions):
    """Return the entries that a line reads, given the positions of the nodes before it by name."""
    parts = [part.strip().partition("#") for part in text.split(",") if part.strip()]
    return [Entry(positions[name], int(index or 0)) for name, _, index in parts]
