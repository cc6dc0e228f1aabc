"""What is at fault in a step that was run again: data, parameters, float32's network, or the range of low precision.

A step may call several networks, each on what an earlier one gave. They are gone over in the order of the calls; an
input is data unless an earlier call has given inf or NaN, in float32 or in low precision.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import numpy as np

from .. import dtypes
from ..arrays import to_float32
from .finding import DATA, LOSS, PARAMETER, NonFinite
from .looking import Seen
from .nonfinite import first_backward, first_forward
from .step_replay import Call, is_real
from .value_range import ValueRange, ranges_of

SCALE_TOO_HIGH = "scale too high"
OUT_OF_RANGE = "activation out of range"
BROKEN = "float32 model broken"
BAD_DATA = "data"
BAD_PARAMETERS = "parameters"
NO_FAULT = "no fault found"

_FLOAT16_END = dtypes.limits(dtypes.FLOAT16).max
_FAR = 2.0**20 * _FLOAT16_END  # of values
_FAR_GRADIENT = 2.0**6 * _FLOAT16_END  # of the loss itself, not scaled


@dataclass(frozen=True)
class Run:
    """A call of the network, and what running it again with the loss times ``scale`` has shown."""

    call: Call
    seen: Seen
    scale: float = 1.0

    @classmethod
    def of(cls, call: Call, low: bool, scale: float = 1.0) -> Run:
        """Run a call again, in low precision or in float32."""
        return cls(call, call.run(low, scale), scale)

    @property
    def is_bad(self) -> bool:
        """Whether the step's gradients are not finite; without gradients, whether the outputs are not."""
        if self.seen.backward:
            return any(each.bad for each in self.seen.trained or self.seen.backward.values())
        return any(each.bad for each in self.seen.outputs)

    def worse_than(self, exact: Run) -> bool:
        """Whether it has inf or NaN in what leaves the network where float32 has none."""
        pairs = zip(self.seen.outputs, exact.seen.outputs)
        if self.seen.backward:
            mine = self.seen.trained or list(self.seen.backward.values())
            return any(each.bad for each in mine)
        return any(each.bad > other.bad for each, other in pairs)


class Fault(NamedTuple):
    """What is at fault, and where: one of the kinds of a verdict."""

    kind: str
    node: NonFinite


def without_spoilt(calls: Sequence[Call], scale: float) -> List[Call]:
    """Return calls without known gradients of outputs where these follow from low precision.

    Such are NaN since the outputs were not finite, or since the backward of a later call overflowed; they say nothing
    of float32. Calls of which it is not known that the loss depends on them are left out, unless the others are given
    inf or NaN.
    """
    linked = [call for call in calls if call.linked]
    if len(linked) < len(calls) and not any(each.bad for call in linked for each in _real_ranges(call.given())):
        calls = linked
    found: List[Call] = []
    for call in reversed(calls):
        found.insert(0, _without_spoilt(call, found, scale))
    return found


def _without_spoilt(call: Call, later: Sequence[Call], scale: float) -> Call:
    if call.gradients is None or call.gradients.follows_outputs or not call.gradients.are_spoilt():
        return call
    if call.gradients.of_loss is not None or any(each.bad for each in call.run(low=True).outputs):
        return replace(call, gradients=call.gradients.of_loss)
    return replace(call, gradients=None) if any(_overflows(each, scale) for each in later) else call


def _overflows(call: Call, scale: float) -> bool:
    seen = call.run(low=True, scale=scale)
    return any(each.bad for each in (*seen.outputs, *seen.backward.values()))


def first_of(exact: Sequence[Run], runs: Sequence[Run]) -> Optional[NonFinite]:
    """Return the first inf or NaN in low precision that float32 does not have.

    That which reaches an output of the network comes first, then a gradient, then what does no harm. But a gradient
    whose operator reads inf or NaN is not the first: a ReLU may have kept that from the outputs.
    """
    found, gradient = _first_value(exact, runs), first_gradient(exact, runs)
    if found is None and gradient is not None and not any(each.bad for each in gradient.inputs):
        return gradient
    return found or _first_value(exact, runs, harmful=False) or gradient


def _first_value(exact: Sequence[Run], runs: Sequence[Run], harmful: bool = True) -> Optional[NonFinite]:
    for run, other in zip(runs, exact):
        found = first_forward(run.seen, other.seen, run.call.decisions.before, harmful=harmful)
        if found is not None:
            return _or_parameter(found, run.call)
    return None


def _or_parameter(found: NonFinite, call: Call) -> NonFinite:
    """Return that a parameter is out of low precision's range, where an operator that reads it is found for that."""
    if found.precision not in dtypes.LOW_PRECISION:
        return found
    names = {found.name} if found.op == "cast" else {each.name for each in found.inputs if each.bad}
    end = dtypes.limits(found.precision).max
    large = (each for each in call.parameters() if each.name in names and not each.bad and each.magnitude > end)
    each = next(large, None)
    if each is None:
        return found
    bad = next((low for low in found.inputs if low.name == each.name and low.bad), found.output)
    return NonFinite(PARAMETER, each.name, "", found.precision, bad, (each,), each, keep=found.keep)


def first_gradient(exact: Sequence[Run], runs: Sequence[Run]) -> Optional[NonFinite]:
    """Return the gradient that low precision makes inf or NaN first, in the order of backward."""
    for run, other in zip(reversed(runs), reversed(exact)):
        found = first_backward(run.seen, other.seen, run.call.decisions.before)
        if found is not None:
            return replace(found, float32=None if found.float32 is None else found.float32.times(run.scale))
    return None


