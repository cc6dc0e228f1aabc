"""An immutable nnvm graph (Graph, Node, Entry), a builder of new graphs, orders of nodes, and checks of a graph."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Callable, Dict, Iterable, List, Mapping, NamedTuple, Optional, Set, Tuple

from ..errors import GraphError

HINT = "The file is truncated or was edited by hand."

Key = Tuple[int, int]
"""The identity of an entry without its version: position of the node, number of the output."""

VARIABLE = "null"
"""The operator name that nnvm gives to variables (inputs, parameters, auxiliary states)."""


class Entry(NamedTuple):
    """One output of the node at a position, as nnvm's NodeEntry.

    ``version`` is how often a variable had been written when it is read; nnvm counts it for auxiliary states.
    """

    node: int
    index: int = 0  # type: ignore[assignment]  # nnvm's word; it hides tuple.index
    version: int = 0

    @property
    def key(self) -> Key:
        """Node and output, without the version."""
        return self.node, self.index


Attrs = Tuple[Tuple[str, str], ...]


class Node(NamedTuple):
    """One operator call or variable; MXNet does not require its name to be unique.

    A tuple, since passes make thousands of them and compare them. ``attrs`` are sorted by key. ``num_outputs`` counts
    hidden outputs too: BatchNorm has 3. ``subgraphs`` are the bodies of control flow operators. ``control_deps`` are
    the positions of nodes that must run before this one.
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
        for name, value in self.attrs:  # a loop: the conversion asks 20,000 times
            if name == key:
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
        return self._replace(attrs=make_attrs({k: v for k, v in merged.items() if v is not None}))

    def __str__(self) -> str:
        return f"'{self.name}' ({self.op})"


def make_attrs(attrs: Mapping[str, str]) -> Attrs:
    """Return attributes in the order in which nnvm writes them (sorted by key)."""
    return tuple(sorted(attrs.items()))


@dataclass(frozen=True)
class Graph:
    """An nnvm graph: every node after all of its inputs, and the outputs.

    ``metadata`` is the JSON text of the graph's own attributes (the MXNet version that wrote it).
    """

    nodes: Tuple[Node, ...]
    heads: Tuple[Entry, ...]
    metadata: str = "{}"

    def entry_name(self, entry: Entry) -> str:
        """Return the name that MXNet's ``list_outputs`` gives to an entry.

        An operator with several outputs names them itself, which JSON does not tell: MXNet's default is taken.
        """
        node = self.nodes[entry.node]
        if node.is_variable:
            return node.name
        suffix = "_output" if node.num_outputs == 1 else f"_output{entry.index}"
        return node.name + suffix

    def operators(self) -> List[Node]:
        """Return all nodes that are no variables, those within bodies of control flow included."""
        operators = []
        for node in self.nodes:
            if not node.is_variable:
                operators.append(node)
            for body in node.subgraphs:
                operators.extend(body.operators())
        return operators

    def consumers(self) -> Dict[Key, List[Tuple[int, int]]]:
        """Return, per entry, the (node, input position) pairs that read it."""
        consumers: Dict[Key, List[Tuple[int, int]]] = {}
        for position, node in enumerate(self.nodes):
            for port, entry in enumerate(node.inputs):
                consumers.setdefault(entry[:2], []).append((position, port))
        return consumers


def without_versions(graph: Graph) -> Graph:
    """Return a graph with the versions of all entries set to 0, for comparison."""

    def unversioned(entries: Tuple[Entry, ...]) -> Tuple[Entry, ...]:
        return tuple(Entry(*entry[:2]) if entry.version else entry for entry in entries)

    nodes = tuple(node.rewired(unversioned(node.inputs)) for node in graph.nodes)
    return replace(graph, nodes=nodes, heads=unversioned(graph.heads))


def renamed(graph: Graph, rename: Callable[[str], str]) -> Graph:
    """Return a graph with other names for its operators, those in bodies included; variables keep theirs."""

    def new(node: Node) -> Node:
        bodies = tuple(renamed(body, rename) for body in node.subgraphs)
        return node if node.is_variable else node._replace(name=rename(node.name), subgraphs=bodies)

    return replace(graph, nodes=tuple(map(new, graph.nodes)))


def with_unique_names(graph: Graph) -> Tuple[Graph, Dict[str, str]]:
    """Return a graph in which no two operators have one name, and the old names by new name, where they differ.

    A Gluon block that is called twice gives two operators of each name.
    """
    builder, old = GraphBuilder(graph), {}
    builder.names.update(node.name for node in graph.operators())
    seen = {node.name for node in graph.nodes if node.is_variable}

    def rename(name: str) -> str:
        new = builder.unique(name) if name in seen else name
        seen.add(new)
        if new != name:
            old[new] = name
        return new

    unique = renamed(graph, rename)
    return (unique, old) if old else (graph, old)


