"""The base of all passes, which turn one verified graph into another, and the attributes that mxmp puts on nodes."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Callable, Dict, Iterable, Mapping, NamedTuple, NoReturn, Optional, Set, Tuple, Union

from ..errors import GraphError, PassError
from ..graph import Entry, Graph, GraphBuilder, Key, Node, make_attrs, verify
from ..policy import BLOCKS_ATTR, blocks_on
from ..rules import RULES, Rule


def rule_of(node: Node) -> Optional[Rule]:
    """Return the rule for a node's operator with its attributes, None if there is none."""
    return RULES.find(node.op, dict(node.attrs))


class PassResult(NamedTuple):
    """The new graph, and whether it differs from the one that the pass was given."""

    graph: Graph
    modified: bool


@dataclass(frozen=True)
class Pass(ABC):
    """A graph transformation whose fields are its options; it has no side effects."""

    @property
    def name(self) -> str:
        """The name of the pass in messages: 'insert-casts' of ``InsertCasts``."""
        return re.sub("(?<=[a-z])(?=[A-Z])", "-", type(self).__name__).lower()

    def __call__(self, graph: Graph) -> PassResult:
        """Verify the graph, run the pass and check the result.

        Raises GraphError for a malformed graph, PassError if the pass cannot deal with it or its result is malformed.
        """
        verify(graph)
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
    """Runs several passes in order, as one pass."""

    passes: Tuple[Pass, ...] = ()

    def run(self, graph: Graph) -> Graph:
        """Return the graph that the last pass returns."""
        for each in self.passes:
            graph = each(graph).graph
        return graph


Visit = Callable[[GraphBuilder, int, Node], Union[Node, Entry]]
"""Takes a node with its position in the old graph and its inputs in the new one, and may add nodes.

It returns the new form of the node, or the entry of the new graph that its readers read in its place.
"""


def sweep(
    graph: Graph,
    visit: Visit,
    body: Optional[Callable[[Graph], Graph]] = None,
    heads: Optional[Callable[[GraphBuilder], Iterable[Entry]]] = None,
) -> Graph:
    """Return a new graph, made by one forward sweep that visits each node of a graph.

    ``body`` gives the new form of each node's bodies. ``heads`` gives the new outputs; without it they are the new
    forms of the old ones.
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


def insert_next_to(builder: GraphBuilder, node: Node, op: str, word: str, *inputs: Entry, **attrs: str) -> Entry:
    """Insert an operator that is named after a node and runs on its device, and return its first output."""
    return builder.insert(op, f"{node.name}_{word}", *inputs, **attrs, **device_attrs(node))


def replacement(node: Node, op: str, *inputs: Entry, **attrs: str) -> Node:
    """Return an operator that has a node's name, and runs on its device."""
    return Node(op, node.name, make_attrs({**attrs, **device_attrs(node)}), inputs)


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
    """Return a graph in which some inputs, given by (position of the node, port), read copies of their entries.

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

    return sweep(graph, visit, body)


# ------------------------------------------------------------------ attributes that mxmp puts on nodes

MARK_ATTR = "__mxmp__"
"""Says what a node that mxmp inserted is for: one of the marks below. Erasing takes these nodes out."""

CAST_MARK = "cast"
OUTPUT_MARK = "output"
"""A cast that has the name of the operator that it reads, so that an output of the network keeps its name."""

FACTOR_MARK = "factor"
"""A multiplication in front of a stand-in, whose operator has no factor of its own."""

SCALE_MARK = "loss_scale"
"""Part of the multiplication of a gradient by the loss scale."""

DTYPE_ATTR = "__mxmp_dtype__"
"""On a variable whose dtype mxmp declared: the dtype's number that it declared before, empty if none.

It tells weights that a conversion stored in low precision from those that the network has so by itself.
"""

PRECISION_ATTR = "__mxmp_precision__"
"""Precision that ``mxmp.gluon.precision`` asks for, for the operators of a region."""

CUSTOM = "Custom"
"""The operator that hands all its attributes to the user's code as arguments, so that it must get none of mxmp.

(AttrParser in src/operator/custom/custom.cc at tag 1.9.1; an argument that the code does not have ends the process.) It
is left as it is in every region.
"""


def is_inserted(node: Node) -> bool:
    """Return whether a conversion has inserted a node, usually a cast."""
    return node.get(MARK_ATTR) is not None


def changed(node: Node) -> PassError:
    """Return the error for a node whose attributes of mxmp were edited."""
    return PassError(f"node {node}: its attributes that begin with '__mxmp' were changed; convert the original again.")


def is_converted(graph: Graph) -> bool:
    """Return whether a node of a graph or of its bodies has an attribute of mxmp."""
    for node in graph.nodes:  # loops, because every conversion begins with this
        for key, _ in node.attrs:
            if key.startswith("__mxmp"):
                return True
    return any(is_converted(body) for node in graph.nodes for body in node.subgraphs)


def marked_blocks(graph: Graph) -> Set[str]:
    """Return the marks of Gluon blocks on the nodes of a graph and of its bodies."""
    return {pattern for node in graph.operators() for pattern in blocks_on(node.attrs)}


def without_blocks(graph: Graph) -> Graph:
    """Return a graph without marks of blocks, which hold only for one policy."""
    nodes = [node._replace(subgraphs=tuple(map(without_blocks, node.subgraphs))) for node in graph.nodes]
    return replace(graph, nodes=tuple(node.with_attrs({BLOCKS_ATTR: None}) for node in nodes))


def device_attrs(node: Node) -> Dict[str, str]:
    """Return the attributes that say on which device a node runs. A node inserted next to it gets them too."""
    return {key: value for key, value in node.attrs if key == "__ctx_group__"}
