"""Candidates: policies of a network by name, against conversions by these policies; overrides that mean one node."""

import mxnet as mx
import pytest

from mxmp.policy import Policy
from mxmp.symbol import convert_graph
from mxmp.tune.candidates import changes_of, find_candidates, find_operators, pattern_of, with_names

BFLOAT16 = Policy.parse("mixed_bfloat16")
SHAPES = {"data": (2, 3, 8, 8)}


def network(group=1):
    data = mx.sym.var("data")
    for number in range(2):
        options = {"num_group": group} if number else {}
        data = mx.sym.Convolution(data, num_filter=16, kernel=(3, 3), pad=(1, 1), name=f"conv{number}", **options)
        data = mx.sym.BatchNorm(data, name=f"norm{number}")
        data = mx.sym.Activation(data, act_type="relu", name=f"act{number}")
    data = mx.sym.Pooling(data, kernel=(2, 2), name="pool")
    data = mx.sym.FullyConnected(data, num_hidden=5, name="fc")
    return mx.sym.softmax(data, name="prob")


def decided(symbol, policy=BFLOAT16, shapes=SHAPES):
    return convert_graph(symbol, policy, shapes).decisions


def candidates(symbol, policy=BFLOAT16, **options):
    return {each.name: each for each in find_candidates([decided(symbol, policy)], policy, **options)}


def low_operators(symbol, policy, shapes=SHAPES):
    rows = decided(symbol, policy, shapes).report.rows
    return {row.name for row in rows if row.precision == policy.compute_dtype}


@pytest.mark.parametrize(
    "name, expected",
    [
        ("activations in float32", {"act0", "act1"}),
        ("normalisations in float32", {"norm0", "norm1"}),
        ("pooling in float32", {"pool"}),
        ("depthwise convolutions in float32", {"conv1"}),
        ("only convolutions in low precision", {"conv1", "norm0", "norm1", "act0", "act1", "pool", "fc"}),
        ("only convolutions and products in low precision", {"norm0", "norm1", "act0", "act1", "pool"}),
        ("only products in low precision", {"conv0", "conv1"}),
    ],
)
def test_a_candidate_has_in_float32_what_its_name_says(name, expected):
    """And its changes are those of the conversion."""
    symbol = network(group=16)
    chosen = candidates(symbol)[name]
    before, after = low_operators(symbol, BFLOAT16), low_operators(symbol, chosen.policy)
    assert expected <= before - after
    assert not {"conv0", "conv1", "fc"} & (before - after) - expected  # others may follow, where that saves casts
    changes = changes_of(chosen, [decided(symbol)], BFLOAT16)
    assert {name for each in changes if each.dtype == "float32" for name in each.names} == before - after
    assert {name for each in changes if each.dtype == "bfloat16" for name in each.names} == after - before


def test_float32_and_the_policy_itself_come_first_and_no_two_are_the_same_network():
    found = candidates(network())
    assert [each.policy for each in found.values()][:2] == [Policy(), BFLOAT16] and list(found)[1] == "untuned"
    assert all(Policy.parse(str(each.policy)) == each.policy and each.fused for each in found.values())
    assert found["activations in float32"].policy == BFLOAT16.replace(ops={"Activation": "float32"})
    names = ["float32", "untuned", "float32, not fused", "untuned, not fused"]
    assert list(candidates(network(), unfused=True))[:4] == names
    assert [each.name for each in find_candidates([], BFLOAT16, unfused=True)] == names[::2]  # where it does not run
    graphs = [decided(network(), each.policy).after for each in found.values()]
    assert all(one != other for i, one in enumerate(graphs) for other in graphs[:i])
    dense = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=5, name="fc")
    assert list(candidates(dense)) == ["float32", "untuned"]


def test_the_operators_behind_depthwise_convolutions_are_found_by_their_shape():
    symbol = mx.sym.BatchNorm(network(group=16).get_internals()["pool_output"], name="smaller")
    chosen = candidates(symbol)["depthwise convolutions and what follows them in float32"].policy
    assert dict(chosen.names) == dict.fromkeys(("conv1", "norm0", "norm1"), "float32")
    assert dict(chosen.ops) == {"Activation": "float32"}


def test_what_needs_float32_and_what_the_user_decided_is_not_chosen_for():
    policy = BFLOAT16.replace(names={"norm0": "float32"}, ops={"Activation": "bfloat16"})
    names = {each.name for each in find_operators([decided(network(), policy)], policy)}
    assert names == {"conv0", "conv1", "norm1", "pool", "fc"}
    for each in candidates(network(), policy).values():
        assert each.name == "float32" or dict(each.policy.ops)["Activation"] == "bfloat16"


def test_no_candidate_has_in_low_precision_what_needs_float32():
    """Nor for other shapes: each only adds float32, and a sum of many elements is float32 then."""
    data = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, flatten=False, name="first")
    data = mx.sym.tanh(mx.sym.mean(data, axis=1, name="mean"), name="behind")
    symbol, policy = mx.sym.FullyConnected(mx.sym.exp(data, name="exp"), num_hidden=2, name="last"), Policy.parse("O1")
    for each in find_candidates([decided(symbol, policy, {"data": (2, 3, 5)})], policy)[1:]:
        added = set(each.policy.ops + each.policy.names) - set(policy.ops + policy.names)
        assert {dtype for _, dtype in added} <= {"float32"}
        assert "exp" not in low_operators(symbol, each.policy, {"data": (2, 3, 5)})
        assert not {"exp", "mean", "behind"} & low_operators(symbol, each.policy, {"data": (2, 3000, 5)})


NAMES = ["fc", "fc[1]", "a*b", "why?", "a,b", "a=b", " padded ", "[", "x]y", "a[!b]c", "tab\t"]


@pytest.mark.parametrize("name", NAMES)
def test_a_pattern_matches_its_name_alone_unless_it_cannot_be_written(name):
    policy = Policy.parse(str(with_names(Policy.parse("O2"), [pattern_of(name)])))
    assert policy.override("Convolution", name)[0] == "float32"
    others = {other for other in [*NAMES, "fcc", "fc1", "aab", "whyy", "abc"] if policy.override("", other)} - {name}
    assert not others or any(character in name for character in ",= ") or name != name.strip()
    kept = with_names(Policy.parse("O2,name:a=float16,op:softmax=float16"), ["b"])
    assert kept == Policy.parse("O2,name:a=float16,name:b=float32,op:softmax=float16")
