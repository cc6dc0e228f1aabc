"""The dynamic loss scale: which scale follows which outcomes of steps."""

from __future__ import annotations

import logging
import math
import random

import pytest

from mxmp.errors import LossScaleError
from mxmp.loss_scale import DynamicLossScale, floor_message


def values(scale, outcomes):
    """Return the scale before each step and after the last; '+' is a finite step, '-' is not."""
    seen = [scale.value]
    for outcome in outcomes:
        scale = scale.adjust(outcome == "+")
        seen.append(scale.value)
    return seen


def run(scale, outcomes):
    """Return log2 of the scale before each step and after the last."""
    return list(map(math.log2, values(scale, outcomes)))


def after(scale, outcomes):
    for outcome in outcomes:
        scale = scale.adjust(outcome == "+")
    return scale


SIXTEEN, FULL = {"init_scale": 16}, {"init_scale": 256, "growth_interval": 2}
CUSTOM = {"init_scale": 100, "growth_factor": 3, "backoff_factor": 0.1, "growth_interval": 1}
GROWS = [8, 9, 10, 11, 12, 13, 14, 15]
TABLE = {
    "grows at every step": ({**SIXTEEN, "growth_interval": 1}, "+++", [4, 5, 6, 7]),
    "grows at every second": ({**SIXTEEN, "growth_interval": 2}, "++++", [4, 4, 5, 5, 6]),
    "an overflow resets the tracker": ({**SIXTEEN, "growth_interval": 3}, "++-+++", [4, 4, 4, 3, 3, 3, 4]),
    "never gets to grow": ({**SIXTEEN, "growth_interval": 2}, "+-+-+-", [4, 4, 3, 3, 2, 2, 1]),
    "falls, then grows": ({**SIXTEEN, "growth_interval": 2}, "--++++", [4, 3, 2, 2, 3, 3, 4]),
    "no hysteresis": ({**FULL, "hysteresis": 1}, "---", [8, 7, 6, 5]),
    "hysteresis is spent once, then each counts": ({**FULL, "hysteresis": 2}, "---", [8, 8, 7, 6]),
    "finite steps short of a growth do not refill": ({**FULL, "hysteresis": 3}, "--+-", [8, 8, 8, 8, 7]),
    "hysteresis is refilled at growth": ({**FULL, "hysteresis": 2}, "--++--", [8, 8, 7, 7, 8, 8, 7]),
    "warm-up: an eighth once, then as ever": ({}, "++-+++-", [8, 9, 10, 7, 7, 7, 7, 6]),
    "warm-up: overflows at first": ({}, "-+-", [8, 5, 5, 4]),
    "warm-up ends at 2**15": ({}, "++++++++++", [*GROWS, 15, 15, 15]),
    "warm-up: 2**15 overflows too": ({}, "+++++++-+-", [*GROWS, 12, 12, 11]),
    "warm-up: it did not, and is over": ({}, "++++++++-", [*GROWS, 15, 14]),
    "warm-up, then growth": ({"growth_interval": 3}, "+" * 13, [*GROWS, 15, 15, 16, 16, 16, 17]),
    "growth counts from the end of the warm-up": ({"growth_interval": 3}, "++-++++", [8, 9, 10, 7, 7, 7, 8, 8]),
    "the end of the warm-up spends no hysteresis": ({"hysteresis": 2}, "+----", [8, 9, 6, 6, 5, 4]),
    "a given init_scale does not warm up": ({"init_scale": 256}, "+++", [8, 8, 8, 8]),
    "a given value does not warm up": ({"value": 256}, "+++", [8, 8, 8, 8]),
    "warm-up below max_scale": ({"max_scale": 2.0**5}, "++", [5, 5, 5]),
    "warm-up ends at max_scale": ({"max_scale": 2.0**9}, "++", [8, 9, 9]),
    "warm-up from min_scale": ({"min_scale": 2.0**12}, "++", [12, 13, 14]),
    "no warm-up above 2**15": ({"min_scale": 2.0**17}, "++", [17, 17, 17]),
    "warm-up at max_scale overflows": ({"max_scale": 2.0**5}, "-", [5, 2]),
    "warm-up below max_scale overflows": ({"max_scale": 2.0**9}, "-", [8, 5]),
    "warm-up at min_scale overflows": ({"min_scale": 2.0**12}, "-", [12, 12]),
    "min_scale above the warm-up overflows": ({"min_scale": 2.0**17}, "-", [17, 17]),
}


