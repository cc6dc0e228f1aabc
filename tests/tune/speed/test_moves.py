"""What is tried next: that the fastest plan of a network with known times is found, and after how many trials."""

from __future__ import annotations

import pytest

from mxmp.passes.decide import FLOAT32, LOW
from mxmp.tune.speed.choices import Choices
from mxmp.tune.speed.moves import MOST
from mxmp.tune.speed.plan_search import PlanSearch, Proposal, Trial
from mxmp.tune.speed.starts import find_starts
from mxmp.tune.speed.suspects import Account
from tests.tune.speed.fakes import FakeProblem, Times, residual_network

BASE = {"Convolution": (1.0, 0.4), "BatchNorm": (0.2, 0.12), "Activation": (0.1, 0.06), "elemwise_add": (0.1, 0.06)}
NETWORK = residual_network(((4, 16, 32), (4, 32, 16), (4, 64, 8)))


def reads_normalisation(op, low, other, other_low):
    """As in ResNet-20: an activation in low precision sends the BatchNorm before it to reference code."""
    return 3.0 if (op, other) == ("BatchNorm", "Activation") and low and other_low else 0.0


def reads_sum(op, low, other, other_low):
    return 3.0 if (op, other) == ("BatchNorm", "elemwise_add") and low and other_low else 0.0


TIMES = {
    "costs that add up": Times(BASE),
    "activations behind normalisations": Times(BASE, pairs=reads_normalisation),
    "sums behind normalisations": Times(BASE, pairs=reads_sum),
    "normalisations of one stage": Times({**BASE, ("BatchNorm", 32): (0.2, 2.0)}),
    "something else in each stage": Times(
        {**BASE, ("Convolution", 16): (1.0, 2.0), ("BatchNorm", 32): (0.2, 1.0), ("Activation", 64): (0.1, 1.5)}
    ),
    "all normalisations": Times({**BASE, "BatchNorm": (0.2, 3.0)}),
    "casts dearer than all else": Times({**BASE, "BatchNorm": (0.5, 0.1)}, cast=0.5),
    "all of low precision": Times({op: (1.0, 1.5) for op in BASE}),
}


def one_by_one(problem):
    """Return moves without an order of their own: operators and groups as the network has them."""
    groups = problem.choices.groups
    kinds = list(dict.fromkeys(group.op for group in groups))
    members = [[i for i, group in enumerate(groups) if group.op == kind] for kind in kinds]
    members += [[i] for i in range(len(groups))]

    def moves(choice, trials):
        for numbers in members:
            for label in problem.choices.labels(numbers[0]):
                yield Proposal("", tuple(label if i in numbers else old for i, old in enumerate(choice)))

    return moves


def search(times, moves=lambda problem: problem.ordered(accounts_of=problem.accounts)):
    """Return a search's problem, what it found, and the seconds of each trial."""
    problem = FakeProblem(*NETWORK, times, moves)
    found = PlanSearch(problem, 1e9, now=problem.now).run()
    return problem, found, [problem.seconds(each.choice) for each in found.trials]


def trials_until(seconds, best):
    """Return after how many trials one was within the noise of the best, infinity if none was."""
    return next((number for number, each in enumerate(seconds, 1) if each <= 1.05 * best), float("inf"))


@pytest.fixture(scope="module")
def fastest():
    """The least seconds of each case, by brute force over the labels of all groups."""
    return {name: FakeProblem(*NETWORK, times).fastest() for name, times in TIMES.items()}


@pytest.mark.parametrize("name", TIMES)
def test_the_fastest_plan_is_found_to_within_the_noise(name, fastest):
    problem, found, _ = search(TIMES[name])
    best = min(fastest[name], problem.seconds(problem.choices.float32))
    assert problem.seconds(found.choice) <= best / 0.95


@pytest.mark.parametrize("name", ["normalisations of one stage", "something else in each stage", "all normalisations"])
def test_oneDNNs_times_lead_to_it_with_the_first_move(name, fastest):
    problem, _, seconds = search(TIMES[name])
    starts = len(find_starts(problem.choices)) - 1  # float32 is no trial
    assert trials_until(seconds, fastest[name]) <= starts + 1


@pytest.mark.parametrize("name", ["normalisations of one stage", "something else in each stage"])
def test_costs_lead_to_it_sooner_than_trying_one_by_one(name, fastest):
    tried = {
        order: trials_until(search(TIMES[name], moves)[2], fastest[name])
        for order, moves in (("one by one", one_by_one), ("by costs", FakeProblem.ordered))
    }
    assert tried["by costs"] < tried["one by one"]


def test_what_cannot_win_is_not_tried():
    times = TIMES["costs that add up"]
    problem = FakeProblem(*NETWORK, times, one_by_one)
    changes = set(map(problem.key, (each.choice for each in problem.moves(problem.choices.untuned, []))))
    _, _, seconds = search(times)
    assert len(seconds) - (len(find_starts(problem.choices)) - 1) < len(changes) - 1


def moves_from(problem, choice, trials=(), **options):
    return list(problem.ordered(**options)(choice, list(trials)))


