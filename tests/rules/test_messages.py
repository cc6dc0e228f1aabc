"""Rules that cannot be: what is wrong with them is said."""

from mxmp.errors import RuleError
from mxmp.rules import ALLOW, CLEAR, DENY, INFER, Rule, RuleSet
from tests import messages

RELU, SOFTRELU = (("act_type", "relu"),), (("act_type", "softrelu"),)
LSTM, LENGTHS = ("mode", "lstm"), ("use_sequence_length", "True")


def rules(*rules):
    return lambda: RuleSet(rules)


MESSAGES = {
    "two categories": (rules(Rule("softmax", ALLOW), Rule("softmax", DENY)), RuleError,
        "'softmax' is in both allow and deny; keep it in one."),
    "one category twice": (
        rules(Rule("act", INFER, when=RELU), Rule("act", INFER, when=RELU, preserves_grid=True)), RuleError,
        "'act': the rule for {'act_type': 'relu'} is never reached behind the one for {'act_type': 'relu'}."),
    "behind one for all attributes": (rules(Rule("act", CLEAR), Rule("act", DENY, when=SOFTRELU)), RuleError,
        "'act' is in both clear and deny; keep it in one."),
    "behind one that asks for less": (
        rules(Rule("RNN", ALLOW, when=(LENGTHS,)), Rule("RNN", ALLOW, when=(LSTM, LENGTHS))), RuleError,
        "'RNN': the rule for {'mode': 'lstm', 'use_sequence_length': 'True'} is never reached behind the one "
        "for {'use_sequence_length': 'True'}."),
    "an unknown category": (lambda: Rule("dot", "allowed"), RuleError,
        "'dot': unknown category 'allowed'; expected one of ('allow', 'infer', 'clear', 'deny')."),
}  # fmt: skip


@messages.each(MESSAGES)
def test_messages(call, error, text, tmp_path):
    messages.check(call, error, text, tmp_path)
