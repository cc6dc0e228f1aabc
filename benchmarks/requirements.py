"""What the project wants to reach on a kind of processor, and whether a run shows it."""

from __future__ import annotations

from typing import Callable, List, NamedTuple, Optional, Sequence

from benchmarks.common import AMX, AVX512_BF16
from benchmarks.comparison import FLOAT32, NO_BFLOAT16, OWN, PEER, Column, Comparison, Found
from benchmarks.timing import geometric_mean, speed

MET, NOT_MET, NOT_HERE, NOISY = "met", "not met", "not measurable here", "too noisy to tell"

SYMBOLIC, GLUON = "symbolic", "gluon"
TRAINING, INFERENCE, FOLDED = "training", "inference", "inference, folded and fused"
"""The fronts of the benchmarks of tuned and of untuned networks; the last is of the latter alone."""

TUNED = "tuned"
RESNET50 = "resnet50_v1"
SMALL = ("resnet20", "resnet18_v1")

Value = Callable[[Comparison], Optional[float]]


class Check(NamedTuple):
    """One line: what is wanted, what was found."""

    what: str
    target: float
    found: Optional[float]
    verdict: str
    why: str = ""

    def __str__(self) -> str:
        found = "" if self.found is None else f"{self.found:.2f}"
        return f"{self.verdict}: {self.what} at least {self.target:.2f}: {', '.join(filter(None, (found, self.why)))}"


def decide(what: str, target: float, found: Optional[float], noisy: bool, why: str = "") -> Check:
    """Return a check of a value that is to be at least its target.

    Args:
        what: The requirement, without its target.
        target: What is to be reached.
        found: What was, None where it cannot be measured.
        noisy: Whether float32 scattered too much to compare with it.
        why: Why it cannot be measured, or what else is to be said.
    """
    if found is None:
        return Check(what, target, None, NOT_HERE, why)
    reached = MET if found >= target else NOT_MET
    return Check(what, target, found, NOISY if noisy else reached, why)


def inference(found: Found, networks: Sequence[str], unit: str, dtype: str) -> List[Check]:
    """Return what is wanted of inference.

    Args:
        found: What was measured.
        networks: All that the geometric mean is to be taken over.
        unit: What multiplies bfloat16 here, as `benchmarks.common.bfloat16_unit` says it.
        dtype: What mxmp's low precision columns compute in.
    """
    absent = ", ".join(name for name in networks if name not in found)
    amx, avx = (_elsewhere(unit, wanted, dtype) for wanted in (AMX, AVX512_BF16))
    checks = []
    for front in (SYMBOLIC, GLUON):
        own, peer = _own(front, dtype), _peer(front, dtype)
        every = amx or (f"not measured: {absent}" if absent else "")
        checks += [
            _one(found, front, RESNET50, 2.4, amx, f"{AMX}, {front}: ResNet-50 against float32", own),
            _all(found, front, 2.0, every, f"{AMX}, {front}: geometric mean against float32", own, geometric_mean),
            _all(found, front, 0.97, amx, f"{AMX}, {front}: each network against contrib.amp's best", peer),
            _all(found, front, 1.0, amx, f"{AMX}, {front}: each network against float32", own),
            _one(found, front, RESNET50, 1.75, avx, f"{AVX512_BF16}, {front}: ResNet-50 against float32", own),
        ]
    for each in dict.fromkeys((FLOAT32, dtype)):
        what = f"each network in {each}: mxmp's best, Gluon against symbolic"
        why = "this processor has no bfloat16" if each == "bfloat16" and not unit else ""
        checks.append(_all(found, GLUON, 0.95, why, what, _fronts(each)))
    return checks


def training(found: Found, unit: str) -> List[Check]:
    """Return what is wanted of training: emulated float16, and no network that bfloat16 slows down much."""
    emulated, low = _slowest(GLUON, "float16"), _slowest(GLUON, "bfloat16")
    why = "" if unit in (AMX, AVX512_BF16) else f"this processor has neither {AMX} nor {AVX512_BF16}"
    what = "emulated float16 against float32"
    checks = [_one(found, GLUON, name, 1 / 1.5, "", f"{what}: {name}", emulated) for name in SMALL]
    return [*checks, _all(found, GLUON, 0.9, why, "each network in bfloat16 against float32", low)]


def tuning(found: Found, unit: str) -> List[Check]:
    """Return what is wanted of tuned policies: never slower than the better of two, and soon found."""
    fronts = [front for front in (TRAINING, INFERENCE) if any(_has(each, front) for each in found.values())]
    why = "" if unit else NO_BFLOAT16
    what = "tuned against the better of float32 and untuned"
    checks = [_all(_of(found, front), front, 0.97, why, f"{front}: {what}", against_better(front)) for front in fronts]
    for wanted, target in ((AMX, 1.8), (AVX512_BF16, 1.4)):
        elsewhere = _elsewhere(unit, wanted, "bfloat16")
        what = f"{wanted}: ResNet-20 training, tuned against float32"
        checks.append(_one(found, TRAINING, "resnet20", target, elsewhere, what, _tuned_speed))
    soon = "ResNet-50 inference: 40 s divided by the time that tuning took"
    return [*checks, _one(found, INFERENCE, RESNET50, 1.0, why, soon, _forty_seconds)]


