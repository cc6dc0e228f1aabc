from __future__ import annotations

import dataclasses
import json
import logging
import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mxmp.errors import LossScaleError, MxmpError
from mxmp.loss_scale import DynamicLossScale, LossScale, NoOpLossScale, StaticLossScale, floor_message, parse


def run(scale, outcomes):
    """Return log2 of the scale before each step and after the last."""
    seen = [scale.value]
    for finite in outcomes:
        scale = scale.adjust(finite)
        seen.append(scale.value)
    return [math.log2(value) for value in seen]


def after(scale, outcomes):
    for finite in outcomes:
        scale = scale.adjust(finite)
    return scale


def test_dynamic_backs_off_at_once_and_no_further_than_needed():
    scale = DynamicLossScale(init_scale=2.0**16)
    seen = []
    for _ in range(9):
        seen.append(math.log2(scale.value))
        scale = scale.adjust(scale.value <= 2.0**10)
    assert seen == [16, 15, 14, 13, 12, 11, 10, 10, 10]


@pytest.mark.behaviour("growth and back-off", "overflows in a row")
@pytest.mark.parametrize(
    ("interval", "outcomes", "expected"),
    [
        (1, "+++", [4, 5, 6, 7]),
        (2, "++++", [4, 4, 5, 5, 6]),
        (3, "++-+++", [4, 4, 4, 3, 3, 3, 4]),  # an overflow resets the tracker
        (2, "+-+-+-", [4, 4, 3, 3, 2, 2, 1]),
        (2, "--++++", [4, 3, 2, 2, 3, 3, 4]),
    ],
)
def test_dynamic_follows_the_table(interval, outcomes, expected):
    scale = DynamicLossScale(init_scale=16, growth_interval=interval)
    assert run(scale, [o == "+" for o in outcomes]) == expected


@pytest.mark.behaviour("a scale that stays finite")
def test_dynamic_clamps_growth_at_max_scale():
    scale = DynamicLossScale(init_scale=8, max_scale=24, growth_interval=1)
    assert [after(scale, [True] * n).value for n in range(4)] == [8, 16, 24, 24]


@pytest.mark.behaviour("a custom minimum")
def test_dynamic_clamps_back_off_at_a_custom_min_scale():
    scale = DynamicLossScale(init_scale=8, min_scale=3, at_floor="hold")
    assert [after(scale, [False] * n).value for n in range(4)] == [8, 4, 3, 3]


def test_dynamic_uses_custom_factors():
    scale = DynamicLossScale(init_scale=100, growth_factor=3, backoff_factor=0.1, growth_interval=1)
    assert scale.adjust(True).value == 300
    assert scale.adjust(False).value == pytest.approx(10, rel=1e-15)


@pytest.mark.behaviour("hysteresis and floor")
@pytest.mark.parametrize(
    ("hysteresis", "outcomes", "expected"),
    [
        (1, "---", [8, 7, 6, 5]),
        (2, "---", [8, 8, 7, 6]),  # spent once, then each one counts
        (3, "--+-", [8, 8, 8, 8, 7]),  # finite steps short of a growth do not refill
        (2, "--++--", [8, 8, 7, 7, 8, 8, 7]),  # refilled at growth
    ],
)
def test_dynamic_hysteresis_follows_the_table(hysteresis, outcomes, expected):
    scale = DynamicLossScale(init_scale=256, hysteresis=hysteresis, growth_interval=2)
    assert run(scale, [o == "+" for o in outcomes]) == expected


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ("++-+++-", [8, 9, 10, 7, 7, 7, 7, 6]),  # an eighth, once; then as ever
        ("-+-", [8, 5, 5, 4]),
        ("++++++++++", [8, 9, 10, 11, 12, 13, 14, 15, 15, 15, 15]),
        ("+++++++-+-", [8, 9, 10, 11, 12, 13, 14, 15, 12, 12, 11]),  # 2**15 overflows too
        ("++++++++-", [8, 9, 10, 11, 12, 13, 14, 15, 15, 14]),  # it did not: the warm-up is over
    ],
)
def test_dynamic_without_init_scale_warms_up(outcomes, expected):
    assert run(DynamicLossScale(), [o == "+" for o in outcomes]) == expected


