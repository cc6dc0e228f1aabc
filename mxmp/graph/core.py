"""Graph, Node and Entry: an immutable nnvm graph, and a builder that makes new ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Dict, Iterable, List, Mapping, NamedTuple, Optional, Set, Tuple

VARIABLE = "null"
"""The operator name that nnvm gives to variables (inputs, parameters, auxiliary states)."""


class Entry(NamedTuple):
    """One output of one node, as nnvm's NodeEntry.

    Attributes:
        node: Position of the producing node in ``Graph.nodes``.
        index: Which of the node's outputs.
        version: How often a variable had been written when it is read; nnvm counts it for auxiliary states.
    """

    node: int
    index: int = 0  # type: ignore[assignment]  # nnvm's word; it hides tuple.index
    version: int = 0


Attrs = Tuple[Tuple[str, str], ...]


@dataclass(frozen=True)
class Node:
    """One operator call or variable.

    Attributes:
        op: Operator name, or ``VARIABLE``.
        name: The node's name; MXNet does not require it to be unique.
        attrs: Attributes as sorted pairs of strings; ``get`` looks one up.
        inputs: The entries that it reads, in the operator's order.
        num_outputs: Number of outputs, hidden ones included (BatchNorm has 3).
        subgraphs: Bodies of control flow operators.
        control_deps: Positions of nodes that must run before this one.
    """

    op: str
    name: str
    attrs: Attrs = ()
    inputs: Tuple[Entry, ...] = ()
    num_outputs: int = 1
    subgraphs: Tuple["Graph", ...] = ()
    control_deps: Tuple[int, ...] = ()

    @property
    def is_variable(self) -> bool:
        """Whether this is an input, a parameter or an auxiliary state."""
        return self.op == VARIABLE

    @property
    def declares_dtype(self) -> bool:
        """Whether this is a variable that declares its dtype; -1 declares none."""
        return self.is_variable and self.get("__dtype__") not in (None, "-1")

    def get(self, key: str, default: str | None = None) -> str | None:
        """Return an attribute's text, or ``default``."""
        for found, value in self.attrs:
            if found == key:
                return value
        return default

    def rewired(self, inputs: Tuple[Entry, ...], subgraphs: Optional[Tuple["Graph", ...]] = None) -> "Node":
        """Return this node with other inputs, and other bodies if they are given."""
        bodies = self.subgraphs if subgraphs is None else subgraphs
        if inputs == self.inputs and bodies == self.subgraphs:
            return self
        return Node(self.op, self.name, self.attrs, inputs, self.num_outputs, bodies, self.control_deps)

    def with_attrs(self, changes: Mapping[str, Optional[str]]) -> "Node":
        """Return this node with attributes set, or removed where the value is None."""
        merged: Dict[str, Optional[str]] = {**dict(self.attrs), **changes}
        return replace(self, attrs=make_attrs({k: v for k, v in merged.items() if v is not None}))

    def __str__(self) -> str:
        return f"'{self.name}' ({self.op})"


def make_attrs(attrs: Mapping[str, str]) -> Attrs:
    """Return attributes in the order in which nnvm writes them (sorted by key)."""
    return tuple(sorted(attrs.items()))


@dataclass(frozen=True)
class Graph:
    """An nnvm graph: nodes in topological order, and the entries that it returns.

    Attributes:
        nodes: Every node after all of its inputs.
        heads: The outputs, in order.
        metadata: The JSON text of the graph's own attributes (the MXNet version that wrote it).
    """

    nodes: Tuple[Node, ...]
    heads: Tuple[Entry, ...]
    metadata: str = "{}"

    def entry_name(self, entry: Entry) -> str:
        """Return the name that MXNet's ``list_outputs`` gives to an entry.

        A variable's entry carries the variable's name, a single output ``<node>_output``. An
        operator with several outputs names them itself, which JSON does not tell; those read
        ``<node>_output<index>``, as MXNet's default has it.
        """
        node = self.nodes[entry.node]
        if node.is_variable:
            return node.name
        suffix = "_output" if node.num_outputs == 1 else f"_output{entry.index}"
        return node.name + suffix

    def operators(self) -> List[Node]:
        """Return all nodes that are no variables, those within bodies of control flow included."""
        found = []
        for node in self.nodes:
            if not node.is_variable:
                found.append(node)
            for body in node.subgraphs:
                found.extend(body.operators())
        return found

    def consumers(self) -> Dict[Tuple[int, int], List[Tuple[int, int]]]:
        """Return, per (node, output index), the (node, input position) pairs that read it."""
        found: Dict[Tuple[int, int], List[Tuple[int, int]]] = {}
        for position, node in enumerate(self.nodes):
            for port, entry in enumerate(node.inputs):
                found.setdefault((entry.node, entry.index), []).append((position, port))
        return found


