"""Why a step was skipped, or its loss was not finite: judged by running it again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Dict, List, Optional, Sequence

import numpy as np

from .. import dtypes
from .looking import Seen
from .nonfinite import DATA, FORWARD, LOSS, PARAMETER, NonFinite, first_backward, first_forward
from .step_replay import Call, is_real
from .value_range import ValueRange, ranges_of

SCALE_TOO_HIGH = "scale too high"
OUT_OF_RANGE = "activation out of range"
BROKEN = "float32 model broken"
BAD_DATA = "data"
BAD_PARAMETERS = "parameters"
NO_FAULT = "no fault found"

_STEP = 8.0  # by which the scale falls from replay to replay


@dataclass(frozen=True)
class Verdict:
    """What is wrong with a step.

    Attributes:
        kind: 'scale too high' (the skip was right), 'activation out of range' (of low precision, at any scale: forward,
            or in a gradient at scale 1), 'float32 model broken', 'data', 'parameters', or 'no fault found'.
        text: Sentences that say so and end in what to do.
        node: Where inf or NaN comes up first; None if it does nowhere.
        scale: The loss scale of the step.
        finite_scale: The largest scale tried at which the step is finite; None if none was, or none was looked for.
    """

    kind: str
    text: str
    node: Optional[NonFinite] = None
    scale: float = 1.0
    finite_scale: Optional[float] = None

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"

    def to_dict(self) -> Dict[str, Any]:
        """Return the fields as plain JSON data."""
        node = None if self.node is None else self.node.to_dict()
        return {
            "kind": self.kind,
            "text": self.text,
            "node": node,
            "scale": self.scale,
            "finite_scale": self.finite_scale,
        }


@dataclass(frozen=True)
class _Run:
    """A call of the network, and what running it again has shown."""

    call: Call
    seen: Seen

    @property
    def is_bad(self) -> bool:
        """Whether the step's gradients are not finite; without gradients, whether the outputs are not."""
        if self.seen.backward:
            return any(each.bad for each in self.seen.trained or self.seen.backward.values())
        return any(each.bad for each in self.seen.outputs)

    def worse_than(self, exact: _Run) -> bool:
        """Whether it has inf or NaN in what leaves the network where float32 has none."""
        pairs = zip(self.seen.outputs, exact.seen.outputs)
        if self.seen.backward:
            mine = self.seen.trained or list(self.seen.backward.values())
            return any(each.bad for each in mine)
        return any(each.bad > other.bad for each, other in pairs)


def find(calls: Sequence[Call], scale: float = 1.0) -> Optional[NonFinite]:
    """Return where inf or NaN comes up first in a step, None if it does nowhere."""
    calls = [_replayed(call) for call in calls]
    exact = [_Run(call, call.run(low=False)) for call in calls]
    broken = _broken(exact)
    if broken is not None:
        return broken
    return _first(exact, [_Run(call, call.run(low=True, scale=scale)) for call in calls])


def judge(calls: Sequence[Call], scale: float = 1.0) -> Verdict:
    """Return the verdict on a step, whose losses were multiplied by ``scale``.

    Each call of the network is run again: in float32, in low precision at the step's scale, and at 1/8 of it and so on
    down to 1. Operators that draw random numbers (dropout) draw others.
    """
    calls = [_replayed(call) for call in calls]
    exact = [_Run(call, call.run(low=False)) for call in calls]
    broken = _broken(exact)
    if broken is not None:
        return _of_broken(broken, scale)
    given = [_Run(call, call.run(low=True, scale=scale)) for call in calls]
    if not _any_worse(given, exact):
        return Verdict(NO_FAULT, _NO_FAULT, None, scale)
    lowest = min(1.0, scale)
    base = given if scale <= lowest else [_Run(call, call.run(low=True, scale=lowest)) for call in calls]
    if scale > lowest and not _any_worse(base, exact):
        finite = _finite_scale(calls, exact, scale)
        where = _first_gradient(exact, given)
        return Verdict(SCALE_TOO_HIGH, _too_high(where, scale, finite), where, scale, finite)
    where = _first(exact, base)
    return Verdict(OUT_OF_RANGE, _out_of_range(where), where, scale)


def _any_worse(runs: Sequence[_Run], exact: Sequence[_Run]) -> bool:
    return any(run.worse_than(other) for run, other in zip(runs, exact))


def _finite_scale(calls: Sequence[Call], exact: Sequence[_Run], scale: float) -> float:
    """Return the largest scale that is finite, of 1/2 of the step's, 1/4 and so on; 1 is known to be."""

    def is_finite(scale: float) -> bool:
        return not _any_worse([_Run(call, call.run(low=True, scale=scale)) for call in calls], exact)

    tried = scale / _STEP
    while tried > 1.0 and not is_finite(tried):
        tried /= _STEP
    tried = max(tried, 1.0)
    finer = (tried * factor for factor in (4.0, 2.0))
    return next((each for each in finer if each < scale and is_finite(each)), tried)


def _first(exact: Sequence[_Run], runs: Sequence[_Run]) -> Optional[NonFinite]:
    """Return the first inf or NaN in low precision that float32 does not have.

    That which reaches an output of the network comes first, then a gradient, then what does no harm.
    """
    return _first_value(exact, runs) or _first_gradient(exact, runs) or _first_value(exact, runs, harmful=False)


def _first_value(exact: Sequence[_Run], runs: Sequence[_Run], harmful: bool = True) -> Optional[NonFinite]:
    for run, other in zip(runs, exact):
        found = first_forward(run.seen, other.seen, run.call.decisions.before, harmful=harmful)
        if found is not None:
            return found
    return None


