"""Loss scales that cannot be, and states that cannot be read: what is wrong with them is said."""

import math

import pytest

from mxmp.errors import LossScaleError, MxmpError
from mxmp.loss_scale import DynamicLossScale, LossScale, StaticLossScale, parse
from tests import messages

STATE = DynamicLossScale().to_dict()
# Fields of a dynamic scale, and what is said of them.
FIELDS = [
    ({"init_scale": 0.0}, "init_scale=0.0 is no loss scale; expected a positive, finite..."),
    ({"init_scale": -2.0}, "init_scale=-2.0..."),
    ({"init_scale": math.nan}, "init_scale=nan..."),
    ({"init_scale": math.inf}, "init_scale=inf..."),
    ({"init_scale": 10**400}, "init_scale is 1000...; expected a number within the range of a float."),
    ({"init_scale": "big"}, "init_scale is 'big'; expected a number..."),
    ({"init_scale": True}, "init_scale is True..."),
    ({"init_scale": 2.0**25}, "...outside ...max_scale=16777216.0..."),
    ({"init_scale": 0.5}, "...outside ...min_scale=1.0..."),
    ({"max_scale": 1e39}, "max_scale=1e+39..."),
    ({"min_scale": 0.0}, "min_scale=0.0..."),
    ({"min_scale": 8.0, "max_scale": 4.0}, "min_scale=8.0 is above max_scale=4.0..."),
    ({"growth_factor": 1.0}, "growth_factor=1.0 would never raise the scale..."),
    ({"growth_factor": math.inf}, "growth_factor=inf..."),
    ({"growth_factor": math.nan}, "growth_factor=nan..."),
    ({"backoff_factor": 1.0}, "backoff_factor=1.0 would not lower the scale..."),
    ({"backoff_factor": 0.0}, "backoff_factor=0.0..."),
    ({"backoff_factor": math.nan}, "backoff_factor=nan..."),
    ({"growth_interval": 0}, "growth_interval=0; expected a whole number of at least 1..."),
    ({"growth_interval": 2.5}, "growth_interval=2.5..."),
    ({"hysteresis": 0}, "hysteresis=0..."),
    ({"max_floor_skips": 0}, "max_floor_skips=0..."),
    ({"at_floor": "explode"}, "unknown at_floor 'explode'; expected 'raise', 'warn' or 'hold'..."),
    ({"value": math.nan}, "value=nan..."),
    ({"value": 0.25}, "value=0.25 lies outside..."),
    ({"growth_tracker": -1}, "growth_tracker=-1..."),
    ({"growth_interval": 10, "growth_tracker": 10}, "growth_tracker=10 has passed growth_interval=10..."),
    ({"hysteresis_tracker": 2}, "hysteresis_tracker=2 is above hysteresis=1..."),
    ({"floor_skips": -1}, "floor_skips=-1..."),
]
STATES = [
    ({**STATE, "kind": "magic"}, "...kind 'magic'; expected 'noop', 'static' or 'dynamic'..."),
    ({**STATE, "kind": None}, "...kind None..."),
    ({**STATE, "surprise": 1}, "...unknown fields ['surprise']..."),
    ({**STATE, "value": math.nan}, "...value=nan is no loss scale..."),
    ({**STATE, "value": None}, "...value is null..."),
    ({**STATE, "value": "8"}, "...value is '8'; expected a number..."),
    ({**STATE, "growth_interval": 5, "growth_tracker": 7}, "...growth_tracker=7 has passed growth_interval=5..."),
    ({**STATE, "warming_up": None}, "...warming_up is null..."),
    ({**STATE, "warming_up": 1}, "...warming_up=1; expected True or False..."),
    ({key: value for key, value in STATE.items() if key != "min_scale"}, "...lacks ['min_scale']..."),
    (None, "...a loss scale's state is None; expected a dict..."),
    (3, "...expected a dict..."),
]
UNKNOWN = "unknown loss scale ...; expected 'dynamic', a number..."


def call(function, *args, **fields):
    return lambda: function(*args, **fields)


def fifty_overflows():
    scale = DynamicLossScale(init_scale=1.0)
    for _ in range(50):
        scale = scale.adjust(False)


MESSAGES = {
    **{str(fields): (call(DynamicLossScale, **fields), LossScaleError, text) for fields, text in FIELDS},
    **{text: (call(LossScale.from_dict, state), LossScaleError, text) for state, text in STATES},
    **{f"static, {value}": (call(StaticLossScale, value), LossScaleError, "...") for value in (
        0.0, -1.0, math.nan, math.inf, 2.0**127, "x", None, False)},
    **{f"parse, {spec}": (call(parse, spec), LossScaleError, UNKNOWN) for spec in ("static", "", True, [1], {"kind": "noop"})},
    "parse, 0": (call(parse, "0"), LossScaleError, "scale=0.0 is no loss scale..."),
    "fifty overflows": (
        fifty_overflows, LossScaleError,
        "gradients non-finite for 50 steps in a row and the scale is at min_scale=1.0... Lower the learning rate, or keep "
        "the layer in float32 by an override of the policy."),
}  # fmt: skip


@pytest.mark.behaviour(
    "an interval below the tracker", "a scale that is none", "a wrong back-off", "no growth interval", "a NaN in a state"
)
@messages.each(MESSAGES)
def test_messages(call, error, text, tmp_path):
    assert issubclass(error, MxmpError)
    messages.check(call, error, text, tmp_path)
