"""The results of tuning, as values that are shown, saved and loaded without MXNet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, List, Optional, Tuple

from ..display import NUMBER, SHARE, Column, Facts, Line, Lines, Notes, Record, Section, Table
from ..errors import TuneError
from ..policy import Policy
from .report import policy_name

FASTER, SLOWER, SAME = "faster", "slower", "within the noise"

_MOST_LINES = 4  # of a chart


# ------------------------------------------------------------------ speed


@dataclass(frozen=True)
class PolicySpeed:
    """The times of one policy in a comparison.

    Attributes:
        policy: The policy, as it was given.
        seconds: The median of its times; None if it does not run.
        spread: How far its times are from their median: the median distance, as a share of the median.
        ratio: Its time divided by that of the first policy: the median over the rounds.
        verdict: 'faster' or 'slower' than the first policy by more than the noise, else 'within the noise'; '' of the
            first one.
        times: Its times in seconds, one for each round.
        emulated: Whether float16 is emulated, so that its times tell nothing of a GPU's.
        failure: Why it does not run; '' if it does.
    """

    policy: str
    seconds: Optional[float] = None
    spread: Optional[float] = None
    ratio: Optional[float] = None
    verdict: str = ""
    times: Tuple[float, ...] = ()
    emulated: bool = False
    failure: str = ""


@dataclass(frozen=True)
class SpeedComparison(Record):
    """The times of a network under several policies; ``print`` shows a table, and a page also has a chart.

    Attributes:
        training: Whether whole training steps were timed; else inference, the network frozen.
        rows: One for each policy, in the order in which they were given.
        device: The processor's name, or the GPU's context.
        kind: The kind of the processor, as `mxmp doctor` names it; '' for a GPU.
        amx: Whether MXNet uses AMX.
        notes: Sentences to notice: that AMX could be on, that the machine is noisy, that float16 is emulated.
    """

    _kind: ClassVar[str] = "speed comparison"
    _title: ClassVar[str] = "mxmp benchmark"
    _error = TuneError

    training: bool
    rows: Tuple[PolicySpeed, ...]
    device: str
    kind: str
    amx: bool
    notes: Tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.rows:
            raise ValueError("rows is empty; expected a row for each policy.")

    @property
    def fastest(self) -> str:
        """The fastest of the policies that are faster than the first one by more than the noise; else the first."""
        faster = [row for row in self.rows if row.verdict == FASTER]
        return min(faster, key=lambda row: row.ratio or 0.0).policy if faster else self.rows[0].policy

    def _sections(self) -> List[Section]:
        first = self.rows[0].policy
        columns = (
            Column("policy"),
            Column("ms", NUMBER),
            Column("spread", SHARE, "Median distance of the rounds from their median."),
            Column(f"of {first}'s time", SHARE),
            Column("difference"),
        )
        rows = []
        for row in self.rows:
            milliseconds = None if row.seconds is None else 1e3 * row.seconds
            said = f"does not run: {row.failure}" if row.failure else row.verdict
            name = f"{row.policy} (emulated)" if row.emulated else row.policy
            rows.append((name, milliseconds, row.spread, row.ratio, said))
        legend = (
            ("ms", "the median of the rounds"),
            (columns[3].title, "the ratio within a round, the median of them: not the quotient of two ms"),
        )
        table, facts = Table("policies", columns, rows, "policies", legend=legend), Facts(self._facts())
        return [Section("Policies in turns", (table, self._chart(), facts, Notes(self.notes)))]

    def _chart(self) -> Lines:
        ran = sorted((row for row in self.rows if row.times), key=lambda row: row.ratio or 0.0)[:_MOST_LINES]
        lines = [Line(row.policy, [1e3 * seconds for seconds in row.times]) for row in ran]
        rounds = [float(number + 1) for number in range(len(self.rows[0].times))]
        return Lines("Milliseconds by round", rounds, lines, "round")

    def _facts(self) -> List[Tuple[str, str]]:
        amx = f"; AMX {'on' if self.amx else 'off'}" if self.kind else ""
        device = f"{self.device} ({self.kind}{amx})" if self.kind else self.device
        measured = f"{len(self.rows[0].times)} rounds, in which all policies took turns"
        return [("fastest", self.fastest), ("device", device), ("measured", measured)]

    @property
    def _lead(self) -> str:
        return "training steps" if self.training else "inference, frozen"


# ------------------------------------------------------------------ accuracy

_SEARCH_COLUMNS = (
    Column("node"),
    Column("operator"),
    Column("local error", NUMBER, "The error that the operator adds to float32's values."),
    Column("accumulated error", NUMBER, "The error of its output, with the errors of all operators before it."),
    Column("kept", help="'yes': in float32, by an override of its name; 'follows': because its neighbours are."),
    Column("metric without", NUMBER, "Of the network found, with this operator in low precision too."),
)


@dataclass(frozen=True)
class SearchRow:
    """The result of a search for one operator, which the given policy runs in low precision.

    An error is the 2-norm of the difference from float32 over that of float32's values, of the worst
    output and batch. It is inf where float32 is finite and low precision is not, NaN where nothing could be compared.

    Attributes:
        name: The node's name in the network.
        op: Its operator.
        local_error: The error that the operator adds: its inputs are float32's, rounded.
        accumulated_error: The error of its output in low precision, with the errors of all operators before it.
        kept: 'yes' if the policy that was found keeps it in float32. 'follows' if it is in float32 because of others
            that are kept: a rule requires it, or casts are saved. 'no' if it is in low precision. 'cannot' if the
            policy or a region asks for low precision by its name.
        metric_without: The network's metric if it were in low precision too, the others as found; of those kept, None
            where that was not measured.
    """

    name: str
    op: str
    local_error: float
    accumulated_error: float
    kept: str
    metric_without: Optional[float] = None


@dataclass(frozen=True)
class SearchResult(Record):
    """The result of a search by accuracy: the policy that was found, with the measurements.

    Attributes:
        policy: The policy given, with overrides ``name:NODE=float32`` for the operators to keep; it prints and parses.
            If the search was ended, others that follow these may be put in low precision by name, as was measured.
        metric: The network's metric under it.
        reference: The metric in float32.
        given: The metric under the policy given, before any override.
        tolerance: How far the metric may be off, in its unit.
        higher_is_better: Whether a metric is better if it is higher.
        evaluations: How often ``evaluate`` was called, twice of them in float32.
        is_minimal: Whether each kept operator is needed: in low precision each one takes the metric out of tolerance.
            False if the search was ended before.
        float32_operators: How many operators are in float32 under the policy given, and under the policy found.
        operators: How many operators there are in all.
        rows: One per operator that the policy given has in low precision, the largest errors first.
    """

    _kind: ClassVar[str] = "search by accuracy"
    _title: ClassVar[str] = "mxmp search"
    _error = TuneError

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

    @property
    def summary(self) -> List[str]:
        """The result of the search in a few lines."""
        return [f"{name}: {text}" for name, text in self._facts()]

    def _facts(self) -> List[Tuple[str, str]]:
        before, after = self.float32_operators
        kept, follow = (sum(row.kept == state for row in self.rows) for state in ("yes", "follows"))
        needed = "each of them is needed" if kept else "none is needed"
        better = "higher" if self.higher_is_better else "lower"
        return [
            (
                "metric",
                f"{self.metric:.6g}, {self.reference:.6g} in float32, {self.given:.6g} under the policy given; "
                f"{better} is better, tolerance {self.tolerance:.6g}",
            ),
            (
                "kept in float32",
                f"{kept} operators by {len(self.kept)} names, "
                + (needed if self.is_minimal else "the best found before the search was ended"),
            ),
            (
                "operators in float32",
                f"{after} of {self.operators}, under the policy given {before}"
                + (f"; {follow} of them follow those kept by name" if follow else ""),
            ),
            ("evaluations", f"{self.evaluations}"),
        ]

    def _sections(self) -> List[Section]:
        errors = ((row.local_error, row.accumulated_error) for row in self.rows)
        rows = [(row.name, row.op, *each, row.kept, row.metric_without) for row, each in zip(self.rows, errors)]
        table = Table("operators in low precision under the policy given", _SEARCH_COLUMNS, rows, "operators")
        return [Section("Operators to keep in float32", [table, Facts(self._facts())])]

    @property
    def _lead(self) -> str:
        return policy_name(self.policy)
