"""Inserts casts between float32 and low precision, one per tensor and dtype, and takes them out again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import AbstractSet, Dict, Optional, Tuple, Union

from .. import dtypes
from ..graph import Entry, Graph, GraphBuilder, Key, Node
from ..policy import Policy
from .base import (
    CAST_MARK,
    DTYPE_ATTR,
    FACTOR_MARK,
    MARK_ATTR,
    OUTPUT_MARK,
    Pass,
    changed,
    device_attrs,
    is_converted,
    is_inserted,
    sweep,
)
from .facts import Facts
from .plan import Plan, make_plan

_OUTPUT = "_output"
# The only operator with a factor of its own that has substitutes (`mxmp.rules.table.products`), and these.
_GEMM2, _PRODUCTS = "_linalg_gemm2", ("dot", "batch_dot")


def cast_op(dtype: str, low_dtype: str) -> str:
    """Return the operator that casts between float32 and a low precision dtype.

    ``Cast`` survives saving and ONNX export, and rounds to float16 as it should. To bfloat16 it truncates; ``amp_cast``
    rounds to nearest even there, and is fast (oneDNN).
    """
    return "amp_cast" if dtypes.BFLOAT16 in (dtype, low_dtype) else "Cast"


@dataclass(frozen=True)
class InsertCasts(Pass):
    """Rewrites a float32 graph so that it runs under a policy; ``EraseCasts`` takes its casts out.

    Every tensor is cast once to the dtype that some of its readers want; outputs come in the policy's output dtype and
    keep their names. Without ``facts`` every entry counts as float32 of unknown shape, without a ``plan`` one is made.
    """

    policy: Policy = Policy()
    facts: Optional[Facts] = None
    plan: Optional[Plan] = None

    def requires(self, graph: Graph) -> None:
        """Refuse a graph that has been converted already."""
        for node in graph.operators():
            if is_inserted(node):
                self.refuse(f"node {node} is a cast of mxmp; erase the casts first.")

    def run(self, graph: Graph) -> Graph:
        """Return the graph with casts."""
        if not self.policy.is_mixed:
            return graph
        facts = self.facts if self.facts is not None else Facts.assume_float32(graph)
        plan = self.plan if self.plan is not None else make_plan(graph, self.policy, facts)
        return _Inserter(graph, self.policy, facts, plan).run()


class _Inserter:
    """Inserts casts in one forward sweep over a graph, or over a body of a control flow node."""

    def __init__(
        self, graph: Graph, policy: Policy, facts: Facts, plan: Plan, low_heads: Optional[AbstractSet[int]] = None
    ) -> None:
        self.graph = graph
        self.policy = policy
        self.low_dtype = policy.compute_dtype
        self.facts = facts
        self.plan = plan
        self.low_heads = low_heads  # of a body, the numbers of its outputs that are given in low precision
        self.builder = GraphBuilder(graph)
        self.casts: Dict[Tuple[Key, str], Entry] = {}

    def run(self) -> Graph:
        for position, node in enumerate(self.graph.nodes):
            self.builder.copy(position, node if node.is_variable else self._operator(position, node))
            if position in self.plan.low_params:
                self._declare(Entry(position), self.low_dtype)
        new_head = self._exit if self.low_heads is not None else self._head
        return self.builder.finish([new_head(number, head) for number, head in enumerate(self.graph.heads)])

    def _operator(self, position: int, node: Node) -> Node:
        """Return the new form of an operator."""
        decision = self.plan.decisions[position]
        inputs = [self._input(position, port, entry) for port, entry in enumerate(node.inputs)]
        changes: Dict[str, Optional[str]] = dict(decision.clamped)
        if decision.float32_attr and self._dtype(node.inputs[0]) == self.low_dtype:  # its input needs no cast
            changes[decision.float32_attr] = dtypes.FLOAT32
        changed = node.with_attrs(changes) if changes else node
        if decision.substitute and position in self.plan.low:
            changed, inputs[0] = self._substitute(changed, decision.substitute, inputs[0])
        bodies = [self._body(position, number, graph) for number, graph in enumerate(node.subgraphs)]
        return changed.rewired(tuple(inputs), tuple(bodies))

    def _body(self, position: int, number: int, graph: Graph) -> Graph:
        """Return the new form of a body, if it has a plan."""
        key, low_heads = (position, number), self.plan.decisions[position].low_outputs
        if key not in self.plan.bodies:
            return graph
        return _Inserter(graph, self.policy, self.facts.bodies[key], self.plan.bodies[key], low_heads).run()

    def _substitute(self, node: Node, op: str, data: Entry) -> Tuple[Node, Entry]:
        """Return the substitute of a node, and the substitute's first input."""
        attrs = {key: value for key, value in node.attrs if not key.startswith("__")}
        kept: Dict[str, Optional[str]] = {key: attrs[key] for key in ("transpose_a", "transpose_b") if key in attrs}
        alpha = attrs.get("alpha", "1")
        if float(alpha) != 1:
            factor = {"scalar": alpha, MARK_ATTR: FACTOR_MARK, **device_attrs(node)}
            data = self.builder.insert("_mul_scalar", f"{node.name}_alpha", data, **factor)
        return node.with_attrs({**dict.fromkeys(attrs), **kept})._replace(op=op), data

    def _input(self, position: int, port: int, entry: Entry) -> Entry:
        """Return the entry of the new graph that an input of a node reads."""
        dtype = self._dtype(entry)
        wanted = self.low_dtype if self.plan.reads_low(position, port) else dtypes.FLOAT32
        if dtype is None or dtype == wanted or self.plan.decisions[position].accepts_any(port):
            return self.builder.mapped(entry)
        return self._cast(entry, wanted, position)

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
        declared = node.get("__dtype__") or ""
        if node.is_variable and self.low_heads is None and dtypes.from_flag(declared) != dtype:
            self.builder.nodes[position] = node.with_attrs({"__dtype__": dtypes.to_flag(dtype), DTYPE_ATTR: declared})

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
        """Return the new entry of a body's output."""
        is_low = self._dtype(head) == self.low_dtype and number not in (self.low_heads or ())
        return self._cast(head, dtypes.FLOAT32, head.node) if is_low else self.builder.mapped(head)

    def _head(self, _: int, head: Entry) -> Entry:
        """Return the new entry of an output. If it is a cast, it gets the output's name if a cast can have it."""
        if not self._is_cast(head):
            return self.builder.mapped(head)
        cast = self._cast(head, self.plan.output_dtype(head, self.policy), head.node)
        producer, name = self.graph.nodes[head.node], self.facts.output_name(self.graph, head)
        if name == producer.name + _OUTPUT:
            if all(self._is_cast(other) for other in self.graph.heads if other.node == head.node):
                self._swap_names(head, cast)
        elif not producer.is_variable and name.endswith(_OUTPUT) and name[: -len(_OUTPUT)] not in self.builder.names:
            self._rename(cast, self.builder.unique(name[: -len(_OUTPUT)]))
        return cast

    def _is_cast(self, head: Entry) -> bool:
        return self._dtype(head) not in (None, self.plan.output_dtype(head, self.policy))

    def _swap_names(self, head: Entry, cast: Entry) -> None:
        """Give the cast the name of the node it reads, so that the output keeps its name."""
        new, name = self.builder.mapped(head), self.graph.nodes[head.node].name
        if self.builder.nodes[new.node].name == name:
            self._rename(new, self.builder.unique(f"{name}_{self._dtype(head)}"))
            self._rename(cast, name)
            self.builder.nodes[cast.node] = self.builder.nodes[cast.node].with_attrs({MARK_ATTR: OUTPUT_MARK})

    def _rename(self, entry: Entry, name: str) -> None:
        self.builder.nodes[entry.node] = self.builder.nodes[entry.node]._replace(name=name)


