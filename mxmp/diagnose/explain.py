"""Find where inf and NaN come from, and whether a skipped step is a bug, an overflow or bad data.

A step is a list of `mxmp.diagnose.rerun.Replay`: calls that can be run again, in float32 and in low precision. A step
may call several networks, each on values of an earlier one. They are judged in the order of the calls. An input is data
unless an earlier call has given inf or NaN.

    explain: a network and its batches      -> replays --+
    Watch: a trainer's or module's step     -> replays --+--> judge --> Explanation
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from typing import (
    Any,
    Callable,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    Union,
)

import numpy as np

from .. import dtypes
from ..policy import Policy
from ..report.explanation import (
    BACKWARD,
    BAD_DATA,
    BAD_PARAMETERS,
    BROKEN,
    DATA,
    FORWARD,
    GRADIENT_OUT_OF_RANGE,
    LOSS,
    NO_FAULT,
    OUT_OF_RANGE,
    PARAMETER,
    SCALE_TOO_HIGH,
    Explanation,
    NonFinite,
    ValueRange,
)
from ..report.report import policy_name
from .batches import Batches, read_batches
from .instrument import ranges_of
from .nonfinite import first_backward, first_forward
from .rerun import LOST, Replay, Values, is_real, rows_of
from .subject import FEW, Loss, NetSubject, read_subject, require_scale

_STEP = 8.0  # by which the scale falls from replay to replay
_FLOAT16_END = dtypes.limits(dtypes.FLOAT16).max
_FAR = 2.0**20 * _FLOAT16_END  # of values
_FAR_GRADIENT = 2.0**6 * _FLOAT16_END  # of the loss itself, not scaled


# ---------------------------------------------------------------------- the fault of a step.


def _runs(replays: Sequence[Replay], scale: Optional[float]) -> List[Values]:
    """Run calls in low precision at a loss scale, or with None in float32."""
    return [each.run(False) if scale is None else each.run(True, scale) for each in replays]


def _without_spoilt(replays: Sequence[Replay], scale: float) -> List[Replay]:
    """Return calls without the gradients of outputs that follow from low precision.

    Such are NaN since the outputs were not finite, or since the backward of a later call overflowed; they say nothing
    of float32.
    """
    judged: List[Replay] = []
    for replay in reversed(replays):
        gradients = replay.gradients
        if gradients is not None and not gradients.follows_outputs and gradients.are_spoilt():
            if gradients.of_loss is not None or any(each.bad for each in replay.run(True).outputs):
                replay = replace(replay, gradients=gradients.of_loss)
            elif any(_overflows(later.run(True, scale)) for later in judged):
                replay = replace(replay, gradients=None)
        judged.insert(0, replay)
    return judged


def _overflows(seen: Values) -> bool:
    return any(each.bad for each in (*seen.outputs, *seen.backward.values()))


def _first(replays: Sequence[Replay], exact: Sequence[Values], low: Sequence[Values]) -> Optional[NonFinite]:
    """Return the first inf or NaN in low precision that float32 does not have.

    A value that reaches an output of the network comes first, then a gradient, then a value that does no harm. But a
    gradient whose operator reads inf or NaN is not the first: a ReLU may have kept that from the outputs.
    """
    value, gradient = _first_value(replays, exact, low), _first_gradient(exact, low)
    if value is None and gradient is not None and not any(each.bad for each in gradient.inputs):
        return gradient
    return value or _first_value(replays, exact, low, harmful=False) or gradient


def _first_value(
    replays: Sequence[Replay], exact: Sequence[Values], low: Sequence[Values], harmful: bool = True
) -> Optional[NonFinite]:
    for replay, other, seen in zip(replays, exact, low):
        finding = first_forward(seen, other, harmful=harmful)
        if finding is not None:
            return _or_parameter(finding, replay)
    return None


def _first_gradient(exact: Sequence[Values], low: Sequence[Values]) -> Optional[NonFinite]:
    """Return the gradient that low precision makes inf or NaN first, in the order of backward."""
    pairs = zip(reversed(low), reversed(exact))
    return next(filter(None, (first_backward(seen, other) for seen, other in pairs)), None)


def _or_parameter(finding: NonFinite, replay: Replay) -> NonFinite:
    """Return that a parameter is out of low precision's range, where an operator that reads it is found for that."""
    if finding.precision not in dtypes.LOW_PRECISION:
        return finding
    names = {finding.name} if finding.op == "cast" else {each.name for each in finding.inputs if each.bad}
    end = dtypes.limits(finding.precision).max
    for each in replay.parameters():
        if each.name in names and not each.bad and each.magnitude > end:
            bad = next((low for low in finding.inputs if low.name == each.name and low.bad), finding.output)
            return NonFinite(PARAMETER, each.name, "", finding.precision, bad, (each,), each, keep=finding.keep)
    return finding


