"""Rounds and races, on a clock that is told: rounds written by hand, candidates of known times, chance."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mxmp.tune.race import FEWEST, FINAL_MARGIN, FINAL_ROUNDS, MARGIN, NotRunnable, Rounds, Stopwatch, is_faster
from tests.tune.races import BUILDING, LONG, Track


def rounds_of(**times):
    rounds = Rounds()
    for turn in zip(*times.values()):
        rounds.run({name: (lambda seconds=seconds: seconds) for name, seconds in zip(times, turn)})
    return rounds


def test_ratio_is_of_rounds_not_of_medians():
    assert rounds_of(a=[1.0, 10.0, 100.0], b=[2.0, 20.0, 50.0]).ratio("a", "b") == 0.5


def test_rounds_that_one_sat_out_do_not_count():
    rounds = rounds_of(a=[1.0], b=[2.0])
    rounds.run({"a": lambda: 9.0})
    assert (rounds.ratio("a", "b"), rounds.seconds("a")) == (0.5, 5.0)
    assert rounds.seconds("c") is rounds.ratio("a", "c") is None


def test_contenders_take_turns_in_both_orders():
    order, rounds = [], Rounds()
    for _ in range(2):
        rounds.run({name: lambda name=name: order.append(name) or 1.0 for name in "abc"})
    assert order == list("abccba")


def test_a_difference_within_the_margin_is_noise_and_few_rounds_say_nothing():
    assert not is_faster([1 - MARGIN + 0.001] * 20) and is_faster([1 - MARGIN - 0.001] * 20)
    assert not is_faster([0.1] * (FEWEST - 1)) and is_faster([0.1] * FEWEST)


@pytest.mark.parametrize("rounds, needed", [(5, 5), (7, 6), (9, 8), (18, 13)])
def test_as_many_rounds_must_agree_as_chance_gives_once_in_16_times(rounds, needed):
    """Of a fair coin's throws at least 6 of 7 are heads in 8 of 128 cases, 13 of 18 in 4.8 %, 12 of 18 in 11.9 %."""
    said = [is_faster([0.8] * agreeing + [1.2] * (rounds - agreeing)) for agreeing in (needed, needed - 1)]
    assert said == [True, False]


def test_rounds_of_equal_networks_are_hardly_ever_faster():
    """At 8 %, more than was ever seen on machines with other work."""
    ratios = np.exp(np.random.RandomState(0).normal(scale=0.08, size=(4000, 9)))
    assert np.mean([is_faster(list(each)) for each in ratios]) < 0.01


def test_scatter_is_relative_to_the_median():
    assert rounds_of(a=[2.0, 2.0, 2.0]).scatter("a") == 0
    assert rounds_of(a=[1.0, 2.0, 3.0]).scatter("a") == 0.5
    assert Rounds().scatter("a") == 0


COSTS = st.floats(0.05, 2)


@given(st.dictionaries(st.sampled_from("abcdefghij"), COSTS), COSTS, COSTS)
@settings(max_examples=100, deadline=None)
def test_the_fastest_wins_and_never_one_slower_than_float32_or_the_untuned(others, float32, untuned):
    track = Track(float32=float32, untuned=untuned, **others)
    outcome = track.race()
    best, cost = min(track.costs.values()), track.costs[outcome.fastest]
    # Trials and the last measurement each let differences within their margins pass.
    assert cost <= best / (1 - MARGIN) / (1 - FINAL_MARGIN) + 1e-9
    if outcome.fastest not in ("float32", "untuned"):
        assert cost < (1 - FINAL_MARGIN) * min(float32, untuned)


@pytest.mark.parametrize(
    "costs, fastest",
    [
        ({"untuned": 0.3, "sums": 0.5}, "untuned"),
        ({"untuned": 2.0, "sums": 1.5}, "float32"),
        ({"untuned": 0.98}, "float32"),
        ({"untuned": 0.96}, "untuned"),  # the last measurement has the rounds to tell a smaller gain
        ({"untuned": None, "sums": 0.5}, "sums"),
        ({"untuned": 0.9, "sums": 0.89}, "untuned"),
        ({}, "float32"),
    ],
)
def test_what_wins(costs, fastest):
    outcome = Track(float32=1.0, **costs).race()
    assert outcome.fastest == fastest and outcome.proved and not outcome.interrupted
    assert {"float32", fastest} <= set(outcome.seconds)
    assert ("untuned" in outcome.seconds) == bool(costs.get("untuned"))


@pytest.mark.parametrize(
    "seconds, costs, fastest, untried",
    [
        # A rival far behind takes no time from the others in the last measurement.
        (40, {"float32": 0.2, "untuned": 3.6, "sums": 3.6, "depthwise": 0.12}, "depthwise", 0),
        (40, {"float32": 1.0, "untuned": 2.0, **{str(number): 1.0 for number in range(9)}}, "float32", 7),
        (1e-9, {"float32": 1.0, "untuned": 0.3, "a": 0.1}, "untuned", 2),
        (40, {"float32": 100.0}, "float32", 0),
    ],
)
def test_what_wins_in_little_time(seconds, costs, fastest, untried):
    track = Track(**costs)
    outcome = track.race(seconds)
    assert outcome.proved and (outcome.fastest, len(outcome.untried)) == (fastest, untried)
    assert outcome.seconds["float32"] == costs["float32"] and len(outcome.trials) + untried == len(costs) - 1
    assert len(costs) > 1 or track.time == BUILDING + 100  # without rivals it is built once and runs once


