"""Groups of a network and the policies of choices, against conversions by these policies."""

from __future__ import annotations

import itertools

import mxnet as mx

from mxmp.passes.decide import FLOAT32, LOW
from mxmp.policy import Policy
from mxmp.symbol import convert_graph
from mxmp.tune.speed.choices import find_choices

BFLOAT16 = Policy.parse("mixed_bfloat16")
SHAPES = {"data": (2, 3, 8, 8)}


def network():
    data = mx.sym.var("data")
    for number in range(2):
        data = mx.sym.Convolution(data, num_filter=16, kernel=(3, 3), pad=(1, 1), name=f"conv{number}")
        data = mx.sym.BatchNorm(data, name=f"norm{number}")
        data = mx.sym.Activation(data, act_type="relu", name=f"act{number}")
    data = mx.sym.FullyConnected(data, num_hidden=5, name="fc")
    return mx.sym.softmax(data, name="prob")


def choices_of(symbol, policy=BFLOAT16, shapes=SHAPES):
    found = convert_graph(symbol, policy, shapes).decisions
    return find_choices([(found.before, found.facts, found.plan)], policy)


def low_operators(symbol, policy):
    plan = convert_graph(symbol, policy, SHAPES).decisions
    return {plan.before.nodes[position].name for position in plan.plan.placement.low}


def group_of(choices, op):
    return next(number for number, group in enumerate(choices.groups) if group.op == op)


def test_equal_operators_on_equal_shapes_are_one_group():
    choices = choices_of(network())
    assert {group.op: group.names for group in choices.groups if group.op != "Convolution"} == {
        "BatchNorm": ("norm0", "norm1"),
        "Activation": ("act0", "act1"),
        "FullyConnected": ("fc",),
    }


def test_operators_that_need_float32_are_in_no_group():
    choices = choices_of(network())
    assert "softmax" not in {group.op for group in choices.groups}
    assert choices.fixed == {"softmax": 1}


def test_what_the_user_decided_is_in_no_group():
    policy = BFLOAT16.replace(names={"norm0": "float32"}, ops={"Activation": "bfloat16"})
    choices = choices_of(network(), policy)
    assert next(group.names for group in choices.groups if group.op == "BatchNorm") == ("norm1",)
    assert "Activation" not in {group.op for group in choices.groups}


def test_depthwise_convolutions_are_groups_of_their_own():
    data = mx.sym.var("data")
    data = mx.sym.Convolution(data, num_filter=3, kernel=(3, 3), pad=(1, 1), num_group=3, name="depthwise")
    data = mx.sym.Convolution(data, num_filter=3, kernel=(1, 1), name="pointwise")
    found = {group.names: group.depthwise for group in choices_of(data).groups}
    assert found == {("depthwise",): True, ("pointwise",): False}


def test_the_untuned_choice_is_the_policy_itself():
    choices = choices_of(network())
    assert choices.policy_of(choices.untuned) == BFLOAT16


def test_the_choice_of_float32_is_float32():
    choices = choices_of(network())
    assert not choices.policy_of(choices.float32).is_mixed


def test_where_the_policy_decides_all_it_is_measured_against_float32():
    ops = {"Convolution": "bfloat16", "BatchNorm": "bfloat16", "Activation": "bfloat16", "FullyConnected": "bfloat16"}
    choices = choices_of(network(), BFLOAT16.replace(ops=ops))
    assert choices.groups == ()
    assert choices.policy_of(choices.untuned).is_mixed
    assert not choices.policy_of(choices.float32).is_mixed


def test_an_operator_wholly_in_float32_is_one_override():
    choices = choices_of(network())
    choice = tuple(FLOAT32 if group.op == "Activation" else None for group in choices.groups)
    assert choices.policy_of(choice) == BFLOAT16.replace(ops={"Activation": "float32"})


def test_every_choice_runs_as_chosen():
    symbol = network()
    choices = choices_of(symbol)
    for labels in itertools.product(*(choices.labels(number) for number in range(len(choices.groups)))):
        low = low_operators(symbol, choices.policy_of(labels))
        for group, label in zip(choices.groups, labels):
            if label is not None:
                assert low.issuperset(group.names) is (label == LOW)
                assert not (label == FLOAT32 and low & set(group.names))


def test_policies_of_choices_print_and_parse():
    choices = choices_of(network())
    for number in range(len(choices.groups)):
        policy = choices.policy_of(tuple(FLOAT32 if i == number else None for i in range(len(choices.groups))))
        assert Policy.parse(str(policy)) == policy


def test_an_operator_that_gains_cannot_be_forced_low():
    choices = choices_of(network())
    assert choices.labels(group_of(choices, "Convolution")) == (None, FLOAT32)
    assert choices.labels(group_of(choices, "BatchNorm")) == (None, FLOAT32, LOW)


def test_a_name_that_two_graphs_share_is_chosen_for_once():
    found = convert_graph(network(), BFLOAT16, SHAPES).decisions
    part = found.before, found.facts, found.plan
    names = [name for group in find_choices([part, part], BFLOAT16).groups for name in group.names]
    assert len(names) == len(set(names))


def test_what_other_shapes_require_float32_of_is_not_put_in_low_precision_by_name():
    """A sum of few elements is free in float16, one of many needs float32, and so does what is behind it."""
    data = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, flatten=False, name="first")
    data = mx.sym.tanh(mx.sym.mean(data, axis=1, name="mean"), name="behind")
    symbol = mx.sym.FullyConnected(data, num_hidden=2, name="last")
    policy = Policy.parse("O1")
    few = convert_graph(symbol, policy, {"data": (2, 3, 5)}).decisions
    choices = find_choices([(few.before, few.facts, few.plan)], policy)
    assert {"mean", "behind"} <= {name for group in choices.groups for name in group.names}
    tuned = choices.policy_of(tuple(None if group.gains else LOW for group in choices.groups))
    many = convert_graph(symbol, tuned, {"data": (2, 3000, 5)}).decisions
    precision = {row.name: row.precision for row in many.report.rows}
    assert (precision["mean"], precision["behind"]) == ("float32", "float32")