def _fault_of(replays: Sequence[Replay], exact: Sequence[Values], low: Sequence[Values]) -> Optional[Explanation]:
    """Return the reason why float32's run of a step is not finite; None if it is finite.

    Where inputs are not finite because low precision overflows in an earlier call, it is that call.
    """
    if not any(seen.is_broken for seen in exact):
        return None
    spoilt = False  # whether an earlier call has given inf or NaN
    for replay, seen, other in zip(replays, exact, low):
        fault = _fault_in_forward(replay, seen, other, spoilt or replay.follows_lost)
        if fault is not None:
            return fault
        spoilt = spoilt or any(each.bad for each in (*seen.outputs, *other.outputs))
    for seen in reversed(exact):
        if seen.lost_heads:
            return _fault_of_loss(seen)
    backward = (first_backward(seen, None) for seen in reversed(exact) if seen.backward and seen.is_bad)
    finding = next(filter(None, backward), None)
    return None if finding is None else _explained(BROKEN, finding)


def _fault_of_loss(seen: Values) -> Explanation:
    """Return the fault of a loss whose gradient is beyond float32: data, if only some rows have such a gradient."""
    number = seen.lost_heads[0]
    gradient = seen.head_gradients[number]
    rows, count = _rows_beyond(seen.given[number], LOST)
    node = NonFinite(LOSS, gradient.name, "", dtypes.FLOAT32, gradient, (seen.outputs[number],))
    return _explained(BROKEN, node) if len(rows) == count else _explained(BAD_DATA, replace(node, rows=rows))


def _fault_in_forward(replay: Replay, exact: Values, low: Values, spoilt: bool) -> Optional[Explanation]:
    """Return the fault in one call; ``spoilt``: whether an earlier one has or may have given inf or NaN."""
    if exact.is_broken:
        data = _bad_data(replay.labels() if spoilt else replay.data())
        clean = exact if data is None else replay.cleaned().run(False)
        if data is not None and not clean.is_broken:
            return _explained(BAD_DATA, data)
        # A constant mask of 0 and -inf is a fault only if nothing in the network makes NaN of it.
        bad = [each for each in replay.parameters() if each.bad]
        bad.sort(key=lambda each: _is_mask(each, replay))
        if bad and not _is_mask(bad[0], replay):
            return _bad_parameter(bad[0])
        # An operator that gives inf or NaN for good rows too.
        finding = first_forward(clean, clean, allowed=False)
        if finding is not None:
            return _explained(BROKEN, finding)
        if bad and any(each.bad for each in clean.outputs):
            return _bad_parameter(bad[0])
    finding = first_forward(low, exact)
    if finding is None:
        return None
    finding = _or_parameter(finding, replay)
    return _explained(BAD_PARAMETERS if finding.where == PARAMETER else OUT_OF_RANGE, finding)


def _bad_parameter(bad: ValueRange) -> Explanation:
    return _explained(BAD_PARAMETERS, NonFinite(PARAMETER, bad.name, "", dtypes.FLOAT32, bad))


def _is_mask(parameter: ValueRange, replay: Replay) -> bool:
    """Return whether a parameter is a constant mask: it is not trained, and holds only 0 and inf."""
    all_inf = 0 < parameter.infs == parameter.bad < parameter.size
    return parameter.name not in replay.call.trained and all_inf and not parameter.magnitude


def _real_ranges(arrays: Mapping[str, Any]) -> Iterator[ValueRange]:
    """Yield the ranges of arrays with a point, one after the other: they may lie on several contexts."""
    return (each for name, array in arrays.items() if is_real(array) for each in ranges_of({name: array}))


def _bad_data(arrays: Mapping[str, Any], only_nan: bool = False) -> Optional[NonFinite]:
    """Return the first of some inputs and labels that holds NaN, or also inf; None if none does."""
    bad = next((each for each in _real_ranges(arrays) if (each.nans if only_nan else each.bad)), None)
    if bad is None:
        return None
    rows, _ = _rows_beyond(arrays[bad.name], math.inf)
    return NonFinite(DATA, bad.name, "", dtypes.FLOAT32, bad, rows=rows)


