"""Loss scales as values: static ones, parsing, saved states."""

import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mxmp.errors import LossScaleError
from mxmp.loss_scale import DynamicLossScale, LossScale, NoOpLossScale, StaticLossScale, parse


@pytest.mark.parametrize("scale", [NoOpLossScale(), StaticLossScale(8), DynamicLossScale()])
def test_scales_are_immutable_values(scale):
    with pytest.raises(dataclasses.FrozenInstanceError):
        scale.value = 3.0
    assert scale == dataclasses.replace(scale) and hash(scale) == hash(dataclasses.replace(scale))
    for finite in (True, False):
        assert (scale.adjust(finite) is scale) is not isinstance(scale, DynamicLossScale)


def test_a_scale_multiplies_values_in_their_dtype_or_passes_them_through():
    array = np.array([1, -2], np.float16)
    assert NoOpLossScale().scale(array) is NoOpLossScale().unscale(array) is array
    scaled = StaticLossScale(1024).scale(array)
    assert scaled.dtype == np.float16 and scaled.tolist() == [1024, -2048]


normal = st.floats(-(2.0**60), 2.0**60, width=32).filter(lambda x: x == 0 or abs(x) > 2.0**-100)


@settings(deadline=None)
@given(normal, st.integers(-20, 24))
def test_unscale_undoes_scale_for_powers_of_two(x, exponent):
    scale, array = StaticLossScale(2.0**exponent), np.array([x], np.float32)
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
    assert parse(expected) is expected


powers = st.integers(-100, 100).map(lambda k: 2.0**k)


@st.composite
def dynamic_scales(draw):
    low, init, value, high = sorted(draw(st.lists(powers, min_size=4, max_size=4)))
    interval, hysteresis = draw(st.integers(1, 5000)), draw(st.integers(1, 5))
    bounds = {"init_scale": init, "min_scale": low, "max_scale": high, "value": value}
    others = {
        "growth_factor": st.floats(1.01, 10),
        "backoff_factor": st.floats(0.01, 0.99),
        "at_floor": st.sampled_from(["raise", "warn", "hold"]),
        "max_floor_skips": st.integers(1, 100),
        "growth_tracker": st.integers(0, interval - 1),
        "hysteresis_tracker": st.integers(0, hysteresis),
        "floor_skips": st.integers(0, 200),
        "warming_up": st.booleans(),
    }
    return DynamicLossScale(
        growth_interval=interval, hysteresis=hysteresis, **bounds, **draw(st.fixed_dictionaries(others))
    )


@pytest.mark.behaviour("a custom minimum")
@settings(deadline=None)
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
def test_a_dynamic_scale_shows_what_is_not_by_default_and_all_fields_in_a_notebook(scale, text):
    assert repr(scale) == text
    assert "Loss scale" in scale._repr_html_() and f"{scale.value:,.10g}" in scale._repr_html_()


# Fields of a dynamic scale that cannot be, and the words that name each.
FIELDS = [
    ({"init_scale": 0.0}, "init_scale=0.0 is no loss scale; expected a positive, finite"),
    ({"init_scale": -2.0}, "init_scale=-2.0"),
    ({"init_scale": math.nan}, "init_scale=nan"),
    ({"init_scale": math.inf}, "init_scale=inf"),
    ({"init_scale": 10**400}, "init_scale is 1000.*; expected a number within the range of a float"),
    ({"init_scale": "big"}, "init_scale is 'big'; expected a number"),
    ({"init_scale": True}, "init_scale is True"),
    ({"init_scale": 2.0**25}, "outside .*max_scale=16777216.0"),
    ({"init_scale": 0.5}, "outside .*min_scale=1.0"),
    ({"max_scale": 1e39}, r"max_scale=1e\+39"),
    ({"min_scale": 0.0}, "min_scale=0.0"),
    ({"min_scale": 8.0, "max_scale": 4.0}, "min_scale=8.0 is above max_scale=4.0"),
    ({"growth_factor": 1.0}, "growth_factor=1.0 would never raise the scale"),
    ({"growth_factor": math.nan}, "growth_factor=nan"),
    ({"backoff_factor": 1.0}, "backoff_factor=1.0 would not lower the scale"),
    ({"backoff_factor": 0.0}, "backoff_factor=0.0"),
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
]


@pytest.mark.behaviour("an interval below the tracker", "a scale that is none", "a wrong back-off", "no growth interval")
@pytest.mark.parametrize("fields, text", FIELDS, ids=str)
def test_a_field_that_cannot_be_is_named(fields, text):
    with pytest.raises(LossScaleError, match=text):
        DynamicLossScale(**fields)


STATE = DynamicLossScale().to_dict()
STATES = [
    ({**STATE, "kind": "magic"}, "kind 'magic'; expected 'noop', 'static' or 'dynamic'"),
    ({**STATE, "surprise": 1}, r"unknown fields \['surprise'\]"),
    ({**STATE, "value": math.nan}, "value=nan is no loss scale"),
    ({**STATE, "value": None}, "value is null"),
    ({**STATE, "value": "8"}, "value is '8'; expected a number"),
    ({**STATE, "warming_up": 1}, "warming_up=1; expected True or False"),
    ({key: value for key, value in STATE.items() if key != "min_scale"}, r"lacks \['min_scale'\]"),
    (None, "a loss scale's state is None; expected a dict"),
]


@pytest.mark.behaviour("a NaN in a state")
@pytest.mark.parametrize("state, text", STATES, ids=str)
def test_a_state_that_cannot_be_is_named(state, text):
    with pytest.raises(LossScaleError, match=text):
        LossScale.from_dict(state)


@pytest.mark.behaviour("a scale that is none")
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, 2.0**127, "x", None, False])
def test_a_static_scale_is_a_positive_number_whose_inverse_is_one_too(value):
    with pytest.raises(LossScaleError):
        StaticLossScale(value)


@pytest.mark.behaviour("a scale that is none")
@pytest.mark.parametrize("spec", ["static", "", True, [1], {"kind": "noop"}], ids=str)
def test_parse_says_what_is_expected(spec):
    with pytest.raises(LossScaleError, match="^unknown loss scale .*; expected 'dynamic', a number"):
        parse(spec)
