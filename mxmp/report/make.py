"""Reports from a plan, and from a network that was converted earlier."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, Iterator, NamedTuple, Optional, Sequence, Tuple

from .. import dtypes
from ..graph import Entry, Graph
from ..passes.base import DTYPE_ATTR, is_inserted
from ..passes.dataflow import classify
from ..passes.decide import FLOAT32, FREE, KEEP, Reason, Verdict
from ..passes.facts import Facts
from ..passes.plan import Plan
from ..policy import Policy
from . import counts
from .report import AS_IT_WAS, Report, Row

AS_CONVERTED = "as converted"  # the policy of a report on a network of which only the conversion is known


class Removed(NamedTuple):
    """The parts of a network that inference does not need, and the network with them, but for dropout.

    Attributes:
        rows: One per operator that is gone.
        before: The network's graph; None if nothing was removed.
        facts: The facts on it.
    """

    rows: Tuple[Row, ...] = ()
    before: Optional[Graph] = None
    facts: Facts = Facts({})


@dataclass(frozen=True, eq=False, repr=False)  # a copy has the report alone
class Decisions:
    """The decisions of one conversion: the plan for the graph before it, and the graph after it.

    The facts are on the graph before. ``removed`` has the parts that had been taken out of the network before.
    """

    policy: Policy
    before: Graph
    facts: Facts
    plan: Plan
    after: Graph
    removed: Removed = Removed()

    @functools.cached_property
    def report(self) -> Report:
        """The report on it, made when it is first read: most conversions are run and not looked at."""
        report = make_report(self.policy, self.before, self.facts, self.plan, self.after)
        sizes, whole = report.activation_bytes, self.removed.before
        before = counts.activation_bytes(whole, self.removed.facts) if sizes and whole is not None else None
        if sizes and before is not None:
            sizes = before, sizes[1]
        notes = (self.policy.chosen,) if self.policy.chosen else ()
        return replace(report, rows=report.rows + self.removed.rows, activation_bytes=sizes, notes=notes)

    def __getstate__(self) -> Dict[str, Any]:
        """Return the report alone, for pickle and copies: a plan refers to rules, whose conditions are functions."""
        return {"report": self.report}


Decision = Tuple[str, str, Tuple[Reason, ...]]  # precision of a node, reason, and the reason's kinds
BodyKey = Tuple[int, int]  # position of a node, and number of one of its bodies


def make_report(policy: Policy, before: Graph, facts: Facts, plan: Plan, after: Graph) -> Report:
    """Return the report on a conversion by a plan; the facts are on the graph before it."""
    sizes = counts.activation_bytes(before, facts), counts.activation_bytes(before, facts, plan)
    return _report(str(policy), facts, before, after, _planned_rows(before, facts, after, plan, policy), sizes)


def report_converted(before: Graph, facts: Facts, after: Graph, after_facts: Facts) -> Report:
    """Return the report on a network that was converted earlier, under an unknown policy.

    The precisions are those of the tensors that the operators read. The reasons are those of the rules alone; where
    they do not lead to the precision, a policy overruled them, and the row says so. The graph before is without the
    casts of mxmp, as ``EraseCasts`` gives it.
    """
    verdicts = classify(before, _plainest_policy(after, after_facts), facts)
    sizes = counts.activation_bytes(before, facts), counts.activation_bytes(after, after_facts)
    rows = _converted_rows(before, facts, after, after_facts, verdicts)
    return _report(AS_CONVERTED, facts, before, after, rows, sizes)


def _report(
    policy: str, facts: Facts, before: Graph, after: Graph, rows: Iterator[Row], sizes: Sequence[Optional[int]]
) -> Report:
    """Return a report, given its rows and the bytes of the activations before and after."""
    inserted, operators = counts.inserted_casts(after), tuple(rows)
    old, new = sizes
    return Report(
        policy=policy,
        rows=operators,
        casts=len(inserted),
        activation_casts=sum(not (source.is_variable and source.name in facts.params) for source in inserted),
        cast_bytes=counts.cast_bytes(facts, after, counts.positions(before, after)),
        activation_bytes=None if old is None or new is None else (old, new),
        without_rule=tuple(sorted({row.op for row in operators if Reason.NO_RULE in row.kinds})),
        widely_read=counts.widely_read(after),
    )


def _rows(
    graph: Graph, facts: Facts, after: Graph, decide: Callable[[int, int], Decision], body_rows: Callable[..., Any]
) -> Iterator[Row]:
    """Yield a row for each operator, those of a node's bodies behind its own.

    Args:
        graph: The graph, or a body of one, before the conversion.
        facts: The facts on it.
        after: The graph after it.
        decide: Gives precision, reason and kinds, by the node's position before and after.
        body_rows: Gives the rows of a body, by (position of its node, number of the body), before and after, and the
            body before.
    """
    where = counts.positions(graph, after)
    casts = counts.casts_at(graph, facts, after, where)
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

    def decide(position: int, _: int) -> Decision:
        verdict = plan.verdicts[position]
        if verdict.label == KEEP:
            return AS_IT_WAS, verdict.reason, verdict.kinds
        precision = policy.compute_dtype if position in plan.placement.low else FLOAT32
        if verdict.label == FREE:
            return precision, f"{verdict.reason}: cheapest", (*verdict.kinds, Reason.CHEAPEST)
        return precision, verdict.reason, verdict.kinds

    def body_rows(key: BodyKey, place: BodyKey, body: Graph) -> Iterator[Row]:
        if key not in plan.bodies or key not in facts.bodies:
            return iter(())
        converted = after.nodes[place[0]].subgraphs[place[1]]
        return _planned_rows(body, facts.bodies[key], converted, plan.bodies[key], policy)

    return _rows(graph, facts, after, decide, body_rows)


def _converted_rows(
    graph: Graph, facts: Facts, after: Graph, after_facts: Facts, verdicts: Sequence[Verdict]
) -> Iterator[Row]:
    """Yield the rows of a graph that was converted under an unknown policy; the verdicts are those of the rules."""
    def decide(position: int, place: int) -> Decision:
        verdict = verdicts[position]
        if verdict.label == KEEP:
            return AS_IT_WAS, verdict.reason, verdict.kinds
        precision = _precision(verdict, after, place, after_facts)
        if verdict.label == FREE:
            return precision, f"{verdict.reason}: either is safe", verdict.kinds
        if (precision == FLOAT32) == (verdict.label == FLOAT32):
            return precision, verdict.reason, verdict.kinds
        usual = FLOAT32 if verdict.label == FLOAT32 else "low precision"
        return precision, f"as converted; its rule says {usual} ({verdict.reason})", (Reason.AS_CONVERTED,)

    def body_rows(key: BodyKey, place: BodyKey, body: Graph) -> Iterator[Row]:
        inner = verdicts[key[0]].bodies[key[1] : key[1] + 1]
        if not inner or not inner[0]:
            return iter(())
        converted = after.nodes[place[0]].subgraphs[place[1]]
        return _converted_rows(body, facts.bodies[key], converted, after_facts.bodies[place], inner[0])

    return _rows(graph, facts, after, decide, body_rows)


def _precision(verdict: Verdict, graph: Graph, position: int, facts: Facts) -> str:
    """Return the dtype of a node's data inputs, or of its output if it has none."""
    for port, entry in enumerate(graph.nodes[position].inputs):
        if verdict.input_in_precision(port) and not verdict.accepts_any(port):
            return facts.dtype(entry) or "unknown"
    return facts.dtype(Entry(position)) or "unknown"


def _plainest_policy(graph: Graph, facts: Facts) -> Policy:
    """Return the plainest policy that a converted graph may come from."""
    cast_to = [node.get("dtype") for node in graph.operators() if is_inserted(node)]
    cast_to += [dtypes.from_flag(n.get("__dtype__") or "") for n in graph.nodes if n.get(DTYPE_ATTR) is not None]
    low = next((dtype for dtype in cast_to if dtype in dtypes.LOW_PRECISION), None) or dtypes.FLOAT16
    gives_low = any(facts.dtype(head) == low for head in graph.heads)
    return Policy(compute_dtype=low, output_dtype=low if gives_low else FLOAT32)