def _rows_beyond(array: Any, end: float) -> Tuple[Tuple[int, ...], int]:
    """Return the rows of an array that hold NaN or a magnitude from an end on, and how many rows there are."""
    rows = ~(np.abs(rows_of(array).astype(np.float64)) < end).all(axis=1)
    return tuple(int(row) for row in np.flatnonzero(rows)), len(rows)


def nan_given(replay: Replay) -> Optional[str]:
    """Return which input or label of a call holds NaN, in words; None if none does, or another call may have given it.

    Nothing is run, so the call must be the first one of its step. Arrays on a GPU are not looked at. That would take
    about 17 launches and a host read, and most skipped steps have good inputs.
    """
    if replay.follows_lost:
        return None
    arrays = {name: array for name, array in replay.data().items() if array.ctx.device_type != "gpu"}
    finding = _bad_data(arrays, only_nan=True)
    return None if finding is None else str(finding)


def _nan_in_batch(replays: Sequence[Replay], exact: Sequence[Values]) -> Optional[NonFinite]:
    """Return the first input or label of a step that holds NaN, though the step may be finite; None if none does."""
    spoilt = False
    for replay, seen in zip(replays, exact):
        finding = _bad_data(replay.labels() if spoilt or replay.follows_lost else replay.data(), only_nan=True)
        if finding is not None:
            return finding
        spoilt = spoilt or any(each.bad for each in seen.outputs)
    return None


# ---------------------------------------------------------------------- verdicts


def judge(replays: Sequence[Replay], scale: float = 1.0) -> Explanation:
    """Return the verdict on a step, whose losses were multiplied by ``scale``.

    Each call of the network is run again: in float32, in low precision at the step's scale, and at lower scales down to
    1. Operators that draw random numbers (dropout) draw others.
    """
    replays = _without_spoilt(replays, scale)
    exact = _runs(replays, None)
    verdict = _judged(replays, exact, scale)
    data = None if verdict.kind == BAD_DATA else _nan_in_batch(replays, exact)
    if data is not None and verdict.kind == NO_FAULT:
        verdict = _though_finite(_explained(BAD_DATA, data))
    elif data is not None:
        verdict = replace(verdict, text=f"{verdict.text} Besides, {_sentence(data)}")
    return replace(verdict, scale=scale)


def _judged(replays: Sequence[Replay], exact: Sequence[Values], scale: float) -> Explanation:
    """Return the verdict on a step by its values that are not finite."""

    def is_finite(runs: Sequence[Values]) -> bool:
        return not any(run.worse_than(other) for run, other in zip(runs, exact))

    def is_finite_at(scale: float) -> bool:
        return is_finite(_runs(replays, scale))

    # First the faults that float32 has too: no precision and no scale mends them.
    given = _runs(replays, scale)
    fault = _fault_of(replays, exact, given)
    if fault is not None:
        return replace(fault, text=f"{fault.text}{_diverged(replays, exact, fault.node)}")
    if is_finite(given):
        return _without_fault(replays, _first_value(replays, exact, given, harmful=False))
    # Then whether a lower scale would do, and else which value leaves the range at the lowest.
    lowest = min(1.0, scale)
    base = given if scale <= lowest else _runs(replays, lowest)
    if scale > lowest and is_finite(base):
        finite = _finite_scale(scale, is_finite_at)
        where = _first_gradient(exact, given)
        return Explanation(SCALE_TOO_HIGH, _too_high(where, scale, finite), where, finite_scale=finite)
    where = _first(replays, exact, base)
    if where is not None and where.where == PARAMETER:
        return _explained(BAD_PARAMETERS, where)
    kind, below = OUT_OF_RANGE, None
    if where is not None and where.where == BACKWARD:
        kind = GRADIENT_OUT_OF_RANGE
        below = next(filter(is_finite_at, (lowest / _STEP, lowest / _STEP**2)), None)
    text = f"{_out_of_range(where, below)}{_diverged(replays, exact, where)}"
    return Explanation(kind, text, where, finite_scale=below)


