"""Search by accuracy: the fewest operators to keep in float32 for a metric within a tolerance of float32's.

Tolerance (evaluates a policy once) <- _Search: errors of operators -> order -> minimal_set -> SearchResult
"""

from __future__ import annotations

import contextlib
import math
import sys
from typing import (
    Any,
    Callable,
    Dict,
    FrozenSet,
    Generator,
    Iterable,
    Iterator,
    Optional,
    Sequence,
    Set,
    Tuple,
    TypeVar,
    Union,
)

import numpy as np

from .. import dtypes
from ..diagnose.batches import Batches, read_batches
from ..diagnose.compare import Errors, node_errors
from ..diagnose.subject import FIRST_CALLS, NetSubject, Subject, SymbolSubject, read_subject
from ..display.terminal import showing_progress
from ..errors import NonFiniteLossError, TuneError, a_type_of
from ..graph import Graph
from ..passes.base import PRECISION_ATTR
from ..policy import Policy, pattern_of
from ..report import Row
from ..report.tuning import SearchResult, SearchRow

T = TypeVar("T")

_MAX_EVALUATIONS = 200


# ------------------------------------------------------------------ one policy, judged


class Tolerance:
    """Tells of policies whether a network's metric under them is within a tolerance of float32's.

    Each metric is measured once: of two policies with the same converted graphs, for inputs of the shapes that
    ``evaluate`` uses first, only one. The network is as it was after each measurement.

    Args:
        network: As for `search`.
        evaluate: As for `search`.
        tolerance: As for `search`.
        higher_is_better: As for `search`.
        batches: As for `search`.
        ctx: As for `search`.
        for_inference: As for `search`.

    Attributes:
        subject: The network.
        reference: The metric in float32.
        evaluations: How often ``evaluate`` was called.

    Raises:
        TuneError: If ``evaluate`` gives no number, none that is finite in float32, or two in float32 that are further
            apart than the tolerance.
        ConvertError: If the network or a batch cannot be read.
    """

    def __init__(
        self,
        network: Any,
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
            raise TuneError(f"evaluate is {a_type_of(evaluate)}; expected a function of the network.")
        for name, flag in (("higher_is_better", higher_is_better), ("for_inference", for_inference)):
            if not isinstance(flag, bool):
                raise TuneError(f"{name}={flag!r}: expected True or False.")
        self.tolerance, self.higher_is_better = limit, higher_is_better
        self.subject = _read(network, batches, ctx, for_inference)
        self.evaluations = 0
        self._evaluate = evaluate
        self._metrics: Dict[Tuple[Graph, ...], float] = {}
        self.reference = self._measure_float32()

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
        parsed = self.subject.policy_or(policy)
        if not parsed.is_mixed:
            return self.reference
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
            kind = "None" if value is None else f"{a_type_of(value)}"
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


def _number(value: Any) -> Optional[float]:
    """Return a number of Python or numpy as a float (0 for -0), None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        return None
    return float(value) + 0.0


def _read(network: Any, batches: Optional[Batches], ctx: Any, for_inference: bool) -> Subject:
    """Return the network to search; a net's batches are the first calls that ``evaluate`` makes of it."""
    subject: Any = read_subject(network, ctx=ctx)
    is_net = isinstance(subject, NetSubject)
    if for_inference and (is_net or subject.module is not None):
        raise TuneError(
            f"for_inference: BatchNorm is folded in models, not in {a_type_of(network)}; give its symbol with "
            "its parameters, (symbol, arg_params, aux_params), as mxmp.gluon.export writes them of a net."
        )
    if is_net and batches is not None:
        raise TuneError("batches is for a symbol with parameters or a Module; a net has the inputs of evaluate.")
    if for_inference:
        # Folded anew under each policy, in float32 and before anything is rounded, as it is deployed.
        symbol, args, aux = subject.given
        subject = SymbolSubject(symbol, args, aux, ctx, for_inference)
    read: Subject = subject if is_net else subject.take(read_batches(batches, FIRST_CALLS))
    return read


# ------------------------------------------------------------------ operators that are kept


Kept = FrozenSet[str]
"""Patterns of names that are kept in float32. One stands for all operators of a name, as of a block's two calls."""


def with_names(policy: Policy, patterns: Iterable[str], dtype: str = dtypes.FLOAT32) -> Policy:
    """Return a policy that has the operators of some patterns of names in a precision, and is the same otherwise."""
    return policy.replace(names={**dict(policy.names), **dict.fromkeys(patterns, dtype)})


# ------------------------------------------------------------------ the search


def search(
    network: Any,
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

    Each operator's error in low precision is measured once, which gives the order in which they are tried. As many of
    the first are kept in float32 as the metric needs, found by bisection. Then operators that are not needed go back to
    low precision, until each that is left is needed. Operators that the policy's rules keep in float32 stay there.
    Those that its overrides name stay as the overrides say. On a CPU float16 is emulated, so that a policy for a GPU
    can be found without one.

    Args:
        network: A Gluon net with values; a symbol with its parameters, ``(symbol, arg_params, aux_params)``; or a
            Module of MXNet or mxmp that is bound. It is as it was found afterwards, also if ``evaluate`` fails.
        evaluate: Returns a metric of the network that it gets, a number. It gets the same net, converted; or a
            `ConvertedModel` that runs on ``ctx``; or an `mxmp.module.Module` with the same shapes, contexts and
            parameters. It may train that: each call begins with the same values.
        tolerance: How much worse than in float32 the metric may be, in its unit. A better metric is within it. A metric
            that is not finite is out of it, like a NonFiniteLossError of a trainer in ``evaluate``.
        policy: The policy to begin with; its overrides hold.
        batches: Batches that errors are measured on, the first two of them: for a symbol or Module dicts of NDArrays by
            input, or a DataIter. A Gluon net needs none, as the first calls that ``evaluate`` makes of it are taken.
        higher_is_better: Whether a metric is better if it is higher, as an accuracy is, or if it is lower, as a loss.
        max_evaluations: How often ``evaluate`` may be called, 4 times at least.
        ctx: Where a symbol runs, the CPU unless given.
        for_inference: Whether ``evaluate`` gets a network that only infers, with BatchNorm folded as the conversion's
            ``for_inference`` does it. The policy found is for such a network. Not for a Module.
        progress: Whether to show each trial on a terminal.

    Returns:
        The policy with name overrides, and a row for each operator. Interrupted (Ctrl-C) after the first four
        evaluations, or if it may not evaluate more often, the best found so far, with ``is_minimal`` False.

    Raises:
        KeyboardInterrupt: If it is interrupted in the first four evaluations, before a policy is found.
        TuneError: If ``evaluate`` gives no number, or none that is finite in float32. If it gives two in float32 that
            are further apart than the tolerance. If no choice of operators is within the tolerance.
        PolicyError: If the policy does not parse or matches nothing.
        ConvertError: If the network cannot be converted. If the policy computes in bfloat16 and MXNet runs none here.

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
    with showing_progress(progress and sys.stderr.isatty()) as show:
        show("float32", 0.0)
        judge = Tolerance(
            network,
            evaluate,
            tolerance,
            higher_is_better=higher_is_better,
            batches=batches,
            ctx=ctx,
            for_inference=for_inference,
        )
        return _Search(judge, judge.subject.policy_or(parsed), max_evaluations, show).run()


class _Ended(Exception):
    """No evaluation is left."""


class _Search:
    """One search: the operators that may be kept, in order, and the policies that keep some of them in float32."""

    def __init__(self, judge: Tolerance, policy: Policy, most: int, show: Callable[[str, float], None]) -> None:
        self._judge, self._policy, self._most, self._show = judge, policy, most, show
        self._rows = judge.subject.rows(policy)  # the decision of the policy given about each operator
        nodes = [node for decisions in judge.subject.decisions(policy) for node in decisions.before.operators()]
        # A region of Gluon, which overrules a name, leaves an attribute at its nodes.
        regions = {node.name for node in nodes if node.get(PRECISION_ATTR)}
        low = [row for row in self._rows if row.precision == policy.compute_dtype]
        # Those in low precision that no name can keep in float32, and the patterns of the others.
        self._fixed = [row for row in low if row.name in regions or not self._gives_way(row)]
        self._items = tuple(dict.fromkeys(pattern_of(row.name) for row in low if row not in self._fixed))
        self._exact: Dict[Kept, Policy] = {}
        show("errors of operators", 0.0)
        self._errors = node_errors(judge.subject.calls(policy))
        for node in nodes:  # Operators in bodies of a loop have its errors.
            for inner in (inner for body in node.subgraphs for inner in body.operators()):
                self._errors[inner.name] = self._errors[node.name]

    def _gives_way(self, row: Row) -> bool:
        """Return whether an override of its name keeps an operator in float32."""
        override = with_names(self._policy, [pattern_of(row.name)]).override(row.op, row.name)
        return override is not None and override[0] == dtypes.FLOAT32

    def _keeping(self, kept: Kept) -> Policy:
        """Return a policy with some operators in float32 and all other items in low precision, by name if need be.

        If only some operators are kept by their names, others may follow into float32: the rules want them there, or
        that saves casts. The result must not depend on these. For inputs of other shapes they may not follow.
        """
        if kept not in self._exact:
            low: Set[str] = set()
            # Operators that the rules have in float32 elsewhere under the same name are not put in low precision.
            policy, others = with_names(self._policy, kept), set(self._items) - kept - _in_float32(self._rows)
            # A name that is put low may let others behind it follow into float32, or draw them along: until none does.
            while following := (others & _in_float32(self._judge.subject.rows(policy))) - low:
                low |= following
                policy = with_names(policy, low, policy.compute_dtype)
            self._exact[kept] = policy
        return self._exact[kept]

    def run(self) -> SearchResult:
        """Return the result."""
        # Nothing kept, then all: sets between are only searched if the first fails and the last passes.
        nothing: Kept = frozenset()
        if self._passes(nothing):
            return self._result(nothing, is_minimal=True)
        # By their local errors, and between equal ones by the accumulated ones.
        rows = sorted(self._rows, key=self._error, reverse=True)
        first = dict.fromkeys(pattern_of(row.name) for row in rows)
        items = [pattern for pattern in first if pattern in self._items]
        best = frozenset(items)
        if not items or not self._passes(best):
            raise self._unreachable()
        # The generator proposes sets and is sent whether they pass. It knows no network and no metric.
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
        policy = self._keeping(kept)
        if self._judge.evaluations >= self._most and not self._judge.knows(policy):
            raise _Ended
        number, count = self._judge.evaluations + 1, len(self._items)
        self._show(f"evaluation {number}: {len(kept)} of {count} in float32", number / self._most)
        return self._judge.allows(policy)

    def _error(self, row: Row) -> Errors:
        return self._errors.get(row.name, Errors(-1.0, -1.0))  # Operators that were not compared come last.

    def _unreachable(self) -> TuneError:
        judge, policy = self._judge, self._keeping(frozenset(self._items))
        low = [f"'{row.name}' ({row.op})" for row in self._fixed]
        # With all items kept the metric fails still. Only operators that are low by name are left, and the outputs.
        causes = [f"{policy.compute_dtype} is asked for by name of {', '.join(low[:3])}"] if low else []
        causes += [f"{len(low) - 3} more"] if len(low) > 3 else []
        causes += [f"the outputs come in {policy.output_dtype}"] if policy.output_dtype != dtypes.FLOAT32 else []
        sign, relation = (-1, "least") if judge.higher_is_better else (1, "most")
        bound = f"{relation} {judge.reference + sign * judge.tolerance:.6g}"
        return TuneError(
            f"with all {len(self._items)} operators in float32 that can be kept there, the metric is "
            f"{judge.metric(policy):.6g}; it has to be at {bound}, as it is {judge.reference:.6g} in float32. "
            + (f"What is left: {' and '.join(causes)}." if causes else "Is the tolerance below the noise of evaluate?")
        )

    def _final(self, kept: Kept, may_measure: bool) -> Policy:
        """Return the policy that keeps operators only by their names, if that was as good; others may follow."""
        # The plain policy says less and lets casts be saved; the exact one was measured.
        exact, plain = self._keeping(kept), with_names(self._policy, kept)
        if self._judge.knows(plain) or (may_measure and self._judge.evaluations < self._most):
            with contextlib.suppress(KeyboardInterrupt):
                return plain if self._judge.allows(plain) else exact
        return exact

    def _result(self, kept: Kept, is_minimal: bool) -> SearchResult:
        judge = self._judge
        policy = self._final(kept, may_measure=is_minimal)
        after = judge.subject.rows(policy)
        return SearchResult(
            policy=policy,
            metric=judge.metric(policy),
            reference=judge.reference,
            given=judge.metric(self._policy),
            tolerance=judge.tolerance,
            higher_is_better=judge.higher_is_better,
            evaluations=judge.evaluations,
            is_minimal=is_minimal,
            float32_operators=(_count_float32(self._rows), _count_float32(after)),
            operators=len(after),
            rows=tuple(self._result_rows(kept, after)),
        )

    def _result_rows(self, kept: Kept, after: Sequence[Row]) -> Iterator[SearchRow]:
        """Yield a row for each operator that was in low precision, the largest errors first."""
        low = self._policy.compute_dtype
        pairs = [(row, now) for row, now in zip(self._rows, after) if row.precision == low]
        for row, now in sorted(pairs, key=lambda pair: self._error(pair[0]), reverse=True):
            local, accumulated = self._error(row) if row.name in self._errors else (math.nan, math.nan)
            without, state, pattern = None, "follows" if now.precision == dtypes.FLOAT32 else "no", pattern_of(row.name)
            if row in self._fixed:
                state = "cannot"
            elif pattern in kept:
                policy, state = self._keeping(kept - {pattern}), "yes"
                without = self._judge.metric(policy) if self._judge.knows(policy) else None
            yield SearchRow(row.name, row.op, local, accumulated, state, without)


def _in_float32(rows: Sequence[Row]) -> Set[str]:
    return {pattern_of(row.name) for row in rows if row.precision == dtypes.FLOAT32}


def _count_float32(rows: Sequence[Row]) -> int:
    return sum(row.precision == dtypes.FLOAT32 for row in rows)


# ------------------------------------------------------------------ the smallest set that passes


def minimal_set(items: Sequence[T]) -> Generator[FrozenSet[T], bool, FrozenSet[T]]:
    """Propose sets of items, be sent whether each passes, and return a passing one that no item can leave.

    First the shortest beginning of the items that passes is looked for: lengths that double, then bisection. Then
    items are removed from it, half of them at once, then quarters, in the end one by one, the last first. It ends when
    each item is needed. A set may be proposed twice.

    The set returned is 1-minimal for every test: it passes, and it does not if any one item leaves it. It is a smallest
    set if supersets of passing sets pass and there is one 1-minimal set. It also is if items simply add up and are
    given in the order of their shares.

    Args:
        items: The items, those that are probably needed first. All of them together have to pass, none must not.

    References:
        Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002, for the removal
        (delta debugging), https://doi.org/10.1109/32.988498
    """
    needed = yield from _shortest_beginning(items)
    return (yield from _without_needless(items[:needed]))


def _shortest_beginning(items: Sequence[T]) -> Generator[FrozenSet[T], bool, int]:
    """Return how many of the first items pass, with one item less of which the test fails."""
    # Invariant: the first ``fails`` items fail, and, once the first loop ends, the first ``passes`` pass.
    fails, passes = 0, min(1, len(items))
    while passes < len(items) and not (yield frozenset(items[:passes])):
        fails, passes = passes, min(2 * passes, len(items))
    while passes - fails > 1:
        middle = (fails + passes) // 2
        if (yield frozenset(items[:middle])):
            passes = middle
        else:
            fails = middle
    return passes


def _without_needless(items: Sequence[T]) -> Generator[FrozenSet[T], bool, FrozenSet[T]]:
    """Return a 1-minimal set of those among items that pass."""
    kept = list(items)
    size = max(1, len(kept) // 2)
    while True:
        count = len(kept)
        # Groups of neighbours leave one after the other, the last first, so that those before stay where they are.
        for start in reversed(range(0, count, size)):
            shorter = kept[:start] + kept[start + size :]
            if shorter and (yield frozenset(shorter)):
                kept = shorter
        # At size 1 a round without a removal has shown each item to be needed; after a removal others may not be.
        if size == 1 and len(kept) == count:
            return frozenset(kept)
        size = max(1, min(size, len(kept)) // 2)
