"""The base of all passes: a frozen value that turns one verified graph into another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Callable, ClassVar, Dict, Iterable, Mapping, NamedTuple, NoReturn, Optional, Tuple, Union

from ..errors import GraphError, PassError
from ..graph import Entry, Graph, GraphBuilder, Key, Node, verify
from .attributes import device_attrs


class PassResult(NamedTuple):
    """The new graph, and whether it differs from the one that the pass was given."""

    graph: Graph
    modified: bool


@dataclass(frozen=True)
class Pass(ABC):
    """A graph transformation whose fields are its options; it has no side effects."""

    name: ClassVar[str]

    def __call__(self, graph: Graph) -> PassResult:
        """Verify the graph and run the pass.

        Raises GraphError for a malformed graph, PassError if the pass cannot deal with it or its result is malformed.
        """
        verify(graph)
        return self.apply(graph)

    def apply(self, graph: Graph) -> PassResult:
        """Run the pass on a graph that is verified already, and check the result."""
        self.requires(graph)
        after = self.run(graph)
        try:
            verify(after)
        except GraphError as e:
            raise PassError(f"pass {self.name}: {e}") from e
        modified = after != graph
        return PassResult(after if modified else graph, modified)

    def requires(self, graph: Graph) -> None:  # noqa: B027 - optional
        """Raise PassError if the pass cannot deal with this graph."""

    def refuse(self, why: str) -> NoReturn:
        """Raise PassError, which names the pass."""
        raise PassError(f"pass {self.name}: {why}")

    @abstractmethod
    def run(self, graph: Graph) -> Graph:
        """Return the new graph."""


@dataclass(frozen=True)
class Sequential(Pass):
    """Runs passes in order, and calls ``callback`` with each pass and its result, for dumps between passes."""

    name: ClassVar[str] = "sequential"
    passes: Tuple[Pass, ...] = ()
    callback: Optional[Callable[[Pass, PassResult], None]] = None

    def run(self, graph: Graph) -> Graph:
        """Return the graph that the last pass returns."""
        for each in self.passes:
            result = each.apply(graph)
            if self.callback:
                self.callback(each, result)
            graph = result.graph
        return graph


Visit = Callable[[GraphBuilder, int, Node], Union[Node, Entry]]
"""Takes a node with its position in the old graph and its inputs in the new one, and may add nodes.

It returns the new form of the node, or the entry of the new graph that its readers read in its place.
"""


def rewritten(
    graph: Graph,
    visit: Visit,
    body: Optional[Callable[[Graph], Graph]] = None,
    heads: Optional[Callable[[GraphBuilder], Iterable[Entry]]] = None,
) -> Graph:
    """Return a graph after one forward sweep over its nodes.

    ``body`` gives the new form of each node's bodies, ``heads`` the new outputs, unless they are what the old ones have
    become.
    """
    builder = GraphBuilder(graph)
    for position, node in enumerate(graph.nodes):
        bodies = tuple(map(body, node.subgraphs)) if body is not None and node.subgraphs else node.subgraphs
        new = visit(builder, position, node.rewired(builder.inputs(node), bodies))
        if isinstance(new, Node):
            builder.copy(position, new)
        else:
            builder.redirect(Entry(position), new)
    return builder.finish(heads(builder) if heads is not None else None)


def beside(builder: GraphBuilder, node: Node, op: str, word: str, *inputs: Entry, **attrs: str) -> Entry:
    """Insert an operator that is named after a node and runs on its device, and return its first output."""
    return builder.insert(op, f"{node.name}_{word}", *inputs, **attrs, **device_attrs(node))


Copy = Tuple[int, str]
"""One copy of an entry: the position of the node that it is named after, and a word that tells it from others."""

MakeCopy = Callable[[GraphBuilder, Node, str, Entry], Entry]
"""Adds a copy of an entry of the new graph: it takes that node, the word and the entry, and returns the copy's."""


def with_copies(
    graph: Graph,
    copies: Mapping[Key, Copy],
    make: MakeCopy,
    body: Optional[Callable[[Graph], Graph]] = None,
) -> Graph:
    """Return a graph in which some inputs, by (position of the node, port), read copies of what they read.

    Inputs that read one entry and have one `Copy` share it. Outputs of the graph read no copies, and keep their names.
    """
    if not copies and not any(node.subgraphs for node in graph.nodes):
        return graph
    made: Dict[Tuple[Copy, Key], Entry] = {}

    def visit(builder: GraphBuilder, position: int, node: Node) -> Node:
        inputs = list(node.inputs)
        for port, entry in enumerate(inputs):
            copy = copies.get((position, port))
            if copy is not None:
                if (copy, entry.key) not in made:
                    made[copy, entry.key] = make(builder, graph.nodes[copy[0]], copy[1], entry)
                inputs[port] = made[copy, entry.key]
        return node.rewired(tuple(inputs))

    return rewritten(graph, visit, body)
