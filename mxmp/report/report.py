"""The record of a conversion: a row per operator, shown as a table and as a picture of the network."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Dict, Iterable, List, Optional, Sequence, Tuple, Union

from ..display import (
    PRECISION,
    Column,
    Figures,
    Network,
    Notes,
    Record,
    Section,
    Table,
    figure,
    size,
    wrappable,
)
from ..errors import PolicyError
from ..passes.decide import Reason
from ..policy import PRESETS, Policy

# Precisions of operators that compute in no dtype of the policy: not changed; a BatchNorm that is folded into the layer
# before it; a dropout that is left out.
AS_IT_WAS, FOLDED, DROPPED = "as it was", "folded", "dropped"
_NO_PRECISIONS = (AS_IT_WAS, FOLDED, DROPPED)
_GONE = (FOLDED, DROPPED)

_COLUMNS = (
    Column("node"),
    Column("operator"),
    Column("precision", PRECISION, "The dtype that it computes in"),
    Column("reason", help="The reason; the words are explained below"),
    Column("casts", help="The tensors that mxmp casts for its inputs, or behind it for the network's outputs"),
)


@dataclass(frozen=True)
class Cast:
    """A cast that mxmp inserted; its text is 'fc_weight to float16'.

    Attributes:
        tensor: The name of the tensor that is cast, as MXNet names outputs and variables.
        dtype: The dtype after the cast.
        source: The name of the operator that gives the tensor; '' for a variable.
    """

    tensor: str
    dtype: str
    source: str = ""

    def __str__(self) -> str:
        return f"{self.tensor} to {self.dtype}"


@dataclass(frozen=True)
class Row:
    """The precision of one operator, and why.

    Attributes:
        name: The node's name in the network.
        op: Its operator.
        precision: The dtype that it computes in. 'as it was' for a node that is not changed. 'folded' or 'dropped' for
            a node that a conversion for inference has removed.
        reason: The reason, as text.
        casts: The casts for its inputs, or behind it for the network's outputs. Operators share casts, so that a cast
            may be in several rows.
        inputs: The names of the operators that it reads, in the order of its inputs; variables are left out.
        kinds: The kinds of the reason; empty if the text explains itself.
    """

    name: str
    op: str
    precision: str
    reason: str
    casts: Tuple[Cast, ...] = ()
    inputs: Tuple[str, ...] = ()
    kinds: Tuple[Reason, ...] = ()


@dataclass(frozen=True)
class Report(Record):
    """The result of one conversion: every operator, its casts, and totals.

    Attributes:
        policy: The policy, as text.
        rows: One per operator, in the graph's order; removed operators come last.
        casts: The number of inserted casts.
        activation_casts: The number of casts of tensors that are not parameters.
        cast_bytes: The bytes that casts read and write in one forward pass. None if a shape is unknown, or if a cast is
            in the body of a loop.
        activation_bytes: The bytes of all operators' outputs in one forward pass, without bodies: (before, after). None
            if a shape is unknown.
        without_rule: The operators that stay in float32 because mxmp has no rule for them.
        widely_read: Pairs (tensor, number of readers) of the tensors whose one cast to low precision has more than
            ``MANY_READERS`` readers. In training their gradients are added up in low precision.
        param_bytes: The bytes of all parameters and auxiliary states: (before, after); None if unknown.
        notes: A sentence on why 'auto' chose the policy, and one on each thing that slows the network down on this
            machine. Notes are printed. They are not written as JSON and not compared.
    """

    _kind: ClassVar[str] = "report"
    _title: ClassVar[str] = "Mixed precision"

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

    @property
    def policy_name(self) -> str:
        """The policy as it is read: 'O1' where it is O1."""
        return policy_name(self.policy)

    @property
    def count(self) -> Dict[str, int]:
        """How many operators compute in each precision."""
        return dict(Counter(row.precision for row in self.rows))

    @property
    def totals(self) -> List[Tuple[str, str]]:
        """The totals as pairs of a name and a text."""
        counts = ((count, "" if name in _NO_PRECISIONS else "in ", name) for name, count in sorted(self.count.items()))
        moved = "bytes unknown without all shapes" if self.cast_bytes is None else f"{self.cast_bytes:,} bytes moved"
        kinds = f"{self.activation_casts} of inputs and activations, {self.casts - self.activation_casts} of parameters"
        totals = [
            ("operators", ", ".join(f"{count} {word}{name}" for count, word, name in counts)),
            ("casts", f"{self.casts} per forward pass: {kinds}; {moved}"),
        ]
        sizes = ("parameters", self.param_bytes), ("activations", self.activation_bytes)
        totals += [(what, f"{both[1]:,} bytes, {both[0]:,} before") for what, both in sizes if both]
        without = [("no rule, left as they were", ", ".join(self.without_rule))]
        return totals + (without if self.without_rule else [])

    @property
    def warnings(self) -> List[str]:
        """A sentence on each fact that may harm training."""
        shared = "'{}' is cast once for {} readers; their gradients add up in low precision"
        clamped = (row for row in self.rows if Reason.CLAMPED in row.kinds)
        return [shared.format(*pair) for pair in self.widely_read] + [
            f"'{row.name}' computes with another constant ({row.reason})" for row in clamped
        ]

    @property
    def summary(self) -> List[str]:
        """Totals, warnings and notes, a line each."""
        return [f"{what}: {text}" for what, text in self.totals] + self.warnings + list(self.notes)

    def table(self, width: int = 120) -> Any:
        """Return a table of the operators for rich, with a legend of the reasons.

        Args:
            width: The columns of the terminal. With few, cells share a column, in several lines.
        """
        from ..display import terminal

        return terminal.table(replace(self._operators, caption=wrappable(f"mxmp: {self.policy_name}")), width)

    # ------------------------------------------------------------------ where it is shown

    @property
    def _lead(self) -> str:
        return self.policy_name

    def _sections(self) -> List[Section]:
        rows = [row for row in self.rows if row.precision not in _GONE]
        without = [f"No rule for {', '.join(self.without_rule)}: left as they were."] if self.without_rule else []
        noticed = Notes([*self.warnings, *self.notes, *without], "Warning")
        lead = "Each operator is a cell in the colour of its precision."
        picture = [Section("Network", [Network(rows)], lead)] if rows else []
        return [
            Section("Summary", [Figures(self._figures(len(rows))), noticed]),
            *picture,
            Section("Operators", [self._operators]),
        ]

    def _figures(self, operators: int) -> List[Tuple[str, str, str]]:
        moved = "" if self.cast_bytes is None else f", {size(self.cast_bytes)} moved"
        figures = [
            (
                f"operators {precision}" if precision in _NO_PRECISIONS else f"operators in {precision}",
                figure(count),
                "" if precision in _GONE else f"of {operators:,}",
            )
            for precision, count in sorted(self.count.items(), key=lambda each: (each[0].endswith("32"), each[0]))
        ]
        figures.append(("casts", figure(self.casts), f"{self.activation_casts:,} of activations{moved}"))
        sizes = ("activations", self.activation_bytes), ("parameters", self.param_bytes)
        return figures + [(what, size(both[1]), f"{size(both[0])} before") for what, both in sizes if both]

    @property
    def _operators(self) -> Table:
        rows = [(row.name, row.op, row.precision, row.reason, ", ".join(map(str, row.casts))) for row in self.rows]
        words = legend(kind for row in self.rows for kind in row.kinds)
        return Table("Operators, in the order in which they run", _COLUMNS, rows, "operators", legend=words)


def policy_name(policy: Union[str, Policy]) -> str:
    """Return the shortest text of a policy: a preset's name, with the fields that differ from it.

    A text that is no policy, such as 'as converted', is returned as it is.

    Example:
        >>> policy_name("param=float32,compute=float16,output=float32,name:fc=float32,loss_scale=dynamic")
        'O1,name:fc=float32'
    """
    texts, items = [str(policy)], str(policy).split(",")
    for name in PRESETS:
        fields = str(Policy.parse(name)).split(",")
        text = ",".join([name, *(item for item in items if item not in fields)])
        with contextlib.suppress(PolicyError):
            if Policy.parse(text) == Policy.parse(policy):
                texts.append(text)
    return min(texts, key=len)


def legend(kinds: Iterable[Reason]) -> List[Tuple[str, str]]:
    """Return the words for some kinds of reasons, each with its meaning.

    Example:
        >>> legend([Reason.DENY, Reason.ALLOW, Reason.DENY])[0]
        ('allow', 'gains from low precision: matrix products, convolutions')
    """
    kinds = frozenset(kinds)
    return [(kind.value, kind.meaning) for kind in Reason if kind in kinds and kind.meaning]


def merge(reports: Sequence[Report]) -> Report:
    """Return one report on several graphs of one network."""
    if len(reports) == 1:
        return reports[0]
    before, after = (total(both) for both in zip(*(each.activation_bytes or (None, None) for each in reports)))
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


def total(values: Iterable[Optional[int]]) -> Optional[int]:
    """Return the sum, None if one of the values is unknown."""
    numbers = list(values)
    return None if None in numbers else sum(number or 0 for number in numbers)


def operator_table(report: Report) -> Table:
    """Return a table with a row per kind of operator, most nodes first, for networks with hundreds of nodes.

    A cast for operators of two kinds counts for both.
    """
    by_op: Dict[str, List[Row]] = {}
    for row in report.rows:
        by_op.setdefault(row.op, []).append(row)
    precisions, rows = sorted(report.count), []
    for op in sorted(by_op, key=lambda op: (-len(by_op[op]), op)):
        count = Counter(row.precision for row in by_op[op])
        casts = sorted(Counter(cast.dtype for cast in {cast for row in by_op[op] for cast in row.casts}).items())
        rows.append((op, *(count.get(each) for each in precisions), ", ".join(f"{n:,} to {d}" for d, n in casts)))
    columns = [Column("operator"), *(Column(each, "number") for each in precisions), Column("tensors cast for it")]
    return Table(wrappable(f"mxmp: {report.policy_name}"), columns, rows, "operators")
