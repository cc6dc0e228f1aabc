"""One verdict per node: pins, taint, overrides, conditions."""

from __future__ import annotations

import pytest

from mxmp.passes import Facts, classify
from mxmp.passes.decide import FLOAT32, FREE, KEEP, LOW, depends_on_shapes, shape_outcome
from mxmp.policy import Policy
from mxmp.rules import RULES
from tests.graph.text import from_text
from tests.passes.graphs import with_facts

O1 = Policy.parse("O1")
BF16 = Policy.parse("mixed_bfloat16")


def verdicts_of(text, policy=O1, dtypes=None, shapes=None):
    graph, facts = with_facts(text, dtypes, shapes)
    return {node.name: verdict for node, verdict in zip(graph.nodes, classify(graph, policy, facts, RULES))}


def labels_of(text, **kwargs):
    return {name: verdict.label for name, verdict in verdicts_of(text, **kwargs).items()}


TAINTS = {
    "deny taints infer": ("e = exp(x)\na = elemwise_add(e, x)\nreturn a", {"a": FLOAT32}),
    "through clear and on": (
        "e = exp(x)\nr = Reshape(e)\nb = elemwise_add(r, x)\nc = _mul_scalar(b) {scalar: 2}\nreturn c",
        {"b": FLOAT32, "c": FLOAT32},
    ),
    "a trailing clear is not pinned": ("e = exp(x)\nr = Reshape(e)\nreturn r", {"r": FREE}),
    "allow ends the taint": ("e = exp(x)\nd = dot(e, x)\na = elemwise_add(d, x)\nreturn a", {"d": LOW, "a": FREE}),
}


@pytest.mark.parametrize("text, expected", TAINTS.values(), ids=TAINTS.keys())
def test_deny_taints(text, expected):
    found = labels_of("x = null()\n" + text)
    assert {name: found[name] for name in expected} == expected


def test_taint_goes_through_what_only_lacks_a_kernel():
    text = "x = null()\ne = exp(x)\nt = tile(e) {reps: 2}\na = elemwise_add(t, x)\nreturn a"
    found = verdicts_of(text, policy=BF16)
    assert found["t"].reason == "MXNet has no sound bfloat16 kernel for it"
    assert found["a"].reason == "infer behind 't' (tile)"


@pytest.mark.parametrize("op", ["broadcast_mul", "elemwise_mul", "sqrt"])
def test_what_only_lacks_a_kernel_does_not_taint(op):
    text = f"x = null()\nd = Convolution(x, x)\nm = {op}(d, d)\na = elemwise_add(m, d)\nreturn a"
    found = labels_of(text, policy=BF16)
    assert (found["m"], found["a"]) == (FLOAT32, FREE)


def test_pure_runs_everything_low_that_has_a_kernel():
    found = labels_of(
        "x = null()\ns = softmax(x)\ni = InstanceNorm(s, x, x)\na = elemwise_add(i, x)\nreturn a",
        policy=Policy.parse("O3"),
    )
    assert (found["s"], found["i"], found["a"]) == (LOW, FLOAT32, LOW)


def test_a_float32_policy_is_the_reason_for_all():
    text = "x = null()\nd = dot(x, x)\nr = Reshape(d)\ns = SoftmaxOutput(r, x)\nreturn s"
    found = verdicts_of(text, policy=Policy.parse("O0"))
    assert {(found[name].label, found[name].reason) for name in "drs"} == {(FLOAT32, "the policy computes in float32")}


@pytest.mark.parametrize("dtype, label", [("float32", FREE), ("int32", KEEP), ("float64", KEEP), ("float16", KEEP)])
def test_data_that_is_not_float32_is_left_alone(dtype, label):
    text = "x = null()\na = sqrt(x)\nr = Reshape(a)\nreturn r"
    found = verdicts_of(text, dtypes={"x": dtype, "a": dtype, "r": dtype})["r"]
    assert found.label == label
    assert label == FREE or found.reason == f"input 0 is {dtype} already"


def test_unknown_dtype_is_left_alone():
    graph = from_text("x = null()\nr = Reshape(x)\nreturn r")
    verdict = classify(graph, O1, Facts({(0, 0): "float32"}), RULES)[1]
    assert (verdict.label, verdict.reason) == (KEEP, "the dtype of output 0 is unknown")


CARRIERS = {
    "to an output": ("s", "x = null()\nf = dot(x, x)\ns = slice_axis(x)\nc = Concat(s, f)\nreturn c"),
    "to a deny operator": ("s", "x = null()\nf = dot(x, x)\ns = Concat(x, f)\ne = _contrib_box_nms(s)\nreturn e"),
    "to an operator without rule": ("s", "x = null()\nf = dot(x, x)\ns = Concat(x, f)\ne = Custom(s)\nreturn e"),
}


