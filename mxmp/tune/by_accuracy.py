"""Search by accuracy: the fewest operators to keep in float32 for a metric within a tolerance of float32's.

Tolerance (evaluates a policy once) <- _Search: errors of operators -> order -> minimal_set -> SearchResult
"""

from __future__ import annotations

import contextlib
import math
import sys
from dataclasses import dataclass
from typing import (
    Any,
    Callable,
    ClassVar,
    Dict,
    FrozenSet,
    Iterator,
    List,
    Optional,
    Sequence,
    Set,
    Tuple,
    Union,
)

import numpy as np

from .. import dtypes
from ..devices.processor import read_processor
from ..devices.speed import runs_bfloat16
from ..diagnose.batches import Batches, read_loader
from ..diagnose.compare import Errors, node_errors
from ..diagnose.progress import showing_progress
from ..diagnose.subject import CALLS, NetSubject, Subject, SymbolSubject, read_subject
from ..display import NUMBER, Column, Facts, Record, Section, Table
from ..errors import NonFiniteLossError, TuneError
from ..graph import Graph, Node
from ..passes.attributes import PRECISION_ATTR
from ..policy import Policy, pattern_of
from ..report import Row
from .candidates import with_names
from .minimal import minimal_set
from .plan import digest

_MAX_EVALUATIONS = 200
_COLUMNS = (
    Column("node"),
    Column("operator"),
    Column("own error", NUMBER, "Of the operator alone, on float32's inputs."),
    Column("carried error", NUMBER, "In the network in low precision."),
    Column("kept", help="'yes': in float32, by an override of its name; 'follows': because its neighbours are."),
    Column("metric without", NUMBER, "Of the network found, with this operator in low precision too."),
)


@dataclass(frozen=True)
class SearchRow:
    """An operator that the policy given has in low precision.

    An error is the 2-norm of the difference from float32 over that of float32's values, of the worst
    output and batch. It is inf where float32 is finite and low precision is not, NaN where nothing could be compared.

    Attributes:
        name: The node's name in the network.
        op: Its operator.
        own: The error of the operator by itself, whose inputs are float32's, rounded.
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
class SearchResult(Record):
    """The policy found, with the measurements.

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
        """The result in a few lines."""
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
                "in float32 in all",
                f"{after} of {self.operators} operators, {follow} of them follow; {before} under the policy given",
            ),
            ("evaluations", f"{self.evaluations}"),
        ]

    def _sections(self) -> List[Section]:
        rows = [(row.name, row.op, row.own, row.carried, row.kept, row.metric_without) for row in self.rows]
        table = Table("operators in low precision under the policy given", _COLUMNS, rows, "operators")
        return [Section("Operators to keep in float32", [table, Facts(self._facts())])]

    @property
    def _lead(self) -> str:
        return str(self.policy)


# ------------------------------------------------------------------ one policy, judged