class GraphBuilder:
    """Builds a graph out of another, node by node, with an old-to-new entry map.

    Every pass is one forward sweep. It adds nodes, and maps each old entry to a new one.
    """

    def __init__(self, source: Graph) -> None:
        self.nodes: List[Node] = []
        self.names: Set[str] = {node.name for node in source.nodes}
        self._source = source
        self._map: Dict[Key, Entry] = {}
        self._positions: Dict[int, int] = {}

    def add(self, node: Node) -> int:
        """Append a new node and return its position."""
        self.nodes.append(node)
        return len(self.nodes) - 1

    def insert(self, op: str, name: str, *inputs: Entry, **attrs: str) -> Entry:
        """Append an operator under the name, with a number behind it if a node has it, and return its first output."""
        return Entry(self.add(Node(op, self.unique(name), make_attrs(attrs), inputs)))

    def copy(self, position: int, node: Node) -> int:
        """Append the new form of an old node, its control dependencies as in the source; they are mapped here."""
        if node.control_deps:
            node = node._replace(control_deps=tuple(self._positions[dep] for dep in node.control_deps))
        new = self.add(node)
        self._positions[position] = new
        for index in range(node.num_outputs):
            self._map[position, index] = Entry(new, index)
        return new

    def mapped(self, entry: Entry) -> Entry:
        """Return the new entry of an old one, with the old one's version."""
        new = self._map[entry[:2]]  # its key; asked for each input of each pass
        return new if new.version == entry.version else new._replace(version=entry.version)

    def inputs(self, node: Node) -> Tuple[Entry, ...]:
        """Return the new entries of an old node's inputs."""
        return tuple(map(self.mapped, node.inputs))

    def redirect(self, entry: Entry, new: Entry) -> None:
        """Map an old entry to another new entry from here on."""
        # Nodes that had to run after the old one now run after the new one.
        self._map[entry.key] = new
        self._positions.setdefault(entry.node, new.node)

    def unique(self, name: str) -> str:
        """Return the name, with a number behind it if a node has it already."""
        # Without a number where it is free, so that one pass over the same graph gives the same names each time.
        candidate, number = name, 0
        while candidate in self.names:
            number += 1
            candidate = f"{name}{number}"
        self.names.add(candidate)
        return candidate

    def finish(self, heads: Optional[Iterable[Entry]] = None) -> Graph:
        """Return the graph. Its heads are ``heads``, as new entries, or else the new entries of the old heads."""
        new = tuple(map(self.mapped, self._source.heads) if heads is None else heads)  # may add nodes
        return Graph(tuple(self.nodes), new, self._source.metadata)


_VERIFIED = "_verified"


def verify(graph: Graph) -> None:
    """Raise GraphError, naming the first bad node, unless a graph is well formed.

    In a well formed graph every node comes after the nodes that it reads, and every entry exists. Variables read
    nothing, and the graph has outputs. A graph that was found well formed stays so, and is not looked through again.
    """
    if _VERIFIED in vars(graph):
        return
    for position, node in enumerate(graph.nodes):
        if node.is_variable and node.inputs:
            raise GraphError(f"node {node}: a variable cannot have inputs. {HINT}")
        if node.num_outputs < 1:
            raise GraphError(f"node {node}: found {node.num_outputs} outputs, expected at least one. {HINT}")
        for port, entry in enumerate(node.inputs):
            _require_entry(graph, entry, position, "node ", node, ": input ", port)
        for dep in node.control_deps:
            _require_entry(graph, Entry(dep), position, "node ", node, ": a control dependency")
        for body in node.subgraphs:
            verify(body)
    if not graph.heads:
        raise GraphError("the graph has no outputs.")
    for number, head in enumerate(graph.heads):
        _require_entry(graph, head, len(graph.nodes), "output ", number, " of the graph")
    # Past the frozen dataclass, and no field of it: equality, hash and replace() do not see it.
    vars(graph)[_VERIFIED] = True


def _require_entry(graph: Graph, entry: Entry, limit: int, *where: object) -> None:
    """Raise GraphError unless an entry is an output of a node before ``limit``; ``where`` is made a text only then."""
    number, index, _ = entry
    if 0 <= number < limit and 0 <= index < graph.nodes[number].num_outputs:
        return
    subject = "".join(map(str, where))
    if not 0 <= number < len(graph.nodes):
        raise GraphError(f"{subject} refers to node {number}, but the graph has {len(graph.nodes)} nodes. {HINT}")
    producer = graph.nodes[number]
    if number >= limit:
        raise GraphError(f"{subject} refers to node {producer}, which comes later or is itself. {HINT}")
    raise GraphError(f"{subject} refers to output {index} of node {producer}, which has {producer.num_outputs}. {HINT}")


def in_written_order(graph: Graph) -> Graph:
    """Return a graph with its nodes in the order in which MXNet writes them.

    That is the order of a depth first search from the outputs (PostOrderDFSVisit in
    3rdparty/tvm/nnvm/include/nnvm/graph.h at tag 1.9.1). Nodes that no output needs are left out.
    """
    positions = written_positions(graph)
    if list(positions) == list(range(len(graph.nodes))) and not any(node.subgraphs for node in graph.nodes):
        return graph

    def moved(entries: Tuple[Entry, ...]) -> Tuple[Entry, ...]:
        return tuple([Entry(positions[number], index, version) for number, index, version in entries])

    nodes = []
    for position in positions:
        node = graph.nodes[position]
        if node.inputs or node.subgraphs:
            node = node.rewired(moved(node.inputs), tuple(map(in_written_order, node.subgraphs)))
        if node.control_deps:
            node = node._replace(control_deps=tuple(positions[dep] for dep in node.control_deps))
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes), heads=moved(graph.heads))


def written_positions(graph: Graph) -> Dict[int, int]:
    """Return the places of the nodes that the outputs need, in the order in which MXNet writes them."""
    # A stack in place of recursion, which a network of a thousand layers would end. Nodes that need nothing are placed
    # where they are met, as nnvm does.
    places: Dict[int, int] = {}
    for head in graph.heads:
        stack = [] if head.node in places else [head.node]
        while stack:
            for position in _needed(graph.nodes[stack[-1]]):
                if position in places:
                    continue
                if _needed(graph.nodes[position]):
                    stack.append(position)
                    break
                places[position] = len(places)
            else:
                places[stack.pop()] = len(places)
    return places


def _needed(node: Node) -> List[int]:
    """Return the nodes that must come before one."""
    needed = [number for number, _, _ in node.inputs]
    return needed + [*node.control_deps] if node.control_deps else needed