def _without_fault(replays: Sequence[Replay], lost: Optional[NonFinite]) -> Explanation:
    """Return the verdict on a step that is finite, with weights that may have become NaN after it.

    ``lost`` is an inf or NaN of low precision that does not reach its end: a tanh may have made 1 of it.
    """
    bad = next((each for replay in replays for each in replay.parameters() if each.nans), None)
    if bad is None:
        besides = "" if lost is None else f" Besides, {_sentence(lost)} That does not reach the outputs as such."
        return Explanation(NO_FAULT, f"{_NO_FAULT}{besides}", lost)
    return _though_finite(_bad_parameter(bad))


def _though_finite(fault: Explanation) -> Explanation:
    return replace(fault, text=f"the step is finite, but {fault.text}")


def _finite_scale(scale: float, is_finite_at: Callable[[float], bool]) -> float:
    """Return the largest scale that is finite, of 1/2 of the step's, 1/4 and so on; 1 is known to be."""
    tried = scale / _STEP
    while tried > 1.0 and not is_finite_at(tried):
        tried /= _STEP
    tried = max(tried, 1.0)
    finer = (tried * factor for factor in (4.0, 2.0))
    return next((each for each in finer if each < scale and is_finite_at(each)), tried)


def _explained(kind: str, where: NonFinite) -> Explanation:
    """Return the verdict on a fault that float32 has too, or that is known without trying other scales."""
    return Explanation(kind, _text_of(kind, where), where)


def _text_of(kind: str, where: NonFinite) -> str:
    if kind == OUT_OF_RANGE:
        return _out_of_range(where)
    if kind == BAD_DATA and where.where == LOSS:
        return (
            f"{_sentence(where)} float32 does not hold it either, so no loss scale mends it: leave the scale as it is. "
            "The loss cannot take these rows. CTC cannot, for example, where a label is longer than its sequence. "
            "Leave them out of the batch."
        )
    if kind == BAD_DATA:
        return (
            f"{_sentence(where)} No precision of this network and no scale mends that: look at how this batch is read "
            "and prepared, and at other nets that it came through."
        )
    if kind == BAD_PARAMETERS:
        meant = f" If it should be so large, the policy's overrides '{where.overrides}' keep its readers in float32."
        return (
            f"{_sentence(where)} Go back to an earlier checkpoint, and find the step that wrote it: lower the learning "
            f"rate, clip gradients.{meant if where.keep else ''}"
        )
    if where.where == LOSS:
        look = "look at its formula, at its labels, and at other nets that it comes through."
        return f"{_sentence(where)} The loss is computed outside of the network: {look}"
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
    """Return the remedy; ``below``: a scale below 1 at which gradients are finite, if one was found."""
    if where is None:
        return "low precision is not finite at any scale, and float32 is. Keep more of the network in float32."
    if where.where == FORWARD:
        text = "no loss scale mends this activation."
    elif below is None:
        text = "no loss scale from 1/64 on mends this gradient."
    else:
        text = f"no loss scale from 1 on mends this gradient; at {_number(below)} all is finite."
    advice = "Scale the inputs or the loss down."
    if where.overrides:
        which = "these" if len(where.keep) > 1 else "it"
        advice = f"Keep {which} in float32 by the policy's overrides, '{where.overrides}', or scale the inputs down."
    return f"{text} {_sentence(where)} {advice}"


def _diverged(replays: Sequence[Replay], exact: Sequence[Values], where: Optional[NonFinite]) -> str:
    """Return the hint that a run diverges, or may for all that one step shows; '' where nothing says so.

    It is sure where values or gradients in float32 are far beyond float16's range, and the data are not. Values are
    those at ``where`` and of outputs: within the network a mask may be as large by intention.
    """
    if where is None or where.where not in (FORWARD, BACKWARD, LOSS):
        return ""
    if any(each.magnitude > _FAR for each in _real_ranges(replays[0].data())):
        return ""
    outputs = [each for seen in exact for each in seen.outputs]
    here = [*where.inputs, *filter(None, [where.float32])]
    of_loss = [each for seen in exact for each in seen.head_gradients]
    trained = [each for seen in exact for each in seen.trained]
    ends = ((outputs, _FAR), (here, _FAR), (of_loss, _FLOAT16_END), (trained, _FAR_GRADIENT))
    if any(each.magnitude > end for ranges, end in ends for each in ranges):
        return _DIVERGED
    return _GROWN if where.precision in dtypes.LOW_PRECISION else ""


def from_elsewhere(weight: str) -> str:
    """Return the sentences on a weight whose gradient is not finite though those that the nets give are."""
    return (
        f"the gradients that the nets give are finite, and that of '{weight}' is not. So another part of the loss "
        f"reads this weight, such as a penalty that is added by hand: look at that, and at the loss scale."
    )


