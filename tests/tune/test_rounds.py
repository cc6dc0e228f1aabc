"""Rounds and laps, on a clock that is told: times written by hand, and chance."""

import numpy as np
import pytest

from mxmp.tune.speed import FEWEST, MARGIN, Rounds, Stopwatch, is_faster


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


@pytest.mark.parametrize("seconds, runs", [(0.03, 1), (0.004, 5), (1e-6, 100)])
def test_a_lap_has_as_many_runs_as_the_first_network_needs_for_one_that_is_long_enough(seconds, runs, monkeypatch):
    watch, calls = Stopwatch(), []
    monkeypatch.setattr("time.perf_counter", lambda: seconds * len(calls))
    laps = [watch.lap_of(lambda: calls.append(0)) for _ in range(2)]
    assert laps[0]() == pytest.approx(seconds) and len(calls) == (runs + 1 if runs > 1 else 1)
    before = len(calls)
    assert laps[1]() == pytest.approx(seconds) and len(calls) - before == runs
