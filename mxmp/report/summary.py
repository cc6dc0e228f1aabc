"""A report in a few lines, for networks with hundreds of operators: counts by operator instead of a row for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Set, Tuple

from rich import box
from rich.table import Table
from rich.text import Text

from ..errors import visible
from .report import Report


@dataclass(frozen=True)
class Kind:
    """All operators of one kind in a network.

    Attributes:
        op: The operator.
        precisions: How many compute in each precision.
        casts: How many tensors are cast for them to each dtype; one that operators of two kinds read counts for both.
    """

    op: str
    precisions: Mapping[str, int]
    casts: Mapping[str, int]


@dataclass(frozen=True)
class Summary:
    """What a report counts.

    Attributes:
        report: The whole report.
        kinds: One per operator, the most frequent first.
    """

    report: Report
    kinds: Tuple[Kind, ...]

    def to_dict(self) -> Dict[str, Any]:
        """Return it as plain values."""
        report = self.report
        return {
            "policy": report.policy,
            "operators": {kind.op: dict(kind.precisions) for kind in self.kinds},
            "casts_read": {kind.op: dict(kind.casts) for kind in self.kinds if kind.casts},
            "precisions": report.count,
            "casts": report.casts,
            "activation_casts": report.activation_casts,
            "cast_bytes": report.cast_bytes,
            "param_bytes": report.param_bytes,
            "activation_bytes": report.activation_bytes,
            "without_rule": list(report.without_rule),
            "warnings": report.warnings,
        }

    def table(self) -> Table:
        """Return a table with a row per operator: how many compute in each precision, and the casts that they read."""
        columns = sorted(self.report.count)
        table = Table(title=Text(f"mxmp: {self.report.policy}".replace(",", ", ")), box=box.SIMPLE_HEAD)
        table.add_column("operator", overflow="fold")
        for precision in columns:
            table.add_column(precision, justify="right")
        table.add_column("tensors cast for it", overflow="fold")
        for kind in self.kinds:
            counts = [f"{kind.precisions[each]:,}" if each in kind.precisions else "" for each in columns]
            casts = ", ".join(f"{count:,} to {dtype}" for dtype, count in kind.casts.items())
            table.add_row(*(Text(visible(cell)) for cell in (kind.op, *counts, casts)))
        return table


def summarize(report: Report) -> Summary:
    """Return the summary of a report."""
    precisions: Dict[str, Dict[str, int]] = {}
    tensors: Dict[str, Set[str]] = {}
    for row in report.rows:
        counts = precisions.setdefault(row.op, {})
        counts[row.precision] = counts.get(row.precision, 0) + 1
        tensors.setdefault(row.op, set()).update(row.casts)
    order = sorted(precisions, key=lambda op: (-sum(precisions[op].values()), op))
    kinds = [Kind(op, dict(sorted(precisions[op].items())), _by_dtype(tensors[op])) for op in order]
    return Summary(report, tuple(kinds))


def few(pairs: List[Tuple[str, str]], most: int = 3) -> List[Tuple[str, str]]:
    """Return pairs of a thing and what is said about it, a few about each thing and how many more there are."""
    kinds: Dict[str, List[str]] = {}
    for what, text in pairs:
        kinds.setdefault(what, []).append(text)
    found = []
    for what, texts in kinds.items():
        found += [(what, text) for text in texts[:most]]
        if len(texts) > most:
            found.append((what, f"and {len(texts) - most:,} more"))
    return found


def _by_dtype(casts: Set[str]) -> Dict[str, int]:
    """Return how many of some casts, 'fc_weight to float16' for example, are to each dtype."""
    counts: Dict[str, int] = {}
    for cast in sorted(casts):
        dtype = cast.rpartition(" to ")[2]
        counts[dtype] = counts.get(dtype, 0) + 1
    return dict(sorted(counts.items()))
