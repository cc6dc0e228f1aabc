"""A network whose plans are searched: which choices are allowed and differ, and how one is timed."""

from __future__ import annotations

import contextlib
import warnings
from typing import (
    Any,
    Callable,
    Dict,
    FrozenSet,
    Hashable,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Protocol,
    Sequence,
    Tuple,
)

import mxnet as mx

from ... import dtypes
from ...devices.speed import bfloat16_speed
from ...errors import MxmpError, SlowPrecisionWarning, mxnet_reason
from ...passes.decide import FLOAT32
from ...passes.plan import Plan, make_plan
from ...policy import Policy
from ...report import Decisions
from .choices import Choice, Choices, find_choices
from .costs import State
from .moves import Moves
from .plan_search import NotRunnable, Proposal, Trial
from .race import Lap
from .roofline import GPU, Speeds
from .stopwatch import Run, Stopwatch
from .suspects import Account, account_for, run_steps, time_allowed


class Workload(Protocol):
    """A network with a batch, which can be built under any policy.

    ``shapes`` and ``dtypes`` are those of the inputs by name, ``options`` say how it is run beyond MXNet's defaults,
    ``symbols`` are its float32 graphs, ``on_cpu`` says whether any of it runs on a CPU, ``training`` whether it trains.
    """

    shapes: Dict[str, Tuple[int, ...]]
    dtypes: Dict[str, str]
    options: Dict[str, str]
    symbols: Tuple[Any, ...]
    on_cpu: bool
    training: bool

    def decide(self, policy: Policy) -> List[Decisions]:
        """Return what the conversion of each of its graphs decides for the batch's shapes."""

    def build(self, policy: Policy) -> Run:
        """Build the network anew under a policy, with arrays of its own."""


def start(workload: Workload, policy: Policy) -> Run:
    """Return what runs a network built anew under a policy, once it has run; NotRunnable if it does not."""
    try:
        run = workload.build(policy)
        run()  # has oneDNN generate its code
        mx.nd.waitall()
    except (mx.MXNetError, MxmpError) as e:
        raise NotRunnable(str(e) if isinstance(e, MxmpError) else mxnet_reason(e)) from e
    return run


class NetworkProblem:
    """The problem of one workload under one policy.

    Args:
        workload: The network.
        policy: The policy to begin with.
        seconds: Of the whole search; some of it goes into oneDNN's account of a step.
        runs: Whether the policy runs here at all; if not, nothing can be chosen.
        allows: Whether the results of a policy are good enough.

    Attributes:
        decided: What the conversion of each graph decides under the untuned policy.
        choices: What can be chosen.
    """

    def __init__(
        self,
        workload: Workload,
        policy: Policy,
        seconds: float = 0.0,
        runs: bool = True,
        allows: Callable[[Policy], bool] = lambda policy: True,
    ) -> None:
        self._workload, self._limit, self._allows = workload, seconds, allows
        self.decided = workload.decide(policy) if runs else []
        parts = [(each.before, each.facts, each.plan) for each in self.decided]
        self.choices: Choices = find_choices(parts, policy)
        self._keys: Dict[Choice, Optional[Tuple[LowNodes, ...]]] = {}
        self._stopwatch = Stopwatch()
        self._moves = Moves(parts, self.choices, self._state, self._speeds, workload.training, self._accounts)

    def key(self, choice: Choice) -> Optional[Tuple[LowNodes, ...]]:
        """Return the nodes that run in low precision; None if one of them needs float32 under the untuned policy."""
        if choice not in self._keys:
            policy = self.choices.policy_of(choice)
            plans = [make_plan(each.before, policy, each.facts) for each in self.decided]
            safe = all(is_as_safe(plan, each.plan) for plan, each in zip(plans, self.decided))
            self._keys[choice] = tuple(map(low_nodes, plans)) if safe else None
        return self._keys[choice]

    def build(self, choice: Choice) -> Lap:
        """Return a function that runs the network of a choice, built anew, and returns its seconds."""
        return self._stopwatch.lap_of(start(self._workload, self.choices.policy_of(choice)))

    def allows(self, choice: Choice) -> bool:
        """Return whether the results of a choice are good enough."""
        return choice == self.choices.float32 or self._allows(self.choices.policy_of(choice))

    def moves(self, choice: Choice, trials: Sequence[Trial]) -> Iterator[Proposal]:
        """Yield choices to try beside one, the most promising first."""
        return self._moves.near(choice, trials)

    def _state(self, choice: Choice) -> Optional[State]:
        key = self.key(choice)
        return None if key is None else tuple(part.nodes | part.params for part in key)

    def _speeds(self) -> Speeds:
        """Return how fast this machine is, as far as it was measured."""
        if not self._workload.on_cpu:
            return GPU
        found = bfloat16_speed() if self.choices.policy.compute_dtype == dtypes.BFLOAT16 else None
        if found is None:
            return Speeds()
        gain = found.training if self._workload.training else found.inference
        return Speeds()._replace(convolution_gain=gain, product_gain=gain)

    def _accounts(self, choices: Sequence[Choice], step: Optional[float]) -> List[Account]:
        """Return oneDNN's accounts of a step, if there is time for them."""
        limit = time_allowed(self._limit, step) if self._workload.on_cpu else None
        if limit is None:
            return []
        parts = [(each.before, each.facts) for each in self.decided]
        policies = [self.choices.policy_of(choice) for choice in choices]
        found = run_steps(parts, policies, self._workload.training, limit)
        return [account_for(times, self.choices.groups) for times in found]


def is_as_safe(plan: Plan, untuned: Plan) -> bool:
    """Return whether a plan has no node in low precision that needs float32 in the untuned plan of the same graph."""
    needs = {position for position, verdict in enumerate(untuned.verdicts) if verdict.label == FLOAT32}
    bodies = all(is_as_safe(body, untuned.bodies[where]) for where, body in plan.bodies.items())
    return bodies and not needs & plan.placement.low


class LowNodes(NamedTuple):
    """The nodes of a graph that run in low precision, the parameters that are stored in it, and those of its bodies."""

    nodes: FrozenSet[int]
    params: FrozenSet[int]
    bodies: Tuple[Tuple[Tuple[int, int], Hashable], ...]


def low_nodes(plan: Plan) -> LowNodes:
    """Return which nodes run in low precision and which parameters are stored in it, those of bodies included."""
    bodies = tuple(sorted((where, low_nodes(body)) for where, body in plan.bodies.items())) if plan.bodies else ()
    return LowNodes(plan.placement.low, plan.low_params, bodies)


@contextlib.contextmanager
def unwarned() -> Iterator[None]:
    """Let nothing warn of a slow precision in this context: the clock is asked here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SlowPrecisionWarning)
        yield