def _number(scale: float) -> str:
    return f"{scale:,.0f}" if scale >= 1 and scale == round(scale) and scale < 1e15 else f"{scale:g}"


def _sentence(where: NonFinite) -> str:
    return f"{str(where).rstrip('.')}."


_GROWN = " If the loss has just grown, lower the learning rate instead."
_DIVERGED = (
    " Values this large, in float32 too, are those of a run that diverges: if they have grown, lower the learning rate "
    "or clip gradients instead."
)

_SKIPPED_ALL_THE_SAME = (
    "the reason is drawn at random (dropout), or has changed since: run it again at once, before the next step."
)
_IN_BOTH = "in float32 and in low precision"
_NO_FAULT = f"the step is finite, {_IN_BOTH}. If it was skipped all the same, {_SKIPPED_ALL_THE_SAME}"
_NO_BACKWARD = (
    f"the outputs are finite, {_IN_BOTH}. Backward did not run, because no loss was given: for the gradients call "
    f"explain(net, batches, loss=loss)."
)


# ---------------------------------------------------------------------- a network and batches


def explain(
    network: Any,
    batches: Batches,
    policy: Union[None, str, Policy] = None,
    *,
    loss: Loss = None,
    labels: Optional[int] = None,
    max_batches: Optional[int] = FEW,
    loss_scale: float = 1.0,
    ctx: Any = None,
) -> Explanation:
    """Return whether inf or NaN in a training step is a bug, an overflow, or bad data, and where it comes from.

    The step of each batch runs in float32 and at the loss scale given. Then it runs at 1/8 of that scale, and so on
    down to 1. If a gradient leaves the range at 1, it runs at 1/8 and 1/64 too. The first batch that has a fault is
    explained.

    An inf that float32 has too is no fault as long as float32's result is finite: the -inf of an attention mask. If
    float32's result is not finite, the fault is the first operator that gives inf or NaN in float32 though it reads
    none. It may also be the data or the parameter that holds it. The bodies of control flow are not looked into: the
    node around them is named. No argument is changed. Dropout draws random numbers.

    Args:
        network: A network, as for `compare`.
        batches: Batches, as for `compare`. A symbol's labels may be left out: they are zeros then.
        policy: The policy; None for the network's own if it is converted, and 'O1' for others, as for `compare`.
        loss: The loss of a Gluon net, as for `compare`: then backward runs too. A symbol or Module has loss heads,
            whose backward always runs.
        labels: As for `compare`.
        max_batches: As for `compare`.
        loss_scale: The loss scale; positive.
        ctx: Where a symbol runs, the CPU unless given; a net and a Module run where their parameters are.

    Returns:
        The explanation; ``print`` it. Its ``overrides`` mend an activation that leaves float16's range. Its ``node``
        says where inf or NaN comes up first.

    Raises:
        ConvertError: If the network or a batch is none, or if they do not fit each other. If the policy computes in
            bfloat16, which MXNet does not run here.
        PolicyError: If the policy is not one.
        LossScaleError: If ``loss_scale`` is not positive and finite.
    """
    subject, scale = read_subject(network, loss, ctx), require_scale(loss_scale)
    wanted = subject.policy_or(policy)
    found = None
    read = read_batches(batches, max_batches)
    with contextlib.closing(subject.runs(wanted, read, labels, train=loss is not None, weights=True)) as runs:
        for replays in runs:
            one = judge([each if wanted.is_mixed else each.in_float32() for each in replays], scale)
            if one.kind == NO_FAULT and subject.bad_weight is not None:
                return replace(one, text=from_elsewhere(subject.bad_weight))
            found = found or one
            if one.kind != NO_FAULT:
                return one
    assert found is not None  # as there is one batch at least
    text = found.text
    if loss is None and isinstance(subject, NetSubject):
        text = text.replace(_NO_FAULT, _NO_BACKWARD)
    at_scale = f"its loss scale was larger than {scale:g} (give that of the skipped step as loss_scale=), or "
    text = text.replace(_SKIPPED_ALL_THE_SAME, at_scale + _SKIPPED_ALL_THE_SAME)
    name = policy_name(wanted)
    where = f"in float32 and under '{name}'" if wanted.is_mixed else f"under '{name}', which is float32"
    return replace(found, text=text.replace(_IN_BOTH, where))