@pytest.mark.parametrize("noise", [0.03, 0.08])
def test_noise_alone_wins_nothing_and_does_not_hide_a_gain(noise):
    others = {name: 1.0 for name in "abcdefgh"}
    wrong = [Track(noise, seed, float32=1.0, untuned=1.0, **others).race().fastest != "float32" for seed in range(40)]
    assert sum(wrong) <= 2
    right = [Track(noise, seed, float32=1.0, untuned=1.2, **others, best=0.7).race().fastest for seed in range(20)]
    assert right.count("best") >= 19


def test_the_last_measurement_is_of_networks_built_anew_and_none_is_raced_twice():
    track = Track(float32=1.0, untuned=1.2, a=0.9, b=1.1, c=0.5, d=0.6)
    outcome = track.race()
    assert track.built[-3:] == ["float32", "untuned", "c"] == list(outcome.seconds)
    assert len(track.built[:-3]) == len(set(track.built[:-3])) == 6
    assert [each.name for each in outcome.trials] == ["untuned", "a", "b", "c", "d"]


def test_trials_say_what_each_candidate_was_beside_the_best_before_it():
    trials = {each.name: each for each in Track(float32=1.0, untuned=1.5, a=0.5, b=None, c=1.0).race().trials}
    assert (trials["a"].seconds, trials["a"].ratio, trials["a"].won) == (0.5, 0.5, True)
    assert (trials["untuned"].ratio, trials["untuned"].won) == (1.5, False)
    assert trials["b"].seconds is trials["b"].ratio is None
    assert trials["c"].ratio == 2.0  # to a, which had won


def test_what_is_faster_but_not_good_enough_is_not_taken():
    track = Track(float32=1.0, untuned=0.2, a=0.1, b=0.6, c=0.9)
    track.allowed = {"b"}
    assert track.race().fastest == "b" and "c" not in track.asked
    track.allowed = set()
    assert track.race().fastest == "float32"


def slowed(track, numbers):
    """Have these laps of the untuned network, when it is built for the last measurement, take ten times as long."""
    build = track.build

    def rebuilt(name):
        lap, count = build(name), 0

        def run():
            nonlocal count
            count += 1
            seconds = lap()
            late = name == "untuned" and track.built.count(name) > 1 and count in numbers
            track.time += 9 * seconds * late
            return seconds * (10 if late else 1)

        return run

    track.build = rebuilt


@pytest.mark.parametrize("seconds, faster", [(LONG, True), (30.0, False)])
def test_a_gain_on_which_rounds_disagree_is_measured_twice_as_often_if_there_is_time(seconds, faster):
    track = Track(float32=1.0, untuned=0.5)
    slowed(track, {3, 6})  # of nine rounds one may disagree, of eighteen five
    outcome = track.race(seconds)
    assert (outcome.fastest == "untuned") == faster and outcome.seconds["untuned"] == 0.5


def test_a_reference_that_does_not_run_is_an_error():
    with pytest.raises(NotRunnable, match="no kernel"):
        Track(float32=None, untuned=1.0).race()


@pytest.mark.parametrize("limit", [30.0, 60.0])
@pytest.mark.parametrize("step", [0.1, 1.5])
def test_the_time_is_kept_to(limit, step):
    track = Track(float32=step, untuned=1.1 * step, **{name: 0.9 * step for name in "abcdefghij"})
    outcome = track.race(limit)
    assert limit / 4 <= track.time <= limit + 3 * BUILDING + FINAL_ROUNDS * 3.2 * step / 2
    assert outcome.proved and outcome.trials and all(each.seconds for each in outcome.trials)


def interrupt_at(track, laps):
    """Have the clock interrupted when it has run so many laps."""
    build, waiting = track.build, list(laps)

    def interrupted(name):
        lap = build(name)

        def run():
            if waiting and track.laps >= waiting[0]:
                waiting.pop(0)
                raise KeyboardInterrupt
            return lap()

        return run

    track.build = interrupted


@pytest.mark.parametrize("laps, proved, fastest", [([10], True, "a"), ([10, 13], False, "a"), ([0, 0], False, "float32")])
def test_an_interrupt_gives_the_best_so_far_and_a_second_one_ends_the_last_measurement(laps, proved, fastest):
    track = Track(float32=1.0, untuned=1.1, a=0.5, b=1.3, c=0.4)
    interrupt_at(track, laps)
    outcome = track.race()
    assert (outcome.fastest, outcome.proved, outcome.interrupted) == (fastest, proved, True)


def test_progress_never_goes_back():
    shown = []
    Track(float32=1.0, untuned=0.3, a=0.2).race(200.0, on_turn=lambda name, share: shown.append((share, name)))
    assert [share for share, _ in shown] == sorted(share for share, _ in shown)
    assert shown[0] == (pytest.approx(0.02), "untuned") and shown[-1][1] == "the last measurement"


@pytest.mark.parametrize("seconds, runs", [(0.03, 1), (0.004, 5), (1e-6, 100)])
def test_a_lap_has_as_many_runs_as_the_first_network_needs_for_one_that_is_long_enough(seconds, runs, monkeypatch):
    watch, calls = Stopwatch(), []
    monkeypatch.setattr("time.perf_counter", lambda: seconds * len(calls))
    laps = [watch.lap_of(lambda: calls.append(0)) for _ in range(2)]
    assert laps[0]() == pytest.approx(seconds) and len(calls) == (runs + 1 if runs > 1 else 1)
    before = len(calls)
    assert laps[1]() == pytest.approx(seconds) and len(calls) - before == runs
