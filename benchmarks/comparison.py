"""One network in several forms: their times beside those of float32, and their errors."""

from __future__ import annotations

from statistics import median
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from benchmarks import timing

FLOAT32, PEER, OWN = "float32", "contrib.amp", "mxmp"

NO_BFLOAT16 = "MXNet runs no bfloat16 on this processor, which lacks AVX-512"

FAILS = "fails: "
"""How the reason begins where a form should run and does not."""


class Column(NamedTuple):
    """What one form of a network gave.

    Attributes:
        front: Columns of one front are compared with each other, and share a table.
        who: `FLOAT32` (MXNet alone), `PEER` or `OWN`.
        title: What tells it from others of its front.
        dtype: What its products are computed in.
        seconds: Of each round; empty where it does not run.
        error: Of its result against float32, None where it is not known.
        missing: Why it does not run.
        notes: Further numbers for the file.
    """

    front: str
    who: str
    title: str
    dtype: str
    seconds: Sequence[float] = ()
    error: Optional[float] = None
    missing: str = ""
    notes: Optional[Dict[str, Any]] = None

    @property
    def failed(self) -> bool:
        """Whether it should have run, and did not."""
        return self.missing.startswith(FAILS)


class Comparison(NamedTuple):
    """All columns of a network that was measured in one go, round by round."""

    columns: Sequence[Column]

    def measured(self, front: str, who: str, dtype: Optional[str] = None) -> List[Column]:
        """Return the columns of a front that ran."""
        of_front = [column for column in self.columns if (column.front, column.who) == (front, who)]
        return [column for column in of_front if column.seconds and dtype in (None, column.dtype)]

    def best(self, front: str, who: str, dtype: Optional[str] = None) -> Optional[Column]:
        """Return the fastest column of a front, None if none ran."""
        return min(self.measured(front, who, dtype), key=lambda column: median(column.seconds), default=None)

    def base(self, front: str) -> Optional[Column]:
        """Return the column of float32 that others are compared with: MXNet's fastest."""
        return self.best(front, FLOAT32)

    def speed(self, column: Optional[Column]) -> Optional[float]:
        """Return how many times as fast as float32 of its front a column is; None if either did not run."""
        base = column and self.base(column.front)
        return timing.speed(base.seconds, column.seconds) if base and column and column.seconds else None

    def noisy(self, front: str) -> bool:
        """Return whether float32's own rounds scatter so much that nothing can be told."""
        base = self.base(front)
        return base is not None and timing.summarize(base.seconds).scatter > timing.NOISY


Found = Mapping[str, Comparison]
"""By network."""


def to_json(comparison: Comparison) -> List[Dict[str, Any]]:
    """Return the columns of a network as what JSON can hold."""
    result = []
    for column in comparison.columns:
        kept = {key: value for key, value in column._asdict().items() if value not in (None, "", (), [])}
        if column.seconds:
            summary = timing.summarize(column.seconds)
            kept.update(summary._asdict(), scatter=summary.scatter, speed=comparison.speed(column))
        kept["noisy"] = comparison.noisy(column.front)
        result.append(kept)
    return result