def is_far_out(exact: Sequence[Run], where: Optional[NonFinite]) -> bool:
    """Return whether values or gradients in float32 are so large that a run may have diverged, and the data are not.

    Values are those at ``where`` and of outputs: within the network a mask may be as large by intention.
    """
    if where is None or any(each.magnitude > _FAR for each in _real_ranges(exact[0].call.given())):
        return False
    outputs = [each for run in exact for each in run.seen.outputs]
    here = (*where.inputs, *filter(None, [where.float32]))
    of_loss = [each for run in exact for each in run.seen.head_gradients or () if each is not None]
    trained = [each for run in exact for each in run.seen.trained]
    found = ((outputs, _FAR), (here, _FAR), (of_loss, _FLOAT16_END), (trained, _FAR_GRADIENT))
    return any(each.magnitude > end for ranges, end in found for each in ranges)


# ---------------------------------------------------------------------- float32, data, parameters


def fault_of(exact: Sequence[Run], runs: Sequence[Run]) -> Optional[Fault]:
    """Return what makes float32's run of a step non-finite; None if it is finite.

    Where inputs are not finite because low precision (``runs``) overflows in an earlier call, it is that call.
    """
    if not any(_is_broken(run) for run in exact):
        return None
    for number, (run, low) in enumerate(zip(exact, runs)):
        earlier = (*exact[:number], *runs[:number])
        given = run.call.follows_lost or any(each.bad for other in earlier for each in other.seen.outputs)
        fault = _fault_in_forward(run, low, given)
        if fault is not None:
            return fault
    found = next((found for found in map(_origin_in_backward, reversed(exact)) if found is not None), None)
    found = found or next((found for found in map(_bad_loss, reversed(exact)) if found is not None), None)
    return None if found is None else Fault(BROKEN, found)


def _fault_in_forward(run: Run, low: Run, given: bool) -> Optional[Fault]:
    """Return what is at fault in one call; ``given``: whether an earlier one has or may have given inf or NaN."""
    before = run.call.decisions.before
    if _is_broken(run):
        data = _bad_data(run, given)
        if data is not None:
            return Fault(BAD_DATA, data)
        bad = sorted((each for each in run.call.parameters() if each.bad), key=lambda each: _is_mask(each, run))
        if bad and not _is_mask(bad[0], run):
            return _of_parameter(bad[0])
        found = first_forward(run.seen, run.seen, before, allowed=False)
        if found is not None:
            return Fault(BROKEN, found)
        if bad and any(each.bad for each in run.seen.outputs):
            return _of_parameter(bad[0])
    found = first_forward(low.seen, run.seen, before)
    if found is None:
        return None
    found = _or_parameter(found, run.call)
    return Fault(BAD_PARAMETERS if found.where == PARAMETER else OUT_OF_RANGE, found)


def _is_broken(run: Run) -> bool:
    return run.is_bad or any(each is not None and each.bad for each in run.seen.head_gradients or ())


def _bad_data(run: Run, given: bool) -> Optional[NonFinite]:
    """Return the first input or label with inf or NaN if the call is finite without; labels alone if ``given``."""
    found = run.call.labels() if given else run.call.given()
    bad = next((each for each in _real_ranges(found) if each.bad), None)
    if bad is None:
        return None
    cleaned = run.call.cleaned()
    if _is_broken(Run(cleaned, cleaned.run(low=False))):
        return None
    return NonFinite(DATA, bad.name, "", dtypes.FLOAT32, bad, rows=rows_of(found[bad.name]))


def _real_ranges(arrays: Dict[str, Any]) -> List[ValueRange]:
    return [found for name, array in arrays.items() if is_real(array) for found in ranges_of({name: array})]


def _of_parameter(bad: ValueRange) -> Fault:
    return Fault(BAD_PARAMETERS, NonFinite(PARAMETER, bad.name, "", dtypes.FLOAT32, bad))


def _is_mask(found: ValueRange, run: Run) -> bool:
    """Return whether a parameter is a constant mask: it is not trained, and holds 0 and inf alone."""
    return found.name not in run.call.trained and 0 < found.infs == found.bad < found.size and not found.magnitude


def rows_of(array: Any) -> tuple[int, ...]:
    """Return the numbers of the rows of an array that hold inf or NaN."""
    values = to_float32(array).asnumpy()
    bad = ~np.isfinite(values.astype(np.float64).reshape(values.shape[0] if values.ndim else 1, -1)).all(axis=1)
    return tuple(int(row) for row in np.flatnonzero(bad))


def _origin_in_backward(run: Run) -> Optional[NonFinite]:
    """Return the operator of a float32 network whose backward gives inf or NaN first, though it gets none."""
    if not run.is_bad or any(each is not None and each.bad for each in run.seen.head_gradients or ()):
        return None
    return first_backward(run.seen, None, run.call.decisions.before) if run.seen.backward else None


def _bad_loss(run: Run) -> Optional[NonFinite]:
    """Return that the loss outside of the network gives gradients that are not finite."""
    for number, each in enumerate(run.seen.head_gradients or ()):
        if each is not None and each.bad:
            return NonFinite(LOSS, each.name, "", dtypes.FLOAT32, each, (run.seen.outputs[number],))
    return None
