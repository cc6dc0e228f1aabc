"""The dynamic loss scale: which scale follows which outcomes of steps."""

import math
import random

import pytest

from mxmp.errors import LossScaleError
from mxmp.loss_scale import DynamicLossScale


def scales(scale, outcomes):
    """Return the scale before each step and after the last; '+' is a finite step, '-' is not."""
    seen = [scale]
    for outcome in outcomes:
        seen.append(seen[-1].adjust(outcome == "+"))
    return seen


SIXTEEN, FULL = {"init_scale": 16}, {"init_scale": 256, "growth_interval": 2}
CUSTOM = {"init_scale": 100, "growth_factor": 3, "backoff_factor": 0.1, "growth_interval": 1}
GROWS = [8, 9, 10, 11, 12, 13, 14, 15]
# Options, outcomes, and log2 of the scales.
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


OTHER_VALUES = {
    "growth stops at max_scale": ({"init_scale": 8, "max_scale": 24, "growth_interval": 1}, "+++", [8, 16, 24, 24]),
    "back-off stops at min_scale": ({"init_scale": 8, "min_scale": 3, "at_floor": "hold"}, "---", [8, 4, 3, 3]),
    "custom growth": (CUSTOM, "+", [100, 300]),
    "custom back-off": (CUSTOM, "-", [100, pytest.approx(10, rel=1e-15)]),
}
CASES = {
    **{name: (options, outcomes, [2.0**k for k in found]) for name, (options, outcomes, found) in TABLE.items()},
    **OTHER_VALUES,
}


@pytest.mark.behaviour("growth and back-off", "overflows in a row")
@pytest.mark.behaviour("a scale that stays finite", "a custom minimum", "hysteresis and floor")
@pytest.mark.parametrize("options, outcomes, expected", CASES.values(), ids=CASES)
def test_dynamic_follows_the_table(options, outcomes, expected):
    assert [scale.value for scale in scales(DynamicLossScale(**options), outcomes)] == expected


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
        scale = scales(scale, "-" * (steps_down + patience - 1))[-1]
        assert scale.value == 2.0**low
        assert scale.adjust(True).floor_skips == 0  # they count in a row
        with pytest.raises(LossScaleError, match=f"non-finite for {patience} steps in a row .* min_scale={2.0**low}"):
            scale.adjust(False)