class Tolerance:
    """Tells of policies whether a network's metric under them is within a tolerance of float32's.

    Each metric is measured once: of two policies with the same converted graphs, for inputs of the shapes that
    ``evaluate`` uses first, only one. The network is as it was after each measurement.

    Args:
        net_or_model: As for `search`.
        evaluate: As for `search`.
        tolerance: As for `search`.
        higher_is_better: As for `search`.
        batches: As for `search`.
        ctx: As for `search`.
        for_inference: As for `search`.

    Attributes:
        subject: The network.
        for_inference: Whether the network is measured with BatchNorm folded.
        reference: The metric in float32.
        evaluations: How often ``evaluate`` was called.

    Raises:
        TuneError: If ``evaluate`` gives no number, none that is finite in float32, or two in float32 that are further
            apart than the tolerance.
        ConvertError: If the network or a batch cannot be read.
    """

    def __init__(
        self,
        net_or_model: Any,
        evaluate: Callable[[Any], float],
        tolerance: float,
        *,
        higher_is_better: bool = True,
        batches: Optional[Batches] = None,
        ctx: Any = None,
        for_inference: bool = False,
    ) -> None:
        limit = _number(tolerance)
        if limit is None or not 0 <= limit < math.inf:
            raise TuneError(f"tolerance={tolerance!r}: expected a finite number from 0 on, in the unit of the metric.")
        if not callable(evaluate):
            raise TuneError(f"evaluate is a {type(evaluate).__name__}; expected a function of the network.")
        for name, flag in (("higher_is_better", higher_is_better), ("for_inference", for_inference)):
            if not isinstance(flag, bool):
                raise TuneError(f"{name}={flag!r}: expected True or False.")
        self.tolerance, self.higher_is_better, self.for_inference = limit, higher_is_better, for_inference
        self.subject = _read(net_or_model, batches, ctx, for_inference)
        self.evaluations = 0
        self._owner, self._evaluate = net_or_model, evaluate
        self._metrics: Dict[Tuple[Graph, ...], float] = {}
        self.reference = self._measure_float32()

    def require_measures(self, net_or_model: Any, symbols: Sequence[Any], for_inference: bool) -> None:
        """Raise a TuneError unless it is this network that is measured, with BatchNorm folded or not.

        It is if it is the same object, or has the same operators with their names and attributes; values of parameters
        are not compared.
        """
        if self.for_inference != for_inference:
            raise TuneError(
                f"within: it measures the network with for_inference={self.for_inference}, but it is tuned with "
                f"for_inference={for_inference}; give both the same."
            )
        both = symbols, self.subject.symbols()
        expected, measured = ({digest([symbol]) for symbol in network} for network in both)
        if self._owner is not net_or_model and not expected <= measured:
            raise TuneError(
                f"within: it measures another network ({', '.join(sorted(measured))}, expected "
                f"{', '.join(sorted(expected))}): other operators or names. Make the Tolerance of the network that is "
                f"tuned."
            )

    def allows(self, policy: Union[str, Policy]) -> bool:
        """Return whether the network's metric under a policy is within the tolerance: not if it is not finite.

        Raises:
            TuneError: If ``evaluate`` gives no number.
            PolicyError: If a pattern of the policy matches nothing.
        """
        metric = self.metric(policy)
        loss = self.reference - metric if self.higher_is_better else metric - self.reference
        return math.isfinite(metric) and loss <= self.tolerance

    def knows(self, policy: Union[str, Policy]) -> bool:
        """Return whether the metric under a policy is known without a call of ``evaluate``."""
        parsed = Policy.parse(policy)
        return not parsed.is_mixed or self.subject.graphs(parsed) in self._metrics

    def metric(self, policy: Union[str, Policy]) -> float:
        """Return the network's metric under a policy; raises as `allows`."""
        parsed = Policy.parse(policy)
        if not parsed.is_mixed:
            return self.reference
        require_runs(parsed)
        graphs = self.subject.graphs(parsed)
        if graphs not in self._metrics:
            self._metrics[graphs] = self._measure(parsed)
        return self._metrics[graphs]

    # A copy would not do for a net: ``evaluate`` may hold the very object, in a trainer or a closure.
    def _measure(self, policy: Policy) -> float:
        with self.subject.under(policy) as candidate:
            self.evaluations += 1
            try:
                value = self._evaluate(candidate)
            except NonFiniteLossError:  # of a trainer in ``evaluate``
                if not policy.is_mixed:
                    raise
                value = math.nan
        number = _number(value)
        if number is None:
            kind = "None" if value is None else f"a {type(value).__name__}"
            raise TuneError(f"evaluate gave {kind}; expected a number, such as an accuracy or a loss.")
        return number

    def _measure_float32(self) -> float:
        """Return the metric in float32, measured twice: the tolerance has to be beyond its noise."""
        # The first run is watched: it shows a net's graphs, and the calls that errors are measured on.
        with self.subject.watched():
            first = self._measure(Policy())
        if not math.isfinite(first):
            raise TuneError(f"evaluate gave {first} in float32; the network is broken before its precision is changed.")
        second = self._measure(Policy())
        if not abs(first - second) <= self.tolerance:
            raise TuneError(
                f"evaluate gave {first:.6g} and then {second:.6g} for the same network in float32, which is more apart "
                f"than the tolerance {self.tolerance:.6g}; take the same data and seeds in each call, or a tolerance "
                f"beyond that noise."
            )
        return first


def require_runs(policy: Policy) -> None:
    """Raise a TuneError if this machine cannot run a network under a policy."""
    if policy.compute_dtype == dtypes.BFLOAT16 and not runs_bfloat16():
        raise TuneError(
            f"policy: it computes in bfloat16, and MXNet runs none on this processor ({read_processor().name}). Search "
            f"on one with AVX-512, or with a policy of float16, which is emulated."
        )


