"""Invariants that every graph keeps, before and after each pass."""

from __future__ import annotations

from ..errors import GraphError
from .core import Entry, Graph, Node

HINT = "The file is truncated or was edited by hand."


def verify(graph: Graph) -> None:
    """Check that a graph is well formed.

    Every node comes after what it reads, every entry exists, variables read nothing, and the graph returns something.

    Raises:
        GraphError: Naming the first node that breaks a rule.
    """
    nodes = graph.nodes
    for position, node in enumerate(nodes):
        sound = not (node.is_variable and node.inputs) and node.num_outputs >= 1
        for number, index, _ in node.inputs:
            sound = sound and 0 <= number < position and 0 <= index < nodes[number].num_outputs
        if not sound or node.control_deps or node.subgraphs:
            _verify_node(graph, position, node)
    if not graph.heads:
        raise GraphError("the graph has no outputs.")
    for number, head in enumerate(graph.heads):
        _verify_entry(graph, head, len(graph.nodes), f"output {number} of the graph")


def _verify_node(graph: Graph, position: int, node: Node) -> None:
    if node.is_variable and node.inputs:
        raise GraphError(f"node {node}: a variable cannot have inputs. {HINT}")
    if node.num_outputs < 1:
        raise GraphError(f"node {node}: found {node.num_outputs} outputs, expected at least one. {HINT}")
    for port, entry in enumerate(node.inputs):
        _verify_entry(graph, entry, position, f"node {node}: input {port}")
    for dep in node.control_deps:
        _verify_entry(graph, Entry(dep), position, f"node {node}: a control dependency")
    for sub in node.subgraphs:
        verify(sub)


def _verify_entry(graph: Graph, entry: Entry, limit: int, where: str) -> None:
    if not 0 <= entry.node < len(graph.nodes):
        raise GraphError(f"{where} refers to node {entry.node}, but the graph has {len(graph.nodes)} nodes. {HINT}")
    producer = graph.nodes[entry.node]
    if entry.node >= limit:
        raise GraphError(f"{where} refers to node {producer}, which comes later or is itself. {HINT}")
    if not 0 <= entry.index < producer.num_outputs:
        raise GraphError(
            f"{where} refers to output {entry.index} of node {producer}, which has {producer.num_outputs}. {HINT}"
        )
