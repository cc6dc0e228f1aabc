"""Loss scaling for loss heads: a new input ``loss_scale`` multiplies only the gradients of loss heads.

A loss head of the Symbolic API starts the backward pass by itself. It ignores the gradient of its output, so
multiplying the output scales nothing. In front of its data x this pass puts

    u = loss_scale * sign_ste(x)
    y = BlockGrad(x) + (u - BlockGrad(u))

The value of y is x. The gradient of x is that of y times the scale. It is multiplied in float32, before the backward
pass rounds anything to low precision. Both are exact for powers of two. sign_ste gives the sign of x, and hands
gradients on unchanged. So u is finite even if x is not, and the difference is 0. With x in place of its sign the
difference would be NaN there. On a GPU it is three kernels forward, the difference and the sum being fused, and two
backward.

The scale is an input of shape (1,): it changes from step to step without a new executor.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, FrozenSet, List

from .. import dtypes
from ..graph import Entry, Graph, GraphBuilder, Node
from ..graph.core import VARIABLE, make_attrs
from .base import MARK_ATTR, SCALE_MARK, Pass, device_attrs, rule_of, sweep
from .casts import cast_op
from .facts import Facts

# Written by the user; a graph does not tell whether they use the gradient of their output
# (CustomOpProp, python/mxnet/operator.py at tag 1.9.1: need_top_grad).
_USER_OPS = frozenset({"Custom", "_Native", "_NDArray"})

# It adds a penalty to the gradient that it gets, which no scale reaches.
_PENALTY = "IdentityAttachKLSparseReg"


@dataclass(frozen=True)
class ScaleLoss(Pass):
    """Scales the gradient of every loss head of a converted graph by ``variable``, a new input: float32, shape (1,).

    ``facts`` tell dtypes of entries; one that is unknown counts as float32. ``custom`` names the user's own operators
    (``Custom``) that are loss heads, ``ignoring`` those that give a gradient and ignore that of their output.
    ``EraseCasts`` takes out the inserted nodes. Then no output depends on the variable.
    """

    facts: Facts = field(default_factory=lambda: Facts({}))
    variable: str = "loss_scale"
    custom: FrozenSet[str] = frozenset()
    ignoring: FrozenSet[str] = frozenset()

    def requires(self, graph: Graph) -> None:
        """Refuse graphs whose gradient cannot be scaled as a whole."""
        if any(node.name == self.variable for node in graph.nodes):
            self.refuse(f"the graph has a node '{self.variable}' already; rename it, or erase the loss scale.")
        for node in graph.operators():
            if node.op == _PENALTY:
                self.refuse(
                    f"node {node} adds a penalty to the gradient that cannot be scaled; "
                    f"write the penalty as a loss under make_loss."
                )
        for body in (body for node in graph.nodes for body in node.subgraphs):
            for node in filter(is_loss_head, body.operators()):
                self.refuse(f"node {node} is a loss head inside of a control flow operator; move it out.")
        self._check_user_ops(graph)

    def _check_user_ops(self, graph: Graph) -> None:
        user_ops = {node.name for node in graph.nodes if node.op in _USER_OPS}
        for name in sorted(self.custom - user_ops):
            self.refuse(f"the graph has no Custom operator '{name}'; check the names in loss_heads.")
        for head in graph.heads:
            node = graph.nodes[head.node]
            if node.name in user_ops - self.custom:
                self.refuse(
                    f"output {node} is an operator of yours, of which mxmp cannot know whether it is a loss head. If "
                    f"it ignores the gradient of its output (need_top_grad=False), name it in loss_heads; else put an "
                    f"identity behind it."
                )
        for name in sorted(self.ignoring - self.custom):
            self.refuse(
                f"node '{name}' (Custom) ignores the gradient of its output (need_top_grad=False), so no loss scale "
                f"reaches its own; name it in loss_heads, or put BlockGrad in front of it if its own is zero."
            )

    def run(self, graph: Graph) -> Graph:
        """Return the graph with scaled loss heads; the same one if it has none."""
        scales: List[Entry] = []  # at most one
        scaled: Dict[Entry, Entry] = {}

        def visit(builder: GraphBuilder, position: int, node: Node) -> Node:
            if not is_loss_head(node) and node.name not in self.custom:
                return node
            if not scales:
                attrs = {"__shape__": "(1,)", "__dtype__": dtypes.to_flag(dtypes.FLOAT32), **device_attrs(node)}
                scales.append(Entry(builder.add(Node(VARIABLE, self.variable, make_attrs(attrs)))))
            data = graph.nodes[position].inputs[0]
            if data not in scaled:
                scaled[data] = self._scaled(builder, node, self.facts.dtype(data) or dtypes.FLOAT32, scales[0])
            return node.rewired((scaled[data], *node.inputs[1:]))

        return sweep(graph, visit)

    def _scaled(self, builder: GraphBuilder, head: Node, dtype: str, scale: Entry) -> Entry:
        """Return an entry with the value of a loss head's data, whose gradient is scaled in float32."""
        x = head.inputs[0]
        if dtype not in dtypes.PRECISIONS:
            self.refuse(f"node {head} reads {dtype}, whose gradient cannot be scaled; cast it to float32.")

        def add(op: str, what: str, *inputs: Entry, **attrs: str) -> Entry:
            attrs = {**attrs, **device_attrs(head), MARK_ATTR: SCALE_MARK}
            return builder.insert(op, f"{head.name}_{what}", *inputs, **attrs)

        # The first input of each node leads back to x: so EraseCasts finds the way.
        low = dtype != dtypes.FLOAT32
        if low:
            x = add(cast_op(dtypes.FLOAT32, dtype), "wide", x, dtype=dtypes.FLOAT32)
        change = add("broadcast_mul", "scaled_sign", add("_contrib_sign_ste", "sign", x), scale)
        # MXNet fuses the two elementwise operators, but cannot infer shapes then where a head has a context of its own.
        subtract = "broadcast_sub" if device_attrs(head) else "elemwise_sub"
        zero = add(subtract, "zero", change, add("BlockGrad", "value_of_sign", change))
        result = add("elemwise_add", "scaled", add("BlockGrad", "value", x), zero)
        return add(cast_op(dtype, dtype), "narrow", result, dtype=dtype) if low else result


def is_loss_head(node: Node) -> bool:
    """Return whether a node starts the backward pass itself and ignores the gradient of its output."""
    rule = rule_of(node)
    return rule is not None and rule.loss_head
