"""Why a step was skipped, or its loss was not finite: judged by running it again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Dict, List, Mapping, Optional, Sequence, Tuple

from .. import dtypes, html
from .batch_faults import class_out_of_range, nan_in_batch
from .faults import (
    BAD_DATA,
    BAD_PARAMETERS,
    NO_FAULT,
    OUT_OF_RANGE,
    SCALE_TOO_HIGH,
    Fault,
    Run,
    fault_of,
    first_gradient,
    first_of,
    is_far_out,
    without_spoilt,
)
from .finding import BACKWARD, FORWARD, LOSS, PARAMETER, NonFinite
from .result import Result
from .step_replay import Call

_STEP = 8.0  # by which the scale falls from replay to replay


@dataclass(frozen=True)
class Verdict(Result):
    """What is wrong with a step.

    Attributes:
        kind: 'scale too high' (the skip was right), 'activation out of range' (of low precision, at any scale: forward,
            or in a gradient at scale 1; of that 1/8 and 1/64 are tried too), 'float32 model broken', 'data',
            'parameters', or 'no fault found'.
        text: Sentences that say so and end in what to do.
        node: Where inf or NaN comes up first; None if it does nowhere.
        scale: The loss scale of the step.
        finite_scale: The largest scale tried at which the step is finite; None if none was, or none was looked for.
    """

    _mark: ClassVar[Tuple[str, str]] = ("result", "verdict")
    _what: ClassVar[str] = "verdict"
    _title: ClassVar[str] = "Why a step is not finite"

    kind: str
    text: str
    node: Optional[NonFinite] = None
    scale: float = 1.0
    finite_scale: Optional[float] = None

    def __str__(self) -> str:
        return self.text if self.text.startswith(f"{self.kind}: ") else f"{self.kind}: {self.text}"

    @property
    def overrides(self) -> str:
        """What mends an activation, gradient or parameter out of low precision's range, as overrides of a policy.

        'name:conv3=float32', for ``f"O1,{verdict.overrides}"``; '' for every other fault.
        """
        mends = self.kind in (OUT_OF_RANGE, BAD_PARAMETERS) and self.node is not None
        return self.node.overrides if mends and self.node is not None else ""

    def to_dict(self) -> Dict[str, Any]:
        """Return the fields as plain JSON data, with the overrides."""
        node = None if self.node is None else self.node.to_dict()
        return {
            "result": self._mark[1],
            "kind": self.kind,
            "text": self.text,
            "node": node,
            "scale": self.scale,
            "finite_scale": self.finite_scale,
            "overrides": self.overrides,
        }

    @classmethod
    def _read(cls, values: Mapping[str, Any]) -> Verdict:
        node = None if values["node"] is None else NonFinite.from_dict(values["node"])
        finite = None if values["finite_scale"] is None else float(values["finite_scale"])
        return cls(str(values["kind"]), str(values["text"]), node, float(values["scale"]), finite)

    def _sections(self) -> List[html.Section]:
        return html.verdict_sections(self.to_dict())


def find(calls: Sequence[Call], scale: float = 1.0) -> Optional[NonFinite]:
    """Return where inf or NaN comes up first in a step, None if it does nowhere."""
    calls = without_spoilt(calls, scale)
    exact = [Run.of(call, low=False) for call in calls]
    given = [Run.of(call, low=True, scale=scale) for call in calls]
    fault = fault_of(exact, given)
    return (first_of(exact, given) if fault is None else fault.node) or nan_in_batch(exact)


def judge(calls: Sequence[Call], scale: float = 1.0) -> Verdict:
    """Return the verdict on a step, whose losses were multiplied by ``scale``.

    Each call of the network is run again: in float32, in low precision at the step's scale, and at 1/8 of it and so on
    down to 1. Operators that draw random numbers (dropout) draw others.
    """
    calls = without_spoilt(calls, scale)
    exact = [Run.of(call, low=False) for call in calls]
    found = _judged(calls, exact, scale)
    if found.kind == BAD_DATA:
        return found
    nan = nan_in_batch(exact)
    classes = None if nan is not None else class_out_of_range(calls)
    data = nan if classes is None else classes.where
    if data is None:
        return found
    certain = classes is None or classes.certain
    if found.kind == NO_FAULT and certain:
        return Verdict(BAD_DATA, f"the step is finite, but {_of_fault(Fault(BAD_DATA, data))}", data, scale)
    doubt = "" if certain else " Unless the loss masks them, that is a fault of the data."
    return replace(found, text=f"{found.text} Besides, {_sentence(data)}{doubt}")


def _judged(calls: Sequence[Call], exact: Sequence[Run], scale: float) -> Verdict:
    """Return the verdict on a step, of which float32's runs are given, by what is not finite in it."""
    given = [Run.of(call, low=True, scale=scale) for call in calls]
    fault = fault_of(exact, given)
    if fault is not None:
        return Verdict(fault.kind, f"{_of_fault(fault)}{_diverged(exact, fault.node)}", fault.node, scale)
    if not _any_worse(given, exact):
        return _without_fault(calls, scale)
    lowest = min(1.0, scale)
    base = given if scale <= lowest else [Run.of(call, low=True, scale=lowest) for call in calls]
    if scale > lowest and not _any_worse(base, exact):
        finite = _finite_scale(calls, exact, scale)
        where = first_gradient(exact, given)
        return Verdict(SCALE_TOO_HIGH, _too_high(where, scale, finite), where, scale, finite)
    where = first_of(exact, base)
    if where is not None and where.where == PARAMETER:
        return Verdict(BAD_PARAMETERS, _of_fault(Fault(BAD_PARAMETERS, where)), where, scale)
    below = _scale_below(calls, exact, lowest) if where is not None and where.where == BACKWARD else None
    text = f"{_out_of_range(where, below)}{_diverged(exact, where)}"
    return Verdict(OUT_OF_RANGE, text, where, scale, below)


