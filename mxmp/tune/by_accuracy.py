"""Search by accuracy: the fewest operators to keep in float32 for a metric within a tolerance of float32's."""

from __future__ import annotations

import contextlib
import math
import sys
from typing import Any, Callable, Iterator, Optional, Sequence, Tuple, Union

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from .. import dtypes
from ..diagnose.batches import Batches
from ..diagnose.compare import node_errors
from ..errors import TuneError
from ..policy import Policy
from ..report import Row
from .accuracy.low_operators import Kept, LowOperators, Operators
from .accuracy.minimal import minimal_set
from .accuracy.result import SearchResult as SearchResult
from .accuracy.result import SearchRow as SearchRow
from .accuracy.tolerance import Tolerance as Tolerance
from .accuracy.tolerance import require_runs

_Show = Callable[[str], None]

_MAX_EVALUATIONS = 200


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
    back to low precision, until each that is left is needed. What the policy's rules keep in float32 stays there, and
    what the policy asks for by name stays too. On a CPU float16 is emulated: a float16 deployment on a GPU can be found
    without one.

    Args:
        net_or_model: A Gluon net with values; a symbol with its parameters, ``(symbol, arg_params, aux_params)``; or a
            Module of MXNet or mxmp that is bound. It is as it was found afterwards, also if ``evaluate`` fails.
        evaluate: Returns a metric of what it is given, a number. It gets the same net, converted; a `ConvertedModel`
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
        progress: Whether to show on a terminal what is being tried.

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
    with _shown(progress) as show:
        show("float32")
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


def search_within(judge: Tolerance, policy: Policy, progress: bool) -> SearchResult:
    """Return what `search` finds that begins with a policy, given what tells whether one is within the tolerance."""
    with _shown(progress) as show:
        return _Search(judge, policy, _MAX_EVALUATIONS, show).run()


class _Ended(Exception):
    """No evaluation is left."""


class _Search:
    """One search: the operators that may be kept, in order, and the best of what was tried."""

    def __init__(self, judge: Tolerance, policy: Policy, most: int, show: _Show) -> None:
        self._judge, self._most, self._show = judge, most, show
        self._operators = LowOperators(judge.network, policy)
        show("errors of operators")
        self._errors = node_errors(judge.network.calls(policy))

    def run(self) -> SearchResult:
        """Return the result."""
        nothing: Kept = frozenset()
        if self._passes(nothing):
            return self._result(nothing, is_minimal=True)
        items = sorted(self._operators.items, key=self._sensitivity, reverse=True)
        best = frozenset(items)
        if not items or not self._passes(best):
            raise self._unreachable()
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
        self._show(f"evaluation {self._judge.evaluations + 1}: {len(kept)} of {len(self._operators.items)} in float32")
        return self._judge.allows(policy)

    def _sensitivity(self, item: Operators) -> Tuple[float, float]:
        """Return what orders operators: their own error, and between equal ones that which is carried to them."""
        return max(self._error(self._operators.rows[number]) for number in item.numbers)

    def _error(self, row: Row) -> Tuple[float, float]:
        found = self._errors.get(row.name)
        return (found.own, found.carried) if found else (-1.0, -1.0)

    def _unreachable(self) -> TuneError:
        operators, judge = self._operators, self._judge
        policy = operators.exactly(frozenset(operators.items))
        low = [f"'{operators.rows[number].name}' ({operators.rows[number].op})" for number in operators.fixed]
        causes = [f"{policy.compute_dtype} is asked for by name of {', '.join(low[:3])}"] if low else []
        causes += [f"{len(low) - 3} more"] if len(low) > 3 else []
        causes += [f"the outputs come in {policy.output_dtype}"] if policy.output_dtype != dtypes.FLOAT32 else []
        return TuneError(
            f"with all {len(operators.items)} operators in float32 that can be kept there, the metric is "
            f"{judge.metric(policy):.6g}; it has to be {judge.required}. "
            + (f"What is left: {' and '.join(causes)}." if causes else "Is the tolerance below the noise of evaluate?")
        )

    def _final(self, kept: Kept, may_measure: bool) -> Policy:
        """Return the policy that keeps operators by their names alone, others following, if that was as good too."""
        exact, plain = self._operators.exactly(kept), self._operators.keeping(kept)
        known = self._judge.knows(plain) or (may_measure and self._judge.evaluations < self._most)
        with contextlib.suppress(KeyboardInterrupt):
            return plain if known and self._judge.allows(plain) else exact
        return exact

    def _result(self, kept: Kept, is_minimal: bool) -> SearchResult:
        judge, operators = self._judge, self._operators
        policy = self._final(kept, may_measure=is_minimal)
        after = judge.network.rows(policy)
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
        operators = self._operators
        items = {number: item for item in operators.items for number in item.numbers}
        without = {item: self._known_metric(kept - {item}) for item in kept}
        numbers = sorted([*items, *operators.fixed])
        for number in sorted(numbers, key=lambda number: self._error(operators.rows[number]), reverse=True):
            row, item = operators.rows[number], items.get(number)
            own, carried = self._error(row) if row.name in self._errors else (math.nan, math.nan)
            if item in kept:
                yield SearchRow(row.name, row.op, own, carried, "yes", without[item])
            else:
                follows = after[number].precision == dtypes.FLOAT32
                state = "cannot" if item is None else "follows" if follows else "no"
                yield SearchRow(row.name, row.op, own, carried, state)

    def _known_metric(self, kept: Kept) -> Optional[float]:
        policy = self._operators.exactly(kept)
        return self._judge.metric(policy) if self._judge.knows(policy) else None


def _count_float32(rows: Sequence[Row]) -> int:
    return sum(row.precision == dtypes.FLOAT32 for row in rows)


@contextlib.contextmanager
def _shown(wanted: bool) -> Iterator[_Show]:
    """Yield a function that shows what is being done, on stderr if that is a terminal, for as long as it lasts."""
    if not (wanted and sys.stderr.isatty()):
        yield lambda text: None
        return
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True, markup=False), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda text: bar.update(task, description=text, refresh=True)