def _number(value: Any) -> Optional[float]:
    """Return a number of Python or numpy as a float (0 for -0), None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        return None
    return float(value) + 0.0


def _read(network: Any, batches: Optional[Batches], ctx: Any, for_inference: bool) -> Subject:
    """Return what a user searches; a net's batches are the first calls that ``evaluate`` makes of it."""
    subject: Any = read_subject(network, ctx=ctx)
    is_net = isinstance(subject, NetSubject)
    if for_inference and (is_net or subject.module is not None):
        raise TuneError(
            f"for_inference: BatchNorm is folded in models, not in a {type(network).__name__}; give its symbol with "
            "its parameters, (symbol, arg_params, aux_params), as mxmp.gluon.export writes them of a net."
        )
    if is_net and batches is not None:
        raise TuneError("batches is for a symbol with parameters or a Module; a net's are what evaluate calls it with.")
    if for_inference:
        # Folded anew under each policy, in float32 and before anything is rounded, as it is deployed.
        symbol, args, aux = subject.given
        subject = SymbolSubject(symbol, args, aux, ctx, for_inference)
    read: Subject = subject if is_net else subject.take(read_loader(batches, CALLS, "batches"))
    return read


# ------------------------------------------------------------------ operators that may be kept


Kept = FrozenSet[str]
"""Patterns of names that are kept in float32. One stands for all operators of a name, as of a block's two calls."""


class LowOperators:
    """What a policy has in low precision of a network, and the policies that keep some of it in float32.

    Attributes:
        policy: The policy given.
        rows: What it decides about each operator.
        items: Patterns of the operators that it has in low precision, and that a name can keep in float32.
        fixed: Those that no name can, because the policy or a region asks for low precision by name.
    """

    def __init__(self, subject: Subject, policy: Policy) -> None:
        self.policy, self._subject = policy, subject
        self.rows = subject.rows(policy)
        # A region of Gluon, which overrules a name, leaves an attribute at its nodes.
        nodes = (node for decisions in subject.decisions(policy) for node in _nodes(decisions.before))
        regions = {node.name for node in nodes if node.get(PRECISION_ATTR)}
        low = [row for row in self.rows if row.precision == policy.compute_dtype]
        self.fixed = [row for row in low if row.name in regions or not self._gives_way(row)]
        self.items = tuple(dict.fromkeys(pattern_of(row.name) for row in low if row not in self.fixed))
        # What the rules have in float32 elsewhere under the same name: it is not put in low precision.
        self._never_low = self._in_float32(self.rows)
        self._exact: Dict[Kept, Policy] = {}

    def keeping(self, kept: Kept) -> Policy:
        """Return the policy given with overrides that keep some operators in float32; others may follow."""
        return with_names(self.policy, kept)

    def exactly(self, kept: Kept) -> Policy:
        """Return a policy with some operators in float32 and all other items in low precision, by name if need be.

        By the names of those kept alone others may follow: what the rules want in float32 behind them, and what saves
        casts there. What is found must not depend on these: for inputs of other shapes they may not follow.
        """
        if kept not in self._exact:
            low: Set[str] = set()
            policy, others = self.keeping(kept), set(self.items) - kept - self._never_low
            # A name that is put low may let others behind it follow into float32, or draw them along: until none does.
            while True:
                following = (others & self._in_float32(self._subject.rows(policy))) - low
                if not following:
                    break
                low |= following
                policy = with_names(policy, low, policy.compute_dtype)
            self._exact[kept] = policy
        return self._exact[kept]

    def _gives_way(self, row: Row) -> bool:
        """Return whether an override of its name keeps an operator in float32."""
        override = self.keeping(frozenset([pattern_of(row.name)])).override(row.op, row.name)
        return override is not None and override[0] == dtypes.FLOAT32

    def _in_float32(self, rows: Sequence[Row]) -> Set[str]:
        return {pattern_of(row.name) for row in rows if row.precision == dtypes.FLOAT32}


def _nodes(graph: Graph) -> Iterator[Node]:
    """Yield the operators of a graph, and those in bodies."""
    for node in graph.operators():
        yield node
        for body in node.subgraphs:
            yield from _nodes(body)


# ------------------------------------------------------------------ the search


