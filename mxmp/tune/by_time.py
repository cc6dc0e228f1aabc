"""tune: the fastest policy for a network on this machine.

network, batch -> Workload -> candidates -> Race -> TuneResult (a plan)
"""

from __future__ import annotations

import logging
import sys
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Union

from .. import dtypes
from ..devices.check import amx_notes
from ..devices.processor import read_processor
from ..devices.speed import runs_bfloat16
from ..diagnose.progress import showing_progress
from ..errors import PolicyError, TuneError
from ..files import require_folder
from ..policy import Policy, PolicyChanges, check_matches
from ..symbol import to_graph
from .by_accuracy import Tolerance, search_within
from .candidates import UNTUNED, changes_of, find_candidates
from .plan import (
    INFERENCE,
    OBJECTIVES,
    TRAINING,
    HoldsFor,
    TuneResult,
    file_name,
    holds_here,
    require_writable,
    stored_plan,
)
from .race import NOISY, Lap, NotRunnable, Outcome, Race, Stopwatch
from .workload import Forward, Workload, read_workload

if TYPE_CHECKING:
    from typing_extensions import Unpack

SECONDS = 40.0
"""How long tuning may take."""

_APART = (
    "The net has {count} graphs. Each runs by itself, once, on what it was called with first; what the net computes "
    "between them, and gradients that go from one to the other, are not in the times."
)

_CAST_AT_EACH_CALL = (
    "Parameters were kept in float32 and cast at each call of a plan, which may take longer than what is gained. Give "
    "param_dtype={dtype!r}, which stores them as they are read, or for_inference=True."
)

_LOG = logging.getLogger(__name__)


def tune(
    net_or_model: Any,
    batches: Any,
    policy: Union[str, Policy] = "mixed_bfloat16",
    objective: str = TRAINING,
    *,
    seconds: float = SECONDS,
    for_inference: bool = False,
    forward: Optional[Forward] = None,
    progress: Optional[bool] = None,
    store: Optional[str] = None,
    within: Optional[Tolerance] = None,
    **changes: Unpack[PolicyChanges],
) -> TuneResult:
    """Find the policy with which a network is fastest on this machine, by running it.

    Layouts, missing kernels and slow instructions are not in the bytes by which a conversion places casts. So a dozen
    candidates race, in turns: float32, the policy as it was given, and that with operators of one kind in float32. The
    fastest is measured once more, on networks that are built anew, beside the first two. Only operators that are safe
    in both precisions are chosen for: the rules and the policy's own overrides decide over the others.

    The network is not changed: copies of it run, with copies of its parameters. Ctrl-C ends the race and has the last
    measurement made; pressed again, it ends that too. On a GPU the times are those of finished kernels; no
    test has run there.

    Args:
        net_or_model: An initialized Gluon net, converted or not; (symbol, arg_params, aux_params); or a Module that is
            bound, whose symbol, contexts, options and parameters are taken.
        batches: Batches, of which the first is used, with the shapes of the real work. Of a net the argument of
            ``forward``; its arrays' context is where the net runs. For symbols dicts of NDArrays by name, or an
            iterator of MXNet.
        policy: The policy to begin with.
        objective: 'training' times forward and backward, without the update, which is the same for all candidates;
            'inference' times forward alone.
        seconds: About how long it may take.
        for_inference: With the objective 'inference': whether the network is frozen, as `mxmp.gluon.freeze` does it,
            with BatchNorm folded; each of the first two then runs also without oneDNN's fusion. Not for a Module.
        forward: Calls a net with a batch: ``lambda net, batch: net(batch[0])``. By default the net is called with the
            batch if that is an array, else with as many of its arrays as the net has inputs.
        progress: Whether to show a bar on stderr; by default if that is a terminal.
        store: A file. If it has a plan for this policy and objective that holds for this network, these shapes and this
            machine, that is returned without timing anything; with ``within``, once that has been asked. Else the
            result is written there, unless the last measurement was interrupted.
        within: Tells whether the results of a policy are good enough; only such a policy is returned. Where those of
            ``policy`` are not, tuning begins with the policy that `search` finds. It has to measure the same network,
            with the same ``for_inference``.
        **changes: Fields of the policy that overrule it.

    Returns:
        The policy, with the times and the conditions that they hold for.

    Raises:
        PolicyError: If the policy is invalid, or float32, or one of its patterns matches nothing.
        TuneError: If an argument is wrong, or ``within`` measures another network; or if the policy computes in
            float16 and the network runs on a CPU.
        CheckpointError: If ``store`` is a file that is no plan, or cannot be written, before anything is measured.
        ConvertError: If the network or the batch cannot be read, or the network cannot be converted.
    """
    parsed = Policy.parse(policy, **changes)
    _check(parsed, objective, seconds, for_inference)
    if within is not None and not isinstance(within, Tolerance):
        raise TuneError(f"within is a {type(within).__name__}; expected a mxmp.tune.Tolerance of the same network.")
    if store is not None:
        require_folder(file_name("store", store))  # a minute of timing must not be lost to a misspelt folder
    start = time.perf_counter()
    workload = read_workload(net_or_model, batches, objective == TRAINING, for_inference, forward)
    symbols = workload.subject.symbols()
    if within is not None:
        within.require_measures(net_or_model, symbols, for_inference)
    if parsed.has_overrides:
        # Of a net with several graphs an override has to match in one of them; each is converted by those of its own.
        check_matches(parsed, [(node.op, node.name) for symbol in symbols for node in to_graph(symbol).operators()])
    if parsed.compute_dtype == dtypes.FLOAT16 and workload.on_cpu:
        raise TuneError(
            "policy: it computes in float16, which is emulated on a CPU, and the time of that says nothing of a GPU's. "
            "Give batches on a GPU, or tune a policy of bfloat16."
        )
    allows = within.allows if within is not None else lambda policy: True
    fields: Dict[str, Any] = {UNTUNED: parsed, "objective": objective, "for_inference": for_inference}
    holds_for = holds_here(workload)
    # A plan that holds is asked for its accuracy too: the weights may be others than when it was tuned.
    if store is not None:
        plan, different = stored_plan(store, holds_for, searched=within is not None, **fields)
        if plan is not None and allows(plan.policy):
            return plan
        if different:
            _LOG.info("%s: the plan is measured again: %s.", store, "; ".join(different))
        require_writable(store)
    shows = sys.stderr.isatty() if progress is None else progress
    # Without AVX-512 oneDNN fails at the first bfloat16 convolution, and says so on stderr: nothing is tried then.
    runs = parsed.compute_dtype != dtypes.BFLOAT16 or runs_bfloat16()
    if runs and within is not None and not within.allows(parsed):
        fields[UNTUNED] = search_within(within, parsed, shows)
        start = time.perf_counter()  # that search has a time of its own
    result = _race(workload, fields, holds_for, seconds, start, runs, shows, allows)
    if store is not None and result.proved:
        result.save(store)
    return result


