"""What a conversion decided and why, in casts and bytes, as a table or JSON."""

from __future__ import annotations

import io
import json
from dataclasses import asdict, dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from . import dtypes
from .errors import visible
from .graph import Entry, Graph
from .legend import legend
from .passes.attributes import DECLARED_ATTR, MARK_ATTR
from .passes.classify import classify
from .passes.decide import NO_RULE
from .passes.facts import Facts
from .passes.plan import Plan
from .passes.verdict import FLOAT32, FREE, KEEP, Verdict
from .policy import Policy
from .rules import RULES
from .tally import (
    activation_bytes,
    cast_bytes,
    casts_at,
    count_activations,
    inserted_casts,
    positions,
    total,
    widely_read,
)

AS_IT_WAS = "as it was"
"""The precision of a node that is not touched."""

_COLUMNS = ("node", "operator", "precision", "reason", "casts")

AS_CONVERTED = "as converted"
"""The policy of a report on a network of which only the conversion is known."""


@dataclass(frozen=True)
class Row:
    """What was decided about one operator.

    Attributes:
        name: The node's name in the network.
        op: Its operator.
        precision: Dtype that it computes in; 'as it was' for nodes that are not touched.
        reason: Why.
        casts: The tensors that mxmp casts for its inputs, or behind it for the network's outputs, each
            with the dtype that it becomes. Readers share casts: one may stand in several rows.
    """

    name: str
    op: str
    precision: str
    reason: str
    casts: Tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """The outcome of one conversion.

    Attributes:
        policy: The policy, as text.
        rows: One per operator, in the graph's order.
        casts: Number of casts inserted.
        activation_casts: Those of them that cast something else than a parameter.
        cast_bytes: Bytes that they read and write in one forward pass; None if a shape is unknown, or
            if some stand in the body of a loop.
        activation_bytes: Bytes of all operators' outputs in one forward pass, outside of bodies: (before,
            after); None if a shape is unknown.
        without_rule: Operators that stay in float32 because mxmp has no rule for them.
        widely_read: Pairs (tensor, number of readers) of what is cast once to low precision for more
            than ``MANY_READERS``: in training their gradients are added up in low precision.
        param_bytes: Bytes of all parameters and auxiliary states: (before, after); None if unknown.
    """

    policy: str
    rows: Tuple[Row, ...]
    casts: int
    activation_casts: int
    cast_bytes: Optional[int]
    activation_bytes: Optional[Tuple[int, int]]
    without_rule: Tuple[str, ...]
    widely_read: Tuple[Tuple[str, int], ...] = ()
    param_bytes: Optional[Tuple[int, int]] = None

    @property
    def count(self) -> Dict[str, int]:
        """How many operators compute in each precision."""
        counts: Dict[str, int] = {}
        for row in self.rows:
            counts[row.precision] = counts.get(row.precision, 0) + 1
        return counts

    def to_json(self) -> str:
        """Return the report as JSON."""
        return json.dumps(asdict(self), indent=2)

    def table(self, narrow: bool = False) -> Table:
        """Return one line per operator, and what the words of the reasons mean, for a terminal.

        Args:
            narrow: Whether it has few columns, so that cells share theirs, in several lines.
        """
        words = [f"{word}: {meaning}" for word, meaning in legend(row.reason for row in self.rows)]
        title = Text(f"mxmp: {self.policy}".replace(",", ", "))  # it may wrap
        table = Table(title=title, caption=Text("\n".join(words)), caption_justify="left")
        for column in ("node, operator", "precision, reason", "casts") if narrow else _COLUMNS:
            table.add_column(column, overflow="fold")
        for row in self.rows:
            cells = [visible(cell) for cell in (row.name, row.op, row.precision, row.reason, ", ".join(row.casts))]
            if narrow:
                name, op, precision, reason, casts = cells
                cells = [f"{name}\n  {op}", f"{precision}\n  {reason}", casts]
            table.add_row(*map(Text, cells))  # a name may look like rich's markup
        return table

    def __str__(self) -> str:
        """Return the report as a table for a terminal."""
        console = Console(file=io.StringIO(), width=120)
        console.print(self.table())
        for line in self.summary:
            console.print(visible(line), highlight=False, markup=False)
        output: Any = console.file
        return str(output.getvalue())

    @property
    def totals(self) -> List[Tuple[str, str]]:
        """The totals, each with what it counts."""
        parts = ", ".join(
            f"{count} {'' if precision == AS_IT_WAS else 'in '}{precision}"
            for precision, count in sorted(self.count.items())
        )
        moved = "bytes unknown" if self.cast_bytes is None else f"{self.cast_bytes:,} bytes"
        found = [
            ("operators", parts),
            ("casts", f"{self.casts} ({self.activation_casts} of activations), {moved} per forward pass"),
        ]
        for what, both in (("parameters", self.param_bytes), ("activations", self.activation_bytes)):
            if both:
                found.append((what, f"{both[1]:,} bytes, {both[0]:,} before"))
        if self.without_rule:
            found.append(("no rule, left as they were", ", ".join(self.without_rule)))
        return found

    @property
    def warnings(self) -> List[str]:
        """A sentence on each thing that training should look out for."""
        return [
            f"'{name}' is cast once for {readers} readers; their gradients add up in low precision"
            for name, readers in self.widely_read
        ]

    @property
    def summary(self) -> List[str]:
        """Totals and warnings, a line each."""
        return [f"{what}: {text}" for what, text in self.totals] + self.warnings


