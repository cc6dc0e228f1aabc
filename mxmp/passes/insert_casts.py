"""Insertion of casts between float32 and low precision: one per tensor and dtype, shared by its readers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import ClassVar, Dict, Optional, Tuple

from .. import dtypes
from ..graph import Entry, Graph, GraphBuilder, Key, Node
from ..policy import Policy
from ..rules import RULES, RuleSet
from .attributes import (
    CAST_MARK,
    DECLARED_ATTR,
    FACTOR_MARK,
    HEAD_MARK,
    MARK_ATTR,
    REPLACED_ATTR,
    WIDENED_ATTR,
    device_attrs,
)
from .base import Pass
from .facts import Facts
from .plan import Plan, make_plan
from .verdict import Verdict

_OUTPUT = "_output"


@dataclass(frozen=True)
class InsertCasts(Pass):
    """Rewrites a float32 graph so that it runs under a policy; ``EraseCasts`` is the inverse.

    Every tensor is cast once to the dtype that some of its readers want; outputs come in the policy's output dtype and
    keep their names. Without ``facts`` every entry counts as float32 of unknown shape, without a ``plan`` one is made.
    """

    name: ClassVar[str] = "insert-casts"
    policy: Policy = Policy()
    facts: Optional[Facts] = None
    rules: RuleSet = RULES
    plan: Optional[Plan] = None

    def requires(self, graph: Graph) -> None:
        """Refuse a graph that has been converted already."""
        for node in graph.nodes:
            if node.get(MARK_ATTR) is not None:
                self.refuse(f"node {node} is a cast of mxmp; erase the casts first.")
            for body in node.subgraphs:
                self.requires(body)

    def run(self, graph: Graph) -> Graph:
        """Return the graph with casts."""
        if not self.policy.is_mixed:
            return graph
        facts = self.facts if self.facts is not None else Facts.assume_float32(graph)
        plan = self.plan if self.plan is not None else make_plan(graph, self.policy, facts, self.rules)
        return _Inserter(graph, self.policy, facts, plan).run()


class _Inserter:
    """One forward sweep over a graph, or over a body of a control flow node."""

    def __init__(self, graph: Graph, policy: Policy, facts: Facts, plan: Plan, is_body: bool = False) -> None:
        self.graph = graph
        self.policy = policy
        self.low_dtype = policy.compute_dtype
        self.facts = facts
        self.plan = plan
        self.is_body = is_body
        self.builder = GraphBuilder(graph)
        self.casts: Dict[Tuple[Key, str], Entry] = {}

    def run(self) -> Graph:
        for position, node in enumerate(self.graph.nodes):
            self.builder.copy(position, node if node.is_variable else self._operator(position, node))
            if position in self.plan.low_params:
                self._declare(Entry(position), self.low_dtype)
        if self.is_body:
            return self.builder.finish(self._exit(number, head) for number, head in enumerate(self.graph.heads))
        return self.builder.finish([self._head(head) for head in self.graph.heads])

    def _operator(self, position: int, node: Node) -> Node:
        """Return the new form of an operator."""
        inputs = tuple([self._input(position, port, entry) for port, entry in enumerate(node.inputs)])
        node = _clamped(self._widened(position, node), self.plan.verdicts[position])
        if self.plan.verdicts[position].stand_in and position in self.plan.placement.low:
            node, inputs = self._stand_in(node, self.plan.verdicts[position].stand_in, inputs)
        return node.rewired(inputs, self._bodies(position, node))

    def _bodies(self, position: int, node: Node) -> Tuple[Graph, ...]:
        found = []
        for number, graph in enumerate(node.subgraphs):
            plan = self.plan.bodies.get((position, number))
            if plan is not None:
                graph = _Inserter(graph, self.policy, self.facts.bodies[position, number], plan, is_body=True).run()
            found.append(graph)
        return tuple(found)

    def _widened(self, position: int, node: Node) -> Node:
        """Return a node that reads low precision data as it is, where its operator can."""
        key = self.plan.verdicts[position].widens
        if not key or self._dtype(node.inputs[0]) != self.low_dtype:
            return node
        before = node.get(key)
        return node.with_attrs({key: dtypes.FLOAT32, WIDENED_ATTR: key if before is None else f"{key}={before}"})

    def _stand_in(self, node: Node, op: str, inputs: Tuple[Entry, ...]) -> Tuple[Node, Tuple[Entry, ...]]:
        """Return the node to put in place of another, and its inputs."""
        attrs = {key: value for key, value in node.attrs if not key.startswith("__")}
        kept: Dict[str, Optional[str]] = {key: attrs[key] for key in ("transpose_a", "transpose_b") if key in attrs}
        alpha = attrs.get("alpha", "1")
        if float(alpha) != 1:
            factor = {"scalar": alpha, MARK_ATTR: FACTOR_MARK, **device_attrs(node)}
            inputs = (self.builder.insert("_mul_scalar", f"{node.name}_alpha", inputs[0], **factor), *inputs[1:])
        removed: Dict[str, Optional[str]] = dict.fromkeys(attrs)
        marks = {REPLACED_ATTR: node.get(REPLACED_ATTR) or json.dumps([node.op, attrs])}
        return node.with_attrs({**removed, **kept, **marks})._replace(op=op), inputs

    def _input(self, position: int, port: int, entry: Entry) -> Entry:
        has = self._dtype(entry)
        if has is None or self.plan.verdicts[position].accepts_any(port):
            return self.builder.mapped(entry)
        wanted = self.low_dtype if self.plan.reads_low(position, port) else dtypes.FLOAT32
        return self.builder.mapped(entry) if has == wanted else self._cast(entry, wanted, position)

    def _dtype(self, entry: Entry) -> Optional[str]:
        """Return float32 or the low precision dtype that an old entry has in the new graph, None if it has another."""
        if self.facts.dtype(entry) != dtypes.FLOAT32:
            return None
        low = entry.node in self.plan.low_params or self.plan.gives_low(entry.node, entry.index)
        return self.low_dtype if low else dtypes.FLOAT32

    def _declare(self, entry: Entry, dtype: str) -> None:
        """Declare the dtype of a variable, which MXNet does not infer through a cast."""
        position = self.builder.mapped(entry).node
        node = self.builder.nodes[position]
        declared = dtypes.from_flag(node.get("__dtype__", "") or "") or ""
        if node.is_variable and not self.is_body and declared != dtype:
            self.builder.nodes[position] = node.with_attrs(
                {"__dtype__": dtypes.to_flag(dtype), DECLARED_ATTR: node.get(DECLARED_ATTR) or declared}
            )

    def _cast(self, entry: Entry, dtype: str, reader: int) -> Entry:
        key = (entry.key, dtype)
        if key not in self.casts:
            name = f"{self.facts.output_name(self.graph, entry)}_cast_{dtype}"
            device = {**device_attrs(self.graph.nodes[reader]), **device_attrs(self.graph.nodes[entry.node])}
            attrs = {"dtype": dtype, MARK_ATTR: CAST_MARK, **device}
            op = cast_op(dtype, self.low_dtype)
            self.casts[key] = self.builder.insert(op, name, self.builder.mapped(entry), **attrs)
            if entry.node not in self.plan.low_params:
                self._declare(entry, dtypes.FLOAT32)
        return self.casts[key]

    def _exit(self, number: int, head: Entry) -> Entry:
        """Return the new entry of a body's output; the plan says which may be in low precision."""
        if number in self.plan.any_heads or self._dtype(head) in (None, dtypes.FLOAT32):
            return self.builder.mapped(head)
        return self._cast(head, dtypes.FLOAT32, head.node)

    def _head(self, head: Entry) -> Entry:
        if not self._is_cast(head):
            return self.builder.mapped(head)
        cast = self._cast(head, self.plan.output_dtype(head, self.policy), head.node)
        producer, name = self.graph.nodes[head.node], self.facts.output_name(self.graph, head)
        if name == producer.name + _OUTPUT:
            if all(self._is_cast(other) for other in self.graph.heads if other.node == head.node):
                self._swap_names(head, cast)
        elif not producer.is_variable and name.endswith(_OUTPUT):
            name = name[: -len(_OUTPUT)]
            if name not in self.builder.names:
                self.builder.nodes[cast.node] = self.builder.nodes[cast.node]._replace(name=self.builder.unique(name))
        return cast

    def _is_cast(self, head: Entry) -> bool:
        return self._dtype(head) not in (None, self.plan.output_dtype(head, self.policy))

    def _swap_names(self, head: Entry, cast: Entry) -> None:
        """Give the cast the name of the node it reads, so that the output keeps its name."""
        nodes = self.builder.nodes
        new = self.builder.mapped(head).node
        old_name = self.graph.nodes[head.node].name
        if nodes[new].name != old_name:
            return
        nodes[new] = nodes[new]._replace(name=self.builder.unique(f"{old_name}_{self._dtype(head)}"))
        nodes[cast.node] = nodes[cast.node].with_attrs({MARK_ATTR: HEAD_MARK})._replace(name=old_name)


def _clamped(node: Node, verdict: Verdict) -> Node:
    """Return a node with the scalars that its verdict puts in the place of some beyond the dtype's range."""
    if not verdict.clamped:
        return node
    before = {key: value for key, value in node.attrs if not key.startswith("__")}
    return node.with_attrs({**dict(verdict.clamped), REPLACED_ATTR: json.dumps([node.op, before])})


def cast_op(dtype: str, low_dtype: str) -> str:
    """Return the operator that casts between float32 and a low precision dtype.

    ``Cast`` survives saving and ONNX export, and rounds to float16 as it should. To bfloat16 it truncates; ``amp_cast``
    rounds to nearest even there, and is fast (oneDNN).
    """
    return "amp_cast" if dtypes.BFLOAT16 in (dtype, low_dtype) else "Cast"
