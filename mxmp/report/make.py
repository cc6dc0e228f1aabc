"""Reports from a plan and from a network that was converted earlier."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, Mapping, Optional, Sequence, Tuple

from .. import dtypes
from ..graph import Entry, Graph
from ..passes.attributes import BEFORE_ATTR, MARK_ATTR
from ..passes.decide import FLOAT32, FREE, KEEP, NO_RULE, Verdict, classify
from ..passes.facts import Facts
from ..passes.plan import Plan
from ..policy import Policy
from ..rules import RULES
from . import counts
from .report import AS_IT_WAS, Removed, Report, Row

AS_CONVERTED = "as converted"
"""The policy of a report on a network of which only the conversion is known."""


def make_report(policy: Policy, before: Graph, facts: Facts, plan: Plan, after: Graph) -> Report:
    """Return the report on a conversion by a plan; the facts are on the graph before it."""
    sizes = counts.activation_bytes(before, facts), counts.activation_bytes(before, facts, plan)
    return _report(str(policy), _Planned(before, facts, after, policy, plan), *sizes)


@dataclass(frozen=True, eq=False, repr=False)  # a copy has the report alone
class Decisions:
    """What one conversion decided: the plan for the graph before it, which the facts are on, and the graph after it.

    ``removed`` is what had been taken out of the network before.
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
        found = make_report(self.policy, self.before, self.facts, self.plan, self.after)
        return found.with_removed(self.removed)

    def __getstate__(self) -> Dict[str, Any]:
        """Return the report alone, for pickle and copies: a plan refers to rules, whose conditions are functions."""
        return {"report": self.report}


def report_converted(before: Graph, facts: Facts, after: Graph, after_facts: Facts) -> Report:
    """Return the report on a network that was converted earlier, under an unknown policy.

    The precisions are those of the tensors that the operators read. The reasons are those of the rules alone; where
    they do not lead to the precision, a policy overruled them, and the row says so. The graph before is without the
    casts of mxmp, as ``EraseCasts`` gives it.
    """
    verdicts = classify(before, _plainest_policy(after, after_facts), facts, RULES)
    sizes = counts.activation_bytes(before, facts), counts.activation_bytes(after, after_facts)
    return _report(AS_CONVERTED, _Converted(before, facts, after, verdicts, after_facts), *sizes)


@dataclass(frozen=True)
class _Conversion(ABC):
    """A graph, or a body of one, with its facts, and what it was converted to; ``where`` maps positions."""

    graph: Graph
    facts: Facts
    after: Graph
    where: Mapping[int, int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "where", counts.positions(self.graph, self.after))

    @abstractmethod
    def decision(self, position: int) -> Tuple[str, str]:
        """Return the precision of a node and the reason."""

    @abstractmethod
    def body(self, position: int, number: int, before: Graph, after: Graph) -> Optional[_Conversion]:
        """Return a body of a node, None if it is not converted."""

    def rows(self) -> Iterator[Row]:
        """Yield a row for each operator, those of a node's bodies behind its own."""
        casts = counts.casts_at(self.graph, self.facts, self.after, self.where)
        for position, node in enumerate(self.graph.nodes):
            if node.is_variable:
                continue
            read = (self.graph.nodes[entry.node] for entry in node.inputs)
            inputs = tuple(dict.fromkeys(each.name for each in read if not each.is_variable))
            yield Row(node.name, node.op, *self.decision(position), casts.get(position, ()), inputs)
            for number, before in enumerate(node.subgraphs):
                body = self.body(position, number, before, self.after.nodes[self.where[position]].subgraphs[number])
                yield from body.rows() if body is not None else ()


@dataclass(frozen=True)
class _Planned(_Conversion):
    """A graph that was converted by a plan."""

    policy: Policy
    plan: Plan

    def decision(self, position: int) -> Tuple[str, str]:
        verdict = self.plan.verdicts[position]
        if verdict.label == KEEP:
            return AS_IT_WAS, verdict.reason
        precision = self.policy.compute_dtype if position in self.plan.placement.low else FLOAT32
        return precision, verdict.reason + (": cheapest" if verdict.label == FREE else "")

    def body(self, position: int, number: int, before: Graph, after: Graph) -> Optional[_Conversion]:
        plan, facts = self.plan.bodies.get((position, number)), self.facts.bodies.get((position, number))
        return None if plan is None or facts is None else _Planned(before, facts, after, self.policy, plan)


@dataclass(frozen=True)
class _Converted(_Conversion):
    """A graph that was converted under an unknown policy; the verdicts are those of the rules alone."""

    verdicts: Sequence[Verdict]
    after_facts: Facts

    def decision(self, position: int) -> Tuple[str, str]:
        verdict = self.verdicts[position]
        if verdict.label == KEEP:
            return AS_IT_WAS, verdict.reason
        precision = _precision(verdict, self.after, self.where[position], self.after_facts)
        return precision, _reason(verdict, precision)

    def body(self, position: int, number: int, before: Graph, after: Graph) -> Optional[_Conversion]:
        bodies = self.verdicts[position].bodies
        if number >= len(bodies) or not bodies[number]:
            return None
        facts = self.facts.bodies[position, number], self.after_facts.bodies[self.where[position], number]
        return _Converted(before, facts[0], after, bodies[number], facts[1])


def _report(policy: str, conversion: _Conversion, old: Optional[int], new: Optional[int]) -> Report:
    """Return a report, given the bytes of the activations before and after."""
    facts, after, rows = conversion.facts, conversion.after, tuple(conversion.rows())
    inserted = counts.inserted_casts(after)
    return Report(
        policy=policy,
        rows=rows,
        casts=len(inserted),
        activation_casts=sum(not (source.is_variable and source.name in facts.params) for source in inserted),
        cast_bytes=counts.cast_bytes(facts, after, conversion.where),
        activation_bytes=None if old is None or new is None else (old, new),
        without_rule=tuple(sorted({row.op for row in rows if row.reason == NO_RULE})),
        widely_read=counts.widely_read(after),
    )


def _precision(verdict: Verdict, graph: Graph, position: int, facts: Facts) -> str:
    """Return the dtype of a node's data inputs, or of its output if it has none."""
    for port, entry in enumerate(graph.nodes[position].inputs):
        if verdict.input_in_precision(port) and not verdict.accepts_any(port):
            return facts.dtype(entry) or "unknown"
    return facts.dtype(Entry(position)) or "unknown"


def _reason(verdict: Verdict, precision: str) -> str:
    if verdict.label == FREE:
        return f"{verdict.reason}: either is safe"
    if (precision == FLOAT32) == (verdict.label == FLOAT32):
        return verdict.reason
    usual = FLOAT32 if verdict.label == FLOAT32 else "low precision"
    return f"as converted; its rule says {usual} ({verdict.reason})"


def _plainest_policy(graph: Graph, facts: Facts) -> Policy:
    """Return the plainest policy that a converted graph may come from."""
    found = [node.get("dtype") for node in graph.operators() if node.get(MARK_ATTR) is not None]
    found += [dtypes.from_flag(n.get("__dtype__") or "") for n in graph.nodes if n.get(BEFORE_ATTR) is not None]
    low = next((dtype for dtype in found if dtype in dtypes.LOW_PRECISION), None) or dtypes.FLOAT16
    gives_low = any(facts.dtype(head) == low for head in graph.heads)
    return Policy(compute_dtype=low, output_dtype=low if gives_low else FLOAT32)