def search(
    net_or_model: Any,
    evaluate: Callable[[Any], float],
    tolerance: float,
    policy: Union[str, Policy] = "O2",
    batches: Optional[Batches] = None,
    *,
    higher_is_better: bool = True,
    max_evaluations: int = _MAX_EVALUATIONS,
    ctx: Any = None,
    for_inference: bool = False,
    progress: bool = True,
) -> SearchResult:
    """Find the fewest operators to keep in float32 for a network to be as good as in float32.

    Each operator's error in low precision is measured once, which gives the order in which they are tried: as many of
    the first are kept in float32 as the metric needs, found by bisection; then those that turn out not to be needed go
    back to low precision, until each that is left is needed. Operators that the policy's rules keep in
    float32 stay there, and those that its overrides name stay as these say. On a CPU float16 is emulated: a float16
    deployment on a GPU can be found without one.

    Args:
        net_or_model: A Gluon net with values; a symbol with its parameters, ``(symbol, arg_params, aux_params)``; or a
            Module of MXNet or mxmp that is bound. It is as it was found afterwards, also if ``evaluate`` fails.
        evaluate: Returns a metric of the network that it gets, a number: of the same net, converted; a `ConvertedModel`
            that runs on ``ctx``; or an `mxmp.module.Module` with the same shapes, contexts and parameters. It may train
            that: each call begins with the same values.
        tolerance: How much worse than in float32 the metric may be, in its unit. A metric that is not finite is out of
            tolerance, and so is a NonFiniteLossError of a trainer in ``evaluate``; a better one is within.
        policy: The policy to begin with; its overrides hold.
        batches: Batches that errors are measured on, the first two of them: for a symbol or Module dicts of NDArrays by
            input, or a DataIter. A Gluon net needs none, as the first calls that ``evaluate`` makes of it are taken.
        higher_is_better: Whether a metric is better if it is higher, as an accuracy is, or if it is lower, as a loss.
        max_evaluations: How often ``evaluate`` may be called, 4 times at least.
        ctx: Where a symbol runs, the CPU unless given.
        for_inference: Whether ``evaluate`` gets, under policies of low precision, a network that only infers, with
            BatchNorm folded as the conversion's ``for_inference`` does it: the policy found is for such a network. Not
            for a Module.
        progress: Whether to show each trial on a terminal.

    Returns:
        The policy with name overrides, and a row for each operator. Interrupted (Ctrl-C), or if it may not evaluate
        more often, the best found so far, with ``is_minimal`` False.

    Raises:
        TuneError: If ``evaluate`` gives no number, or none that is finite in float32; if it gives two in float32 that
            are further apart than the tolerance; if no choice of operators is within the tolerance; or if the policy
            computes in bfloat16 and MXNet runs none here.
        PolicyError: If the policy does not parse or matches nothing.
        ConvertError: If the network cannot be converted.

    Example:
        >>> import mxnet as mx
        >>> from mxmp.tune import search
        >>> data = mx.sym.var("data")
        >>> squares = mx.sym.sqrt(mx.sym.mean(data * 300 * (data * 300), axis=1))  # 300**2 is beyond float16
        >>> batch = {"data": mx.nd.ones((2, 8))}
        >>> def error(model):
        ...     return abs(model.symbol.eval(**batch)[0].asnumpy() - 300).max()
        >>> search((squares, {}, {}), error, 1.0, "O3", [batch], higher_is_better=False).metric
        0.0
    """
    parsed = Policy.parse(policy)
    if type(max_evaluations) is not int or max_evaluations < 4:
        raise TuneError(f"max_evaluations={max_evaluations!r}: expected a whole number from 4 on.")
    if not parsed.is_mixed:
        raise TuneError(f"policy '{parsed}' is float32, so there is nothing to search; give one such as 'O2'.")
    require_runs(parsed)
    with showing_progress(progress and sys.stderr.isatty()) as show:
        show("float32", 0.0)
        judge = Tolerance(
            net_or_model,
            evaluate,
            tolerance,
            higher_is_better=higher_is_better,
            batches=batches,
            ctx=ctx,
            for_inference=for_inference,
        )
        return _Search(judge, parsed, max_evaluations, show).run()


def search_within(judge: Tolerance, policy: Policy, progress: bool) -> Policy:
    """Return the policy that `search` finds beginning with another, given what tells whether one is good enough."""
    with showing_progress(progress) as show:
        return _Search(judge, policy, _MAX_EVALUATIONS, show).run().policy


class _Ended(Exception):
    """No evaluation is left."""