@pytest.mark.parametrize("limit", range(5, 18))
def test_the_warm_up_skips_one_step_at_most(limit):
    """Whatever the largest scale is that the gradients bear."""
    scale, skipped = DynamicLossScale(), 0
    for _ in range(100):
        finite = scale.value <= 2.0**limit
        skipped, scale = skipped + (not finite), scale.adjust(finite)
    assert skipped == (limit < 15)
    assert 2.0 ** (min(limit, 15) - 2) <= scale.value <= 2.0**limit


def test_growth_counts_from_the_end_of_the_warm_up():
    scale = DynamicLossScale(growth_interval=3)
    assert run(scale, [True] * 13)[7:] == [15, 15, 15, 16, 16, 16, 17]
    assert run(scale, [True] * 2 + [False] + [True] * 4)[3:] == [7, 7, 7, 8, 8]


def test_the_end_of_the_warm_up_spends_no_hysteresis():
    scale = after(DynamicLossScale(hysteresis=2), [True, False])
    assert (scale.value, scale.hysteresis_tracker) == (2.0**6, 2)
    assert run(scale, [False, False, False]) == [6, 6, 5, 4]


def test_a_given_init_scale_or_value_does_not_warm_up():
    assert run(DynamicLossScale(init_scale=2.0**8), [True] * 3) == [8, 8, 8, 8]
    assert run(DynamicLossScale(value=2.0**8), [True] * 3) == [8, 8, 8, 8]


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ({"max_scale": 2.0**5}, [5, 5, 5]),
        ({"max_scale": 2.0**9}, [8, 9, 9]),
        ({"min_scale": 2.0**12}, [12, 13, 14]),
        ({"min_scale": 2.0**17}, [17, 17, 17]),
    ],
    ids=str,
)
def test_the_warm_up_keeps_to_the_bounds(bounds, expected):
    scale = DynamicLossScale(**bounds)
    assert run(scale, [True] * 2) == expected
    assert math.log2(scale.adjust(False).value) == max(expected[0] - 3, math.log2(bounds.get("min_scale", 1)))


def test_a_warm_up_goes_on_where_it_was_saved():
    outcomes = [True, True, True, False, True]
    whole = broken = DynamicLossScale()
    for finite in outcomes:
        whole = whole.adjust(finite)
        broken = LossScale.from_dict(json.loads(json.dumps(broken.adjust(finite).to_dict())))
        assert broken == whole


class MegatronScaler:
    """The rule of Megatron-LM's DynamicGradScaler, written from its description."""

    def __init__(self, scale, floor, interval, hysteresis):
        self.scale, self.floor, self.interval, self.hysteresis = scale, floor, interval, hysteresis
        self.good, self.left = 0, hysteresis

    def step(self, finite):
        if not finite:
            self.good = 0
            self.left -= 1
            if self.left <= 0:
                self.scale = max(self.scale * 0.5, self.floor)
            return
        self.good += 1
        if self.good == self.interval:
            self.good, self.left = 0, self.hysteresis
            self.scale *= 2.0


@pytest.mark.behaviour("hysteresis and floor")
@given(st.lists(st.booleans(), max_size=100), st.integers(1, 4), st.integers(1, 4))
def test_dynamic_matches_megatron(outcomes, interval, hysteresis):
    theirs = MegatronScaler(2.0**8, 1.0, interval, hysteresis)
    ours = DynamicLossScale(
        init_scale=2.0**8,
        growth_interval=interval,
        hysteresis=hysteresis,
        at_floor="hold",
        max_scale=2.0**126,
    )
    for finite in outcomes:
        theirs.step(finite)
        ours = ours.adjust(finite)
        assert ours.value == theirs.scale


@pytest.mark.behaviour("an exact scale")
@given(st.lists(st.booleans(), max_size=60))
def test_dynamic_is_init_times_powers_of_the_factors(outcomes):
    scale = DynamicLossScale(init_scale=2.0**16, growth_interval=3, max_scale=2.0**126, min_scale=2.0**-126)
    ups = downs = good = 0
    for finite in outcomes:
        good = good + 1 if finite else 0
        downs += not finite
        if good == 3:
            ups, good = ups + 1, 0
        scale = scale.adjust(finite)
    assert scale.value == 2.0**16 * 2.0**ups * 0.5**downs


