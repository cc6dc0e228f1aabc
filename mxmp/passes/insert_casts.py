"""Adds casts where precisions meet: one per tensor and dtype, shared by all its readers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Dict, FrozenSet, Optional, Tuple

from .. import dtypes
from ..errors import PassError
from ..graph import Entry, Graph, GraphBuilder, Node
from ..graph.core import make_attrs
from ..policy import Policy
from ..rules import RULES, RuleSet
from .base import Pass
from .classify import LOW, Verdict, classify
from .facts import Facts
from .place import Placement, place

MARK_ATTR = "__mxmp__"
"""Attribute of the nodes that mxmp inserted; MXNet ignores attributes spelled like this."""

CAST_MARK = "cast"
HEAD_MARK = "head"
"""A cast at an output; it bears the name of the node that it reads, so that the output keeps
its name, and that node has another."""

ABSORBED_ATTR = "__mxmp_absorbed__"
"""Attribute of a node some of whose inputs, given by their numbers, would have read a cast of
mxmp, but read an equal cast of the network's own."""

STORED_ATTR = "__mxmp_stored__"
"""Attribute of a parameter that is stored in low precision: the dtype that it declared before,
empty if it declared none."""

# Attributes that say where a node runs, which a cast beside it must share.
_PLACE_ATTRS = ("__ctx_group__",)


@dataclass(frozen=True)
class Plan:
    """Everything that was decided about a graph.

    Attributes:
        verdicts: One per node.
        placement: Which nodes run in low precision.
        low_params: Positions of the parameters to store in low precision.
    """

    verdicts: Tuple[Verdict, ...]
    placement: Placement
    low_params: FrozenSet[int]


@dataclass(frozen=True)
class InsertCasts(Pass):
    """Rewrites a float32 graph so that it runs under a policy.

    Every tensor is cast once to the dtype that some of its readers want; outputs come in the
    policy's output dtype and keep their names (but for those of operators that name several
    outputs themselves, where they are cast). ``EraseCasts`` is the inverse.

    Attributes:
        policy: The policy.
        facts: What MXNet infers about the graph; None takes every entry for float32 of unknown
            shape.
        rules: The table of operators.
        stored: Names of parameters that are stored in low precision already, whoever reads them.
    """

    name: ClassVar[str] = "insert-casts"
    policy: Policy = Policy()
    facts: Optional[Facts] = None
    rules: RuleSet = RULES
    stored: FrozenSet[str] = frozenset()

    def requires(self, graph: Graph) -> None:
        """Refuse a graph that has been converted already."""
        for node in graph.nodes:
            if node.get(MARK_ATTR) is not None:
                raise PassError(f"pass {self.name}: node {node} is a cast of mxmp; erase the casts first.")

    def run(self, graph: Graph) -> Graph:
        """Return the graph with casts."""
        if not self.policy.is_mixed:
            return graph
        return _Inserter(graph, self.policy, self._facts(graph), self.plan(graph)).run()

    def plan(self, graph: Graph) -> Plan:
        """Return what this pass decides about a graph, without editing it."""
        facts = self._facts(graph)
        verdicts = classify(graph, self.policy, facts, self.rules)
        low_params: FrozenSet[int] = frozenset()
        if self.policy.param_dtype != dtypes.FLOAT32:
            stored = {i for i, n in enumerate(graph.nodes) if n.is_variable and n.name in self.stored}
            low_params = _low_params(graph, verdicts, facts) | stored
        output_low = self.policy.output_dtype != dtypes.FLOAT32
        return Plan(verdicts, place(graph, verdicts, facts, low_params, output_low), low_params)

    def _facts(self, graph: Graph) -> Facts:
        return self.facts if self.facts is not None else Facts.assume_float32(graph)


def _low_params(graph: Graph, verdicts: Tuple[Verdict, ...], facts: Facts) -> FrozenSet[int]:
    """Return the parameters that nothing but pinned low precision data inputs read.

    A parameter that any float32 operator reads stays float32 and is cast for the others; so does
    one that a free operator reads, whose label may change with the shapes.
    """
    found = {
        position
        for position, node in enumerate(graph.nodes)
        if node.is_variable and node.name in facts.params and facts.dtype(Entry(position)) == dtypes.FLOAT32
    }
    read = set()
    for position, node in enumerate(graph.nodes):
        for port, entry in enumerate(node.inputs):
            verdict = verdicts[position]
            if verdict.label == LOW and verdict.follows(port):
                read.add(entry.node)
            else:
                found.discard(entry.node)
    return frozenset(found & read - {head.node for head in graph.heads})


