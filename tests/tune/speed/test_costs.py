"""Costs of a network: what changes save, corrected by what was measured, and the cut on them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from mxmp.passes.decide import FLOAT32, LOW
from mxmp.tune.speed.choices import Choices
from mxmp.tune.speed.costs import NetworkCosts, Observation
from mxmp.tune.speed.roofline import Speeds
from tests.tune.speed.fakes import FakeProblem, Times, residual_network

BASE = {"Convolution": (1.0, 0.4), "BatchNorm": (0.2, 0.12), "Activation": (0.1, 0.06), "elemwise_add": (0.1, 0.06)}
NETWORK = residual_network()


def costs_of(problem, seconds=None):
    parts = [(problem.graph, problem.facts, problem.plan)]
    return NetworkCosts(parts, problem.choices, Speeds(), True, seconds)


def state_of(problem, choice):
    return (problem.key(choice).nodes,)


def labellings(problem, costs):
    """Yield all states in which each group runs in one precision."""
    start = state_of(problem, problem.choices.float32)
    for bits in itertools.product([False, True], repeat=len(problem.choices.groups)):
        yield costs.flipped(start, {number for number, bit in enumerate(bits) if bit}, True)


def find(problem, op, channels):
    return next(n for n, each in enumerate(problem.choices.groups) if each.op == op and each.shape[1] == channels)


def test_estimates_are_scaled_to_the_time_of_the_float32_network():
    problem = FakeProblem(*NETWORK, Times(BASE))
    costs = costs_of(problem, 7.0)
    assert costs.group_seconds(state_of(problem, problem.choices.float32)).sum() == pytest.approx(7.0)


def test_shares_of_a_state_are_counted_once():
    problem = FakeProblem(*NETWORK, Times(BASE))
    costs, state = costs_of(problem), (frozenset(range(0, len(NETWORK[0].nodes), 2)),)
    low = {problem.graph.nodes[position].name for position in state[0]}
    expected = [sum(name in low for name in group.names) / len(group.names) for group in problem.choices.groups]
    found = costs.low_shares(state)
    np.testing.assert_allclose(found, expected)
    assert costs.low_shares(state) is found and not found.flags.writeable


@pytest.mark.parametrize(
    "slow",
    [{}, {("Convolution", 16): (1.0, 2.0)}, {("BatchNorm", 32): (0.2, 4.0)}, {"Activation": (0.1, 1.0)}],
    ids=["nothing", "convolutions", "normalisations", "activations"],
)
def test_the_cut_on_oneDNNs_times_is_the_best_of_all_labellings(slow):
    problem = FakeProblem(*NETWORK, Times({**BASE, **slow}, cast=0.0))
    costs = costs_of(problem, problem.seconds(problem.choices.float32))
    both = problem.choices.float32, problem.choices.untuned
    for choice, account in zip(both, problem.accounts(both, None)):
        costs.set_times(state_of(problem, choice), account.seconds)
    start, cut = state_of(problem, problem.choices.float32), costs.cut()
    best = max(costs.gain(start, each)[0] for each in labellings(problem, costs))
    assert costs.gain(start, cut)[0] >= best - 1e-6
    labels = dict(zip(problem.choices.groups, costs.labels(cut)))
    for group, label in labels.items():
        float32, low = problem.times.operators.get((group.op, group.shape[1]), problem.times.operators[group.op])
        if low > 3 * float32:
            assert label == FLOAT32


def test_times_of_mixed_groups_are_not_taken():
    problem = FakeProblem(*NETWORK, Times(BASE))
    costs, number = costs_of(problem), find(problem, "Activation", 16)
    nodes = [i for i, node in enumerate(problem.graph.nodes) if node.name in problem.choices.groups[number].names]
    before = costs.group_seconds((frozenset(),))[number]
    costs.set_times((frozenset(nodes[:1]),), {number: 100.0})
    assert costs.group_seconds((frozenset(),))[number] == before
    costs.set_times((frozenset(),), {number: 100.0})
    assert costs.group_seconds((frozenset(),))[number] == 100.0


def test_a_measured_loss_turns_the_cut():
    problem = FakeProblem(*NETWORK, Times(BASE))
    costs = costs_of(problem, 10.0)
    numbers = {n for n, group in enumerate(problem.choices.groups) if group.op == "BatchNorm"}
    low = state_of(problem, problem.choices.untuned)
    without = costs.flipped(low, numbers, False)
    assert costs.low_shares(costs.cut())[list(numbers)].all()
    costs.correct([Observation(low, without, seconds=5.0, ratio=0.25)])
    assert not costs.low_shares(costs.cut())[list(numbers)].any()
    assert costs.low_shares(costs.cut())[find(problem, "Convolution", 32)] == 1.0


def test_measurements_of_whole_choices_give_the_savings_of_single_operators():
    """Each group alone, and pairs of them: the true savings come out, about to within the noise that is allowed for."""
    times = Times({**BASE, ("BatchNorm", 32): (0.2, 1.2), ("Convolution", 16): (1.0, 1.6)}, cast=0.0)
    problem = FakeProblem(*NETWORK, times)
    costs = costs_of(problem, problem.seconds(problem.choices.float32))
    base = state_of(problem, problem.choices.float32)
    seconds = times.of(problem.graph, problem.facts.shapes, base[0])
    observations = []
    for numbers in itertools.chain(*(itertools.combinations(range(len(problem.choices.groups)), n) for n in (1, 2))):
        after = costs.flipped(base, set(numbers), True)
        taken = times.of(problem.graph, problem.facts.shapes, after[0])
        observations.append(Observation(base, after, taken, taken / seconds))
    costs.correct(observations)
    for number, group in enumerate(problem.choices.groups):
        float32, low = times.operators.get((group.op, group.shape[1]), times.operators[group.op])
        saved, deviation = costs.gain(base, costs.flipped(base, {number}, True))
        assert saved == pytest.approx(len(group.names) * (float32 - low), abs=0.07 * seconds), str(group)
        assert deviation < 0.05 * seconds


def test_one_disturbed_measurement_among_many_does_not_decide():
    problem = FakeProblem(*NETWORK, Times(BASE))
    costs = costs_of(problem, 10.0)
    number = find(problem, "Convolution", 32)
    base = state_of(problem, problem.choices.float32)
    after = costs.flipped(base, {number}, True)
    ratios = [0.8, 0.82, 0.79, 0.81, 1.2]
    costs.correct([Observation(base, after, 10 * ratio, ratio) for ratio in ratios])
    saved, _ = costs.gain(base, after)
    assert 0.8 < saved < 1.6


def test_only_casts_that_are_new_cost():
    problem = FakeProblem(*NETWORK, Times(BASE))
    costs = costs_of(problem)
    number = find(problem, "Convolution", 16)
    low = state_of(problem, problem.choices.untuned)
    change = costs.flipped(low, {number}, False)
    there, back = costs.gain(low, change)[0], costs.gain(change, low)[0]
    assert there == pytest.approx(-back)
    assert costs.gain(low, low) == (0.0, 0.0)
    saved = costs.group_seconds(low).sum() - costs.group_seconds(change).sum()
    assert there < saved  # casts are more in the middle of a network


def test_labels_follow_the_more_of_a_groups_nodes_and_float32_in_a_tie():
    problem = FakeProblem(*NETWORK, Times(BASE))
    costs, number = costs_of(problem), find(problem, "Activation", 16)
    nodes = [i for i, node in enumerate(problem.graph.nodes) if node.name in problem.choices.groups[number].names]
    assert len(nodes) == 4
    assert costs.labels((frozenset(nodes[:2]),))[number] == FLOAT32
    assert costs.labels((frozenset(nodes[:3]),))[number] == LOW
    gains = find(problem, "Convolution", 16)
    assert costs.labels(state_of(problem, problem.choices.untuned))[gains] is None


def test_neighbours_are_the_groups_that_read_or_are_read():
    problem = FakeProblem(*NETWORK, Times(BASE))
    costs = costs_of(problem)
    groups = problem.choices.groups
    found = {groups[n].op for n in costs.neighbours[find(problem, "BatchNorm", 16)]}
    assert found == {"Convolution", "Activation", "elemwise_add"}
    assert all(number not in beside for number, beside in enumerate(costs.neighbours))


def test_a_network_without_groups_has_no_costs():
    problem = FakeProblem(*NETWORK, Times(BASE))
    problem.choices = Choices(problem.choices.policy, (), {})
    costs = costs_of(problem, 3.0)
    base = state_of(problem, problem.choices.float32)
    costs.correct([Observation(base, base, 1.0, 1.0)])
    assert costs.gain(base, base) == (0.0, 0.0)
    assert np.isclose(costs.seconds(base), 0.0)
