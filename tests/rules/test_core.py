"""Rule and RuleSet."""

from __future__ import annotations

import pytest

from mxmp.errors import RuleError
from mxmp.rules import ALLOW, CLEAR, DENY, EVERY, GIVEN, INFER, Call, Rule, RuleSet

RELU, SOFTRELU = (("act_type", "relu"),), (("act_type", "softrelu"),)
LSTM, LENGTHS = ("mode", "lstm"), ("use_sequence_length", "True")


def test_find_knows_operators_by_name_alone():
    rules = RuleSet((Rule("dot", ALLOW), Rule("exp", DENY)))
    assert rules.find("exp", {"anything": "1"}) is rules.rules[1]
    assert rules.find("log", {}) is None


def test_find_returns_the_first_variant_whose_attributes_match():
    rules = RuleSet((Rule("act", CLEAR, when=RELU), Rule("act", DENY, when=SOFTRELU), Rule("act", INFER)))
    found = [
        rules.find("act", attrs) for attrs in ({"act_type": "relu"}, {"act_type": "softrelu"}, {"act_type": "tanh"}, {})
    ]
    assert [rule and rule.category for rule in found] == [CLEAR, DENY, INFER, INFER]


def test_find_needs_every_attribute_of_a_variant():
    rules = RuleSet((Rule("RNN", ALLOW, when=(LSTM, LENGTHS), keep=(4,)), Rule("RNN", ALLOW)))
    assert rules.find("RNN", dict([LSTM, LENGTHS])).keep == (4,)
    assert rules.find("RNN", dict([LSTM])).keep == ()


def test_find_returns_none_where_no_variant_matches():
    assert RuleSet((Rule("act", CLEAR, when=RELU),)).find("act", {"act_type": "tanh"}) is None


def test_ruleset_lists_rules_and_operators():
    rules = RuleSet((Rule("act", CLEAR, when=RELU), Rule("act", INFER), Rule("dot", ALLOW)))
    assert list(rules.ops()) == ["act", "dot"]
    assert list(rules) == list(rules.rules)


COLLISIONS = {
    "two categories": (
        (Rule("softmax", ALLOW), Rule("softmax", DENY)),
        "'softmax' is in both allow and deny; keep it in one.",
    ),
    "one category twice": (
        (Rule("act", INFER, when=RELU), Rule("act", INFER, when=RELU, preserves_grid=True)),
        r"'act': the rule for \{'act_type': 'relu'\} is never reached behind the one for \{'act_type': 'relu'\}.",
    ),
    "behind one for all attributes": (
        (Rule("act", CLEAR), Rule("act", DENY, when=SOFTRELU)),
        "'act' is in both clear and deny; keep it in one.",
    ),
    "behind one that asks for less": (
        (Rule("RNN", ALLOW, when=(LENGTHS,)), Rule("RNN", ALLOW, when=(LSTM, LENGTHS))),
        "'RNN': the rule for .*'lstm'.* is never reached",
    ),
}


@pytest.mark.parametrize("rules, message", COLLISIONS.values(), ids=COLLISIONS.keys())
def test_rules_that_collide_are_refused(rules, message):
    with pytest.raises(RuleError, match=message):
        RuleSet(rules)


def test_variants_with_other_attributes_do_not_collide():
    RuleSet((Rule("RNN", ALLOW, when=(LSTM, LENGTHS)), Rule("RNN", ALLOW, when=(LENGTHS,)), Rule("RNN", ALLOW)))


def test_unknown_category_is_refused():
    with pytest.raises(RuleError, match="'dot': unknown category 'allowed'; expected one of"):
        Rule("dot", "allowed")


def test_data_ports_are_those_neither_kept_nor_indifferent():
    rule = Rule("op", CLEAR, keep=(1,), any=(2,))
    assert [rule.is_data(port) for port in range(4)] == [True, False, False, True]


def test_values_are_read_of_data_ports_but_those_of_which_the_shape_is():
    rule = Rule("op", CLEAR, keep=(1,), shape_only=(2,))
    assert [rule.reads(port) for port in range(4)] == [True, False, False, True]
    assert rule.is_data(2)


def test_forbids_asks_the_condition():
    call = Call({"axis": "1"}, (), "float16")
    assert Rule("op", INFER).forbids(call) is None
    assert Rule("op", INFER, condition=lambda c: f"axis {c.attrs['axis']}").forbids(call) == "axis 1"


def test_a_rule_may_keep_every_port():
    rule = Rule("op", CLEAR, keep=EVERY, keep_outputs=EVERY)
    assert not any(rule.is_data(port) for port in (0, 1, 999))
    assert 999 in rule.keep_outputs


@pytest.mark.parametrize("attrs, found", [({"dtype": "float32"}, True), ({"dtype": "None"}, False), ({}, False)])
def test_given_matches_any_value_but_none(attrs, found):
    assert Rule("sum", INFER, when=(("dtype", GIVEN),)).matches(attrs) == found


@pytest.mark.parametrize("text, found", [("True", True), ("true", True), ("1", True), ("False", False), ("0", False)])
def test_values_match_however_they_are_spelled(text, found):
    assert Rule("RNN", ALLOW, when=(LENGTHS,)).matches({LENGTHS[0]: text}) == found