def test_nothing_is_proposed_twice_nor_what_was_measured():
    problem = FakeProblem(*NETWORK, TIMES["costs that add up"])
    choices = problem.choices
    trials = [Trial("", choice, choices.float32, 1.0, 1.0, False) for _, choice in find_starts(choices)[2:]]
    found = moves_from(problem, choices.float32, trials)
    keys = [problem.key(each.choice) for each in found]
    assert len(found) > 3
    assert len(set(keys)) == len(keys) <= MOST
    assert not {problem.key(each.choice) for each in trials} & set(keys)
    assert problem.key(choices.float32) not in keys


def test_proposals_are_labels_that_the_groups_may_have():
    problem = FakeProblem(*NETWORK, TIMES["costs that add up"])
    for choice in (problem.choices.float32, problem.choices.untuned):
        for proposal in moves_from(problem, choice):
            labels = zip(proposal.choice, map(problem.choices.labels, range(len(choice))))
            assert all(label in allowed for label, allowed in labels)


def test_choices_that_are_not_allowed_are_left_out():
    problem = FakeProblem(*NETWORK, TIMES["costs that add up"])
    key, norms = problem.key, {i for i, node in enumerate(problem.graph.nodes) if node.op == "BatchNorm"}
    problem.key = lambda choice: None if norms & key(choice).nodes else key(choice)
    found = moves_from(problem, problem.choices.float32)
    assert found
    assert not [each.name for each in found if norms & key(each.choice).nodes]


def test_a_network_in_which_nothing_can_be_chosen_has_no_moves():
    problem = FakeProblem(*NETWORK, TIMES["costs that add up"])
    problem.choices = Choices(problem.choices.policy, (), {})
    assert moves_from(problem, problem.choices.untuned) == []


def slow_norms(problem):
    """Return accounts of which the first that is not float32 has all BatchNorms in reference code."""
    norms = {n: 5.0 for n, group in enumerate(problem.choices.groups) if group.op == "BatchNorm"}
    rest = {n: 1.0 for n, group in enumerate(problem.choices.groups) if n not in norms}
    return lambda choices, seconds: [
        Account({**rest, **dict.fromkeys(norms, 1.0)}, {}),
        Account({**rest, **norms}, norms),
    ]


def test_reference_code_and_what_stands_beside_it_come_before_all_but_cuts():
    problem = FakeProblem(*NETWORK, TIMES["costs that add up"])
    found = moves_from(problem, problem.choices.untuned, accounts_of=slow_norms(problem))
    names = [each.name for each in found if not each.name.startswith("the least")]
    suspects = [name for name in names if "reference code" in name]
    assert names[: len(suspects)] == suspects
    assert "Activation beside BatchNorm that ran in reference code: float32" in suspects


def test_no_group_is_suspected_in_a_precision_in_which_it_was_fast():
    problem = FakeProblem(*NETWORK, TIMES["costs that add up"])
    found = moves_from(problem, problem.choices.float32, accounts_of=slow_norms(problem))
    assert not [each.name for each in found if "reference code" in each.name]


def test_accounts_are_asked_for_once_and_only_when_something_is_to_be_tried():
    problem = FakeProblem(*NETWORK, TIMES["costs that add up"])
    asked = []

    def accounts(choices, seconds):
        asked.append((choices, seconds))
        return []

    moves = problem.ordered(accounts_of=accounts)
    first = moves(problem.choices.float32, [])
    assert asked == []
    next(first)
    next(moves(problem.choices.untuned, []))
    assert asked == [([problem.choices.float32, problem.choices.untuned], None)]


def test_followers_by_bytes_are_held_where_they_would_lose():
    """Convolutions in low precision take the activations along, unless these were seen to be slow there."""
    problem = FakeProblem(*NETWORK, Times({**BASE, "Activation": (0.1, 2.0)}))
    groups = problem.choices.groups
    convolutions = tuple(FLOAT32 if group.gains else None for group in groups)
    activations = {i for i, node in enumerate(problem.graph.nodes) if node.op == "Activation"}
    assert activations <= problem.key(problem.choices.untuned).nodes
    assert not activations & problem.key(convolutions).nodes
    both = [Trial("", problem.choices.untuned, problem.choices.float32, 2.0, 2.0, False)]
    found = moves_from(problem, convolutions, both, accounts_of=problem.accounts)
    (stage,) = [each for each in found if each.name == "5 Convolution of 4x16x32x32: bfloat16"]
    assert not activations & problem.key(stage.choice).nodes
    followed = tuple(
        None if group.gains and group.shape[1] == 16 else label for group, label in zip(groups, convolutions)
    )
    assert activations & problem.key(followed).nodes


def test_the_cut_leaves_to_the_bytes_what_they_decide_alike():
    problem = FakeProblem(*NETWORK, Times({**BASE, ("BatchNorm", 32): (0.2, 3.0)}, cast=0.01))
    first = moves_from(problem, problem.choices.float32, accounts_of=problem.accounts)[0]
    assert first.name == "the least by estimated costs"
    norms = {
        group.shape[1]: label for group, label in zip(problem.choices.groups, first.choice) if group.op == "BatchNorm"
    }
    assert norms[32] == FLOAT32
    assert norms[16] is None
    explicit = [group.shape[1] for group, label in zip(problem.choices.groups, first.choice) if label == LOW]
    assert set(explicit) <= {32}  # behind the BatchNorm in float32, where the bytes would decide otherwise
