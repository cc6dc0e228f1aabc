"""A graph with probes: a zero is added to each activation, and its gradient is that of the activation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, NamedTuple, Tuple

from .. import dtypes
from ..graph import VARIABLE, Entry, Graph, GraphBuilder, Node
from ..passes.facts import Facts
from ..passes.scale_loss import is_loss_head
from ..rules import RULES


class Probe(NamedTuple):
    """The activation that a probe is added to: name of the output and shape."""

    output: str
    shape: Tuple[int, ...]


@dataclass(frozen=True)
class Probed:
    """A graph with probes.

    Attributes:
        graph: The graph, whose heads are those of the network.
        probes: By the name of the variable that zeros must be given for.
    """

    graph: Graph
    probes: Mapping[str, Probe]


def add_probes(graph: Graph, facts: Facts) -> Probed:
    """Return a graph with a zero added to each float32 output of known shape that an operator reads.

    Outputs of loss heads and of operators that never write a gradient have no probe.
    """
    readers, builder = graph.consumers(), GraphBuilder(graph)
    probes: Dict[str, Probe] = {}
    for position, node in enumerate(graph.nodes):
        inputs = tuple(map(builder.mapped, node.inputs))
        if is_unwritten(node):
            inputs = tuple(builder.insert("BlockGrad", f"{node.name}_blocked", entry) for entry in inputs)
        new = builder.copy(position, node.rewired(inputs))
        for index in read_outputs(position, node, readers):
            entry = Entry(position, index)
            shape = facts.shapes.get((position, index))
            if facts.dtype(entry) != dtypes.FLOAT32 or not shape:
                continue
            name = builder.unique(f"{node.name}_probe{index}")
            zero = Entry(builder.add(Node(VARIABLE, name)))
            builder.redirect(entry, builder.insert("elemwise_add", f"{name}_sum", Entry(new, index), zero))
            probes[name] = Probe(facts.output_names[position, index], shape)
    return Probed(builder.finish(map(builder.mapped, graph.heads)), probes)


def is_unwritten(node: Node) -> bool:
    """Return whether an operator leaves the gradients of its inputs unwritten: they hold what was in memory."""
    rule = RULES.find(node.op, dict(node.attrs))
    return rule is not None and rule.unwritten_gradient


def read_outputs(position: int, node: Node, readers: Mapping[Tuple[int, int], Any]) -> List[int]:
    """Return the outputs of a node that an operator reads, none of those that ignore their gradient."""
    if node.is_variable or is_loss_head(node) or is_unwritten(node):
        return []
    return [index for index in range(node.num_outputs) if (position, index) in readers]
