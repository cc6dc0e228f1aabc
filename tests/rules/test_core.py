"""Rule and RuleSet."""

import pytest

from mxmp.errors import RuleError
from mxmp.rules import ALLOW, CLEAR, DENY, EVERY, GIVEN, INFER, Rule, RuleSet

RELU, SOFTRELU = (("act_type", "relu"),), (("act_type", "softrelu"),)
LSTM, LENGTHS = ("mode", "lstm"), ("use_sequence_length", "True")


VARIANTS = RuleSet(
    (
        Rule("act", CLEAR, when=RELU),
        Rule("act", DENY, when=SOFTRELU),
        Rule("act", INFER),
        Rule("RNN", ALLOW, when=(LSTM, LENGTHS), keep=(4,)),
        Rule("RNN", ALLOW, when=(LENGTHS,), keep=(3,)),
        Rule("RNN", ALLOW),
        Rule("sum", INFER, when=(("dtype", GIVEN),)),
    )
)


@pytest.mark.parametrize(
    ("op", "attrs", "number"),
    [
        ("act", {"act_type": "relu"}, 0),
        ("act", {"act_type": "softrelu", "anything": "1"}, 1),
        ("act", {"act_type": "tanh"}, 2),
        ("act", {}, 2),
        ("RNN", dict([LSTM, LENGTHS]), 3),
        ("RNN", dict([LENGTHS]), 4),
        ("RNN", dict([LSTM]), 5),
        *(("RNN", {"use_sequence_length": text}, 4) for text in ("true", "1")),  # however it is spelled
        *(("RNN", {"use_sequence_length": text}, 5) for text in ("False", "0", "None")),
        ("sum", {"dtype": "float32"}, 6),  # any value but none
        ("sum", {"dtype": "None"}, None),
        ("sum", {}, None),
        ("log", {}, None),
    ],
)
def test_find_returns_the_first_variant_whose_attributes_match(op, attrs, number):
    assert VARIANTS.find(op, attrs) is (None if number is None else VARIANTS.rules[number])


def test_data_ports_are_those_neither_kept_nor_indifferent():
    rule = Rule("op", CLEAR, keep=(1,), any_dtype=(2,), shape_only=(3,))
    assert [rule.is_data(port) for port in range(5)] == [True, False, False, True, True]
    assert [rule.reads(port) for port in range(5)] == [True, False, False, False, True]  # of port 3 the shape
    every = Rule("op", CLEAR, keep=EVERY, keep_outputs=EVERY)
    assert not any(every.is_data(port) for port in (0, 1, 999)) and 999 in every.keep_outputs


MESSAGES = {
    "two categories": (
        (Rule("softmax", ALLOW), Rule("softmax", DENY)), "'softmax' is in both allow and deny; keep it in one."),
    "behind one that asks for less": (
        (Rule("RNN", ALLOW, when=(LENGTHS,)), Rule("RNN", ALLOW, when=(LSTM, LENGTHS))),
        "'RNN': the rule for {'mode': 'lstm', 'use_sequence_length': 'True'} is never reached behind the one for "
        "{'use_sequence_length': 'True'}."),
}  # fmt: skip


@pytest.mark.parametrize("rules, message", MESSAGES.values(), ids=MESSAGES)
def test_rules_that_cannot_be_are_refused(rules, message):
    with pytest.raises(RuleError) as caught:
        RuleSet(rules)
    assert str(caught.value) == message
