"""The report on a conversion: a value with a row per operator, printed as a table or JSON."""

from __future__ import annotations

import io
import json
from dataclasses import asdict, dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..errors import visible
from .legend import legend
from .sizes import total

AS_IT_WAS = "as it was"
"""The precision of a node that is not touched."""

_COLUMNS = ("node", "operator", "precision", "reason", "casts")


@dataclass(frozen=True)
class Row:
    """The precision of one operator, and why.

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
    """The result of one conversion: every operator, its casts, and totals.

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
        """Return a table of the operators with a legend of the reasons, for a terminal.

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
        """A sentence on each thing that may harm training."""
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
    activations = [report.activation_bytes or (None, None) for report in reports]
    before, after = (total(sizes) for sizes in zip(*activations))
    return Report(
        policy=reports[0].policy,
        rows=tuple(row for report in reports for row in report.rows),
        casts=sum(report.casts for report in reports),
        activation_casts=sum(report.activation_casts for report in reports),
        cast_bytes=total(report.cast_bytes for report in reports),
        activation_bytes=None if before is None or after is None else (before, after),
        without_rule=tuple(sorted({op for report in reports for op in report.without_rule})),
        widely_read=tuple(sorted({pair for report in reports for pair in report.widely_read})),
    )