class _Search:
    """One search: the operators that may be kept, in order, and the best of what was tried."""

    def __init__(self, judge: Tolerance, policy: Policy, most: int, show: Callable[[str, float], None]) -> None:
        self._judge, self._most, self._show = judge, most, show
        self._operators = LowOperators(judge.subject, policy)
        show("errors of operators", 0.0)
        self._errors = node_errors(judge.subject.calls(policy))
        for decisions in judge.subject.decisions(policy):  # nodes in bodies of loops have the errors of these
            for node in decisions.before.operators():
                for inner in (inner for body in node.subgraphs for inner in _nodes(body)):
                    self._errors[inner.name] = self._errors[node.name]

    def run(self) -> SearchResult:
        """Return the result."""
        # Nothing kept, then all: what lies between is only searched if the first fails and the last passes.
        nothing: Kept = frozenset()
        if self._passes(nothing):
            return self._result(nothing, is_minimal=True)
        # By their own errors, and between equal ones by those that are carried to them.
        rows = sorted(self._operators.rows, key=self._error, reverse=True)
        first = dict.fromkeys(pattern_of(row.name) for row in rows)
        items = [pattern for pattern in first if pattern in self._operators.items]
        best = frozenset(items)
        if not items or not self._passes(best):
            raise self._unreachable()
        # The generator proposes sets and is sent whether they pass, so that it knows neither networks nor metrics.
        proposals = minimal_set(items)
        try:
            tried = next(proposals)
            while True:
                passes = self._passes(tried)
                best = tried if passes and len(tried) < len(best) else best
                tried = proposals.send(passes)
        except StopIteration as end:
            return self._result(end.value, is_minimal=True)
        except (_Ended, KeyboardInterrupt):
            return self._result(best, is_minimal=False)

    def _passes(self, kept: Kept) -> bool:
        policy = self._operators.exactly(kept)
        if self._judge.evaluations >= self._most and not self._judge.knows(policy):
            raise _Ended
        number, count = self._judge.evaluations + 1, len(self._operators.items)
        self._show(f"evaluation {number}: {len(kept)} of {count} in float32", number / self._most)
        return self._judge.allows(policy)

    def _error(self, row: Row) -> Errors:
        return self._errors.get(row.name, Errors(-1.0, -1.0))  # of what was not compared, last

    def _unreachable(self) -> TuneError:
        operators, judge = self._operators, self._judge
        policy = operators.exactly(frozenset(operators.items))
        low = [f"'{row.name}' ({row.op})" for row in operators.fixed]
        # With all items kept the metric fails still: what is low by name, or at the outputs, is all that is left.
        causes = [f"{policy.compute_dtype} is asked for by name of {', '.join(low[:3])}"] if low else []
        causes += [f"{len(low) - 3} more"] if len(low) > 3 else []
        causes += [f"the outputs come in {policy.output_dtype}"] if policy.output_dtype != dtypes.FLOAT32 else []
        sign, relation = (-1, "least") if judge.higher_is_better else (1, "most")
        bound = f"{relation} {judge.reference + sign * judge.tolerance:.6g}"
        return TuneError(
            f"with all {len(operators.items)} operators in float32 that can be kept there, the metric is "
            f"{judge.metric(policy):.6g}; it has to be at {bound}, as it is {judge.reference:.6g} in float32. "
            + (f"What is left: {' and '.join(causes)}." if causes else "Is the tolerance below the noise of evaluate?")
        )

    def _final(self, kept: Kept, may_measure: bool) -> Policy:
        """Return the policy that keeps operators by their names alone, others following, if that was as good too."""
        # The plain policy says less and lets casts be saved; the exact one is what was measured.
        exact, plain = self._operators.exactly(kept), self._operators.keeping(kept)
        if self._judge.knows(plain) or (may_measure and self._judge.evaluations < self._most):
            with contextlib.suppress(KeyboardInterrupt):
                return plain if self._judge.allows(plain) else exact
        return exact

    def _result(self, kept: Kept, is_minimal: bool) -> SearchResult:
        judge, operators = self._judge, self._operators
        policy = self._final(kept, may_measure=is_minimal)
        after = judge.subject.rows(policy)
        return SearchResult(
            policy=policy,
            metric=judge.metric(policy),
            reference=judge.reference,
            given=judge.metric(operators.policy),
            tolerance=judge.tolerance,
            higher_is_better=judge.higher_is_better,
            evaluations=judge.evaluations,
            is_minimal=is_minimal,
            float32_operators=(_count_float32(operators.rows), _count_float32(after)),
            operators=len(after),
            rows=tuple(self._rows(kept, after)),
        )

    def _rows(self, kept: Kept, after: Sequence[Row]) -> Iterator[SearchRow]:
        """Yield a row for each operator that was in low precision, the largest errors first."""
        low = self._operators.policy.compute_dtype
        pairs = [(row, now) for row, now in zip(self._operators.rows, after) if row.precision == low]
        for row, now in sorted(pairs, key=lambda pair: self._error(pair[0]), reverse=True):
            own, carried = self._error(row) if row.name in self._errors else (math.nan, math.nan)
            without, state, pattern = None, "follows" if now.precision == dtypes.FLOAT32 else "no", pattern_of(row.name)
            if row in self._operators.fixed:
                state = "cannot"
            elif pattern in kept:
                policy, state = self._operators.exactly(kept - {pattern}), "yes"
                without = self._judge.metric(policy) if self._judge.knows(policy) else None
            yield SearchRow(row.name, row.op, own, carried, state, without)


def _count_float32(rows: Sequence[Row]) -> int:
    return sum(row.precision == dtypes.FLOAT32 for row in rows)