def random_exponents(draw):
    """Return log2 of a floor, a first scale between it and a ceiling, and of the two factors."""
    low, first, high = sorted(draw.sample(range(-30, 31), 3))
    return low, first, high, draw.randint(1, 3), draw.randint(1, 3)


@pytest.mark.behaviour("a scale that stays finite", "hysteresis and floor")
def test_dynamic_never_leaves_its_bounds_in_a_hundred_thousand_steps():
    """Against whole exponents: growing adds, backing off subtracts, both stop at their bound."""
    draw, floors, ceilings = random.Random(7), 0, 0
    for _ in range(200):
        low, exponent, high, up, down = random_exponents(draw)
        interval, hysteresis, good = draw.randint(1, 6), draw.randint(1, 4), 0
        left, finite_share = hysteresis, draw.uniform(0.2, 0.95)
        scale = DynamicLossScale(
            init_scale=2.0**exponent,
            growth_factor=2.0**up,
            backoff_factor=2.0**-down,
            growth_interval=interval,
            min_scale=2.0**low,
            max_scale=2.0**high,
            hysteresis=hysteresis,
            at_floor="hold",
        )
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
        low, first, high, up, down = random_exponents(draw)
        hysteresis, patience = draw.randint(1, 4), draw.randint(1, 9)
        scale = DynamicLossScale(
            init_scale=2.0**first,
            growth_factor=2.0**up,
            backoff_factor=2.0**-down,
            min_scale=2.0**low,
            max_scale=2.0**high,
            hysteresis=hysteresis,
            max_floor_skips=patience,
        )
        steps_down = hysteresis - 1 + math.ceil((first - low) / down)
        scale = after(scale, [False] * (steps_down + patience - 1))
        assert scale.value == 2.0**low
        with pytest.raises(LossScaleError, match=f"non-finite for {patience} steps in a row"):
            scale.adjust(False)


def test_dynamic_raises_after_the_chosen_number_of_steps_at_the_floor():
    scale = DynamicLossScale(init_scale=4, max_floor_skips=3)
    scale = after(scale, [False] * 4)  # 4 -> 2 -> 1, and two steps at the floor
    assert (scale.value, scale.floor_skips) == (1, 2)
    with pytest.raises(LossScaleError, match="non-finite for 3 steps in a row .* min_scale=1.0"):
        scale.adjust(False)


def test_dynamic_counts_only_consecutive_steps_at_the_floor():
    scale = DynamicLossScale(init_scale=1, max_floor_skips=3)
    scale = after(scale, [False, False, True, False, False])
    assert scale.floor_skips == 2


def test_dynamic_raises_by_default():
    scale = DynamicLossScale()
    with pytest.raises(LossScaleError):
        after(scale, [False] * (16 + scale.max_floor_skips))


def test_dynamic_hold_never_raises():
    scale = DynamicLossScale(init_scale=1, max_floor_skips=2, at_floor="hold")
    assert after(scale, [False] * 50).value == 1


def test_dynamic_warn_logs_and_goes_on(caplog):
    scale = DynamicLossScale(init_scale=1, max_floor_skips=2, at_floor="warn")
    with caplog.at_level(logging.WARNING, logger="mxmp"):
        after(scale, [False] * 5)
    assert [record.getMessage()[:36] for record in caplog.records] == [
        "gradients non-finite for 2 steps in ",
        "gradients non-finite for 4 steps in ",
    ]


def test_floor_message_names_the_first_bad_gradient():
    assert floor_message(50, 1.0, "'fc1_weight' at step 1312") == (
        "gradients non-finite for 50 steps in a row and the scale is at min_scale=1.0; first bad "
        "gradient: 'fc1_weight' at step 1312. Lower the learning rate, or keep the layer in "
        "float32 by an override of the policy."
    )


@pytest.mark.behaviour("a scale that stays finite", "an interval below the tracker", "a scale that is none", "a wrong back-off", "no growth interval")
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


