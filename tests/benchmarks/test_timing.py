"""Statistics of rounds, and the turns that runs take."""

from __future__ import annotations

import itertools

import pytest

from benchmarks import timing


def test_summarize_gives_median_and_quartiles():
    summary = timing.summarize([4.0, 1.0, 2.0, 3.0, 5.0])
    assert summary == (3.0, 2.0, 4.0, 5)
    assert summary.scatter == pytest.approx(2 / 3)


def test_summarize_of_one_round_has_no_scatter():
    assert timing.summarize([0.5]).scatter == 0


def test_speed_compares_neighbours_in_time():
    """A machine that becomes ten times slower midway hides nothing: the ratio of medians would say 1."""
    base = [2.0, 2.0, 20.0, 20.0, 20.0]
    other = [1.0, 1.0, 10.0, 10.0, 10.0]
    assert timing.speed(base, other) == 2.0
    assert timing.speed([1.0, 10.0], [2.0, 20.0]) == 0.5


def test_geometric_mean_of_inverses_is_the_inverse():
    values = [1.5, 2.5, 0.4]
    mean = timing.geometric_mean(values)
    assert mean == pytest.approx((1.5 * 2.5 * 0.4) ** (1 / 3))
    assert timing.geometric_mean([1 / each for each in values]) == pytest.approx(1 / mean)


def test_timer_measures_the_run():
    clock = itertools.count(0, 7).__next__
    calls = []
    assert timing.timer(lambda: calls.append(1), clock)() == 7
    assert calls == [1]


def turns(rounds, until, seconds_each=1.0):
    now, order = [0.0], []

    def run(name):
        def timed():
            order.append(name)
            now[0] += seconds_each
            return seconds_each

        return timed

    found = timing.take_turns({name: run(name) for name in "abc"}, rounds, until, lambda: now[0])
    return found, "".join(order)


def test_take_turns_goes_back_and_forth():
    found, order = turns(rounds=3, until=100)
    assert order == "abccbaabc"
    assert found == {name: [1.0, 1.0, 1.0] for name in "abc"}


def test_take_turns_ends_between_rounds_when_the_until_is_spent():
    found, order = turns(rounds=50, until=14)
    assert len(order) == 15  # the fifth round was begun at 12 s
    assert {len(each) for each in found.values()} == {5}


def test_take_turns_measures_three_rounds_however_long_they_take():
    _, order = turns(rounds=50, until=0)
    assert len(order) == 3 * timing.LEAST_ROUNDS
    _, order = turns(rounds=1, until=0)
    assert len(order) == 3
