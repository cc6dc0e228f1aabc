"""The report on a conversion: a value with a row per operator, printed as a table or JSON."""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .. import html
from ..errors import visible
from ..graph import Graph
from ..passes.decide import CLAMPED
from ..passes.facts import Facts
from . import counts
from .saving import save_text

AS_IT_WAS = "as it was"
"""The precision of a node that is not touched."""

FOLDED = "folded"
"""That of a BatchNorm that the layer before it computes, in inference."""

DROPPED = "dropped"
"""That of a dropout that is left out, in inference."""

_NO_PRECISIONS = (AS_IT_WAS, FOLDED, DROPPED)

_COLUMNS = ("node", "operator", "precision", "reason", "casts")

# (where it stands in a reason, how it is written, what it means), in the order of the legend.
_WORDS = [
    (r"^allow\b", "allow", "gains from low precision: matrix products, convolutions"),
    (r"^deny\b", "deny", "needs float32, for the reason behind it"),
    (r"^infer\b(?! behind)", "infer", "as safe as what it reads"),
    (r"^infer behind ", "infer behind X", "as safe as what it reads, and X, before it, needs float32"),
    (r"^wide values of ", "wide values", "inputs of the network, or computed from these alone"),
    (r"^clear\b", "clear", "only moves or selects values, so that either precision is safe"),
    (r": cheapest$", "cheapest", "moves fewest bytes, or takes fewest casts if shapes are unknown; else float32"),
    (r"^carries exact values", "carries exact values", "counts, indices, values of a variable: never rounded"),
    (r"^last layer", "last layer", "the policy keeps it in float32 (last_layer_fp32)"),
    (r"^pure policy", "pure policy", "the policy takes low precision for all that MXNet has a kernel for"),
    (r"^keep_batchnorm_fp32", "keep_batchnorm_fp32", "the policy keeps BatchNorm in float32"),
    (CLAMPED, "clamped", "a constant beyond the dtype's range, whose largest value it is now"),
    (r"\boverride\b|^precision '", "override, region", "the policy, a block's policy or a region asks for it by name"),
    (r", as \w+$", "as X", "MXNet computes it by its operator X, which has the kernel"),
    (r"^as converted;", "as converted", "a policy that is not known overruled the rule"),
    (r"^MXNet has no sound ", "no sound kernel", "MXNet's is missing, or what it gives is wrong or off on average"),
    (r"^explicit cast", "explicit cast", "the network's own; left as it is"),
    (r"^no rule for", "no rule", "mxmp does not know which inputs may be cast; left as it is"),
]  # fmt: skip


@dataclass(frozen=True)
class Row:
    """The precision of one operator, and why.

    Attributes:
        name: The node's name in the network.
        op: Its operator.
        precision: Dtype that it computes in; 'as it was' for nodes that are not touched, 'folded' or
            'dropped' for those that are gone because the conversion is for inference.
        reason: Why.
        casts: The tensors that mxmp casts for its inputs, or behind it for the network's outputs, each
            with the dtype that it becomes. Readers share casts: one may stand in several rows.
        inputs: Names of the operators that it reads, in the order of its inputs; variables are left out.
    """

    name: str
    op: str
    precision: str
    reason: str
    casts: Tuple[str, ...]
    inputs: Tuple[str, ...] = ()


class Removed(NamedTuple):
    """What inference does not need of a network, and the network that still had it, but for dropout.

    Attributes:
        rows: One per operator that is gone.
        before: The network's graph; None if nothing was removed.
        facts: The facts on it.
    """

    rows: Tuple[Row, ...] = ()
    before: Optional[Graph] = None
    facts: Facts = Facts({})

    @property
    def activation_bytes(self) -> Optional[int]:
        """Bytes of the network's activations before, as in `Report`; None if unknown."""
        return None if self.before is None else counts.activation_bytes(self.before, self.facts)