def _without_fault(calls: Sequence[Call], scale: float) -> Verdict:
    """Return the verdict on a step that is finite, with weights that may have become NaN after it."""
    bad = next((each for call in calls for each in call.parameters() if each.nans), None)
    if bad is None:
        return Verdict(NO_FAULT, _NO_FAULT, None, scale)
    fault = Fault(BAD_PARAMETERS, NonFinite(PARAMETER, bad.name, "", dtypes.FLOAT32, bad))
    return Verdict(fault.kind, f"the step is finite, but {_of_fault(fault)}", fault.node, scale)


def _scale_below(calls: Sequence[Call], exact: Sequence[Run], scale: float) -> Optional[float]:
    """Return 1/8 or 1/64 of a scale, the larger of those at which gradients are finite; None if they are at neither."""
    for tried in (scale / _STEP, scale / _STEP**2):
        if not _any_worse([Run.of(call, low=True, scale=tried) for call in calls], exact):
            return tried
    return None


def _any_worse(runs: Sequence[Run], exact: Sequence[Run]) -> bool:
    return any(run.worse_than(other) for run, other in zip(runs, exact))


def _finite_scale(calls: Sequence[Call], exact: Sequence[Run], scale: float) -> float:
    """Return the largest scale that is finite, of 1/2 of the step's, 1/4 and so on; 1 is known to be."""

    def is_finite(scale: float) -> bool:
        return not _any_worse([Run.of(call, low=True, scale=scale) for call in calls], exact)

    tried = scale / _STEP
    while tried > 1.0 and not is_finite(tried):
        tried /= _STEP
    tried = max(tried, 1.0)
    finer = (tried * factor for factor in (4.0, 2.0))
    return next((each for each in finer if each < scale and is_finite(each)), tried)


# ---------------------------------------------------------------------- sentences


def _of_fault(fault: Fault) -> str:
    where = fault.node
    if fault.kind == OUT_OF_RANGE:
        return _out_of_range(where)
    if fault.kind == BAD_DATA:
        return f"{_sentence(where)} No precision and no scale mends that: look at how this batch is read and prepared."
    if fault.kind == BAD_PARAMETERS:
        meant = f" If it should be so large, the policy's overrides '{where.overrides}' keep what reads it in float32."
        return (
            f"{_sentence(where)} Go back to an earlier checkpoint, and find the step that wrote it: lower the learning "
            f"rate, clip gradients.{meant if where.keep else ''}"
        )
    if where.where == LOSS:
        return f"{_sentence(where)} The loss is computed outside of the network: look at its formula and its labels."
    advice = "Mend the model there (an epsilon, a clip, a stable formula), or look at how its inputs got so large."
    return f"the float32 network is not finite either. {_sentence(where)} {advice}"


def _too_high(where: Optional[NonFinite], scale: float, finite: float) -> str:
    place = "" if where is None else f" {_sentence(where)}"
    return (
        f"at a loss scale of {_number(scale)} gradients overflow, at {_number(finite)} all is finite: the skip was "
        f"right.{place} There is nothing to do: a dynamic scale falls by itself. A static one should be at most "
        f"{_number(finite)}."
    )


def _out_of_range(where: Optional[NonFinite], below: Optional[float] = None) -> str:
    """Return what to do; ``below``: a scale below 1 at which gradients are finite, if one was found."""
    if where is None:
        return "low precision is not finite at any scale, and float32 is. Keep more of the network in float32."
    if where.where == FORWARD:
        text = "no loss scale mends this activation."
    elif below is None:
        text = "no loss scale from 1/64 on mends this gradient."
    else:
        text = f"no loss scale from 1 on mends this gradient; at {_number(below)} all is finite."
    advice = "Scale the inputs or the loss down."
    if where.keep:
        which = "it" if len(where.keep) == 1 else "these"
        advice = f"Keep {which} in float32 by the policy's overrides, '{where.overrides}', or scale the inputs down."
    return f"{text} {_sentence(where)} {advice}"


def _diverged(exact: Sequence[Run], where: Optional[NonFinite]) -> str:
    """Return the hint that a run may have diverged, '' where nothing says so."""
    of_model = where is not None and where.where in (FORWARD, BACKWARD, LOSS)
    return _DIVERGED if of_model and is_far_out(exact, where) else ""


def _number(scale: float) -> str:
    return f"{scale:,.0f}" if scale >= 1 and scale == round(scale) and scale < 1e15 else f"{scale:g}"


def _sentence(where: NonFinite) -> str:
    return f"{str(where).rstrip('.')}."


_DIVERGED = (
    " Values this large, in float32 too, are those of a run that diverges: if they have grown, lower the learning rate "
    "or clip gradients instead. A mxmp.diagnose.Ledger says whether they grow."
)

_NO_FAULT = (
    "the step is finite, in float32 and in low precision. If it was skipped all the same, what made it so is drawn at "
    "random (dropout), or has changed since: run it again at once, before the next step."
)
