"""Casts between float32 and low precision: one per tensor and dtype, shared by its readers; and the way back.

A cast of the network's own that gives the same stands for one of mxmp's. So does what the network's own cast widens:
float16 to float32 to float16 is the identity, while float32 to float16 to float32 is a rounding and stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Dict, List, Optional, Set, Tuple

from .. import dtypes
from ..graph import Entry, Graph, GraphBuilder, Key, Node
from ..graph.core import make_attrs
from ..policy import Policy
from ..rules import RULES, RuleSet
from .attributes import CAST_MARK, FACTOR_MARK, MARK_ATTR, device_attrs, is_converted, note_of, noting, original
from .base import Pass
from .facts import CAST_OPS, Facts
from .plan import Plan, make_plan

_OUTPUT = "_output"
_WIDENS = make_attrs({"dtype": dtypes.FLOAT32})


def cast_op(dtype: str, low_dtype: str) -> str:
    """Return the operator that casts between float32 and a low precision dtype.

    ``Cast`` survives saving and ONNX export, and rounds to float16 as it should. To bfloat16 it truncates; ``amp_cast``
    rounds to nearest even there, and is fast (oneDNN).
    """
    return "amp_cast" if dtypes.BFLOAT16 in (dtype, low_dtype) else "Cast"


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
        return self.with_facts(graph)[0]

    def with_facts(self, graph: Graph) -> Tuple[Graph, Facts]:
        """Return the graph with casts, and the facts on it.

        The plan says what each tensor is there; MXNet's inference of the new graph would give the same.
        """
        facts = self.facts if self.facts is not None else Facts.assume_float32(graph)
        if not self.policy.is_mixed:
            return graph, facts
        plan = self.plan if self.plan is not None else make_plan(graph, self.policy, facts, self.rules)
        inserter = _Inserter(graph, self.policy, facts, plan)
        return inserter.run(), inserter.facts_after()


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
        self.added: Dict[Key, Tuple[Key, str]] = {}  # new entries that have the shape of old ones, with their dtypes
        self.bodies: Dict[Tuple[int, int], Facts] = {}
        self.own_casts = _own_casts(graph, self.low_dtype)
        self.copied: Set[int] = set()

    def run(self) -> Graph:
        for position in range(len(self.graph.nodes)):
            self._copy(position)
        if self.is_body:
            return self.builder.finish(self._exit(number, head) for number, head in enumerate(self.graph.heads))
        return self.builder.finish([self._head(head) for head in self.graph.heads])

    def _copy(self, position: int) -> None:
        if position in self.copied:  # a cast of the network's own that a node before it reads now
            return
        self.copied.add(position)
        node = self.graph.nodes[position]
        self.builder.copy(position, node if node.is_variable else self._operator(position, node))
        if position in self.plan.low_params:
            self._declare(Entry(position), self.low_dtype)

    def _operator(self, position: int, node: Node) -> Node:
        """Return the new form of an operator."""
        verdict, ports = self.plan.verdicts[position], []
        inputs: List[Entry] = []
        for port, entry in enumerate(node.inputs):
            new, note = self._input(position, port, entry)
            inputs.append(new)
            if note is not None:
                ports.append([port, *note])
        changes: Dict[str, Optional[str]] = dict(verdict.clamped)
        if verdict.widens and self._dtype(node.inputs[0]) == self.low_dtype:  # it reads low precision data as they are
            changes[verdict.widens] = dtypes.FLOAT32
        changed = node.with_attrs(changes) if changes else node
        if verdict.stand_in and position in self.plan.placement.low:
            changed, inputs[0] = self._stand_in(changed, verdict.stand_in, inputs[0], node.inputs[0].key)
        if ports or changed is not node:
            changed = noting(node, changed, ports)
        return changed.rewired(tuple(inputs), self._bodies(position, node))

    def _bodies(self, position: int, node: Node) -> Tuple[Graph, ...]:
        bodies = []
        for number, graph in enumerate(node.subgraphs):
            plan = self.plan.bodies.get((position, number))
            if (position, number) in self.facts.bodies:
                self.bodies[position, number] = self.facts.bodies[position, number]
            if plan is not None:
                inner = _Inserter(graph, self.policy, self.facts.bodies[position, number], plan, is_body=True)
                graph, self.bodies[position, number] = inner.run(), inner.facts_after()
            bodies.append(graph)
        return tuple(bodies)

    def _stand_in(self, node: Node, op: str, data: Entry, old: Key) -> Tuple[Node, Entry]:
        """Return the node to put in place of another, and its first input."""
        own = {key: value for key, value in node.attrs if not key.startswith("__")}
        kept: Dict[str, Optional[str]] = {key: own[key] for key in ("transpose_a", "transpose_b") if key in own}
        alpha = own.get("alpha", "1")
        if float(alpha) != 1:
            factor = {"scalar": alpha, MARK_ATTR: FACTOR_MARK, **device_attrs(node)}
            data = self.builder.insert("_mul_scalar", f"{node.name}_alpha", data, **factor)
            self.added[data.key] = old, self.low_dtype
        return node.with_attrs({**dict.fromkeys(own), **kept})._replace(op=op), data

    def _input(self, position: int, port: int, entry: Entry) -> Tuple[Entry, Optional[Tuple[str, ...]]]:
        """Return what an input of a node reads in the new graph, and a note of it where that is no cast of mxmp."""
        dtype = self._dtype(entry)
        if dtype is None or self.plan.verdicts[position].accepts_any(port):
            return self.builder.mapped(entry), None
        wanted = self.low_dtype if self.plan.reads_low(position, port) else dtypes.FLOAT32
        if dtype == wanted:
            return self.builder.mapped(entry), None
        if wanted == self.low_dtype:
            own = self.own_casts.get(entry)
            if own is not None:
                self._copy(own)
                return Entry(self.builder.mapped(Entry(own)).node), ()
            source = self.graph.nodes[entry.node]
            if is_widening(source) and self.facts.dtype(source.inputs[0]) == wanted:
                return self.builder.mapped(source.inputs[0]), (source.op, source.name)
        return self._cast(entry, wanted, position), None

    def facts_after(self) -> Facts:
        """Return the facts on the new graph, once it is finished."""
        before, nodes = self.facts, self.builder.nodes
        copies = {self.builder.mapped(Entry(*key)).key: key for key in before.dtypes}
        types = {new: self._dtype(Entry(*old)) or before.dtypes[old] for new, old in copies.items()}
        types.update((new, dtype) for new, (_, dtype) in self.added.items())
        sources = {**copies, **{new: old for new, (old, _) in self.added.items()}}
        shapes = {new: before.shapes[old] for new, old in sources.items() if old in before.shapes}
        names = {new: nodes[new[0]].name + _OUTPUT for new in self.added}
        for new, old in copies.items():
            if old in before.output_names:
                suffix = before.output_names[old][len(self.graph.nodes[old[0]].name) :]
                names[new] = nodes[new[0]].name + suffix
        moved = {old: self.builder.mapped(Entry(old)).node for old, _ in self.bodies}
        bodies = {(moved[old], number): facts for (old, number), facts in self.bodies.items()}
        return Facts(types, shapes, names, before.params, bodies=bodies)

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
        if node.is_variable and not self.is_body and dtypes.from_flag(node.get("__dtype__") or "") != dtype:
            self.builder.nodes[position] = noting(node, node.with_attrs({"__dtype__": dtypes.to_flag(dtype)}))

    def _cast(self, entry: Entry, dtype: str, reader: int) -> Entry:
        key = (entry.key, dtype)
        if key not in self.casts:
            name = f"{self.facts.output_name(self.graph, entry)}_cast_{dtype}"
            device = {**device_attrs(self.graph.nodes[reader]), **device_attrs(self.graph.nodes[entry.node])}
            attrs = {"dtype": dtype, MARK_ATTR: CAST_MARK, **device}
            op = cast_op(dtype, self.low_dtype)
            cast = self.casts[key] = self.builder.insert(op, name, self.builder.mapped(entry), **attrs)
            self.added[cast.key] = entry.key, dtype
            if entry.node not in self.plan.low_params:
                self._declare(entry, dtypes.FLOAT32)
        return self.casts[key]

    def _exit(self, number: int, head: Entry) -> Entry:
        """Return the new entry of a body's output; the plan says which may be in low precision."""
        if number in self.plan.any_heads or self._dtype(head) in (None, dtypes.FLOAT32):
            return self.builder.mapped(head)
        return self._cast(head, dtypes.FLOAT32, head.node)

    def _head(self, head: Entry) -> Entry:
        """Return the new entry of an output; a cast there keeps the output's name, as far as a cast can have it."""
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
        name = self.graph.nodes[head.node].name
        if nodes[new].name == name:
            renamed = nodes[new]._replace(name=self.builder.unique(f"{name}_{self._dtype(head)}"))
            nodes[new] = noting(nodes[new], renamed)
            nodes[cast.node] = nodes[cast.node]._replace(name=name)