@dataclass(frozen=True)
class EraseCasts(Pass):
    """Takes out the nodes that mxmp inserted, and the dtypes that it declared; the network's own casts stay.

    An operator that mxmp changed stays changed: a substitute, an operator that gives float32 by an attribute, or one
        with a clamped scalar. A product with a factor is gemm2 again, because the factor is taken out.
    """

    def run(self, graph: Graph) -> Graph:
        """Return the graph without inserted nodes and declared dtypes."""
        if not is_converted(graph):
            return graph

        def visit(builder: GraphBuilder, position: int, node: Node) -> Union[Node, Entry]:
            if is_inserted(node):
                if not node.inputs or node.num_outputs > 1:
                    raise changed(node)
                if node.get(MARK_ATTR) == OUTPUT_MARK:
                    operator = node.inputs[0].node
                    builder.nodes[operator] = builder.nodes[operator]._replace(name=node.name)
                return node.inputs[0]
            factor = graph.nodes[graph.nodes[position].inputs[0].node] if node.inputs else node
            if factor.get(MARK_ATTR) == FACTOR_MARK:
                if node.op not in _PRODUCTS:
                    raise changed(node)
                return node._replace(op=_GEMM2).with_attrs({"alpha": factor.get("scalar")})
            declared = node.get(DTYPE_ATTR)
            return node if declared is None else node.with_attrs({"__dtype__": declared or None, DTYPE_ATTR: None})

        return sweep(graph, visit, body=self.run)
