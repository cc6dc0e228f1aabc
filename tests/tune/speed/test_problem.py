"""The problem of a network: which choices are allowed, which differ, and what a lap measures."""

from __future__ import annotations

import mxnet as mx
import pytest

from mxmp.errors import ConvertError
from mxmp.passes.decide import FLOAT32, LOW
from mxmp.policy import Policy
from mxmp.symbol import convert_graph
from mxmp.tune.speed import stopwatch
from mxmp.tune.speed.plan_search import NotRunnable
from mxmp.tune.speed.problem import NetworkProblem

POLICY = Policy.parse("mixed_float16")  # which has more kernels than bfloat16


class Network:
    """A symbol as a workload whose runs are noted."""

    shapes, symbols, on_cpu, training = {}, (), True, True

    def __init__(self, symbol, shapes, error=None):
        self.symbol, self.known, self.error = symbol, shapes, error
        self.built, self.runs = [], 0

    def decide(self, policy):
        return [convert_graph(self.symbol, policy, self.known).decisions]

    def build(self, policy):
        self.built.append(policy)

        def run():
            self.runs += 1
            if self.error is not None:
                raise self.error

        return run


def tainted():
    """A sum behind a softmax, with a reshape between them: the sum needs float32, the reshape does not."""
    data = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=8, name="fc")
    data = mx.sym.reshape(mx.sym.softmax(data, name="prob"), shape=(-1, 4), name="shaped")
    data = mx.sym.broadcast_add(data, data, name="sum")
    return Network(mx.sym.FullyConnected(data, num_hidden=8, name="last"), {"data": (2, 8)})


def choice_of(problem, **labels):
    found = [labels.get(group.names[0]) for group in problem.choices.groups]
    assert len([label for label in found if label]) == len(labels), problem.choices.groups
    return tuple(found)


def test_a_choice_that_takes_float32_from_what_needs_it_is_not_allowed():
    problem = NetworkProblem(tainted(), POLICY)
    forced = choice_of(problem, shaped=LOW)
    plan = convert_graph(tainted().symbol, problem.choices.policy_of(forced), {"data": (2, 8)}).decisions
    low = {plan.before.nodes[position].name for position in plan.plan.placement.low}
    assert "sum" in low  # else the choice would be harmless
    assert problem.key(forced) is None
    assert problem.key(choice_of(problem, shaped=FLOAT32)) is not None


def test_choices_of_one_network_have_one_key():
    problem = NetworkProblem(tainted(), POLICY)
    assert problem.key(problem.choices.untuned) == problem.key(choice_of(problem, shaped=FLOAT32))
    assert problem.key(problem.choices.untuned) != problem.key(problem.choices.float32)


def test_results_are_asked_of_low_precision_alone():
    asked = []
    problem = NetworkProblem(tainted(), POLICY, allows=lambda policy: bool(asked.append(policy)))
    assert problem.allows(problem.choices.float32)
    assert not problem.allows(problem.choices.untuned)
    assert asked == [POLICY]


def test_moves_are_allowed_or_have_no_key_and_change_something():
    problem = NetworkProblem(tainted(), POLICY)
    untuned = problem.choices.untuned
    moves = list(problem.moves(untuned, []))
    assert moves
    assert all(move.choice != untuned and len(move.choice) == len(untuned) for move in moves)


@pytest.mark.parametrize("kind", [mx.MXNetError, ConvertError])
def test_what_does_not_convert_or_run_is_not_runnable(kind):
    network = tainted()
    network.error = kind("could not create a primitive")
    problem = NetworkProblem(network, POLICY)
    with pytest.raises(NotRunnable, match="could not create a primitive"):
        problem.build(problem.choices.untuned)


def test_short_runs_are_repeated_and_long_ones_are_not(monkeypatch):
    clock = iter(range(10**6))
    monkeypatch.setattr(stopwatch.time, "perf_counter", lambda: next(clock) * step)
    for step, runs in ((0.004, 5), (10.0, 1)):
        network = tainted()
        problem = NetworkProblem(network, POLICY)
        lap = problem.build(problem.choices.float32)
        before = network.runs
        assert lap() == pytest.approx(step / runs)
        assert network.runs - before == runs


def test_where_the_policy_does_not_run_nothing_can_be_chosen():
    problem = NetworkProblem(tainted(), POLICY, runs=False)
    assert problem.key(problem.choices.untuned) == problem.key(problem.choices.float32)
    assert not problem.choices.policy_of(problem.choices.float32).is_mixed


def test_bodies_of_loops_count_in_keys():
    def step(data, state):
        out = mx.sym.FullyConnected(data, num_hidden=4, name="inner") + state
        return out, out

    out, _ = mx.sym.contrib.foreach(step, mx.sym.var("data"), mx.sym.var("state"))
    network = Network(out, {"data": (3, 2, 4), "state": (2, 4)})
    problem = NetworkProblem(network, POLICY)
    assert problem.key(problem.choices.untuned) is not None
    assert problem.choices.groups == ()
