"""Emulation of float16 on CPU: float32 arithmetic with results rounded to float16.

MXNet has no float16 matrix product on CPU ('FP16 gemm on cpu not implemented!'), and its other
float16 kernels there are 10 to 20 times slower than float32. This pass keeps every float16 tensor of a converted graph
as float32 values on the float16 grid. Operators run in float32. A pair of casts (down, then up) rounds results that can
leave the grid. This is the arithmetic of tensor cores, in another order of accumulation: float16 operands, float32
sums, float16 results.

The backward pass of such a pair rounds the gradient to float16 as well, and overflows to inf as float16 does. If
several readers of one tensor send gradients back, their sum is taken in float32 and rounded once. cuDNN does the same
when it adds into a gradient (beta = 1). Gradients that cross operators without a pair are rounded at the next pair.

Within an operator all is float32 (float64 in a transposed convolution). The steps of an RNN hand on unrounded states.
Some sums that MXNet's GPU kernels take in float16 are taken in float32 here, and rounded once. These are the sums of
``batch_dot``, numpy's matmul, ``sum`` and ``mean``, and gradients of tensors that are broadcast or read by index.
`mxmp.rules.conditions` tells the errors of such sums, and bounds their lengths.

MXNet's casts on CPU take one thread, a branch for each value, and arrays out of the layouts that oneDNN has given them.
If the operators of `mxmp.rounding` are loaded (``native``), one of them replaces the pair, with the same bits.

The emulated graph is for running only; it is never saved. Its outputs keep their names.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, List, Set, Tuple

import numpy as np

from .. import dtypes
from ..errors import PassError
from ..graph import Entry, Graph, GraphBuilder, Key, Node
from ..rules import Rule
from ..rules.conditions import sizes_of, value_of
from .base import Pass, insert_next_to, rule_of
from .facts import CAST_OPS, Facts

ROUND, ROUND_FORWARD = "_mxmp_round_float16", "_mxmp_round_float16_forward"
"""Operators of ``rounding/round_float16.cc``: float32 to the float16 grid; the second lets gradients pass."""

# Operators whose gradients are copies of the one that they get.
_SUMS = {"elemwise_add", "add_n"}


@dataclass(frozen=True)
class Emulate(Pass):
    """Rewrites a graph with float16 tensors so that it runs on CPU; ``facts`` tell which tensors are float16.

    ``native`` says whether the operators `ROUND` and `ROUND_FORWARD` are there.
    """

    facts: Facts = field(default_factory=lambda: Facts({}))
    native: bool = False

    def run(self, graph: Graph) -> Graph:
        """Return the graph in float32 arithmetic with float16 rounding."""
        if not self.facts.has(dtypes.FLOAT16):
            return graph
        return _Emulator(graph, self.facts, self.native).run()


class _Emulator:
    """Emulates float16 in one forward sweep over a graph, or over a body of a control flow node.

    Old entries of dtype float16 are kept in one of two forms, or both: as float32 values on the float16 grid, and as
    float16 tensors. The latter are for operators that mxmp has no rule for, and for float16 outputs. ``forms`` has new
    entries by old entry and dtype.
    """

    def __init__(self, graph: Graph, facts: Facts, native: bool, is_body: bool = False) -> None:
        self.graph = graph
        self.is_body = is_body
        self.facts = facts
        self.native = native
        self.builder = GraphBuilder(graph)
        self.forms: Dict[Tuple[Key, str], Entry] = {}
        self.readers = graph.consumers()
        self.heads = {head.key for head in graph.heads}

    def run(self) -> Graph:
        for position, node in enumerate(self.graph.nodes):
            rule = rule_of(node)
            if node.op in CAST_OPS:
                self._cast(position, node)
            elif (position, 0) in self.facts.bodies or (self.is_body and node.is_variable):
                self._copy(position, node, dtypes.FLOAT32)
            elif rule is not None and node.get("dtype") != dtypes.FLOAT16:
                self._emulated(position, node, rule)
            else:
                self._copy(position, node, dtypes.FLOAT16)  # no rule: in its own dtypes
        if self.is_body:
            return self.builder.finish(self._read(head, dtypes.FLOAT32) for head in self.graph.heads)
        heads = [self._read(head, dtypes.FLOAT16) for head in self.graph.heads]
        self._keep_names(heads)
        return self.builder.finish(heads)

    def _is_float16(self, entry: Entry) -> bool:
        return self.facts.dtype(entry) == dtypes.FLOAT16

    def _cast(self, position: int, node: Node) -> None:
        """Replace a cast to float16 by a rounding, and drop a cast back to float32."""
        source, target = node.inputs[0], node.get("dtype")
        new, is_low = self._read(source, dtypes.FLOAT32), self._is_float16(source)
        if target != dtypes.FLOAT16 and not (is_low and target == dtypes.FLOAT32):
            self.builder.copy(position, node.rewired((new,)))
            return
        if not is_low:
            new = self._round(new, node, by_casts=self.facts.dtype(source) != dtypes.FLOAT32)
        if target == dtypes.FLOAT16:
            self.forms[(position, 0), dtypes.FLOAT32] = new
        self.builder.redirect(Entry(position), new)

    def _emulated(self, position: int, node: Node, rule: Rule) -> None:
        """Run an operator in float32, and round results that can leave the grid."""
        inputs = tuple(self._read(entry, dtypes.FLOAT32) for entry in node.inputs)
        data = [self._is_float16(entry) for port, entry in enumerate(node.inputs) if rule.is_data(port)]
        node = node.rewired(inputs)
        if any(data):
            node = _with_float16_scalars(node, rule)
            if node.op == "Deconvolution":
                if not has_float64_deconvolution(node):
                    raise PassError(
                        f"pass emulate: node {node} has three axes or dilation, which is not emulated in "
                        f"float16 on a CPU. Keep it in float32 by 'op:{node.op}=float32', or run it on a GPU."
                    )
                node = deconvolution_in_float64(self.builder, node)
        new = self.builder.copy(position, node)
        stays_on_grid = rule.preserves_grid and all(data)
        for index in range(node.num_outputs):
            entry = Entry(position, index)
            if self._is_float16(entry) and (entry.key in self.readers or entry.key in self.heads):
                result = Entry(new, index)
                rounded = result if stays_on_grid else self._round_result(entry, result)
                self.forms[entry.key, dtypes.FLOAT32] = rounded

    def _copy(self, position: int, node: Node, dtype: str) -> None:
        """Copy a node, whose float16 inputs and outputs come in a dtype; in float32 its bodies are emulated too."""
        bodies = node.subgraphs
        if dtype == dtypes.FLOAT32:
            facts = (self.facts.bodies[position, number] for number in range(len(bodies)))
            bodies = tuple(_Emulator(*each, self.native, is_body=True).run() for each in zip(bodies, facts))
        inputs = tuple(self._read(entry, dtype) for entry in node.inputs)
        new = self.builder.copy(position, node.rewired(inputs, bodies))
        for index in range(node.num_outputs):
            if self._is_float16(Entry(position, index)):
                self.forms[(position, index), dtype] = Entry(new, index)

    def _read(self, entry: Entry, dtype: str) -> Entry:
        """Return the new entry of an old one; one of float16 in a dtype, for which a cast is added if needed."""
        if not self._is_float16(entry):
            return self.builder.mapped(entry)
        if (entry.key, dtype) not in self.forms:
            other = dtypes.FLOAT16 if dtype == dtypes.FLOAT32 else dtypes.FLOAT32
            node = self.graph.nodes[entry.node]
            self.forms[entry.key, dtype] = self._add_cast(self.forms[entry.key, other], dtype, node)
        return self.forms[entry.key, dtype]

    def _round_result(self, old: Entry, new: Entry) -> Entry:
        """Round the result of an operator, and its gradient unless that is on the grid already.

        An example is a BatchNorm that only a sum reads. Its gradient is a copy of the sum's gradient, which is rounded
        already. This saves one rounding in five in the backward pass of a residual network.
        """
        node, readers = self.graph.nodes[old.node], self.readers.get(old.key, [])
        summed = len(readers) == 1 and old.key not in self.heads and self.graph.nodes[readers[0][0]].op in _SUMS
        if summed and node.op == "BatchNorm":
            return self._round_forward(new, node)
        return self._round(new, node, by_casts=node.op == "Deconvolution")  # which may have been computed in float64

    def _round_forward(self, entry: Entry, node: Node) -> Entry:
        """Round a value and let its gradient pass: x + (round(x) - x), without gradient in brackets.

        Exact, also where round(x) is infinite. An infinite x would give NaN, but BatchNorm has none for finite data.
        """
        if self.native:
            return self.builder.insert(ROUND_FORWARD, f"{node.name}_as_{dtypes.FLOAT32}", entry)
        change = self._add("elemwise_sub", node, self._round(entry, node), entry)
        return self._add("elemwise_add", node, entry, self._add("BlockGrad", node, change))

    def _add(self, op: str, node: Node, *inputs: Entry) -> Entry:
        return self.builder.insert(op, f"{node.name}_{op.lower()}", *inputs)

    def _round(self, entry: Entry, node: Node, by_casts: bool = False) -> Entry:
        """Round a float32 value and its gradient; ``by_casts`` is for values of another dtype, such as float64."""
        if self.native and not by_casts:
            return self.builder.insert(ROUND, f"{node.name}_as_{dtypes.FLOAT32}", entry)
        return self._add_cast(self._add_cast(entry, dtypes.FLOAT16, node), dtypes.FLOAT32, node)

    def _add_cast(self, entry: Entry, dtype: str, node: Node) -> Entry:
        return self.builder.insert("Cast", f"{node.name}_as_{dtype}", entry, dtype=dtype)

    def _keep_names(self, heads: List[Entry]) -> None:
        """Give the nodes of the new outputs the names of the old ones; operators that have such a name are renamed."""
        renamed: Set[int] = set()
        for old, new in zip(self.graph.heads, heads):
            name = self.graph.nodes[old.node].name
            node = self.builder.nodes[new.node]
            unchanged = node.name == name or node.is_variable or new.node in renamed
            if unchanged or node.num_outputs > 1 or self.graph.nodes[old.node].num_outputs > 1:
                continue
            for position, other in enumerate(self.builder.nodes):
                if other.name == name and not other.is_variable:
                    self.builder.nodes[position] = other._replace(name=self.builder.unique(f"{name}_float32"))
            self.builder.nodes[new.node] = node._replace(name=name)
            renamed.add(new.node)


def _with_float16_scalars(node: Node, rule: Rule) -> Node:
    """Return a node with the scalars that MXNet's float16 kernel computes with."""
    changes = {}
    for key in rule.scalars:
        value = value_of(dict(node.attrs), key)
        if isinstance(value, (int, float)):
            with np.errstate(over="ignore"):
                changes[key] = repr(float(np.float16(value)))
    return node.with_attrs(changes) if changes else node


def deconvolution_in_float64(builder: GraphBuilder, node: Node) -> Node:
    """Return a Deconvolution in float64, whose gradients MXNet can compute on a CPU; casts are added to the graph.

    The node is rewired to the new graph's entries, all float32.
    """
    casts = (insert_next_to(builder, node, "Cast", "float64", entry, dtype="float64") for entry in node.inputs)
    return node.rewired(tuple(casts))


def has_float64_deconvolution(node: Node) -> bool:
    """Return whether MXNet has a float64 kernel for a Deconvolution: for one of up to two axes without dilation."""
    attrs = dict(node.attrs)
    return len(sizes_of(attrs, "kernel")) < 3 and set(sizes_of(attrs, "dilate")) <= {1}
