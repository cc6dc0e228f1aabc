"""A graph with probes: a zero is added to each activation, and its gradient is that of the activation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Collection, Dict, List, Mapping, NamedTuple, Tuple

from .. import dtypes
from ..graph import VARIABLE, Entry, Graph, GraphBuilder, Key, Node
from ..graph.core import make_attrs
from ..passes.casts import cast_op
from ..passes.facts import Facts
from ..passes.scale_loss import is_loss_head
from ..rules import RULES


class Probe(NamedTuple):
    """The activation that a probe is added to: name of the output, shape, and where it was in the network."""

    output: str
    shape: Tuple[int, ...]
    key: Key


@dataclass(frozen=True)
class Probed:
    """A graph with probes.

    Attributes:
        graph: The graph, whose heads are those of the network.
        probes: By the name of the variable that zeros must be given for, in float32.
        places: Where the outputs of the network's nodes are in the graph, before anything is added to them.
    """

    graph: Graph
    probes: Mapping[str, Probe]
    places: Mapping[Key, Entry]


def add_probes(
    graph: Graph, facts: Facts, precisions: Collection[str] = (dtypes.FLOAT32,), heads: bool = False
) -> Probed:
    """Return a graph with a zero added to each float32 output of known shape that an operator reads.

    Outputs of loss heads and of operators that never write a gradient have no probe.

    Args:
        graph: The network.
        facts: What is known of it.
        precisions: The dtypes of the outputs that get a probe; in low precision it is a float32 zero that is cast,
            and its gradient the activation's as low precision has it.
        heads: Whether the network's outputs get one too, which a loss outside of it reads.
    """
    readers, builder = graph.consumers(), GraphBuilder(graph)
    if heads:
        readers = {**{head.key: [] for head in graph.heads}, **readers}
    probes: Dict[str, Probe] = {}
    places: Dict[Key, Entry] = {}
    for position, node in enumerate(graph.nodes):
        inputs = tuple(map(builder.mapped, node.inputs))
        if is_unwritten(node):
            inputs = tuple(builder.insert("BlockGrad", f"{node.name}_blocked", entry) for entry in inputs)
        new = builder.copy(position, node.rewired(inputs))
        places.update({(position, index): Entry(new, index) for index in range(node.num_outputs)})
        for index in read_outputs(position, node, readers):
            entry = Entry(position, index)
            shape, dtype = facts.shapes.get((position, index)), facts.dtype(entry)
            if dtype is None or dtype not in precisions or not shape:
                continue
            name = builder.unique(f"{node.name}_probe{index}")
            zero = _zero(builder, name, dtype)
            builder.redirect(entry, builder.insert("elemwise_add", f"{name}_sum", Entry(new, index), zero))
            probes[name] = Probe(facts.output_names[position, index], shape, (position, index))
    return Probed(builder.finish(map(builder.mapped, graph.heads)), probes, places)


def _zero(builder: GraphBuilder, name: str, dtype: str) -> Entry:
    """Add a variable in float32, and give it in a dtype."""
    if dtype == dtypes.FLOAT32:
        return Entry(builder.add(Node(VARIABLE, name)))
    flag = make_attrs({"__dtype__": dtypes.to_flag(dtypes.FLOAT32)})
    return builder.insert(
        cast_op(dtypes.FLOAT32, dtype), f"{name}_cast", Entry(builder.add(Node(VARIABLE, name, flag))), dtype=dtype
    )


def is_unwritten(node: Node) -> bool:
    """Return whether an operator leaves the gradients of its inputs unwritten: they hold what was in memory."""
    rule = RULES.find(node.op, dict(node.attrs))
    return rule is not None and rule.unwritten_gradient


def read_outputs(position: int, node: Node, readers: Mapping[Tuple[int, int], Any]) -> List[int]:
    """Return the outputs of a node that an operator reads, none of those that ignore their gradient."""
    if node.is_variable or is_loss_head(node) or is_unwritten(node):
        return []
    return [index for index in range(node.num_outputs) if (position, index) in readers]
