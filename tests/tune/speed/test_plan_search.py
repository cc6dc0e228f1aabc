"""The search on networks with known costs and a clock of their own: its optimum is known by brute force."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mxmp.passes.decide import FLOAT32, LOW
from mxmp.tune.speed.plan_search import FINAL_ROUNDS, NotRunnable, PlanSearch, Trial
from mxmp.tune.speed.race import FINAL_MARGIN, MARGIN
from tests.tune.speed.problems import BUILDING, FakeProblem

LONG = 1e6


def search(problem, seconds=LONG, **options):
    return PlanSearch(problem, seconds, now=problem.now, **options).run()


@given(
    st.lists(
        st.tuples(st.sampled_from([0.2, 0.5, 1.0, 2.0]), st.sampled_from([0.2, 0.5, 1.0, 2.0])), min_size=1, max_size=6
    )
)
@settings(max_examples=100, deadline=None)
def test_independent_groups_end_at_the_optimum(seconds):
    problem = FakeProblem(seconds, base=0.01)
    found = search(problem)
    # What is left on the table are groups whose change is within the margin.
    assert problem.cost(found.choice) <= problem.optimum() / (1 - MARGIN) ** len(seconds)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_the_result_is_never_slower_than_float32_and_the_untuned_choice(data):
    count = data.draw(st.integers(1, 5))
    times = st.floats(0.05, 2)
    labels = st.sampled_from([FLOAT32, LOW])
    seconds = data.draw(st.lists(st.tuples(times, times), min_size=count, max_size=count))
    numbers = st.integers(0, count - 1)
    pairs = data.draw(st.lists(st.tuples(numbers, labels, numbers, labels, st.floats(0, 3)), max_size=6))
    problem = FakeProblem(seconds, pairs, base=0.1)
    found = search(problem)
    float32, untuned = problem.cost(problem.choices.float32), problem.cost(problem.choices.untuned)
    assert problem.cost(found.choice) <= min(float32, untuned) / (1 - FINAL_MARGIN) + 1e-9
    if found.choice not in (problem.choices.float32, problem.choices.untuned):
        assert problem.cost(found.choice) < (1 - FINAL_MARGIN) * min(float32, untuned)


def test_a_reference_kernel_between_layouts_is_avoided():
    """As in ResNet-20: BatchNorm is slow where the activation behind it is in low precision, and fast otherwise."""
    seconds = [(0.4, 0.1), (0.05, 0.05), (0.05, 0.03)]
    problem = FakeProblem(seconds, [(1, LOW, 2, LOW, 1.7)], base=0.0, ops=["Convolution", "BatchNorm", "Activation"])
    found = search(problem)
    assert problem.cost(found.choice) == pytest.approx(problem.optimum())
    assert found.choice != problem.choices.untuned


def test_the_untuned_choice_is_kept_where_nothing_is_faster():
    problem = FakeProblem([(1.0, 0.3), (0.5, 0.1)])
    assert search(problem).choice == problem.choices.untuned


def test_float32_is_returned_where_low_precision_is_slower():
    problem = FakeProblem([(0.3, 1.0), (0.1, 0.5)])
    assert search(problem).choice == problem.choices.float32


def test_float32_is_returned_where_the_gain_is_noise():
    problem = FakeProblem([(1.0, 0.98)], base=0.0)
    assert search(problem).choice == problem.choices.float32


def test_the_last_measurement_has_the_rounds_to_tell_a_smaller_gain():
    problem = FakeProblem([(1.0, 0.96)], base=0.0)
    assert search(problem).choice == problem.choices.untuned


@pytest.mark.parametrize("noise", [0.03, 0.08])
def test_noise_alone_wins_nothing(noise):
    chosen = [search(FakeProblem([(1.0, 1.0)] * 4, base=1.0, noise=noise, seed=seed)) for seed in range(40)]
    wrong = [found for found in chosen if FLOAT32 not in found.choice or set(found.choice) != {FLOAT32}]
    assert len(wrong) <= 2


def test_noise_does_not_hide_a_gain():
    problems = [FakeProblem([(1.0, 0.3), (0.2, 0.8)], base=0.2, noise=0.05, seed=seed) for seed in range(20)]
    near = [problem.cost(search(problem).choice) <= 1.05 * problem.optimum() for problem in problems]
    assert sum(near) >= 19


def interruptions(problem, numbers):
    """Have these laps of the untuned network, when it is built for the last measurement, take ten times as long."""
    build = problem.build

    def slowed(choice):
        lap, count = build(choice), 0

        def run():
            nonlocal count
            count += 1
            seconds = lap()
            late = choice == problem.choices.untuned and problem.built.count(problem.key(choice)) > 1
            problem.time += 9 * seconds * (late and count in numbers)
            return seconds * (10 if late and count in numbers else 1)

        return run

    problem.build = slowed


@pytest.mark.parametrize("seconds, faster", [(LONG, True), (30.0, False)])
def test_a_gain_on_which_rounds_disagree_is_measured_twice_as_often_if_there_is_time(seconds, faster):
    problem = FakeProblem([(1.0, 0.5)], base=0.0)
    interruptions(problem, {3, 6})  # of nine rounds one may disagree, of eighteen five
    found = search(problem, seconds)
    assert (found.choice == problem.choices.untuned) == faster
    assert found.seconds["untuned"] == 0.5


def test_the_last_measurement_is_of_networks_built_anew():
    problem = FakeProblem([(1.0, 0.3), (0.2, 0.8)], base=0.1)
    found = search(problem)
    last = problem.built[-3:]
    assert set(last) == {
        problem.key(problem.choices.float32),
        problem.key(problem.choices.untuned),
        problem.key(found.choice),
    }
    assert set(found.seconds) == {"float32", "untuned", "tuned"}
    assert found.seconds["tuned"] == problem.cost(found.choice)


def test_no_network_is_measured_twice_on_the_way():
    problem = FakeProblem([(1.0, 0.3), (0.2, 0.8), (0.3, 0.3)], base=0.1)
    search(problem)
    on_the_way = problem.built[:-3]
    assert len(on_the_way) == len(set(on_the_way))


def test_choices_that_are_not_allowed_are_never_built():
    problem = FakeProblem([(1.0, 0.1), (1.0, 0.1)], base=0.1)
    allowed = problem.key
    problem.key = lambda choice: None if allowed(choice) == (FLOAT32, LOW) else allowed(choice)
    search(problem)
    assert (FLOAT32, LOW) not in problem.built


def test_what_is_faster_but_not_good_enough_is_not_taken():
    problem = FakeProblem([(1.0, 0.1), (1.0, 0.1), (0.2, 0.4)], base=0.1)
    problem.allowed = lambda key: key[0] == FLOAT32
    found = search(problem)
    assert problem.key(found.choice) == (FLOAT32, LOW, FLOAT32)
    assert all(problem.allowed(problem.key(trial.choice)) for trial in found.trials if trial.won)


def test_nothing_good_enough_is_float32():
    problem = FakeProblem([(1.0, 0.1), (1.0, 0.1)], base=0.1)
    problem.allowed = lambda key: False
    assert search(problem).choice == problem.choices.float32


def test_what_does_not_run_is_passed_over():
    problem = FakeProblem([(1.0, 0.3), (1.0, 0.2)], base=0.1, broken=[1])
    found = search(problem)
    assert problem.key(found.choice) == (LOW, FLOAT32)
    assert any(trial.seconds is None for trial in found.trials)
    assert "untuned" not in found.seconds


def test_a_float32_network_that_does_not_run_is_an_error():
    problem = FakeProblem([(1.0, 0.3)])

    def build(choice):
        raise NotRunnable("out of memory")

    problem.build = build
    with pytest.raises(NotRunnable, match="out of memory"):
        search(problem)


@pytest.mark.parametrize("limit", [60.0, 120.0])
def test_the_time_is_kept_to(limit):
    problem = FakeProblem([(0.2, 0.1)] * 12, base=1.0)
    search(problem, seconds=limit)
    longest = 4 * BUILDING + FINAL_ROUNDS * 4 * problem.cost(problem.choices.float32)
    assert problem.time <= limit + longest
    assert problem.time >= limit / 4


@pytest.mark.parametrize("step, slow", [(0.9, 1.05), (0.9, 2.0), (1.5, 1.05)])
def test_the_time_is_kept_to_with_long_steps(step, slow):
    """As ResNet-50's are: time that is over is noticed between networks that are built, and between rounds."""
    problem = FakeProblem([(step / 8, step / 8 * low) for low in (0.8, slow, 0.9, slow) * 2], base=0.0)
    found = search(problem, seconds=60.0)
    assert problem.time <= 60.5
    assert found.trials and all(trial.seconds for trial in found.trials)


