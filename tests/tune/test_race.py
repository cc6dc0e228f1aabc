"""Rounds and races, on a clock that is told: rounds written by hand, candidates of known times, chance."""

import itertools

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


def test_rounds_compare_contenders_that_take_turns_in_both_orders():
    """By the ratio within each round, not by medians; a round that one sat out does not count."""
    order, rounds = [], Rounds()
    for _ in range(2):
        rounds.run({name: lambda name=name: order.append(name) or 1.0 for name in "abc"})
    assert order == list("abccba")
    rounds = rounds_of(a=[1.0, 10.0, 100.0], b=[2.0, 20.0, 50.0])
    rounds.run({"a": lambda: 9.0})
    assert (rounds.ratio("a", "b"), rounds.seconds("a"), rounds.ratio("a", "d"), rounds.seconds("d")) == (0.5, 9.5, None, None)
    assert [rounds_of(a=times).scatter("a") for times in ([2.0, 2.0, 2.0], [1.0, 2.0, 3.0], [])] == [0, 0.5, 0]


@pytest.mark.parametrize("rounds, needed", [(5, 5), (7, 6), (9, 8), (18, 13)])
def test_as_many_rounds_must_agree_as_chance_gives_once_in_16_times(rounds, needed):
    """Of a fair coin's throws at least 6 of 7 are heads in 8 of 128 cases, 13 of 18 in 4.8 %, 12 of 18 in 11.9 %."""
    said = [is_faster([0.8] * agreeing + [1.2] * (rounds - agreeing)) for agreeing in (needed, needed - 1)]
    assert said == [True, False] and not is_faster([0.1] * (FEWEST - 1)) and is_faster([0.1] * FEWEST)
    assert not is_faster([1 - MARGIN + 0.001] * 20) and is_faster([1 - MARGIN - 0.001] * 20)


def test_rounds_of_equal_networks_are_hardly_ever_faster():
    """At 8 %, more than was ever seen on machines with other work."""
    ratios = np.exp(np.random.RandomState(0).normal(scale=0.08, size=(4000, 9)))
    assert np.mean([is_faster(list(each)) for each in ratios]) < 0.01


COSTS = st.floats(0.05, 2)


@given(st.dictionaries(st.sampled_from("abcdefghij"), COSTS), COSTS, COSTS)
@settings(max_examples=40, deadline=None)
def test_the_fastest_wins_and_never_one_slower_than_float32_or_the_untuned(others, float32, untuned):
    track = Track(float32=float32, untuned=untuned, **others)
    outcome = track.race()
    best, cost = min(track.costs.values()), track.costs[outcome.fastest]
    # Trials and the last measurement each let differences within their margins pass.
    assert cost <= best / (1 - MARGIN) / (1 - FINAL_MARGIN) + 1e-9
    if outcome.fastest not in ("float32", "untuned"):
        assert cost < (1 - FINAL_MARGIN) * min(float32, untuned)


@pytest.mark.parametrize(
    "seconds, costs, fastest, untried",
    [
        (LONG, {"untuned": 0.3, "sums": 0.5}, "untuned", 0),
        (LONG, {"untuned": 2.0, "sums": 1.5}, "float32", 0),
        (LONG, {"untuned": 0.98}, "float32", 0),
        (LONG, {"untuned": 0.96}, "untuned", 0),  # the last measurement has the rounds to tell a smaller gain
        (LONG, {"untuned": None, "sums": 0.5}, "sums", 0),
        (LONG, {"untuned": 0.9, "sums": 0.89}, "untuned", 0),
        # In little time. A rival far behind takes no time from the others in the last measurement.
        (40, {"float32": 0.2, "untuned": 3.6, "sums": 3.6, "depthwise": 0.12}, "depthwise", 0),
        (40, {"untuned": 2.0, **{str(number): 1.0 for number in range(9)}}, "float32", 7),
        (1e-9, {"untuned": 0.3, "a": 0.1}, "untuned", 2),
        (40, {"float32": 100.0}, "float32", 0),
    ],
)
def test_what_wins(seconds, costs, fastest, untried):
    track = Track(**{"float32": 1.0, **costs})
    outcome = track.race(seconds)
    assert outcome.proved and not outcome.interrupted
    assert (outcome.fastest, len(outcome.untried)) == (fastest, untried)
    assert outcome.seconds["float32"] == track.costs["float32"] and len(outcome.trials) + untried == len(track.costs) - 1
    assert fastest in outcome.seconds and (seconds < LONG or ("untuned" in outcome.seconds) == bool(costs["untuned"]))
    assert len(track.costs) > 1 or track.time == BUILDING + 100  # without rivals it is built once and runs once


