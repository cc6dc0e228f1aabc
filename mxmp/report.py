"""What a conversion decided and why, in casts and bytes, as a table or JSON."""

from __future__ import annotations

import io
import json
from dataclasses import asdict, dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

from rich.console import Console
from rich.table import Table

from . import dtypes
from .graph import Entry, Graph, Node
from .passes.classify import NO_RULE
from .passes.facts import Facts
from .passes.insert_casts import CAST_MARK, HEAD_MARK, MARK_ATTR
from .passes.plan import Plan
from .passes.verdict import FLOAT32, FREE, KEEP
from .policy import Policy

MANY_READERS = 32
"""Readers of one cast beyond which a report warns: the gradients of 64 have overflowed float16."""


@dataclass(frozen=True)
class Row:
    """What was decided about one operator.

    Attributes:
        name: The node's name in the network.
        op: Its operator.
        precision: Dtype that it computes in; 'as it was' for nodes that are not touched.
        reason: Why.
    """

    name: str
    op: str
    precision: str
    reason: str


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
    """

    policy: str
    rows: Tuple[Row, ...]
    casts: int
    activation_casts: int
    cast_bytes: Optional[int]
    activation_bytes: Optional[Tuple[int, int]]
    without_rule: Tuple[str, ...]
    widely_read: Tuple[Tuple[str, int], ...] = ()

    def count(self) -> Dict[str, int]:
        """Return how many operators compute in each precision."""
        counts: Dict[str, int] = {}
        for row in self.rows:
            counts[row.precision] = counts.get(row.precision, 0) + 1
        return counts

    def to_json(self) -> str:
        """Return the report as JSON."""
        return json.dumps(asdict(self), indent=2)

    def __str__(self) -> str:
        """Return the report as a table for a terminal."""
        table = Table("node", "operator", "precision", "reason", title=f"mxmp: {self.policy}")
        for row in self.rows:
            table.add_row(row.name, row.op, row.precision, row.reason)
        console = Console(file=io.StringIO(), width=120)
        console.print(table)
        for line in self.summary():
            console.print(line, highlight=False)
        output: Any = console.file
        return str(output.getvalue())

    def summary(self) -> List[str]:
        """Return the totals, a line each."""
        parts = ", ".join(f"{count} in {precision}" for precision, count in sorted(self.count().items()))
        moved = "bytes unknown" if self.cast_bytes is None else f"{self.cast_bytes:,} bytes"
        lines = [
            f"operators: {parts}",
            f"casts: {self.casts} ({self.activation_casts} of activations), {moved} per forward pass",
        ]
        if self.activation_bytes:
            before, after = self.activation_bytes
            lines.append(f"activations: {after:,} bytes, {before:,} before")
        if self.without_rule:
            lines.append(f"no rule, left as they were: {', '.join(self.without_rule)}")
        for name, readers in self.widely_read:
            lines.append(f"'{name}' is cast once for {readers} readers; their gradients add up in low precision")
        return lines


def merge(reports: Sequence[Report]) -> Report:
    """Return one report on several graphs of one network."""
    if len(reports) == 1:
        return reports[0]
    moved = [report.cast_bytes for report in reports]
    activations = [report.activation_bytes for report in reports]
    return Report(
        policy=reports[0].policy,
        rows=tuple(row for report in reports for row in report.rows),
        casts=sum(report.casts for report in reports),
        activation_casts=sum(report.activation_casts for report in reports),
        cast_bytes=None if None in moved else sum(m for m in moved if m is not None),
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
    rows = _rows(policy, before, plan)
    inserted = _inserted(after)
    params = {node.name for node in before.nodes if node.is_variable and node.name in facts.params}
    return Report(
        policy=str(policy),
        rows=tuple(rows),
        casts=len(inserted),
        activation_casts=sum(1 for source in inserted if source.name not in params),
        cast_bytes=None if any(body.casts() for body in plan.bodies.values()) else plan.placement.cast_bytes,
        activation_bytes=_activation_bytes(before, facts, plan),
        without_rule=tuple(sorted({row.op for row in rows if row.reason == NO_RULE})),
        widely_read=_widely_read(after),
    )


def _widely_read(graph: Graph) -> Tuple[Tuple[str, int], ...]:
    consumers = graph.consumers()
    found = []
    for position, node in enumerate(graph.nodes):
        if node.get(MARK_ATTR) == CAST_MARK and node.get("dtype") in dtypes.LOW_PRECISION:
            readers = len(consumers.get((position, 0), ()))
            if readers > MANY_READERS:
                found.append((graph.entry_name(node.inputs[0]), readers))
    return tuple(found)


def _rows(policy: Policy, graph: Graph, plan: Plan) -> List[Row]:
    rows = []
    for position, node in enumerate(graph.nodes):
        if node.is_variable:
            continue
        verdict = plan.verdicts[position]
        precision = policy.compute_dtype if position in plan.placement.low else FLOAT32
        if verdict.label == KEEP:
            precision = "as it was"
        reason = verdict.reason + (": cheaper so" if verdict.label == FREE else "")
        rows.append(Row(node.name, node.op, precision, reason))
        for number, body in enumerate(node.subgraphs):
            if (position, number) in plan.bodies:
                rows.extend(_rows(policy, body, plan.bodies[position, number]))
    return rows


def _inserted(graph: Graph) -> List[Node]:
    """Return what each inserted cast reads, in bodies too."""
    found = []
    for node in graph.nodes:
        if node.get(MARK_ATTR) in (CAST_MARK, HEAD_MARK):
            found.append(graph.nodes[node.inputs[0].node])
        for body in node.subgraphs:
            found.extend(_inserted(body))
    return found


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