@pytest.mark.behaviour("a scale that is none")
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, 2.0**127, "x", None, False])
def test_static_refuses_what_is_no_factor(value):
    with pytest.raises(LossScaleError):
        StaticLossScale(value)


@pytest.mark.parametrize("scale", [NoOpLossScale(), StaticLossScale(8), DynamicLossScale()])
def test_scales_are_immutable_values(scale):
    with pytest.raises(dataclasses.FrozenInstanceError):
        scale.value = 3.0
    assert scale == dataclasses.replace(scale)
    assert hash(scale) == hash(dataclasses.replace(scale))


def test_base_class_is_abstract():
    with pytest.raises(TypeError):
        LossScale()


@pytest.mark.parametrize("scale", [NoOpLossScale(), StaticLossScale(8)])
@pytest.mark.parametrize("finite", [True, False])
def test_noop_and_static_never_change(scale, finite):
    assert scale.adjust(finite) is scale


def test_noop_passes_values_through():
    value = np.float16(3)
    assert NoOpLossScale().scale(value) is value
    assert NoOpLossScale().unscale(value) is value
    assert NoOpLossScale().value == 1.0


def test_scale_multiplies_arrays_in_their_dtype():
    array = np.array([1, -2], np.float32)
    scaled = StaticLossScale(1024).scale(array)
    assert scaled.dtype == np.float32
    np.testing.assert_array_equal(scaled, [1024, -2048])


normal = st.floats(-1e30, 1e30).filter(lambda x: x == 0 or abs(x) > 1e-200)


@given(normal, st.integers(-20, 20))
def test_unscale_undoes_scale_for_powers_of_two(x, exponent):
    scale = StaticLossScale(2.0**exponent)
    assert scale.unscale(scale.scale(x)) == x


@given(st.floats(-(2.0**60), 2.0**60, width=32, allow_subnormal=False), st.integers(0, 24))
def test_unscale_undoes_scale_for_float32_arrays(x, exponent):
    scale = DynamicLossScale(init_scale=2.0**exponent)
    array = np.array([x], np.float32)
    np.testing.assert_array_equal(scale.unscale(scale.scale(array)), array)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("dynamic", DynamicLossScale()),
        (" Dynamic ", DynamicLossScale()),
        (128, StaticLossScale(128)),
        (np.float32(0.5), StaticLossScale(0.5)),
        ("512", StaticLossScale(512)),
        (1, StaticLossScale(1)),
        (None, NoOpLossScale()),
    ],
)
def test_parse_reads(spec, expected):
    assert parse(spec) == expected


def test_parse_returns_a_loss_scale_as_it_is():
    scale = DynamicLossScale(init_scale=4)
    assert parse(scale) is scale


@pytest.mark.parametrize("spec", ["static", "", True, [1], {"kind": "noop"}])
def test_parse_refuses(spec):
    with pytest.raises(LossScaleError, match="unknown loss scale .*; expected 'dynamic', a number"):
        parse(spec)


def test_parse_refuses_numbers_that_are_no_factor():
    with pytest.raises(LossScaleError, match="scale=0.0 is no loss scale"):
        parse("0")


powers = st.integers(-100, 100).map(lambda k: 2.0**k)


@st.composite
def dynamic_scales(draw):
    low, init, value, high = sorted(draw(st.lists(powers, min_size=4, max_size=4)))
    interval, hysteresis = draw(st.integers(1, 5000)), draw(st.integers(1, 5))
    return DynamicLossScale(
        init_scale=init,
        growth_factor=draw(st.floats(1.01, 10)),
        backoff_factor=draw(st.floats(0.01, 0.99)),
        growth_interval=interval,
        min_scale=low,
        max_scale=high,
        hysteresis=hysteresis,
        at_floor=draw(st.sampled_from(["raise", "warn", "hold"])),
        max_floor_skips=draw(st.integers(1, 100)),
        value=value,
        growth_tracker=draw(st.integers(0, interval - 1)),
        hysteresis_tracker=draw(st.integers(0, hysteresis)),
        floor_skips=draw(st.integers(0, 200)),
        warming_up=draw(st.booleans()),
    )


