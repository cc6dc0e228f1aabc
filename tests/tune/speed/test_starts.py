"""The choices that a search begins with."""

from __future__ import annotations

from mxmp.passes.decide import FLOAT32
from mxmp.policy import Policy
from mxmp.tune.speed.choices import Choices, Group
from mxmp.tune.speed.starts import find_starts


def make_choices(*groups):
    return Choices(Policy.parse("mixed_bfloat16"), groups, {})


def group(op, shape=(1,), depthwise=False, gains=False):
    return Group(op, shape, depthwise, gains, (f"{op}{shape}{depthwise}",))


def test_the_untuned_choice_and_float32_come_first():
    choices = make_choices(group("Convolution", gains=True), group("BatchNorm"))
    names = [name for name, _ in find_starts(choices)]
    assert names[:2] == ["untuned", "float32"]


def test_no_choice_comes_twice():
    for choices in (make_choices(), make_choices(group("Activation")), make_choices(group("Convolution", gains=True))):
        found = [choice for _, choice in find_starts(choices)]
        assert len(found) == len(set(found))


def test_a_network_without_choices_has_two_starts():
    assert find_starts(make_choices()) == [("untuned", ()), ("float32", (FLOAT32,))]


def test_what_follows_depthwise_convolutions_is_told_by_its_shape():
    small, large = (1, 8, 4, 4), (1, 8, 8, 8)
    groups = [
        group("Convolution", small, depthwise=True, gains=True),
        group("BatchNorm", small),
        group("BatchNorm", large),
        group("Pooling", small),
    ]
    starts = dict(find_starts(make_choices(*groups)))
    assert starts["depthwise convolutions and what follows them in float32"] == (FLOAT32, FLOAT32, None, None)


def test_only_what_gains_stays_in_low_precision():
    starts = dict(
        find_starts(
            make_choices(group("Convolution", gains=True), group("Pooling"), group("FullyConnected", gains=True))
        )
    )
    assert starts["only convolutions and products in low precision"] == (None, FLOAT32, None)
    assert starts["only convolutions in low precision"] == (None, FLOAT32, FLOAT32)
