"""A tuned policy on a terminal: its times, what it changes, and what each change won."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, List, Sequence, Tuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..errors import visible
from ..policy import Policy

if TYPE_CHECKING:
    from .result import TuneResult

WIDTH = 120
"""Columns of what is printed to no terminal, as of the project's other reports."""

_NAMES = 3  # of operators that are listed
_OVERRIDES = 4  # of a policy that are listed


def times(result: TuneResult) -> Table:
    """Return a table of the last measurement, the policy that is returned marked."""
    title = f"mxmp tune: {result.objective}; {short_policy(result.untuned)}".replace(",", ", ")  # it may wrap
    table = Table(title=Text(visible(title)))
    for column in ("plan", "ms", "times float32's speed", "times the untuned speed"):
        table.add_column(column, justify="left" if column == "plan" else "right")
    for name, seconds in result.seconds.items():
        against = [_speed(result, base, seconds) for base in ("float32", "untuned")]
        table.add_row(f"{name}, returned" if name == result.fastest else name, f"{1e3 * seconds:.4g}", *against)
    return table


def totals(result: TuneResult) -> List[Tuple[str, str]]:
    """Return what there is to say beside the times, each with what it is about."""
    found = [("policy", "float32" if not result.policy.is_mixed else short_policy(result.policy))]
    for change in result.changes:
        found.append(("changed", f"{len(change.names)} {change.op} in {change.dtype}: {_shortened(change.names)}"))
    for each in result.candidates:
        if each.won and each.ratio is not None:
            found.append(("won in the search", f"{each.name}: {1 - each.ratio:.0%} less time than the best before"))
    failed = sum(each.seconds is None for each in result.candidates)
    tried = f"{len(result.candidates)} plans besides float32" + (f"; {failed} did not run" if failed else "")
    found += [("tried", tried), *(("note", note) for note in result.notes)]
    return [*found, ("holds for", str(result.holds_for))]


def text(result: TuneResult) -> str:
    """Return the table and the rest, a line each."""
    console = Console(file=io.StringIO(), width=WIDTH)
    console.print(times(result))
    for what, said in totals(result):
        console.print(visible(f"{what}: {said}"), highlight=False, markup=False, soft_wrap=True)
    output: Any = console.file
    return str(output.getvalue())


def short_policy(policy: Policy) -> str:
    """Return a policy as text; of many overrides by name the first, and how many more there are."""
    more = len(policy.names) - _OVERRIDES
    if more <= 0:
        return str(policy)
    return f"{policy.replace(names=policy.names[:_OVERRIDES])} and {more} more names"


def _speed(result: TuneResult, base: str, seconds: float) -> str:
    return f"{result.seconds[base] / seconds:.2f}" if base in result.seconds and seconds else "-"


def _shortened(names: Sequence[str]) -> str:
    more = len(names) - _NAMES
    return ", ".join(names[:_NAMES]) + (f" and {more} more" if more > 0 else "")