def _race(
    workload: Workload,
    fields: Dict[str, Any],
    holds_for: HoldsFor,
    seconds: float,
    start: float,
    runs: bool,
    shows: bool,
    allows: Callable[[Policy], bool],
) -> TuneResult:
    """Return the plan that a race of a network's candidates gives; ``fields`` are the fields of it that are known."""
    policy: Policy = fields[UNTUNED]
    # Nothing is decided where the policy does not run: the candidates are float32 alone, fused or not.
    decisions = workload.decide(policy) if runs else []
    candidates = find_candidates(decisions, policy, unfused=workload.is_frozen and workload.on_cpu)
    by_name, watch = {candidate.name: candidate for candidate in candidates}, Stopwatch()

    def build(name: str) -> Lap:
        return watch.lap_of(workload.start(by_name[name].policy, by_name[name].fused))

    with showing_progress(shows) as on_turn:
        race = Race(
            list(by_name),
            build,
            seconds,
            rivals=[name for name in by_name if name == UNTUNED],
            allows=lambda name: not by_name[name].policy.is_mixed or allows(by_name[name].policy),
            on_turn=on_turn,
            start=start,
        )
        try:
            outcome = race.run()
        except NotRunnable as e:
            raise TuneError(f"net_or_model: it does not run in float32: {e}") from e
    fastest = by_name[outcome.fastest]
    return TuneResult(
        policy=fastest.policy,
        **fields,
        fastest=fastest.name,
        is_fused=fastest.fused,
        seconds=outcome.seconds,
        candidates=outcome.trials,
        changes=changes_of(fastest, decisions, policy) if fastest.policy.is_mixed else (),
        notes=tuple(_notes(workload, fields, runs, outcome)),
        proved=outcome.proved,
        holds_for=holds_for,
    )


def _check(policy: Policy, objective: str, seconds: float, for_inference: bool) -> None:
    """Raise the error that says which argument is wrong."""
    if not policy.is_mixed:
        raise PolicyError(f"policy: {str(policy)!r} is float32 already; give one with a low precision to tune.")
    if objective not in OBJECTIVES:
        raise TuneError(f"objective is {objective!r}; expected {' or '.join(map(repr, OBJECTIVES))}.")
    if not isinstance(seconds, (int, float)) or isinstance(seconds, bool) or not 0 < seconds < float("inf"):
        raise TuneError(f"seconds is {seconds!r}; expected a positive number.")
    if for_inference and objective != INFERENCE:
        raise TuneError(f"for_inference=True needs objective='inference'; found objective={objective!r}.")


def _notes(workload: Workload, fields: Dict[str, Any], runs: bool, outcome: Outcome) -> List[str]:
    """Return what the user should know; where the policy does not run, noise has hidden nothing."""
    notes, policy, count = [], fields[UNTUNED], len(workload.subject.symbols())
    if not runs:
        notes.append(f"MXNet runs no bfloat16 on this processor ({read_processor().name}).")
    notes += amx_notes([policy.compute_dtype] if workload.on_cpu else [])
    if count > 1:
        notes.append(_APART.format(count=count))
    # Training casts weights in each step whatever is done; a frozen network has them stored low.
    casts = policy.param_dtype == dtypes.FLOAT32 and not workload.is_frozen
    if runs and fields["objective"] == INFERENCE and casts:
        notes.append(_CAST_AT_EACH_CALL.format(dtype=policy.compute_dtype))
    if runs and outcome.scatter > NOISY:
        notes.append(
            f"This machine is noisy: runs of the same float32 network differ by {outcome.scatter:.0%} from their "
            f"median. Smaller gains than that cannot be told; end other programs and tune again."
        )
    if outcome.untried and not outcome.interrupted:
        notes.append(f"There was no time for {len(outcome.untried)} candidates: give more seconds to try them.")
    if not outcome.proved:
        notes.append("Interrupted before the last measurement: the policy is the best of the race, not proved.")
    elif outcome.interrupted:
        notes.append("Interrupted: the policy is the best of what had been tried.")
    return notes