@pytest.mark.behaviour("growth and back-off", "overflows in a row")
@pytest.mark.parametrize("options, outcomes, expected", TABLE.values(), ids=TABLE.keys())
def test_dynamic_follows_the_table(options, outcomes, expected):
    assert run(DynamicLossScale(**options), outcomes) == expected


OTHER_VALUES = {
    "growth stops at max_scale": ({"init_scale": 8, "max_scale": 24, "growth_interval": 1}, "+++", [8, 16, 24, 24]),
    "back-off stops at min_scale": ({"init_scale": 8, "min_scale": 3, "at_floor": "hold"}, "---", [8, 4, 3, 3]),
    "custom growth": (CUSTOM, "+", [100, 300]),
    "custom back-off": (CUSTOM, "-", [100, pytest.approx(10, rel=1e-15)]),
}


@pytest.mark.behaviour("a scale that stays finite", "a custom minimum", "hysteresis and floor")
@pytest.mark.parametrize("options, outcomes, expected", OTHER_VALUES.values(), ids=OTHER_VALUES.keys())
def test_dynamic_keeps_to_bounds_and_factors(options, outcomes, expected):
    assert values(DynamicLossScale(**options), outcomes) == expected


@pytest.mark.parametrize("limit", range(5, 18))
def test_the_warm_up_skips_one_step_at_most(limit):
    """Whatever the largest scale is that the gradients bear."""
    scale, skipped = DynamicLossScale(), 0
    for _ in range(100):
        finite = scale.value <= 2.0**limit
        skipped, scale = skipped + (not finite), scale.adjust(finite)
    assert skipped == (limit < 15)
    assert 2.0 ** (min(limit, 15) - 2) <= scale.value <= 2.0**limit


def random_scale(draw, **options):
    """Return whole exponents and a scale of them: floor, first scale, ceiling, growth, back-off, hysteresis."""
    low, first, high = sorted(draw.sample(range(-30, 31), 3))
    up, down, hysteresis = draw.randint(1, 3), draw.randint(1, 3), draw.randint(1, 4)
    factors = {"growth_factor": 2.0**up, "backoff_factor": 2.0**-down, "hysteresis": hysteresis}
    bounds = {"init_scale": 2.0**first, "min_scale": 2.0**low, "max_scale": 2.0**high}
    return (low, first, high, up, down, hysteresis), DynamicLossScale(**factors, **bounds, **options)


@pytest.mark.behaviour("a scale that stays finite", "hysteresis and floor", "an exact scale")
def test_dynamic_never_leaves_its_bounds_in_a_hundred_thousand_steps():
    """Against whole exponents: growing adds, backing off subtracts, both stop at their bound."""
    draw, floors, ceilings = random.Random(7), 0, 0
    for _ in range(200):
        interval, good, finite_share = draw.randint(1, 6), 0, draw.uniform(0.2, 0.95)
        exponents, scale = random_scale(draw, growth_interval=interval, at_floor="hold")
        low, exponent, high, up, down, hysteresis = exponents
        left = hysteresis
        for _ in range(500):
            finite = draw.random() < finite_share
            good = good + 1 if finite else 0
            if good == interval:
                good, left, exponent = 0, hysteresis, min(exponent + up, high)
            elif not finite:
                left = max(left - 1, 0)
                exponent = exponent if left else max(exponent - down, low)
            scale = scale.adjust(finite)
            assert scale.value == 2.0**exponent
            floors, ceilings = floors + (exponent == low), ceilings + (exponent == high)
    assert floors > 1000 and ceilings > 1000  # both were met