def _first_gradient(exact: Sequence[_Run], runs: Sequence[_Run]) -> Optional[NonFinite]:
    for run, other in zip(reversed(runs), reversed(exact)):
        found = first_backward(run.seen, other.seen, run.call.decisions.before)
        if found is not None:
            return found
    return None


# ---------------------------------------------------------------------- float32, data, parameters


def _broken(exact: Sequence[_Run]) -> Optional[NonFinite]:
    """Return what makes float32's own run non-finite; None if it is finite."""
    if not any(_is_broken(run) for run in exact):
        return None
    data = _bad_data(exact)
    if data is not None:
        return data
    for run in exact:
        bad = next((each for each in run.call.parameters() if each.bad), None)
        if bad is not None:
            return NonFinite(PARAMETER, bad.name, "", dtypes.FLOAT32, bad)
    for run in exact:
        found = _origin(run)
        if found is not None:
            return found
    return next((found for found in map(_bad_loss, exact) if found is not None), None)


def _is_broken(run: _Run) -> bool:
    return run.is_bad or any(each.bad for each in run.seen.head_gradients or ())


def _replayed(call: Call) -> Call:
    """Return a call without known gradients of its outputs where these are NaN since the outputs were not finite.

    They are what low precision's outputs gave, and say nothing of float32.
    """
    if call.gradients is None or call.gradients.follows_outputs:
        return call
    if not call.gradients.are_spoilt():
        return call
    if call.gradients.of_loss is None and not any(each.bad for each in call.run(low=True).outputs):
        return call
    return replace(call, gradients=call.gradients.of_loss)


def _bad_data(exact: Sequence[_Run]) -> Optional[NonFinite]:
    """Return the first input with inf or NaN, if the step is finite without them."""
    for run in exact:
        arrays = {name: each for name, each in run.call.given().items() if is_real(each)}
        bad = next((each for each in _ranges(arrays) if each.bad), None)
        if bad is None or not _is_broken(run):
            continue
        cleaned = run.call.cleaned()
        known = run.call.gradients is not None and not run.call.gradients.follows_outputs
        again = _Run(cleaned, cleaned.run(low=False))
        if known or not _is_broken(again):
            return NonFinite(DATA, bad.name, "", dtypes.FLOAT32, bad, rows=rows_of(arrays[bad.name]))
    return None


def _ranges(arrays: Dict[str, Any]) -> List[ValueRange]:
    return [found for name, array in arrays.items() for found in ranges_of({name: array})]


def rows_of(array: Any) -> tuple[int, ...]:
    """Return the numbers of the rows of an array that hold inf or NaN."""
    values = array.asnumpy()
    bad = ~np.isfinite(values.astype(np.float64).reshape(values.shape[0] if values.ndim else 1, -1)).all(axis=1)
    return tuple(int(row) for row in np.flatnonzero(bad))


def _origin(run: _Run) -> Optional[NonFinite]:
    """Return the operator of a float32 network that gives inf or NaN first, though it reads none."""
    seen, before = run.seen, run.call.decisions.before
    found = first_forward(seen, seen, before, allowed=False)
    if found is not None:
        return found
    return first_backward(seen, None, before) if seen.backward and run.is_bad else None


def _bad_loss(run: _Run) -> Optional[NonFinite]:
    """Return that the loss outside of the network gives gradients that are not finite."""
    for number, each in enumerate(run.seen.head_gradients or ()):
        if each.bad:
            return NonFinite(LOSS, each.name, "", dtypes.FLOAT32, each, (run.seen.outputs[number],))
    return None


# ---------------------------------------------------------------------- sentences


def _of_broken(where: NonFinite, scale: float) -> Verdict:
    if where.where == DATA:
        what = f"{_sentence(where)} No precision and no scale mends that: look at how this batch is read and prepared."
        return Verdict(BAD_DATA, what, where, scale)
    if where.where == PARAMETER:
        what = (
            f"{_sentence(where)} Go back to an earlier checkpoint, and find the step that wrote it: lower the learning "
            "rate, clip gradients."
        )
        return Verdict(BAD_PARAMETERS, what, where, scale)
    if where.where == LOSS:
        what = f"{_sentence(where)} The loss is computed outside of the network: look at its formula and its labels."
        return Verdict(BROKEN, what, where, scale)
    advice = "Mend the model there (an epsilon, a clip, a stable formula), or look at how its inputs got so large."
    text = f"the float32 network is not finite either. {_sentence(where)} {advice}"
    return Verdict(BROKEN, text, where, scale)


def _too_high(where: Optional[NonFinite], scale: float, finite: float) -> str:
    place = "" if where is None else f" {_sentence(where)}"
    return (
        f"at a loss scale of {_number(scale)} gradients overflow, at {_number(finite)} all is finite: the skip was "
        f"right.{place} There is nothing to do: a dynamic scale falls by itself. A static one should be at most "
        f"{_number(finite)}."
    )


def _out_of_range(where: Optional[NonFinite]) -> str:
    if where is None:
        return "low precision is not finite at any scale, and float32 is. Keep more of the network in float32."
    overrides = ",".join(f"name:{name}=float32" for name in where.keep)
    sides = "activation" if where.where == FORWARD else "gradient"
    return (
        f"no loss scale mends this {sides}. {_sentence(where)} Keep {'it' if len(where.keep) == 1 else 'these'} in "
        f"float32 by the policy's overrides, '{overrides}', or scale the inputs down."
    )


def _number(scale: float) -> str:
    return f"{scale:,.0f}" if scale >= 1 and scale == round(scale) and scale < 1e15 else f"{scale:g}"


def _sentence(where: NonFinite) -> str:
    return f"{str(where).rstrip('.')}."


_NO_FAULT = (
    "the step is finite when it is run again, in float32 and in low precision. If it was skipped, what made it so is "
    "drawn at random (dropout), or has changed since: run it again at once, before the next step."
)