class _Inserter:
    """One forward sweep over the graph."""

    def __init__(self, graph: Graph, policy: Policy, facts: Facts, plan: Plan) -> None:
        self.graph = graph
        self.low_dtype = policy.compute_dtype
        self.output_dtype = policy.output_dtype
        self.facts = facts
        self.plan = plan
        self.builder = GraphBuilder(graph)
        self.casts: Dict[Tuple[int, int, str], Entry] = {}

    def run(self) -> Graph:
        for position, node in enumerate(self.graph.nodes):
            inputs = tuple(self._input(position, port) for port in range(len(node.inputs)))
            if position in self.plan.low_params:
                declared = dtypes.from_flag(node.get("__dtype__", "") or "") or ""
                node = node.with_attrs({"__dtype__": dtypes.to_flag(self.low_dtype), STORED_ATTR: declared})
            self.builder.copy(position, replace(node, inputs=inputs))
        heads = [self._head(head) for head in self.graph.heads]
        return self.builder.finish(heads)

    def _input(self, position: int, port: int) -> Entry:
        entry = self.graph.nodes[position].inputs[port]
        verdict = self.plan.verdicts[position]
        has = self._dtype(entry)
        if has is None or verdict.accepts_any(port):
            return self.builder.mapped(entry)
        wants_low = verdict.follows(port) and position in self.plan.placement.low
        wanted = self.low_dtype if wants_low else dtypes.FLOAT32
        return self.builder.mapped(entry) if has == wanted else self._cast(entry, wanted, position)

    def _dtype(self, entry: Entry) -> Optional[str]:
        """Return the dtype of an old entry in the new graph, None if it is not ours to change."""
        if self.facts.dtype(entry) != dtypes.FLOAT32:
            return None
        if entry.node in self.plan.low_params:
            return self.low_dtype
        moves = self.plan.verdicts[entry.node].moves(entry.index)
        return self.low_dtype if moves and entry.node in self.plan.placement.low else dtypes.FLOAT32

    def _cast(self, entry: Entry, dtype: str, reader: int) -> Entry:
        key = (entry.node, entry.index, dtype)
        if key not in self.casts:
            name = f"{self.facts.output_name(self.graph, entry)}_cast_{dtype}"
            attrs = {"dtype": dtype, MARK_ATTR: CAST_MARK, **self._place_attrs(entry.node, reader)}
            node = Node(
                cast_op(dtype, self.low_dtype),
                self.builder.unique(name),
                make_attrs(attrs),
                (self.builder.mapped(entry),),
            )
            self.casts[key] = Entry(self.builder.add(node))
        return self.casts[key]

    def _place_attrs(self, producer: int, reader: int) -> Dict[str, str]:
        found: Dict[str, str] = {}
        for position in (reader, producer):
            for key in _PLACE_ATTRS:
                value = self.graph.nodes[position].get(key)
                if value is not None:
                    found[key] = value
        return found

    def _head(self, head: Entry) -> Entry:
        has = self._dtype(head)
        if has is None or has == self.output_dtype:
            return self.builder.mapped(head)
        cast = self._cast(head, self.output_dtype, head.node)
        producer = self.graph.nodes[head.node]
        alone = all(head.node != other.node or head.index == other.index for other in self.graph.heads)
        if alone and self.facts.output_name(self.graph, head) == f"{producer.name}_output":
            self._swap_names(head, cast)
        return cast

    def _swap_names(self, head: Entry, cast: Entry) -> None:
        """Give the cast the name of the node it reads, so that the output keeps its name."""
        nodes = self.builder.nodes
        new = self.builder.mapped(head).node
        old_name = self.graph.nodes[head.node].name
        if nodes[new].name != old_name:
            return
        nodes[new] = replace(nodes[new], name=self.builder.unique(f"{old_name}_{self._dtype(head)}"))
        nodes[cast.node] = replace(nodes[cast.node].with_attrs({MARK_ATTR: HEAD_MARK}), name=old_name)


def cast_op(dtype: str, low_dtype: str) -> str:
    """Return the operator that casts between float32 and a low precision dtype.

    ``Cast`` survives saving and ONNX export, and rounds to float16 as it should. To bfloat16 it
    truncates; ``amp_cast`` rounds to nearest even there, and is fast (oneDNN).
    """
    return "amp_cast" if dtypes.BFLOAT16 in (dtype, low_dtype) else "Cast"
