"""Makes reports: of a conversion by its plan, and of a network that was converted earlier."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from .. import dtypes
from ..graph import Entry, Graph, Node
from ..passes.base import CAST_MARK, DTYPE_ATTR, FACTOR_MARK, MARK_ATTR, OUTPUT_MARK, is_inserted
from ..passes.dataflow import classify
from ..passes.decide import FLOAT32, FREE, KEEP, Decision, Reason
from ..passes.facts import Facts
from ..passes.plan import Plan
from ..policy import Policy
from ..rules import RULES
from .report import AS_IT_WAS, Cast, Report, Row, total

MANY_READERS = 32  # A report warns of a cast with more readers: the gradients of 64 have overflowed float16.

_LOW_BYTES = dtypes.ITEM_BYTES[dtypes.FLOAT16]  # The same for bfloat16.
AS_CONVERTED = "as converted"  # The policy in the report on a converted network whose policy is unknown.


class Removed(NamedTuple):
    """The operators that a conversion for inference has removed.

    Attributes:
        rows: One per removed operator.
        before: The network's graph before, but without dropout; None if nothing was removed.
        facts: The facts on that graph.
    """

    rows: Tuple[Row, ...] = ()
    before: Optional[Graph] = None
    facts: Facts = Facts({})


@dataclass(frozen=True, eq=False, repr=False)
class Decisions:
    """The decisions of one conversion: the graph before, the plan for it, and the graph after.

    The facts are on the graph before. ``removed`` has the operators that were removed before the conversion.
    """

    policy: Policy
    before: Graph
    facts: Facts
    plan: Plan
    after: Graph
    removed: Removed = Removed()

    @functools.cached_property
    def report(self) -> Report:
        """The report on the conversion. It is made when it is first read, because most reports are never read."""
        report = make_report(self.policy, self.before, self.facts, self.plan, self.after)
        sizes, whole = report.activation_bytes, self.removed.before
        before = activation_bytes(whole, self.removed.facts) if sizes and whole is not None else None
        if sizes and before is not None:
            sizes = before, sizes[1]
        notes = (self.policy.chosen,) if self.policy.chosen else ()
        return replace(report, rows=report.rows + self.removed.rows, activation_bytes=sizes, notes=notes)

    def __getstate__(self) -> Dict[str, Any]:
        """Return only the report, for pickle and copies. A plan cannot be pickled: it refers to functions of rules."""
        return {"report": self.report}


_Outcome = Tuple[str, str, Tuple[Reason, ...]]  # precision of a node, reason, and the reason's kinds
BodyKey = Tuple[int, int]  # position of a node, and number of one of its bodies


def make_report(policy: Policy, before: Graph, facts: Facts, plan: Plan, after: Graph) -> Report:
    """Return the report on a conversion by a plan; the facts are on the graph before the conversion."""
    sizes = activation_bytes(before, facts), activation_bytes(before, facts, plan)
    return _report(str(policy), facts, before, after, _planned_rows(before, facts, after, plan, policy), sizes)


def report_converted(before: Graph, facts: Facts, after: Graph, after_facts: Facts) -> Report:
    """Return the report on a network that was converted earlier, under an unknown policy.

    A row's precision is the dtype of the tensors that the operator reads. Its reason is the rule's. If the rule leads
    to another precision, a policy overruled the rule, and the row says so. The graph before has no casts of mxmp, as
    after ``EraseCasts``.
    """
    decisions = classify(before, _plainest_policy(after, after_facts), facts)
    sizes = activation_bytes(before, facts), activation_bytes(after, after_facts)
    rows = _converted_rows(before, facts, after, after_facts, decisions)
    return _report(AS_CONVERTED, facts, before, after, rows, sizes)


def _report(
    policy: str, facts: Facts, before: Graph, after: Graph, rows: Iterator[Row], sizes: Sequence[Optional[int]]
) -> Report:
    """Return a report with these rows and bytes of activations, (before, after)."""
    inserted, operators = inserted_casts(after), tuple(rows)
    old, new = sizes
    return Report(
        policy=policy,
        rows=operators,
        casts=len(inserted),
        activation_casts=sum(not (source.is_variable and source.name in facts.params) for source in inserted),
        cast_bytes=cast_bytes(facts, after, positions(before, after)),
        activation_bytes=None if old is None or new is None else (old, new),
        without_rule=tuple(sorted({row.op for row in operators if Reason.NO_RULE in row.kinds})),
        widely_read=widely_read(after),
    )


def _rows(
    graph: Graph, facts: Facts, after: Graph, decide: Callable[[int, int], _Outcome], body_rows: Callable[..., Any]
) -> Iterator[Row]:
    """Yield a row for each operator. The rows of a node's bodies follow the node's row.

    Args:
        graph: The graph, or a body of one, before the conversion.
        facts: The facts on it.
        after: The graph after it.
        decide: Gives precision, reason and kinds, by the node's position before and after.
        body_rows: Gives the rows of a body, by (position of its node, number of the body), before and after, and the
            body before.
    """
    where = positions(graph, after)
    casts = casts_at(graph, facts, after, where)
    for position, node in enumerate(graph.nodes):
        if node.is_variable:
            continue
        read = (graph.nodes[entry.node] for entry in node.inputs)
        inputs = tuple(dict.fromkeys(each.name for each in read if not each.is_variable))
        precision, reason, kinds = decide(position, where[position])
        yield Row(node.name, node.op, precision, reason, casts.get(position, ()), inputs, kinds)
        for number, body in enumerate(node.subgraphs):
            yield from body_rows((position, number), (where[position], number), body)


def _planned_rows(graph: Graph, facts: Facts, after: Graph, plan: Plan, policy: Policy) -> Iterator[Row]:
    """Yield the rows of a graph that was converted by a plan."""

    def decide(position: int, _: int) -> _Outcome:
        decision = plan.decisions[position]
        if decision.label == KEEP:
            return AS_IT_WAS, decision.reason, decision.kinds
        precision = policy.compute_dtype if position in plan.low else FLOAT32
        if decision.label == FREE:
            return precision, f"{decision.reason}: cheapest", (*decision.kinds, Reason.CHEAPEST)
        return precision, decision.reason, decision.kinds

    def body_rows(key: BodyKey, place: BodyKey, body: Graph) -> Iterator[Row]:
        if key not in plan.bodies or key not in facts.bodies:
            return iter(())
        converted = after.nodes[place[0]].subgraphs[place[1]]
        return _planned_rows(body, facts.bodies[key], converted, plan.bodies[key], policy)

    return _rows(graph, facts, after, decide, body_rows)


def _converted_rows(
    graph: Graph, facts: Facts, after: Graph, after_facts: Facts, decisions: Sequence[Decision]
) -> Iterator[Row]:
    """Yield the rows of a graph that was converted under an unknown policy; the decisions are those of the rules."""
    def decide(position: int, place: int) -> _Outcome:
        decision = decisions[position]
        if decision.label == KEEP:
            return AS_IT_WAS, decision.reason, decision.kinds
        precision = _precision(decision, after, place, after_facts)
        if decision.label == FREE:
            return precision, f"{decision.reason}: either is safe", decision.kinds
        if (precision == FLOAT32) == (decision.label == FLOAT32):
            return precision, decision.reason, decision.kinds
        usual = FLOAT32 if decision.label == FLOAT32 else "low precision"
        return precision, f"as converted; its rule says {usual} ({decision.reason})", (Reason.AS_CONVERTED,)

    def body_rows(key: BodyKey, place: BodyKey, body: Graph) -> Iterator[Row]:
        inner = decisions[key[0]].bodies[key[1] : key[1] + 1]
        if not inner or not inner[0]:
            return iter(())
        converted = after.nodes[place[0]].subgraphs[place[1]]
        return _converted_rows(body, facts.bodies[key], converted, after_facts.bodies[place], inner[0])

    return _rows(graph, facts, after, decide, body_rows)


def _precision(decision: Decision, graph: Graph, position: int, facts: Facts) -> str:
    """Return the dtype of a node's data inputs, or of its output if it has no data input."""
    for port, entry in enumerate(graph.nodes[position].inputs):
        if decision.input_in_precision(port) and not decision.accepts_any(port):
            return facts.dtype(entry) or "unknown"
    return facts.dtype(Entry(position)) or "unknown"