@pytest.mark.parametrize("noise", [0.03, 0.08])
def test_noise_alone_wins_nothing_and_does_not_hide_a_gain(noise):
    others = {name: 1.0 for name in "abcdefgh"}
    wrong = [Track(noise, seed, float32=1.0, untuned=1.0, **others).race().fastest != "float32" for seed in range(20)]
    assert sum(wrong) <= 1
    right = [Track(noise, seed, float32=1.0, untuned=1.2, **others, best=0.7).race().fastest for seed in range(20)]
    assert right.count("best") >= 19


def test_each_candidate_is_raced_once_against_the_best_before_and_the_best_is_measured_anew():
    track = Track(float32=1.0, untuned=1.2, a=0.5, b=None, c=1.0, d=0.4)
    outcome = track.race()
    trials = {each.name: (each.seconds, each.ratio, each.won) for each in outcome.trials}
    assert list(trials) == ["untuned", "a", "b", "c", "d"] and trials["untuned"] == (1.2, 1.2, False)
    assert trials["a"] == (0.5, 0.5, True) and trials["b"][:2] == (None, None)
    assert trials["c"][1] == 2.0  # to a, which had won
    assert track.built[-3:] == ["float32", "untuned", "d"] == list(outcome.seconds)
    assert len(track.built[:-3]) == len(set(track.built[:-3])) == 5
    with pytest.raises(NotRunnable, match="no kernel"):
        Track(float32=None, untuned=1.0).race()


def test_a_candidate_that_is_faster_but_not_allowed_is_not_taken():
    track = Track(float32=1.0, untuned=0.2, a=0.1, b=0.6, c=0.9)
    track.allowed = {"b"}
    assert track.race().fastest == "b" and "c" not in track.asked
    track.allowed = set()
    assert track.race().fastest == "float32"


@pytest.mark.parametrize("seconds, faster", [(LONG, True), (30.0, False)])
def test_a_gain_on_which_rounds_disagree_is_measured_twice_as_often_if_there_is_time(seconds, faster):
    track, count = Track(float32=1.0, untuned=0.5), itertools.count(1)

    def factor(name):  # in the last measurement; of nine rounds one may disagree, of eighteen five
        return 10 if name == "untuned" and track.built.count(name) > 1 and next(count) in (3, 6) else 1

    track.factor = factor
    outcome = track.race(seconds)
    assert (outcome.fastest == "untuned") == faster and outcome.seconds["untuned"] == 0.5


@pytest.mark.parametrize("limit", [30.0, 60.0])
@pytest.mark.parametrize("step", [0.1, 1.5])
def test_the_time_is_kept_to(limit, step):
    track = Track(float32=step, untuned=1.1 * step, **{name: 0.9 * step for name in "abcdefghij"})
    outcome = track.race(limit)
    assert limit / 4 <= track.time <= limit + 3 * BUILDING + FINAL_ROUNDS * 3.2 * step / 2
    assert outcome.proved and outcome.trials and all(each.seconds for each in outcome.trials)


@pytest.mark.parametrize("laps, proved, fastest", [([10], True, "a"), ([10, 13], False, "a"), ([0, 0], False, "float32")])
def test_an_interrupt_gives_the_best_so_far_and_a_second_one_ends_the_last_measurement(laps, proved, fastest):
    track, waiting = Track(float32=1.0, untuned=1.1, a=0.5, b=1.3, c=0.4), [*laps]

    def interrupted(name):
        if waiting and track.laps >= waiting[0]:
            del waiting[0]
            raise KeyboardInterrupt
        return 1

    track.factor = interrupted
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
