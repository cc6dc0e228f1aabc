"""A network of any front, and what is compared of it: with float32 under a policy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ContextManager, Dict, Iterable, List, Mapping, Tuple

from ...graph import Graph
from ...policy import Policy
from ...probe.node_errors import NodeError, node_errors
from ...report import DROPPED, FOLDED, Decisions, Row

BATCHES = 2
"""How many batches errors of nodes are measured on: they only say what to try first."""

_POLICIES = 8  # whose decisions are kept


@dataclass
class GraphBatches:
    """What the nodes of one graph are compared on.

    Attributes:
        decisions: What a conversion decided.
        context: Where to run.
        batches: The values of all variables by name.
        numbers: Of each batch, the number of the call of a net, or of the batch given.
        out_format: How a net's outputs are nested, None of a symbol.
    """

    decisions: Decisions
    context: Any
    batches: List[Mapping[str, Any]] = field(default_factory=list)
    numbers: List[int] = field(default_factory=list)
    out_format: Any = None


class Network(ABC):
    """A float32 network that can be given to ``evaluate`` under any policy; its owner's object is left as it was."""

    def __init__(self) -> None:
        self._decisions: Dict[Policy, List[Decisions]] = {}  # the oldest first

    @abstractmethod
    def watched(self) -> ContextManager[None]:
        """Note, within this context, what ``evaluate`` runs, if the rest needs to know."""

    @abstractmethod
    def under(self, policy: Policy) -> ContextManager[Any]:
        """Give what ``evaluate`` gets for a policy."""

    @abstractmethod
    def symbols(self) -> List[Any]:
        """Return the network's graphs as it is in float32, as far as they are known."""

    @abstractmethod
    def _decide(self, policy: Policy) -> List[Decisions]:
        """Return what a conversion to a policy decides, for each graph of the network."""

    @abstractmethod
    def comparisons(self, policy: Policy) -> Iterable[GraphBatches]:
        """Return what the errors of nodes under a policy are measured on."""

    def decisions(self, policy: Policy) -> List[Decisions]:
        """Return what a conversion to a policy decides, for each graph of the network."""
        if policy not in self._decisions:
            if len(self._decisions) == _POLICIES:
                del self._decisions[next(iter(self._decisions))]
            self._decisions[policy] = self._decide(policy)
        return self._decisions[policy]

    def graphs(self, policy: Policy) -> Tuple[Graph, ...]:
        """Return the converted graphs under a policy: where they are equal, so is everything that is measured."""
        return tuple(each.after for each in self.decisions(policy))

    def rows(self, policy: Policy) -> Tuple[Row, ...]:
        """Return what is decided about each operator under a policy; those that are folded are not there."""
        rows = (row for each in self.decisions(policy) for row in each.report.rows)
        return tuple(row for row in rows if row.precision not in (FOLDED, DROPPED))

    def errors(self, policy: Policy) -> Dict[str, NodeError]:
        """Return the errors of the network's nodes under a policy by name, the worst of those that share one.

        Nodes in a body of control flow have those of the node around them.
        """
        found: Dict[str, NodeError] = {}
        for each in self.comparisons(policy):
            inside = {node.name: names for node, names in _inside(each.decisions.before)}
            for error in node_errors(each.decisions, each.batches, each.context):
                for name, op in ((error.name, error.op), *inside.get(error.name, ())):
                    known = found.get(name)
                    own = max(error.own, known.own) if known else error.own
                    carried = max(error.carried, known.carried) if known else error.carried
                    found[name] = NodeError(name, op, own, carried)
        return found


def _inside(graph: Graph) -> Iterable[Tuple[Any, List[Tuple[str, str]]]]:
    """Yield each node with bodies, with names and operators of what is in them."""
    for node in graph.nodes:
        if node.subgraphs:
            yield node, [(inner.name, inner.op) for body in node.subgraphs for inner in body.operators()]