def _plainest_policy(graph: Graph, facts: Facts) -> Policy:
    """Return the simplest policy that may have led to a converted graph."""
    cast_to = [node.get("dtype") for node in graph.operators() if is_inserted(node)]
    cast_to += [dtypes.from_flag(n.get("__dtype__") or "") for n in graph.nodes if n.get(DTYPE_ATTR) is not None]
    low = next((dtype for dtype in cast_to if dtype in dtypes.LOW_PRECISION), None) or dtypes.FLOAT16
    gives_low = any(facts.dtype(head) == low for head in graph.heads)
    return Policy(compute_dtype=low, output_dtype=low if gives_low else FLOAT32)


# ---------------------------------------------------------------------- casts and bytes


def _is_cast(node: Node) -> bool:
    return node.get(MARK_ATTR) in (CAST_MARK, OUTPUT_MARK)


def inserted_casts(graph: Graph) -> List[Node]:
    """Return the node that each inserted cast reads, those in bodies included."""
    sources = [graph.nodes[node.inputs[0].node] for node in graph.nodes if _is_cast(node)]
    bodies = (body for node in graph.nodes for body in node.subgraphs)
    return sources + [source for body in bodies for source in inserted_casts(body)]


def widely_read(graph: Graph) -> Tuple[Tuple[str, int], ...]:
    """Return the name and the number of readers of each tensor whose one cast has more than ``MANY_READERS``."""
    consumers = graph.consumers()
    casts = ((i, node) for i, node in enumerate(graph.nodes) if _is_cast(node))
    readers = (
        (graph.entry_name(node.inputs[0]), len(consumers.get((i, 0), ())))
        for i, node in casts
        if node.get("dtype") in dtypes.LOW_PRECISION
    )
    return tuple((name, count) for name, count in readers if count > MANY_READERS)


