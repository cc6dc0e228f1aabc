"""tune: the fastest policy for a network on this machine."""

from __future__ import annotations

import sys
from typing import Any, List, Optional, Union

from .. import dtypes
from ..devices.bfloat16 import runs_bfloat16
from ..devices.processor import read_processor
from ..devices.speed_file import describe_machine
from ..errors import PolicyError, TuneError
from ..policy import Policy
from .gluon_net import Forward
from .plan_search import Found, PlanSearch
from .problem import NetworkProblem
from .progress import showing_progress
from .race import NOISY
from .result import INFERENCE, OBJECTIVES, TRAINING, Measured, TuneResult
from .workloads import make_workload

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
        **changes: Fields of the policy that overrule it.

    Returns:
        The policy, with the times and what they hold for.

    Raises:
        PolicyError: If the policy is invalid, or float32.
        TuneError: If an argument is wrong; or if the policy computes in float16 and the network runs on a CPU.
        ConvertError: If the network cannot be converted.
    """
    parsed = _check(Policy.parse(policy, **changes), objective, seconds, for_inference)
    workload = make_workload(net_or_model, batches, objective == TRAINING, for_inference, forward)
    if parsed.compute_dtype == dtypes.FLOAT16 and workload.on_cpu:
        raise TuneError(
            "policy: it computes in float16, which is emulated on a CPU, and the time of that says nothing of a GPU's. "
            "Give batches on a GPU, or tune a policy of bfloat16."
        )
    notes: List[str] = []
    runs = parsed.compute_dtype != dtypes.BFLOAT16 or runs_bfloat16()
    if not runs:
        notes.append(f"MXNet runs no bfloat16 on this processor ({read_processor().name}).")
    problem = NetworkProblem(workload, parsed, runs, seconds)
    with showing_progress(sys.stderr.isatty() if progress is None else progress) as on_trial:
        found = PlanSearch(problem, seconds, on_trial=on_trial).run()
    return TuneResult(
        policy=problem.choices.policy_of(found.choice),
        untuned=parsed,
        objective=objective,
        for_inference=for_inference,
        seconds=found.seconds,
        candidates=tuple(Measured(each.name, each.seconds, each.ratio, each.won) for each in found.trials),
        notes=(*notes, *_notes(found)),
        machine=describe_machine(),
        shapes=workload.shapes,
    )


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


def _notes(found: Found) -> List[str]:
    """Return what the user should know of a search."""
    notes = []
    if found.scatter > NOISY:
        notes.append(
            f"This machine is noisy: runs of the same float32 network differ by {found.scatter:.0%} from their median. "
            f"Smaller gains than that cannot be told; end other programs and tune again."
        )
    if not found.proved:
        notes.append("Interrupted before the last measurement: the policy is the best of the search, not proved.")
    elif found.interrupted:
        notes.append("Interrupted: the policy is the best of what had been tried.")
    return notes