def test_even_no_time_gives_a_proved_answer():
    problem = FakeProblem([(1.0, 0.3)])
    found = search(problem, seconds=1e-9)
    assert found.proved
    assert set(found.seconds) <= {"float32", "untuned"}
    assert found.choice == problem.choices.untuned


def interrupt_at(problem, laps):
    """Have the problem's clock interrupted when it has run so many laps."""
    build, waiting = problem.build, list(laps)

    def interrupted(choice):
        lap = build(choice)

        def run():
            if waiting and problem.laps >= waiting[0]:
                waiting.pop(0)
                raise KeyboardInterrupt
            return lap()

        return run

    problem.build = interrupted


def test_an_interrupt_gives_the_best_so_far_proved():
    problem = FakeProblem([(1.0, 0.3), (0.2, 0.8)], base=0.1)
    interrupt_at(problem, [12])
    found = search(problem)
    assert found.interrupted
    assert found.proved
    assert problem.cost(found.choice) <= problem.cost(problem.choices.float32)


def test_a_second_interrupt_ends_the_last_measurement():
    problem = FakeProblem([(1.0, 0.3), (0.2, 0.8)], base=0.1)
    interrupt_at(problem, [14, 15])
    found = search(problem)
    assert found.interrupted
    assert not found.proved
    assert problem.cost(found.choice) <= problem.cost(problem.choices.float32)


def test_an_interrupt_before_anything_was_measured_gives_float32():
    problem = FakeProblem([(1.0, 0.3)])
    interrupt_at(problem, [0, 0])
    found = search(problem)
    assert found.choice == problem.choices.float32
    assert not found.proved


def test_trials_say_what_each_change_won():
    problem = FakeProblem([(1.0, 0.2), (0.2, 0.8)], base=0.0)
    trials = search(problem).trials
    assert all(isinstance(trial, Trial) for trial in trials)
    untuned = next(trial for trial in trials if trial.name == "untuned")
    assert untuned.ratio == pytest.approx(1.0 / 1.2)
    assert untuned.seconds == pytest.approx(1.0)
    assert [trial for trial in trials if trial.won]


def test_progress_never_goes_back():
    shares = []
    problem = FakeProblem([(1.0, 0.3), (0.2, 0.8)], base=0.1)
    search(problem, seconds=200.0, on_trial=lambda name, share: shares.append(share))
    assert shares == sorted(shares)
    assert shares[0] >= 0