def without_versions(graph: Graph) -> Graph:
    """Return a graph with the versions of all entries set to 0, for comparison."""
    nodes = (replace(n, inputs=tuple(e._replace(version=0) for e in n.inputs)) for n in graph.nodes)
    return replace(graph, nodes=tuple(nodes), heads=tuple(h._replace(version=0) for h in graph.heads))


def in_written_order(graph: Graph) -> Graph:
    """Return a graph with its nodes in the order in which MXNet writes them.

    That is the order of a depth first search from the outputs (PostOrderDFSVisit in
    3rdparty/tvm/nnvm/include/nnvm/graph.h at tag 1.9.1); what no output needs is left out.
    """
    positions: Dict[int, int] = {}
    stack = [head.node for head in reversed(graph.heads)]
    while stack:
        position = stack[-1]
        node = graph.nodes[position]
        needed = [p for p in (*(e.node for e in node.inputs), *node.control_deps) if p not in positions]
        if needed and position not in positions:
            stack.extend(reversed(needed))
            continue
        positions.setdefault(stack.pop(), len(positions))

    def moved(entry: Entry) -> Entry:
        return Entry(positions[entry.node], entry.index, entry.version)

    nodes = []
    for position in sorted(positions, key=positions.__getitem__):
        node = graph.nodes[position]
        node = node.rewired(tuple(map(moved, node.inputs)), tuple(map(in_written_order, node.subgraphs)))
        deps = tuple(positions[dep] for dep in node.control_deps)
        nodes.append(replace(node, control_deps=deps) if deps != node.control_deps else node)
    return replace(graph, nodes=tuple(nodes), heads=tuple(map(moved, graph.heads)))


class GraphBuilder:
    """Builds a graph out of another, node by node, with an old-to-new entry map.

    Every pass is one forward sweep: it adds nodes and says what each old entry has become.
    """

    def __init__(self, source: Graph) -> None:
        """Start an empty graph with the source's metadata."""
        self.nodes: List[Node] = []
        self.names: Set[str] = {node.name for node in source.nodes}
        self._source = source
        self._map: Dict[Tuple[int, int], Entry] = {}
        self._positions: Dict[int, int] = {}

    def add(self, node: Node) -> int:
        """Append a new node and return its position."""
        self.nodes.append(node)
        return len(self.nodes) - 1

    def insert(self, op: str, name: str, *inputs: Entry, **attrs: str) -> Entry:
        """Append an operator under the name, with a number behind it if a node has it, and return its first output."""
        return Entry(self.add(Node(op, self.unique(name), make_attrs(attrs), inputs)))

    def copy(self, position: int, node: Node) -> int:
        """Append the new form of an old node; its outputs replace the old node's outputs.

        Control dependencies are given as in the source and mapped here.
        """
        deps = tuple(self._positions[dep] for dep in node.control_deps)
        new = self.add(replace(node, control_deps=deps) if deps else node)
        self._positions[position] = new
        for index in range(node.num_outputs):
            self._map[position, index] = Entry(new, index)
        return new

    def mapped(self, entry: Entry) -> Entry:
        """Return the new entry of an old one, with the old one's version."""
        new = self._map[entry.node, entry.index]
        return new if new.version == entry.version else new._replace(version=entry.version)

    def redirect(self, entry: Entry, new: Entry) -> None:
        """Map an old entry to another new entry from here on."""
        self._map[entry.node, entry.index] = new
        self._positions.setdefault(entry.node, new.node)

    def unique(self, name: str) -> str:
        """Return the name, with a number behind it if a node has it already."""
        candidate, number = name, 0
        while candidate in self.names:
            number += 1
            candidate = f"{name}{number}"
        self.names.add(candidate)
        return candidate

    def finish(self, heads: Iterable[Entry]) -> Graph:
        """Return the graph, with heads given as new entries."""
        new = tuple(heads)  # may add nodes
        return Graph(tuple(self.nodes), new, self._source.metadata)