@pytest.mark.parametrize("name, text", CARRIERS.values(), ids=CARRIERS.keys())
def test_exact_values_are_carried_in_float32(name, text):
    found = verdicts_of(text)[name]
    assert (found.label, found.reason) == (FLOAT32, "carries exact values")


def test_overrides_by_operator_name_block_and_region():
    text = """x = null()
        net_a_fwd = dot(x, x)
        net_b_soft = softmax(net_a_fwd)
        net_c_fwd = dot(net_b_soft, x) {__mxmp_precision__: float32}
        net_d_fwd = exp(net_c_fwd) {__mxmp_precision__: low}
        return net_d_fwd"""
    policy = Policy.parse("O1", ops={"softmax": "float16"}, blocks={"net_a": "float32"}, names={"net_c*": "float16"})
    found = verdicts_of(text, policy=policy)
    assert [v.label for v in found.values()][1:] == [FLOAT32, LOW, FLOAT32, LOW]
    assert found["net_c_fwd"].reason == "precision 'float32' (region or set_policy)"


LAST_LAYERS = {
    "what lies between": (
        "x = null()\nf = dot(x, x)\nr = relu(f)\nd = dot(r, x)\nb = elemwise_add(d, x)\nt = tanh(b)\nreturn t",
        {"d", "b", "t"},
    ),
    "a loss head and its label": (
        "x = null()\ny = null()\nf = dot(x, x)\nd = dot(f, x)\nl = dot(y, y)\ns = SoftmaxOutput(d, l)\nreturn s",
        {"d", "s"},
    ),
    "several outputs": (
        "x = null()\nf = dot(x, x)\na = dot(f, x)\nb = Convolution(f, x)\nr = Reshape(b)\nreturn a, r",
        {"a", "b", "r"},
    ),
    "a branch past a product": (
        "x = null()\nf = dot(x, x)\nr = relu(f)\nd = dot(r, x)\ns = elemwise_add(d, r)\nreturn s",
        {"f", "r", "d", "s"},
    ),
    "an output in the middle": ("x = null()\nf = dot(x, x)\nr = relu(f)\nd = dot(r, x)\nreturn d, r", {"f", "r", "d"}),
    "an input that lends its shape": (
        "x = null()\nf = dot(x, x)\nd = dot(f, x)\nz = zeros_like(f)\ns = broadcast_add(d, z)\nreturn s",
        {"d", "z", "s"},
    ),
    "no product at all": ("x = null()\nr = relu(x)\ns = square(r)\nreturn s", {"r", "s"}),
}


@pytest.mark.parametrize("policy", ["O1", "O3"])
@pytest.mark.parametrize("text, expected", LAST_LAYERS.values(), ids=LAST_LAYERS.keys())
def test_the_last_layer_in_float32(text, expected, policy):
    found = verdicts_of(text, policy=Policy.parse(policy, last_layer_fp32=True))
    assert {name for name, verdict in found.items() if verdict.reason == "last layer"} == expected
    assert all(found[name].label == FLOAT32 for name in expected)


@pytest.mark.parametrize(
    "changes", [{"names": {"d": "float16"}}, {"ops": {"dot": "float16"}}, {"blocks": {"net": "float16"}}, {}]
)
def test_overrides_and_regions_overrule_the_last_layer(changes):
    name = "net_d" if "blocks" in changes else "d"
    region = "" if changes else " {__mxmp_precision__: low}"
    policy = Policy.parse("O1", last_layer_fp32=True, **changes)
    found = verdicts_of(f"x = null()\n{name} = dot(x, x){region}\nr = relu({name})\nreturn r", policy=policy)
    assert (found[name].label, found["r"].label) == (LOW, FLOAT32)


CHAIN = """x = null()
    w = null()
    dot = dot(x, w)
    rows = sum(dot) {axis: 0}
    all = sum(dot)
    return rows, all"""


def test_equal_outcomes_of_shapes_are_equal_verdicts():
    found = {}
    assert depends_on_shapes(from_text(CHAIN), "float16")
    for rows in (1, 8, 1000, 1024, 1025, 4000, None):
        for columns in (1, 2, 600):
            shapes = {} if rows is None else {"dot": (rows, columns, 32, 8)}
            graph, facts = with_facts(CHAIN, shapes=shapes)
            outcome = shape_outcome(graph, "float16", facts)
            labels = tuple(labels_of(CHAIN, shapes=shapes).values())
            assert found.setdefault(outcome, labels) == labels
    assert len(found) == len(set(found.values())) > 2