@pytest.mark.behaviour("overflows in a row")
def test_dynamic_gives_up_after_the_chosen_number_of_steps_at_the_floor_whatever_its_options():
    draw = random.Random(8)
    for _ in range(200):
        patience = draw.randint(1, 9)
        (low, first, _, _, down, hysteresis), scale = random_scale(draw, max_floor_skips=patience)
        steps_down = hysteresis - 1 + math.ceil((first - low) / down)
        scale = after(scale, "-" * (steps_down + patience - 1))
        assert scale.value == 2.0**low
        assert scale.adjust(True).floor_skips == 0  # they count in a row
        with pytest.raises(LossScaleError, match=f"non-finite for {patience} steps in a row .* min_scale={2.0**low}"):
            scale.adjust(False)


def test_hold_never_raises():
    assert after(DynamicLossScale(init_scale=1, max_floor_skips=2, at_floor="hold"), "-" * 50).value == 1


def test_warn_logs_and_goes_on(caplog):
    scale = DynamicLossScale(init_scale=1, max_floor_skips=2, at_floor="warn")
    with caplog.at_level(logging.WARNING, logger="mxmp"):
        after(scale, "-----")
    starts = [record.getMessage()[:36] for record in caplog.records]
    assert starts == [f"gradients non-finite for {skips} steps in " for skips in (2, 4)]


def test_floor_message_names_the_first_bad_gradient():
    assert floor_message(50, 1.0, "'fc1_weight' at step 1312") == (
        "gradients non-finite for 50 steps in a row and the scale is at min_scale=1.0; first bad gradient: 'fc1_weight' "
        "at step 1312. Lower the learning rate, or keep the layer in float32 by an override of the policy."
    )


@pytest.mark.behaviour("an interval below the tracker", "a scale that is none", "a wrong back-off", "no growth interval")
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"init_scale": 0.0}, "init_scale=0.0 is no loss scale; expected a positive, finite"),
        ({"init_scale": -2.0}, "init_scale=-2.0"),
        ({"init_scale": math.nan}, "init_scale=nan"),
        ({"init_scale": math.inf}, "init_scale=inf"),
        ({"init_scale": "big"}, "init_scale is 'big'; expected a number"),
        ({"init_scale": True}, "init_scale is True"),
        ({"init_scale": 2.0**25}, "outside .*max_scale=16777216.0"),
        ({"init_scale": 0.5}, "outside .min_scale=1.0"),
        ({"max_scale": 1e39}, "max_scale=1e.39"),
        ({"min_scale": 0.0}, "min_scale=0.0"),
        ({"min_scale": 8.0, "max_scale": 4.0}, "min_scale=8.0 is above max_scale=4.0"),
        ({"growth_factor": 1.0}, "growth_factor=1.0 would never raise the scale"),
        ({"growth_factor": math.inf}, "growth_factor=inf"),
        ({"growth_factor": math.nan}, "growth_factor=nan"),
        ({"backoff_factor": 1.0}, "backoff_factor=1.0 would not lower the scale"),
        ({"backoff_factor": 0.0}, "backoff_factor=0.0"),
        ({"backoff_factor": math.nan}, "backoff_factor=nan"),
        ({"growth_interval": 0}, "growth_interval=0; expected a whole number of at least 1"),
        ({"growth_interval": 2.5}, "growth_interval=2.5"),
        ({"hysteresis": 0}, "hysteresis=0"),
        ({"max_floor_skips": 0}, "max_floor_skips=0"),
        ({"at_floor": "explode"}, "unknown at_floor 'explode'; expected 'raise', 'warn' or 'hold'"),
        ({"value": math.nan}, "value=nan"),
        ({"value": 0.25}, "value=0.25 lies outside"),
        ({"growth_tracker": -1}, "growth_tracker=-1"),
        ({"growth_interval": 10, "growth_tracker": 10}, "growth_tracker=10 has passed growth_interval=10"),
        ({"hysteresis_tracker": 2}, "hysteresis_tracker=2 is above hysteresis=1"),
        ({"floor_skips": -1}, "floor_skips=-1"),
    ],
)
def test_dynamic_refuses(fields, message):
    with pytest.raises(LossScaleError, match=message):
        DynamicLossScale(**fields)


def test_a_notebook_shows_the_fields_of_a_loss_scale():
    text = DynamicLossScale(init_scale=65536)._repr_html_().replace("<wbr>", "")
    assert "<dt>kind</dt><dd>dynamic</dd>" in text and "<dd>65,536</dd>" in text and text.startswith('<div class="mxmp')