def merge(reports: Sequence[Report]) -> Report:
    """Return one report on several graphs of one network."""
    if len(reports) == 1:
        return reports[0]
    activations = [report.activation_bytes for report in reports]
    return Report(
        policy=reports[0].policy,
        rows=tuple(row for report in reports for row in report.rows),
        casts=sum(report.casts for report in reports),
        activation_casts=sum(report.activation_casts for report in reports),
        cast_bytes=total(report.cast_bytes for report in reports),
        activation_bytes=None
        if None in activations
        else (sum(a[0] for a in activations if a), sum(a[1] for a in activations if a)),
        without_rule=tuple(sorted({op for report in reports for op in report.without_rule})),
        widely_read=tuple(sorted({pair for report in reports for pair in report.widely_read})),
    )


def make_report(policy: Policy, before: Graph, facts: Facts, plan: Plan, after: Graph) -> Report:
    """Return the report on a conversion.

    Args:
        policy: The policy.
        before: The graph before insertion, which facts and plan speak of.
        facts: What MXNet inferred about it.
        plan: What ``InsertCasts.plan`` decided.
        after: The converted graph.
    """
    where = positions(before, after)
    rows = _rows(policy, before, facts, plan, after, where)
    inserted = inserted_casts(after)
    return Report(
        policy=str(policy),
        rows=tuple(rows),
        casts=len(inserted),
        activation_casts=count_activations(inserted, facts),
        cast_bytes=cast_bytes(facts, after, where),
        activation_bytes=_activation_bytes(before, facts, plan),
        without_rule=_without_rule(rows),
        widely_read=widely_read(after),
    )


def held_report(before: Graph, facts: Facts, after: Graph, after_facts: Facts) -> Report:
    """Return the report on a network that was converted earlier, under a policy that it does not tell.

    The precisions are those of the tensors that the operators read. The reasons are those of the
    rules alone; where they do not lead to the precision, a policy overruled them, and the row says so.

    Args:
        before: The graph without the casts of mxmp, as ``EraseCasts`` gives it.
        facts: What MXNet infers about it.
        after: The graph as it was converted.
        after_facts: What MXNet infers about that.
    """
    where = positions(before, after)
    verdicts = classify(before, _like(after, after_facts), facts, RULES)
    rows = _held_rows(before, facts, verdicts, after, after_facts, where)
    inserted = inserted_casts(after)
    old, new = activation_bytes(before, facts), activation_bytes(after, after_facts)
    return Report(
        policy=AS_CONVERTED,
        rows=tuple(rows),
        casts=len(inserted),
        activation_casts=count_activations(inserted, facts),
        cast_bytes=cast_bytes(facts, after, where),
        activation_bytes=None if old is None or new is None else (old, new),
        without_rule=_without_rule(rows),
        widely_read=widely_read(after),
    )


