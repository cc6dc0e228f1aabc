"""The result of a search by accuracy: a policy, with what was found about each operator."""

from __future__ import annotations

import io
import json
import math
from dataclasses import asdict, dataclass
from typing import Any, Dict, List, Optional, Tuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...errors import visible
from ...policy import Policy

_COLUMNS = ("node", "operator", "own error", "carried error", "kept", "metric without")
_WORDS = (
    "own error: of the operator alone, on float32's inputs; carried error: in the network in low precision.",
    "kept: in float32, by an override of its name; follows: in float32 because its neighbours are.",
    "metric without: of the network found, with this operator in low precision too.",
)


@dataclass(frozen=True)
class SearchRow:
    """An operator that the policy given has in low precision.

    An error is the 2-norm of the difference from float32 over that of float32's values, of the worst
    output and batch. It is inf where float32 is finite and low precision is not, NaN where nothing could be compared.

    Attributes:
        name: The node's name in the network.
        op: Its operator.
        own: The error of the operator alone, which gets what it gets in float32, rounded.
        carried: The error that the network in low precision has there.
        kept: 'yes' if the policy found keeps it in float32, 'follows' if it is in float32 because of those that are
            kept (the rules want it behind them, or casts are saved), 'no' if it is in low precision, and 'cannot' if
            the policy or a region asks for low precision by its name.
        metric_without: The network's metric if it were in low precision too, the others as found; of those kept, None
            where that was not measured.
    """

    name: str
    op: str
    own: float
    carried: float
    kept: str
    metric_without: Optional[float] = None


@dataclass(frozen=True)
class SearchResult:
    """The policy found, and what was measured on the way.

    Attributes:
        policy: The policy given, with overrides ``name:NODE=float32`` for the operators to keep; it prints and parses.
            If the search was ended, others that follow these may be put in low precision by name, as was measured.
        metric: The network's metric under it.
        reference: The metric in float32.
        given: The metric under the policy given, before any override.
        tolerance: How far the metric may be off, in its unit.
        higher_is_better: Whether a metric is better if it is higher.
        evaluations: How often ``evaluate`` was called, twice of them in float32.
        is_minimal: Whether each operator that is kept was seen to be needed: in low precision, one at a time, they put
            the metric out of tolerance. False if the search was ended before.
        float32_operators: How many operators are in float32 under the policy given, and under the policy found.
        operators: How many operators there are in all.
        rows: One per operator that the policy given has in low precision, the largest errors first.
    """

    policy: Policy
    metric: float
    reference: float
    given: float
    tolerance: float
    higher_is_better: bool
    evaluations: int
    is_minimal: bool
    float32_operators: Tuple[int, int]
    operators: int
    rows: Tuple[SearchRow, ...]

    @property
    def kept(self) -> Tuple[str, ...]:
        """Names of the operators that the policy found keeps in float32, the largest errors first."""
        return tuple(dict.fromkeys(row.name for row in self.rows if row.kept == "yes"))

    def to_dict(self) -> Dict[str, Any]:
        """Return the result as plain values, the policy as text, numbers that are not finite too."""
        found = {**asdict(self), "policy": str(self.policy)}
        return {name: _plain(value) for name, value in found.items()}

    def to_json(self) -> str:
        """Return the result as JSON."""
        return json.dumps(self.to_dict(), indent=2)

    def table(self) -> Table:
        """Return a table of the operators, for a terminal."""
        title = Text(f"mxmp: {self.policy}".replace(",", ", "))  # it may wrap
        table = Table(title=title, caption=Text("\n".join(_WORDS)), caption_justify="left")
        for column in _COLUMNS:
            table.add_column(column, overflow="fold", justify="right" if "error" in column else "left")
        for row in self.rows:
            without = "" if row.metric_without is None else f"{row.metric_without:.6g}"
            cells = visible(row.name), row.op, _error(row.own), _error(row.carried), row.kept, without
            table.add_row(*map(Text, cells))
        return table

    @property
    def summary(self) -> List[str]:
        """What was found, a line each."""
        before, after = self.float32_operators
        kept, follow = (sum(row.kept == state for row in self.rows) for state in ("yes", "follows"))
        needed = "each of them is needed" if kept else "none is needed"
        better = "higher" if self.higher_is_better else "lower"
        return [
            f"metric: {self.metric:.6g}, {self.reference:.6g} in float32, {self.given:.6g} under the "
            f"policy given; {better} is better, tolerance {self.tolerance:.6g}",
            f"kept in float32: {kept} operators by {len(self.kept)} names, "
            + (needed if self.is_minimal else "the best found before the search was ended"),
            f"in float32 in all: {after} of {self.operators} operators, {follow} of them follow; {before} under the "
            f"policy given",
            f"evaluations: {self.evaluations}",
        ]

    def __str__(self) -> str:
        """Return the result as a table for a terminal."""
        console = Console(file=io.StringIO(), width=120)
        console.print(self.table())
        for line in self.summary:
            console.print(line, highlight=False, markup=False, soft_wrap=True)
        output: Any = console.file
        return str(output.getvalue())


def _error(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.1e}" if value and math.isfinite(value) else f"{value:g}"


def _plain(value: Any) -> Any:
    """Return a value for JSON, which has no numbers that are not finite: these become text."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