def positions(before: Graph, after: Graph) -> Dict[int, int]:
    """Return the position in the converted graph of each node; both graphs are in the order in which MXNet writes."""
    waiting: Dict[Tuple[str, str], List[int]] = {}
    casts = (node for node in after.nodes if node.get(MARK_ATTR) == OUTPUT_MARK)
    names = {cast.inputs[0].node: cast.name for cast in casts}
    for position in reversed(range(len(after.nodes))):
        node = after.nodes[position]
        if not is_inserted(node):
            waiting.setdefault((node.op, names.get(position, node.name)), []).append(position)
    found = {}
    for position, node in enumerate(before.nodes):
        ops = (node.op, *(op for rule in RULES.variants(node.op) for _, op in rule.substitutes))
        places = [waiting[op, node.name] for op in ops if waiting.get((op, node.name))]
        if places:
            found[position] = places[0].pop()
    return found


def casts_at(before: Graph, facts: Facts, after: Graph, where: Mapping[int, int]) -> Dict[int, Tuple[Cast, ...]]:
    """Return the casts at each node of a graph, by the node's position before the conversion."""
    source = {new: old for old, new in where.items()}
    for position, node in enumerate(after.nodes):
        for entry in node.inputs:
            if after.nodes[entry.node].get(MARK_ATTR) == FACTOR_MARK and position in source:
                source[entry.node] = source[position]
    pairs = [(i, entry) for i, node in enumerate(after.nodes) for entry in node.inputs]
    pairs += [(after.nodes[head.node].inputs[0].node, head) for head in after.heads if after.nodes[head.node].inputs]
    casts: Dict[int, Dict[Cast, None]] = {}
    for position, entry in pairs:
        cast = after.nodes[entry.node]
        if _is_cast(cast) and position in source and cast.inputs[0].node in source:
            tensor = cast.inputs[0]._replace(node=source[cast.inputs[0].node])
            giver = before.nodes[tensor.node]
            name = "" if giver.is_variable else giver.name
            shown = Cast(facts.output_name(before, tensor), str(cast.get("dtype")), name)
            casts.setdefault(source[position], {})[shown] = None  # in the order of the inputs, each once
    return {position: tuple(shown) for position, shown in casts.items()}


def variable_bytes(graph: Graph, facts: Facts, names: Iterable[str]) -> Optional[int]:
    """Return the bytes of the variables of these names, None if one's shape or dtype is unknown."""
    wanted = frozenset(names)
    variables = (Entry(i) for i, node in enumerate(graph.nodes) if node.is_variable and node.name in wanted)
    return total(_entry_bytes(facts, entry) for entry in variables)


def _entry_bytes(facts: Facts, entry: Entry, low: bool = False) -> Optional[int]:
    """Return the bytes of one tensor, None if its shape or dtype is unknown."""
    size, dtype = facts.size(entry), facts.dtype(entry)
    return None if size is None or dtype is None else size * (_LOW_BYTES if low else dtypes.ITEM_BYTES[dtype])


def activation_bytes(graph: Graph, facts: Facts, plan: Optional[Plan] = None) -> Optional[int]:
    """Return the bytes of all activations except casts of mxmp; None if a shape or dtype is unknown.

    Without ``plan`` the dtypes are those of the graph. ``plan`` gives the tensors that will be in low precision.
    """
    read = set(graph.consumers()) | {(head.node, head.index) for head in graph.heads}
    kept = (key for key in read if not graph.nodes[key[0]].is_variable and not is_inserted(graph.nodes[key[0]]))
    return total(_entry_bytes(facts, Entry(*key), plan is not None and plan.gives_low(*key)) for key in kept)


def cast_bytes(facts: Facts, after: Graph, where: Mapping[int, int]) -> Optional[int]:
    """Return the bytes that the casts of a converted graph read and write; ``facts`` are on the graph before.

    None if a shape is unknown, or if a cast is in a body, which may run any number of times.
    """
    if any(inserted_casts(body) for node in after.nodes for body in node.subgraphs):
        return None
    source = {new: old for old, new in where.items()}
    tensors = (node.inputs[0] for node in after.nodes if _is_cast(node))
    read = [tensor._replace(node=source[tensor.node]) if tensor.node in source else None for tensor in tensors]
    sizes = [None if tensor is None else facts.size(tensor) for tensor in read]
    return total(None if size is None else size * (dtypes.ITEM_BYTES[dtypes.FLOAT32] + _LOW_BYTES) for size in sizes)
