"""tune: the fastest policy for a network on this machine."""

from __future__ import annotations

import logging
import sys
import time
from typing import Any, Callable, List, Optional, Union

from .. import dtypes
from ..devices.processor import read_processor
from ..devices.speed import runs_bfloat16
from ..diagnose.progress import showing_progress
from ..errors import PolicyError, TuneError
from ..files import require_folder
from ..policy import Policy, check_matches
from ..symbol import to_graph
from .accuracy.tolerance import Tolerance
from .by_accuracy import search_within
from .changes import find_changes
from .holds import holds_here
from .result import INFERENCE, OBJECTIVES, TRAINING, Measured, TuneResult
from .speed.gluon_net import Forward
from .speed.plan_search import Found, NotRunnable, PlanSearch
from .speed.problem import NetworkProblem, Workload
from .speed.race import NOISY
from .speed.workloads import make_workload
from .store import file_name, require_writable, stored_plan

_APART = (
    "The net has {count} graphs. Each runs by itself, once, on what it was called with first; what the net computes "
    "between them, and gradients that go from one to the other, are not in the times."
)

_CAST_AT_EACH_CALL = (
    "Parameters were kept in float32 and cast at each call of a plan, which may take longer than what is gained. Give "
    "param_dtype={dtype!r}, which stores them as they are read, or of a model for_inference=True."
)

_LOG = logging.getLogger(__name__)

SECONDS = 60.0
"""How long tuning may take."""


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
    **changes: Any,
) -> TuneResult:
    """Find the policy with which a network is fastest on this machine, by running it.

    Layouts, missing kernels and slow instructions are not in the bytes by which a conversion places casts. So plans of
    different kinds are timed, then changes of the best one, in turns; what is found is measured once more, on networks
    that are built anew, beside float32 and the policy as it was given. Only operators that are safe in both precisions
    are chosen for: what the rules or the policy's own overrides say of others stays.

    The network is not changed: copies of it run, with copies of its parameters. Ctrl-C ends the search and has the last
    measurement made; pressed again, it ends that too. On a GPU the times are those of finished kernels; no
    test has run there.

    Args:
        net_or_model: An initialized Gluon net, converted or not; (symbol, arg_params, aux_params) in float32; or a
            Module, whose symbol, contexts and parameters are taken.
        batches: Batches, of which the first is used, with the shapes of the real work. Of a net what ``forward`` gets;
            its arrays' context is where the net runs. For symbols dicts of NDArrays by name, or an iterator of MXNet.
        policy: The policy to begin with.
        objective: 'training' times forward and backward, without the update, which is the same for all plans;
            'inference' times forward alone.
        seconds: About how long it may take.
        for_inference: With the objective 'inference': whether BatchNorm is folded, as the conversion's
            ``for_inference`` does it. Not for a Module.
        forward: Calls a net with a batch: ``lambda net, batch: net(batch[0])``. By default the net is called with the
            batch if that is an array, else with as many of its arrays as the net has inputs.
        progress: Whether to show a bar on stderr; by default if that is a terminal.
        store: A file. If it has a plan for this policy and objective that holds for this network, these shapes and this
            machine, that is returned without timing anything; with ``within``, once that has been asked. Else what is
            found is written there, unless the last measurement was interrupted.
        within: Tells whether the results of a policy are good enough; only such a policy is returned. Where those of
            ``policy`` are not, tuning begins with what `search` makes of it. It has to measure the same network, with
            the same ``for_inference``.
        **changes: Fields of the policy that overrule it.

    Returns:
        The policy, with the times and what they hold for.

    Raises:
        PolicyError: If the policy is invalid, or float32, or one of its patterns matches nothing.
        TuneError: If an argument is wrong, ``store`` a file that is no plan, or ``within`` measures another network;
            or if the policy computes in float16 and the network runs on a CPU.
        CheckpointError: If ``store`` cannot be written, which is looked at before anything is measured.
        ConvertError: If the network cannot be converted.
    """
    parsed = _check(Policy.parse(policy, **changes), objective, seconds, for_inference)
    if within is not None and not isinstance(within, Tolerance):
        raise TuneError(f"within is a {type(within).__name__}; expected a mxmp.tune.Tolerance of the same network.")
    if store is not None:
        require_folder(file_name("store", store))
    start = time.perf_counter()
    workload = make_workload(net_or_model, batches, objective == TRAINING, for_inference, forward)
    if within is not None:
        within.require_measures(net_or_model, workload.symbols, for_inference)
    if parsed.has_overrides:
        graphs = [to_graph(symbol) for symbol in workload.symbols]
        check_matches(parsed, [(node.op, node.name) for graph in graphs for node in graph.operators()])
    if parsed.compute_dtype == dtypes.FLOAT16 and workload.on_cpu:
        raise TuneError(
            "policy: it computes in float16, which is emulated on a CPU, and the time of that says nothing of a GPU's. "
            "Give batches on a GPU, or tune a policy of bfloat16."
        )
    allows = _allow_all if within is None else within.allows
    if store is not None:
        plan, different = stored_plan(store, workload, parsed, objective, for_inference, searched=within is not None)
        if plan is not None and allows(plan.policy):
            return plan
        if different:
            _LOG.info("%s: the plan is measured again: %s.", store, "; ".join(different))
        require_writable(store)
    runs = parsed.compute_dtype != dtypes.BFLOAT16 or runs_bfloat16()
    if runs and within is not None and not within.allows(parsed):
        parsed = search_within(within, parsed, _shows(progress)).policy
        start = time.perf_counter()  # that search has a time of its own
    result = _search(workload, parsed, objective, for_inference, seconds, start, progress, runs, allows)
    if store is not None and result.proved:
        result.save(store)
    return result


