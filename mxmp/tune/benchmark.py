"""How fast a network runs under several policies here, and how far its outputs are from float32's."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any, ClassVar, Dict, List, Mapping, Optional, Tuple

import mxnet as mx
import numpy as np

from .. import dtypes
from ..arrays import to_float32
from ..devices.check import amx_notes
from ..devices.processor import read_processor
from ..devices.speed import runs_bfloat16
from ..diagnose.progress import showing_progress
from ..display import NUMBER, Column, Facts, Notes, Record, Section, Table
from ..errors import TuneError
from ..passes.emulate import has_float16
from ..policy import Policy, check_matches
from ..symbol import to_graph
from .candidates import FLOAT32
from .plan import TRAINING
from .race import FEWEST, NOISY, NotRunnable, Rounds, Stopwatch
from .workload import Workload, read_workload

_MOST_ROUNDS = 101


@dataclass(frozen=True)
class Timed:
    """What was measured of one policy.

    Attributes:
        policy: Its name.
        seconds: Median of its times, of forward and backward or of forward alone; None if it does not run.
        ratio: Its time divided by float32's: the median over rounds.
        verdict: 'faster' or 'slower' than float32 by more than the noise, else 'within the noise'.
        error: Of the outputs in inference: the norm of their difference from float32's, divided by the norm of those;
            the largest of several outputs. It is inf where float32 is finite and the policy is not; where float32 is
            not finite, nothing is compared.
        emulated: Whether float16 is emulated, so that the time tells nothing of a GPU's.
        failure: Why it does not run.
    """

    policy: str
    seconds: Optional[float] = None
    ratio: Optional[float] = None
    verdict: str = ""
    error: Optional[float] = None
    emulated: bool = False
    failure: str = ""


@dataclass(frozen=True)
class Benchmark(Record):
    """What was measured of a network.

    Attributes:
        objective: 'training', forward and backward without the update, or 'inference'.
        for_inference: Whether the network was frozen, with BatchNorm folded.
        rounds: How often all policies took turns.
        scatter: How far float32's times are from their median, as a share of it.
        rows: One per policy, float32 first.
        device: What it ran on.
        notes: A sentence on what slows this machine down: that AMX is off and could be on.
    """

    _kind: ClassVar[str] = "benchmark"
    _title: ClassVar[str] = "mxmp benchmark"
    _error = TuneError

    objective: str
    for_inference: bool
    rounds: int
    scatter: float
    rows: Tuple[Timed, ...]
    device: str
    notes: Tuple[str, ...] = ()

    def _sections(self) -> List[Section]:
        times = Column("ms", NUMBER), Column("time / float32's", NUMBER)
        columns = [Column("policy"), *times, Column(""), Column("error of outputs", NUMBER)]
        rows = []
        for row in self.rows:
            name = row.policy + (" (emulated)" if row.emulated else "")
            says = f"does not run: {row.failure}" if row.failure else row.verdict
            rows.append((name, None if row.seconds is None else 1e3 * row.seconds, row.ratio, says, row.error))
        measured = f"medians of {self.rounds} rounds, in which all took turns: of times, and of their ratios"
        facts = [("device", self.device), ("measured", measured)]
        notes = list(self.notes)
        if self.scatter > NOISY:
            notes.append(f"float32's times differ by {self.scatter:.0%} from their median: end other programs, repeat")
        if any(row.emulated for row in self.rows):
            notes.append("float16 is emulated on a CPU: its time says nothing of a GPU's, its error does")
        return [Section("Policies", [Table("policies", columns, rows, "policies"), Facts(facts), Notes(notes)])]

    @property
    def _lead(self) -> str:
        return f"{self.objective}{', BatchNorm folded' if self.for_inference else ''}"


def default_policies(on_gpu: bool) -> Dict[str, Policy]:
    """Return the policies to measure on a device beside float32, by name: those that it runs by itself."""
    names = ("O1", "O2") if on_gpu else ("mixed_bfloat16", "bfloat16") if runs_bfloat16() else ()
    return {name: Policy.parse(name) for name in names}


def context_of(gpu: Optional[int]) -> mx.Context:
    """Return the context of a GPU, or of the processor; a TuneError if MXNet has no such GPU."""
    if gpu is None:
        return mx.cpu()
    count = mx.context.num_gpus()
    if gpu >= count:
        raise TuneError(f"--gpu {gpu}: MXNet finds {count} GPUs here; `mxmp doctor` says why.")
    return mx.gpu(gpu)


def benchmark(
    model: Any,
    batch: Mapping[str, mx.nd.NDArray],
    policies: Mapping[str, Policy],
    objective: str,
    for_inference: bool,
    seconds: float,
    progress: bool,
) -> Benchmark:
    """Measure a network under float32 and other policies, in turns.

    Args:
        model: (symbol, arg_params, aux_params) in float32.
        batch: Inputs by name; where they lie is where the network runs.
        policies: Those to measure, by name; float32 is added.
        objective: 'training' or 'inference'.
        for_inference: Whether the network is frozen, with BatchNorm folded.
        seconds: About how long the rounds may take; there are at least five.
        progress: Whether to show a bar on stderr.

    Raises:
        PolicyError: If a pattern of a policy matches nothing.
        TuneError: If the network does not run in float32.
    """
    operators = [(node.op, node.name) for node in to_graph(tuple(model)[0]).operators()]
    for policy in policies.values():
        check_matches(policy, operators)
    named = {FLOAT32: Policy(), **{name: policy for name, policy in policies.items() if policy.is_mixed}}
    workload = read_workload(model, [batch], objective == TRAINING, for_inference)
    # All networks are in memory at a time: the rounds have to have every policy in them to be compared.
    rounds, laps, watch = Rounds(), {}, Stopwatch()
    failures: Dict[str, str] = {}
    for name, policy in named.items():
        try:
            laps[name] = watch.lap_of(_started(workload, policy))
        except NotRunnable as e:
            failures[name] = str(e)
    if FLOAT32 in failures:
        raise TuneError(f"the network does not run in float32: {failures[FLOAT32]}")
    with showing_progress(progress) as show:
        begin = time.perf_counter()
        # At least as many rounds as a verdict needs, also where one takes longer than all of the time.
        for number in range(_MOST_ROUNDS):
            passed = (time.perf_counter() - begin) / seconds
            if number >= FEWEST and passed > 1:
                break
            show(f"round {number + 1}", passed)
            rounds.run(laps)
        laps.clear()  # and with them their memory
        show("errors", 1.0)
        # Outputs are compared in inference: dropout and batch statistics differ from run to run.
        errors = _errors(read_workload(model, [batch], False, for_inference), named, failures)
    own = any(has_float16(decisions.facts) for decisions in workload.decide(Policy()))  # casts of the network's own
    emulated = {name for name in named if workload.on_cpu and (own or named[name].compute_dtype == dtypes.FLOAT16)}
    rows = []
    for name in named:
        if name in failures:
            rows.append(Timed(name, emulated=name in emulated, failure=failures[name]))
        else:
            times = rounds.seconds(name), rounds.ratio(name, FLOAT32), _verdict(rounds, name)
            rows.append(Timed(name, *times, errors.get(name), name in emulated))
    device = read_processor().name if workload.on_cpu else str(next(iter(batch.values())).context)
    notes = amx_notes([policy.compute_dtype for policy in named.values()] if workload.on_cpu else [])
    return Benchmark(objective, for_inference, len(rounds.times), rounds.scatter(FLOAT32), tuple(rows), device, notes)


def _started(workload: Workload, policy: Policy) -> Any:
    if policy.compute_dtype == dtypes.BFLOAT16 and workload.on_cpu and not runs_bfloat16():
        raise NotRunnable(f"MXNet runs no bfloat16 on this processor ({read_processor().name}).")
    return workload.start(policy)


def _verdict(rounds: Rounds, name: str) -> str:
    if name == FLOAT32:
        return ""
    slower = "slower" if rounds.is_faster(FLOAT32, name) else "within the noise"
    return "faster" if rounds.is_faster(name, FLOAT32) else slower


def _errors(inferring: Workload, named: Mapping[str, Policy], failures: Dict[str, str]) -> Dict[str, float]:
    """Return the errors of outputs beside float32's; what does not run is noted."""
    exact, errors = _outputs(inferring, named[FLOAT32]), {}
    for name, policy in named.items():
        if name != FLOAT32 and name not in failures:
            try:
                errors[name] = max(output_error(*pair) for pair in zip(_outputs(inferring, policy), exact))
            except NotRunnable as e:
                failures[name] = str(e)
    return errors


def _outputs(inferring: Workload, policy: Policy) -> List[Any]:
    return [to_float32(output).asnumpy().astype(np.float64) for output in inferring.start(policy)()]


def output_error(output: Any, exact: Any) -> float:
    """Return the error of an output where float32's is finite, in float64, whose squares always fit."""
    # float32's squares overflow from 1.8e19 on, and vanish below 1e-23.
    is_finite = np.isfinite(exact)
    right, value = (np.where(is_finite, array, 0).astype(np.float64).ravel() for array in (exact, output))
    if not np.isfinite(value).all():
        return math.inf
    difference, size = float(np.linalg.norm(value - right)), float(np.linalg.norm(right))
    return difference / size if size else (0.0 if difference == 0 else math.inf)
