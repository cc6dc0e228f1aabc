"""Rounds and what they say, against rounds written by hand and against chance."""

from __future__ import annotations

import numpy as np
import pytest

from mxmp.tune.speed.race import FEWEST, MARGIN, Race, is_faster


def race_of(**times):
    race = Race()
    for turn in zip(*times.values()):
        laps = {name: (lambda seconds=seconds: seconds) for name, seconds in zip(times, turn)}
        race.run(laps)
    return race


def test_ratio_is_of_rounds_not_of_medians():
    race = race_of(a=[1.0, 10.0, 100.0], b=[2.0, 20.0, 50.0])
    assert race.ratio("a", "b") == 0.5


def test_rounds_that_one_sat_out_do_not_count():
    race = Race()
    race.run({"a": lambda: 1.0, "b": lambda: 2.0})
    race.run({"a": lambda: 9.0})
    assert race.ratio("a", "b") == 0.5
    assert race.seconds("a") == 5.0


def test_contenders_take_turns_in_both_orders():
    order = []
    race = Race()
    for _ in range(2):
        race.run({name: lambda name=name: order.append(name) or 1.0 for name in "abc"})
    assert order == list("abccba")


def test_who_did_not_run_has_no_time():
    race = race_of(a=[1.0])
    assert race.seconds("b") is None
    assert race.ratio("a", "b") is None


def test_few_rounds_say_nothing():
    assert not is_faster([0.1] * (FEWEST - 1))
    assert is_faster([0.1] * FEWEST)


def test_a_difference_within_the_margin_is_noise():
    assert not is_faster([1 - MARGIN + 0.001] * 20)
    assert is_faster([1 - MARGIN - 0.001] * 20)


@pytest.mark.parametrize(("slower", "expected"), [(0, True), (1, True), (2, False)])
def test_one_round_of_seven_may_disagree(slower, expected):
    assert is_faster([0.8] * (7 - slower) + [1.1] * slower) is expected


def test_rounds_of_equal_networks_are_hardly_ever_faster():
    random = np.random.RandomState(0)
    ratios = np.exp(
        random.normal(scale=0.08, size=(4000, 9))
    )  # 8 %: more than was ever seen on machines with other work
    wrong = np.mean([is_faster(list(each)) for each in ratios])
    assert wrong < 0.01


def test_scatter_is_relative_to_the_median():
    assert race_of(a=[2.0, 2.0, 2.0]).scatter("a") == 0
    assert race_of(a=[1.0, 2.0, 3.0]).scatter("a") == 0.5
    assert Race().scatter("a") == 0


@pytest.mark.parametrize("rounds, needed", [(5, 5), (7, 6), (9, 8), (18, 13)])
def test_as_many_rounds_must_agree_as_chance_gives_once_in_16_times(rounds, needed):
    """Of a fair coin's throws at least 6 of 7 are heads in 8 of 128 cases, 13 of 18 in 4.8 %, 12 of 18 in 11.9 %."""

    def ratios(agreeing):
        return [0.8] * agreeing + [1.2] * (rounds - agreeing)

    assert is_faster(ratios(needed))
    assert not is_faster(ratios(needed - 1))