def _search(
    workload: Workload,
    parsed: Policy,
    objective: str,
    for_inference: bool,
    seconds: float,
    start: float,
    progress: Optional[bool],
    runs: bool,
    allows: Callable[[Policy], bool],
) -> TuneResult:
    """Return what a search finds."""
    notes: List[str] = []
    if not runs:
        notes.append(f"MXNet runs no bfloat16 on this processor ({read_processor().name}).")
    if len(workload.symbols) > 1:
        notes.append(_APART.format(count=len(workload.symbols)))
    if runs and objective == INFERENCE and parsed.param_dtype == dtypes.FLOAT32 and not for_inference:
        notes.append(_CAST_AT_EACH_CALL.format(dtype=parsed.compute_dtype))
    problem = NetworkProblem(workload, parsed, seconds, runs, allows)
    with showing_progress(_shows(progress)) as on_trial:
        try:
            found = PlanSearch(problem, seconds, on_trial=on_trial, start=start).run()
        except NotRunnable as e:
            raise TuneError(f"net_or_model: it does not run in float32: {e}") from e
    policy = problem.choices.policy_of(found.choice)
    return TuneResult(
        policy=policy,
        untuned=parsed,
        objective=objective,
        for_inference=for_inference,
        seconds=found.seconds,
        candidates=tuple(Measured(each.name, each.seconds, each.ratio, each.won) for each in found.trials),
        changes=find_changes(problem.decided, policy) if policy.is_mixed else (),
        notes=(*notes, *_notes(found, runs)),
        proved=found.proved,
        holds_for=holds_here(workload.on_cpu, workload.shapes, workload.symbols, workload.dtypes, workload.options),
    )


def _shows(progress: Optional[bool]) -> bool:
    return sys.stderr.isatty() if progress is None else progress


def _allow_all(policy: Policy) -> bool:
    return True


def _check(policy: Policy, objective: str, seconds: float, for_inference: bool) -> Policy:
    """Return the policy, or raise the error that says which argument is wrong."""
    if not policy.is_mixed:
        raise PolicyError(f"policy: {str(policy)!r} is float32 already; give one with a low precision to tune.")
    if objective not in OBJECTIVES:
        raise TuneError(f"objective is {objective!r}; expected {' or '.join(map(repr, OBJECTIVES))}.")
    if not isinstance(seconds, (int, float)) or isinstance(seconds, bool) or not 0 < seconds < float("inf"):
        raise TuneError(f"seconds is {seconds!r}; expected a positive number.")
    if for_inference and objective != INFERENCE:
        raise TuneError(f"for_inference=True needs objective='inference'; found objective={objective!r}.")
    return policy


def _notes(found: Found, runs: bool) -> List[str]:
    """Return what the user should know of a search; where the policy does not run, noise has hidden nothing."""
    notes = []
    if runs and found.scatter > NOISY:
        notes.append(
            f"This machine is noisy: runs of the same float32 network differ by {found.scatter:.0%} from their median. "
            f"Smaller gains than that cannot be told; end other programs and tune again."
        )
    if not found.proved:
        notes.append("Interrupted before the last measurement: the policy is the best of the search, not proved.")
    elif found.interrupted:
        notes.append("Interrupted: the policy is the best of what had been tried.")
    return notes
