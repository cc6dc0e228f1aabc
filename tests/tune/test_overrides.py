"""Overrides that mean one node, whatever it is called."""

from __future__ import annotations

import pytest

from mxmp import Policy
from mxmp.tune.overrides import pattern_of, with_names

NAMES = ["fc", "fc[1]", "a*b", "why?", "a,b", "a=b", " padded ", "[", "x]y", "a[!b]c", "tab\t"]


@pytest.mark.parametrize("name", NAMES)
def test_a_pattern_matches_its_name_in_a_policy_that_prints_and_parses(name):
    policy = with_names(Policy.parse("O2"), [pattern_of(name)])
    again = Policy.parse(str(policy))
    assert again == policy
    assert again.override("Convolution", name)[0] == "float32"


@pytest.mark.parametrize("name", NAMES)
def test_a_pattern_matches_no_other_name_unless_it_cannot_be_written(name):
    policy = with_names(Policy.parse("O2"), [pattern_of(name)])
    others = {other for other in [*NAMES, "fcc", "fc1", "aab", "whyy", "abc"] if policy.override("", other)} - {name}
    assert not others or any(character in name for character in ",= ") or name != name.strip()


def test_other_overrides_stay():
    policy = with_names(Policy.parse("O2,name:a=float16,op:softmax=float16"), ["b"])
    assert policy == Policy.parse("O2,name:a=float16,name:b=float32,op:softmax=float16")


def test_operators_can_be_put_in_low_precision_too():
    assert with_names(Policy.parse("O1"), ["b"], "float16") == Policy.parse("O1,name:b=float16")