@dataclass(frozen=True)
class Report:
    """The result of one conversion: every operator, its casts, and totals.

    Attributes:
        policy: The policy, as text.
        rows: One per operator, in the graph's order; those that are gone come last.
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
        notes: A sentence on each thing that slows the network down on this machine. It is printed, and no part of
            what is written as JSON or compared.
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
    notes: Tuple[str, ...] = field(default=(), compare=False)

    def with_removed(self, removed: Removed) -> Report:
        """Return the report on the conversion of a network of which something had been removed before."""
        sizes = self.activation_bytes
        before = removed.activation_bytes if sizes else None  # shapes may be inferred for it
        if sizes and before is not None:
            sizes = before, sizes[1]
        return replace(self, rows=self.rows + removed.rows, activation_bytes=sizes)

    @property
    def count(self) -> Dict[str, int]:
        """How many operators compute in each precision."""
        return dict(Counter(row.precision for row in self.rows))

    def to_dict(self) -> Dict[str, Any]:
        """Return the report as plain values, without what holds on this machine alone."""
        return {name: value for name, value in asdict(self).items() if name != "notes"}

    def to_json(self) -> str:
        """Return the report as JSON."""
        return json.dumps(self.to_dict(), indent=2)

    def save(self, path: str) -> None:
        """Write the report to a file as JSON, whole or not at all: ``report.json`` of a run.

        Raises:
            CheckpointError: If the file cannot be written.
        """
        save_text(self.to_json() + "\n", path)

    def to_html(self, path: Optional[str] = None, title: str = "Mixed precision") -> str:
        """Return the report as one self-contained HTML file, and write it if asked to.

        The page loads nothing from a network, and has the network as a picture and a table that sorts and filters.

        Args:
            path: The file to write, replaced if it is there; None to write none.
            title: The page's.

        Raises:
            CheckpointError: If the file cannot be written.
        """
        text = html.page(title, html.report_sections(*self._shown()), self.policy)
        if path is not None:
            save_text(text, path)
        return text

    def _repr_html_(self) -> str:
        """Return what a notebook shows: totals and the table, without the picture."""
        return html.fragment("Mixed precision", html.report_sections(*self._shown(), picture=False), self.policy)

    def _shown(self) -> Tuple[Dict[str, Any], List[str], List[Tuple[str, str]]]:
        """Return what sections are made of: plain values, what to notice, and the words of the reasons."""
        return self.to_dict(), [*self.warnings, *self.notes], legend(row.reason for row in self.rows)

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
            f"{count} {'' if precision in _NO_PRECISIONS else 'in '}{precision}"
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
        shared = "'{}' is cast once for {} readers; their gradients add up in low precision"
        clamped = [row for row in self.rows if CLAMPED in row.reason]
        return [shared.format(*pair) for pair in self.widely_read] + [
            f"'{row.name}' computes with another constant ({row.reason})" for row in clamped
        ]

    @property
    def summary(self) -> List[str]:
        """Totals, warnings and notes, a line each."""
        return [f"{what}: {text}" for what, text in self.totals] + self.warnings + list(self.notes)


def merge(reports: Sequence[Report]) -> Report:
    """Return one report on several graphs of one network."""
    if len(reports) == 1:
        return reports[0]
    activations = [report.activation_bytes or (None, None) for report in reports]
    before, after = (counts.total(sizes) for sizes in zip(*activations))
    return Report(
        policy=reports[0].policy,
        rows=tuple(row for report in reports for row in report.rows),
        casts=sum(report.casts for report in reports),
        activation_casts=sum(report.activation_casts for report in reports),
        cast_bytes=counts.total(report.cast_bytes for report in reports),
        activation_bytes=None if before is None or after is None else (before, after),
        without_rule=tuple(sorted({op for report in reports for op in report.without_rule})),
        widely_read=tuple(sorted({pair for report in reports for pair in report.widely_read})),
    )


def legend(reasons: Iterable[str]) -> List[Tuple[str, str]]:
    """Return the words in some reasons, each with its meaning; phrases that explain themselves have none.

    Example:
        >>> legend(["allow", "deny: exp overflows", "allow"])[0]
        ('allow', 'gains from low precision: matrix products, convolutions')
    """
    known = frozenset(reasons)
    return [(word, meaning) for pattern, word, meaning in _WORDS if any(re.search(pattern, each) for each in known)]
