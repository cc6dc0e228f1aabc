"""Loss scales as values: static ones, parsing, saved states."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
