"""A network whose plans are searched: which choices are allowed and differ, what is tried next, how one is timed."""

from __future__ import annotations

import contextlib
import time
import warnings
from typing import Any, Callable, Dict, Hashable, Iterator, List, Optional, Protocol, Sequence, Tuple

import mxnet as mx

from ..errors import SlowPrecisionWarning, mxnet_reason
from ..passes.plan import Plan, make_plan
from ..passes.verdict import FLOAT32
from ..policy import Policy
from ..report import Decisions
from .choices import Choice, Choices, Label, find_choices
from .plan_search import NotRunnable, Proposal, Trial
from .race import Lap

Run = Callable[[], None]
"""Runs a network once, without waiting for its results."""


_SHORTEST = 0.02  # seconds of a lap: other programs disturb shorter ones by more
_MOST_RUNS = 100


class Workload(Protocol):
    """A network with a batch, which can be built under any policy.

    ``shapes`` are those of the inputs by name, ``symbols`` its float32 graphs, ``on_cpu`` says whether any of it runs
    on a CPU.
    """

    shapes: Dict[str, Tuple[int, ...]]
    symbols: Tuple[Any, ...]
    on_cpu: bool

    def decide(self, policy: Policy) -> List[Decisions]:
        """Return what the conversion of each of its graphs decides for the batch's shapes."""

    def build(self, policy: Policy) -> Run:
        """Build the network anew under a policy, with arrays of its own."""


class NetworkProblem:
    """The problem of one workload under one policy; where the policy does not run at all, nothing can be chosen.

    Attributes:
        decided: What the conversion of each graph decides under the untuned policy.
        choices: What can be chosen.
    """

    def __init__(
        self,
        workload: Workload,
        policy: Policy,
        runs: bool = True,
        allows: Callable[[Policy], bool] = lambda policy: True,
    ) -> None:
        self._workload, self._allows = workload, allows
        self.decided = workload.decide(policy) if runs else []
        self.choices: Choices = find_choices([(d.before, d.facts, d.plan) for d in self.decided], policy)
        self._keys: Dict[Choice, Optional[Hashable]] = {}
        self._runs = 0  # in a lap

    def key(self, choice: Choice) -> Optional[Hashable]:
        """Return the nodes that run in low precision; None if one of them needs float32 under the untuned policy."""
        if choice not in self._keys:
            policy = self.choices.policy_of(choice)
            plans = [make_plan(each.before, policy, each.facts) for each in self.decided]
            safe = all(is_as_safe(plan, each.plan) for plan, each in zip(plans, self.decided))
            self._keys[choice] = tuple(map(low_nodes, plans)) if safe else None
        return self._keys[choice]

    def build(self, choice: Choice) -> Lap:
        """Return a function that runs the network of a choice, built anew, and returns its seconds."""
        try:
            run = self._workload.build(self.choices.policy_of(choice))
            run()  # has oneDNN generate its code
            mx.nd.waitall()
        except mx.MXNetError as e:
            raise NotRunnable(mxnet_reason(e)) from e

        def lap() -> float:
            start = time.perf_counter()
            for _ in range(self._runs):
                run()
                mx.nd.waitall()
            return (time.perf_counter() - start) / self._runs

        if not self._runs:  # the same for all, from the first, which is float32
            self._runs = 1
            self._runs = min(max(1, round(_SHORTEST / lap())), _MOST_RUNS)
        return lap

    def allows(self, choice: Choice) -> bool:
        """Return whether the results of a choice are good enough."""
        return choice == self.choices.float32 or self._allows(self.choices.policy_of(choice))

    def moves(self, choice: Choice, trials: Sequence[Trial]) -> Iterator[Proposal]:
        """Yield choices that differ from one in all groups of an operator, then those that do in one group."""
        groups = self.choices.groups
        kinds = list(dict.fromkeys((group.op, group.depthwise) for group in groups))
        members = [[i for i, group in enumerate(groups) if (group.op, group.depthwise) == kind] for kind in kinds]
        members += [[i] for i in range(len(groups)) if [i] not in members]
        for numbers in members:
            for label in self.choices.labels(numbers[0]):
                changed = tuple(label if i in numbers else old for i, old in enumerate(choice))
                if changed != choice:
                    yield Proposal(self._describe(numbers, label), changed)

    def _describe(self, numbers: Sequence[int], label: Label) -> str:
        groups = self.choices.groups
        what = str(groups[numbers[0]]) if len(numbers) == 1 else f"every {groups[numbers[0]].op}"
        dtype = {None: "by bytes", FLOAT32: FLOAT32}.get(label, self.choices.policy.compute_dtype)
        return f"{what}: {dtype}"


def is_as_safe(plan: Plan, untuned: Plan) -> bool:
    """Return whether a plan has no node in low precision that needs float32 in the untuned plan of the same graph."""
    needs = {position for position, verdict in enumerate(untuned.verdicts) if verdict.label == FLOAT32}
    bodies = all(is_as_safe(body, untuned.bodies[where]) for where, body in plan.bodies.items())
    return bodies and not needs & plan.placement.low


def low_nodes(plan: Plan) -> Hashable:
    """Return which nodes run in low precision and which parameters are stored in it, those of bodies included."""
    bodies = tuple(sorted((where, low_nodes(body)) for where, body in plan.bodies.items())) if plan.bodies else ()
    return plan.placement.low, plan.low_params, bodies


@contextlib.contextmanager
def unwarned() -> Iterator[None]:
    """Let nothing warn of a slow precision in this context: the clock is asked here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SlowPrecisionWarning)
        yield