def _own_casts(graph: Graph, dtype: str) -> Dict[Entry, int]:
    """Return the positions of the network's own casts that give what one of mxmp's to a dtype would, by their inputs.

    ``Cast`` truncates to bfloat16 where ``amp_cast`` rounds; to float16 both give the same.
    """
    ops = ("amp_cast",) if dtype == dtypes.BFLOAT16 else CAST_OPS
    casts: Dict[Entry, int] = {}
    for position, node in enumerate(graph.nodes):
        if node.op in ops and node.get("dtype") == dtype and not node.control_deps:
            casts.setdefault(node.inputs[0], position)
    return casts


def is_widening(node: Node) -> bool:
    """Return whether a node does nothing but cast to float32."""
    return node.op in CAST_OPS and node.attrs == _WIDENS


@dataclass(frozen=True)
class EraseCasts(Pass):
    """Removes the casts that ``InsertCasts`` inserted, not the network's own; other nodes are as they were before."""

    name: ClassVar[str] = "erase-casts"

    def run(self, graph: Graph) -> Graph:
        """Return the graph as it was before insertion."""
        return _Eraser(graph).run() if is_converted(graph) else graph


_Widening = Tuple[str, str, Entry]  # operator, name, the new entry that it widens


class _Eraser:
    """One forward sweep over a graph, or over a body of a control flow node."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.builder = GraphBuilder(graph)
        self.widenings: Dict[_Widening, Entry] = {}
        self.restored: Set[_Widening] = set()  # for a reader that comes before them

    def run(self) -> Graph:
        for position, node in enumerate(self.graph.nodes):
            note, inputs = note_of(node), list(self.builder.inputs(node))
            if node.get(MARK_ATTR) is not None:
                self.builder.redirect(Entry(position), inputs[0])
                continue
            widening = (node.op, node.name, inputs[0]) if is_widening(node) else None
            if widening in self.restored:
                self.restored.discard(widening)
                self.builder.redirect(Entry(position), self.widenings[widening])
                continue
            for port, *source in note.get("ports", ()):
                inputs[port] = self._source(inputs[port], source)
            bodies = tuple(EraseCasts().run(body) for body in node.subgraphs)
            new = self.builder.copy(position, original(node).rewired(tuple(inputs), bodies))
            if widening is not None:
                self.widenings.setdefault(widening, Entry(new))
        return self.builder.finish()

    def _source(self, entry: Entry, widening: List[Any]) -> Entry:
        """Return what a port read before it read a cast of the network's own, or what one widens."""
        if not widening:
            return self.builder.nodes[entry.node].inputs[0]
        op, name = widening
        key = (op, name, entry)
        if key not in self.widenings:
            self.widenings[key] = Entry(self.builder.add(Node(op, name, _WIDENS, (entry,))))
            self.restored.add(key)
        return self.widenings[key]