@pytest.mark.behaviour("a custom minimum")
@given(st.one_of(dynamic_scales(), powers.map(StaticLossScale), st.just(NoOpLossScale())))
def test_every_field_survives_a_dict(scale):
    text = json.dumps(scale.to_dict(), allow_nan=False)
    assert LossScale.from_dict(json.loads(text)) == scale


@pytest.mark.parametrize(
    "scale, text",
    [
        (DynamicLossScale(), "DynamicLossScale(value=256.0, warming_up=True)"),
        (DynamicLossScale().adjust(True), "DynamicLossScale(value=512.0, warming_up=True)"),
        (DynamicLossScale(init_scale=2.0**9), "DynamicLossScale(init_scale=512.0, value=512.0)"),
        (
            DynamicLossScale(init_scale=4, hysteresis=3).adjust(False),
            "DynamicLossScale(init_scale=4.0, hysteresis=3, value=4.0, hysteresis_tracker=2)",
        ),
        (DynamicLossScale(max_scale=8), "DynamicLossScale(max_scale=8.0, value=8.0, warming_up=True)"),
    ],
)
def test_a_dynamic_scale_shows_what_is_not_by_default(scale, text):
    assert repr(scale) == text


@given(dynamic_scales())
def test_what_a_dynamic_scale_shows_makes_it_again(scale):
    assert eval(repr(scale), {"DynamicLossScale": DynamicLossScale}) == scale


def test_to_dict_has_every_field():
    scale = DynamicLossScale(init_scale=4, hysteresis=3).adjust(False)
    assert scale.to_dict() == {
        "kind": "dynamic",
        "init_scale": 4.0,
        "growth_factor": 2.0,
        "backoff_factor": 0.5,
        "growth_interval": 2000,
        "min_scale": 1.0,
        "max_scale": 2.0**24,
        "hysteresis": 3,
        "at_floor": "raise",
        "max_floor_skips": 50,
        "value": 4.0,
        "growth_tracker": 0,
        "hysteresis_tracker": 2,
        "floor_skips": 0,
        "warming_up": False,
    }


@pytest.mark.behaviour("an interval below the tracker", "a NaN in a state")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "magic"}, "kind 'magic'; expected 'noop', 'static' or 'dynamic'"),
        ({"kind": None}, "kind None"),
        ({"surprise": 1}, "unknown fields .'surprise'."),
        ({"value": math.nan}, "value=nan is no loss scale"),
        ({"value": None}, "value is null"),
        ({"value": "8"}, "value is '8'; expected a number"),
        ({"growth_interval": 5, "growth_tracker": 7}, "growth_tracker=7 has passed growth_interval=5"),
        ({"warming_up": None}, "warming_up is null"),
        ({"warming_up": 1}, "warming_up=1; expected True or False"),
    ],
)
def test_from_dict_refuses(change, message):
    with pytest.raises(LossScaleError, match=message):
        LossScale.from_dict({**DynamicLossScale().to_dict(), **change})


def test_from_dict_refuses_a_missing_field():
    data = DynamicLossScale().to_dict()
    del data["min_scale"]
    with pytest.raises(LossScaleError, match=r"lacks \['min_scale'\]"):
        LossScale.from_dict(data)


def test_from_dict_reads_a_state_from_before_there_was_a_warm_up():
    """Such a run began at 65536 and goes on as it would have: doubling after ``growth_interval`` steps alone."""
    data = DynamicLossScale(init_scale=2.0**16, value=2.0**9, growth_tracker=7).to_dict()
    del data["warming_up"]
    scale = LossScale.from_dict(data)
    assert not scale.warming_up
    assert run(scale, [True, True, False, True]) == [9, 9, 9, 8, 8]


@pytest.mark.parametrize("data", [None, 3, [], "dynamic"])
def test_from_dict_refuses_what_is_no_dict(data):
    with pytest.raises(LossScaleError, match="expected a dict"):
        LossScale.from_dict(data)


def test_errors_are_value_errors_of_mxmp():
    assert issubclass(LossScaleError, MxmpError) and issubclass(LossScaleError, ValueError)