def untuned(found: Found, unit: str) -> List[Check]:
    """Return what is wanted of every network as it comes: that low precision slows down none by much."""
    why = "" if unit in (AMX, AVX512_BF16) else f"this processor has neither {AMX} nor {AVX512_BF16}"
    fronts = [front for front in (TRAINING, INFERENCE, FOLDED) if any(_has(each, front) for each in found.values())]
    what = "each network in bfloat16, untuned, against float32"
    return [_all(found, front, 0.9, why, f"{front}: {what}", _slowest(front, "bfloat16")) for front in fronts]


def tuned_column(comparison: Comparison, front: str) -> Optional[Column]:
    """Return the column of a front that was tuned, None if there is none."""
    return next((column for column in comparison.columns if (column.front, column.title) == (front, TUNED)), None)


def against_better(front: str) -> Value:
    """Return the speed of the tuned policy against the better of float32 and untuned."""

    def value(comparison: Comparison) -> Optional[float]:
        tuned = tuned_column(comparison, front)
        others = [each for each in comparison.columns if each.front == front and each.title != TUNED and each.seconds]
        if tuned is None or not tuned.seconds or not others:
            return None
        return min(speed(each.seconds, tuned.seconds) for each in others)

    return value


def _tuned_speed(comparison: Comparison) -> Optional[float]:
    return comparison.speed(tuned_column(comparison, TRAINING))


def _forty_seconds(comparison: Comparison) -> Optional[float]:
    tuned = tuned_column(comparison, INFERENCE)
    return 40 / tuned.notes["tuning_seconds"] if tuned is not None and tuned.notes else None


def _has(comparison: Comparison, front: str) -> bool:
    return any(column.front == front for column in comparison.columns)


def _of(found: Found, front: str) -> Found:
    return {name: each for name, each in found.items() if _has(each, front)}


def _elsewhere(unit: str, wanted: str, dtype: str) -> str:
    if dtype != "bfloat16":
        return f"the columns are {dtype}"
    return "" if unit == wanted else f"this processor has {unit or 'no bfloat16'}"


def _own(front: str, dtype: str) -> Value:
    """Return the speed of mxmp's best form against float32."""
    return lambda comparison: comparison.speed(comparison.best(front, OWN, dtype))


def _slowest(front: str, dtype: str) -> Value:
    """Return the speed of mxmp's slowest form against float32."""

    def value(comparison: Comparison) -> Optional[float]:
        speeds = [comparison.speed(column) for column in comparison.measured(front, OWN, dtype)]
        return min((each for each in speeds if each is not None), default=None)

    return value


def _peer(front: str, dtype: str) -> Value:
    """Return the speed of mxmp's best form against contrib.amp's; infinite where that fails."""

    def value(comparison: Comparison) -> Optional[float]:
        own, peer = comparison.best(front, OWN, dtype), comparison.best(front, PEER, dtype)
        if own is None or peer is None:
            return None if own is None else float("inf")
        return speed(peer.seconds, own.seconds)

    return value


def _fronts(dtype: str) -> Value:
    """Return the speed of mxmp's best form in Gluon against that of the Symbolic API."""

    def value(comparison: Comparison) -> Optional[float]:
        ours, theirs = (comparison.best(front, OWN, dtype) for front in (GLUON, SYMBOLIC))
        return speed(theirs.seconds, ours.seconds) if ours and theirs else None

    return value


def _one(found: Found, front: str, network: str, target: float, why: str, what: str, value: Value) -> Check:
    """Return a check of one network."""
    if network not in found:
        return decide(what, target, None, False, why or f"not measured: {network}")
    return _all({network: found[network]}, front, target, why, what, value)


def _all(
    found: Found,
    front: str,
    target: float,
    why: str,
    what: str,
    value: Value,
    join: Callable[[List[float]], float] = min,
) -> Check:
    """Return a check of a value of every network, joined to one: the smallest unless told otherwise."""
    values = {name: value(comparison) for name, comparison in found.items()}
    absent = [name for name, each in values.items() if each is None]
    if why:
        return decide(what, target, None, False, why)
    if absent:
        failed = any(column.failed for name in absent for column in found[name].columns if column.who == OWN)
        check = decide(what, target, None, False, f"did not run: {', '.join(absent)}")
        return check._replace(verdict=NOT_MET) if failed else check
    noisy = any(comparison.noisy(front) for comparison in found.values())
    known = {name: each for name, each in values.items() if each is not None}
    lowest = f"the lowest: {min(known, key=known.__getitem__)}" if len(known) > 1 and join is min else ""
    return decide(what, target, join(list(known.values())), noisy, lowest)
