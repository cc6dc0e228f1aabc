"""How fast a network runs under several policies here, and how far its outputs are from float32's."""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict, dataclass
from typing import Any, Dict, List, Mapping, Optional, Tuple

import mxnet as mx
import numpy as np
from rich.table import Table
from rich.text import Text

from .. import dtypes
from ..devices.processor import read_processor
from ..devices.speed import runs_bfloat16
from ..diagnose.progress import showing_progress
from ..errors import MxmpError, TuneError, mxnet_reason, visible
from ..passes.emulate import has_float16
from ..policy import Policy, check_matches
from ..symbol import to_graph
from .result import TRAINING
from .speed.plan_search import NotRunnable
from .speed.problem import start, unwarned
from .speed.race import FEWEST, NOISY, Lap, Race
from .speed.stopwatch import Stopwatch
from .speed.symbol_nets import ModelWorkload, ModuleWorkload
from .speed.workloads import make_workload

_MOST_ROUNDS = 101

FLOAT32 = "float32"


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
class Benchmark:
    """What was measured of a network.

    Attributes:
        objective: 'training', forward and backward without the update, or 'inference'.
        for_inference: Whether BatchNorm was folded.
        rounds: How often all policies took turns.
        scatter: How far float32's times are from their median, as a share of it.
        rows: One per policy, float32 first.
        device: What it ran on.
    """

    objective: str
    for_inference: bool
    rounds: int
    scatter: float
    rows: Tuple[Timed, ...]
    device: str

    def to_json(self) -> str:
        """Return all of it as JSON; infinity, which JSON lacks, is the text 'inf'."""
        values = asdict(self)
        for row in values["rows"]:
            row["error"] = "inf" if row["error"] == math.inf else row["error"]
        return json.dumps(values, indent=2, allow_nan=False)

    def table(self) -> Table:
        """Return a table with a row per policy."""
        table = Table(title=f"mxmp benchmark: {self.objective}{', BatchNorm folded' if self.for_inference else ''}")
        for column in ("policy", "ms", "time / float32's", "", "error of outputs"):
            table.add_column(column, justify="right" if column not in ("policy", "") else "left", overflow="fold")
        for row in self.rows:
            name = row.policy + (" (emulated)" if row.emulated else "")
            cells = [_shown(row.seconds and 1e3 * row.seconds, ".4g"), _shown(row.ratio, ".3f"), row.verdict]
            if row.failure:
                cells[-1] = f"does not run: {row.failure}"
            table.add_row(*(Text(visible(cell)) for cell in (name, *cells, _shown(row.error, ".2g"))))
        return table

    @property
    def totals(self) -> List[Tuple[str, str]]:
        """What there is to say beside the table, each with what it is about."""
        found = [("device", self.device), ("measured", f"medians of {self.rounds} rounds, in which all took turns")]
        if self.scatter > NOISY:
            text = f"float32's times differ by {self.scatter:.0%} from their median: end other programs, then repeat"
            found.append(("note", text))
        if any(row.emulated for row in self.rows):
            found.append(("note", "float16 is emulated on a CPU: its time says nothing of a GPU's, its error does"))
        return found


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
        for_inference: Whether BatchNorm is folded, for inference.
        seconds: About how long the rounds may take; there are at least five.
        progress: Whether to show a bar on stderr.

    Raises:
        PolicyError: If a pattern of a policy matches nothing.
        TuneError: If the network does not run in float32.
    """
    symbol = tuple(model)[0]
    for policy in policies.values():
        check_matches(policy, [(node.op, node.name) for node in to_graph(symbol).operators()])
    named = {FLOAT32: Policy(), **{name: policy for name, policy in policies.items() if policy.is_mixed}}
    workload = make_workload(model, [batch], objective == TRAINING, for_inference)
    assert isinstance(workload, (ModelWorkload, ModuleWorkload))  # what it makes of a model
    laps, failures = _start(workload, named)
    race: Race[str] = Race()
    with showing_progress(progress) as show:
        begin = time.perf_counter()
        while len(race.rounds) < FEWEST or (time.perf_counter() - begin < seconds and len(race.rounds) < _MOST_ROUNDS):
            show(f"round {len(race.rounds) + 1}", (time.perf_counter() - begin) / seconds)
            race.run(laps)
        laps.clear()  # and with them their memory
        show("errors", 1.0)
        errors = _errors(make_workload(model, [batch], False, for_inference), named, failures)
    own = any(has_float16(each.facts) for each in workload.decide(named[FLOAT32]))  # casts of the network's own
    emulated = {name for name in named if workload.on_cpu and (own or named[name].compute_dtype == dtypes.FLOAT16)}
    rows = [_row(race, name, name in emulated, failures, errors) for name in named]
    context = next(iter(batch.values())).context
    device = read_processor().name if workload.on_cpu else str(context)
    return Benchmark(objective, for_inference, len(race.rounds), race.scatter(FLOAT32), tuple(rows), device)


def _start(workload: Any, named: Mapping[str, Policy]) -> Tuple[Dict[str, Lap], Dict[str, str]]:
    """Return laps of the policies that run, and why others do not."""
    watch, laps, failures = Stopwatch(), {}, {}
    bfloat16 = not workload.on_cpu or runs_bfloat16()
    for name, policy in named.items():
        try:
            if policy.compute_dtype == dtypes.BFLOAT16 and not bfloat16:
                raise NotRunnable(f"MXNet runs no bfloat16 on this processor ({read_processor().name}).")
            with unwarned():
                laps[name] = watch.lap_of(start(workload, policy))
        except NotRunnable as e:
            if name == FLOAT32:
                raise TuneError(f"the network does not run in float32: {e}") from e
            failures[name] = str(e)
    return laps, failures


def _errors(net: Any, named: Mapping[str, Policy], failures: Dict[str, str]) -> Dict[str, float]:
    """Return the errors of outputs beside float32's; what does not run is noted."""
    exact, found = net.outputs(named[FLOAT32]), {}
    for name, policy in named.items():
        if name != FLOAT32 and name not in failures:
            try:
                found[name] = max(_error(*pair) for pair in zip(net.outputs(policy), exact))
            except (mx.MXNetError, MxmpError) as e:
                failures[name] = str(e) if isinstance(e, MxmpError) else mxnet_reason(e)
    return found


def _error(output: Any, exact: Any) -> float:
    """Return the error of an output where float32's is finite, in float64, whose squares always fit."""
    is_finite = np.isfinite(exact)
    right, found = (np.where(is_finite, each, 0).astype(np.float64).ravel() for each in (exact, output))
    if not np.isfinite(found).all():
        return math.inf
    difference, size = float(np.linalg.norm(found - right)), float(np.linalg.norm(right))
    return difference / size if size else (0.0 if difference == 0 else math.inf)


def _row(
    race: Race[str],
    name: str,
    emulated: bool,
    failures: Mapping[str, str],
    errors: Mapping[str, float],
) -> Timed:
    if name in failures:
        return Timed(name, emulated=emulated, failure=failures[name])
    seconds, ratio = race.seconds(name), race.ratio(name, FLOAT32)
    verdict = (
        "faster" if race.is_faster(name, FLOAT32) else "slower" if race.is_faster(FLOAT32, name) else "within the noise"
    )
    return Timed(name, seconds, ratio, "" if name == FLOAT32 else verdict, errors.get(name), emulated)


def _shown(value: Optional[float], form: str) -> str:
    return "-" if value is None else format(value, form)