def _without_rule(rows: Sequence[Row]) -> Tuple[str, ...]:
    return tuple(sorted({row.op for row in rows if row.reason == NO_RULE}))


def _rows(policy: Policy, graph: Graph, facts: Facts, plan: Plan, after: Graph, where: Mapping[int, int]) -> List[Row]:
    rows = []
    casts = casts_at(graph, facts, after, where)
    for position, node in enumerate(graph.nodes):
        if node.is_variable:
            continue
        verdict = plan.verdicts[position]
        precision = policy.compute_dtype if position in plan.placement.low else FLOAT32
        if verdict.label == KEEP:
            precision = AS_IT_WAS
        reason = verdict.reason + (": cheaper so" if verdict.label == FREE else "")
        rows.append(Row(node.name, node.op, precision, reason, casts.get(position, ())))
        for number, body in enumerate(node.subgraphs):
            if (position, number) in plan.bodies:
                inner = facts.bodies[position, number], plan.bodies[position, number]
                converted = after.nodes[where[position]].subgraphs[number]
                rows.extend(_rows(policy, body, *inner, converted, positions(body, converted)))
    return rows


def _held_rows(
    before: Graph,
    facts: Facts,
    verdicts: Sequence[Verdict],
    after: Graph,
    after_facts: Facts,
    where: Mapping[int, int],
) -> List[Row]:
    rows = []
    casts = casts_at(before, facts, after, where)
    for position, node in enumerate(before.nodes):
        if node.is_variable:
            continue
        verdict = verdicts[position]
        precision, reason = AS_IT_WAS, verdict.reason
        if verdict.label != KEEP:
            precision = _held_precision(verdict, after, where[position], after_facts)
            reason = _held_reason(verdict, precision)
        rows.append(Row(node.name, node.op, precision, reason, casts.get(position, ())))
        for number, inner in enumerate(verdict.bodies):
            if inner:
                body = after.nodes[where[position]].subgraphs[number]
                body_facts = after_facts.bodies[where[position], number]
                old = node.subgraphs[number], facts.bodies[position, number]
                rows.extend(_held_rows(*old, inner, body, body_facts, positions(old[0], body)))
    return rows


def _held_precision(verdict: Verdict, graph: Graph, position: int, facts: Facts) -> str:
    """Return the dtype of a node's data; a node without data computes in what it gives."""
    for port, entry in enumerate(graph.nodes[position].inputs):
        if verdict.input_in_precision(port) and not verdict.accepts_any(port):
            return facts.dtype(entry) or "unknown"
    return facts.dtype(Entry(position)) or "unknown"


def _held_reason(verdict: Verdict, precision: str) -> str:
    if verdict.label == FREE:
        return f"{verdict.reason}: either is safe"
    if (precision == FLOAT32) == (verdict.label == FLOAT32):
        return verdict.reason
    usual = FLOAT32 if verdict.label == FLOAT32 else "low precision"
    return f"as converted; its rule says {usual} ({verdict.reason})"


def _like(graph: Graph, facts: Facts) -> Policy:
    """Return the plainest policy that a converted graph may come from."""
    found = [node.get("dtype") for node in graph.operators() if node.get(MARK_ATTR) is not None]
    found += [dtypes.from_flag(n.get("__dtype__") or "") for n in graph.nodes if n.get(DECLARED_ATTR) is not None]
    low = next((dtype for dtype in found if dtype in dtypes.LOW_PRECISION), None) or dtypes.FLOAT16
    gives_low = any(facts.dtype(head) == low for head in graph.heads)
    return Policy(compute_dtype=low, output_dtype=low if gives_low else FLOAT32)


def _activation_bytes(graph: Graph, facts: Facts, plan: Plan) -> Optional[Tuple[int, int]]:
    before = after = 0
    read = set(graph.consumers()) | {(head.node, head.index) for head in graph.heads}
    for position, index in read:
        if graph.nodes[position].is_variable:
            continue
        entry = Entry(position, index)
        size, dtype = facts.size(entry), facts.dtype(entry)
        if size is None or dtype is None:
            return None
        moved = plan.gives_low(position, index)
        before += size * dtypes.ITEM_BYTES[dtype]
        after += size * (2 if moved else dtypes.ITEM_BYTES[dtype])
    return before, after
