"""Positions, and what a network takes for integers, are exact under every policy."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

from tests.passes.graphs import converted, precisions

POLICIES = ["O1", "O2", "O3", "float16", pytest.param("bfloat16,output=float32", marks=pytest.mark.bfloat16)]
ODD = 4097  # neither float16 nor bfloat16 has it


def run(net, policy, **arrays):
    found = converted(net, {name: np.shape(array) for name, array in arrays.items()}, policy)
    values = {name: mx.nd.array(array, dtype="float32") for name, array in arrays.items()}
    return [output.asnumpy() for output in found.on_cpu().bind(mx.cpu(), values).forward()]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
def test_a_counter_that_is_cast_to_an_integer_is_exact(policy, dtype):
    x = mx.sym.var("x")
    counter = mx.sym.Reshape((x + 1) * 1, shape=(-1,))
    net = mx.sym.cast(mx.sym.broadcast_sub(counter, mx.sym.slice_axis(counter, axis=0, begin=0, end=1)), dtype=dtype)
    (found,) = run(net, policy, x=[0.0, 100.0, 251.0 if dtype == "uint8" else ODD])
    assert found.tolist() == [0, 100, 251 if dtype == "uint8" else ODD]


@pytest.mark.parametrize("policy", POLICIES)
def test_an_index_that_is_computed_is_exact(policy):
    rows, offset = mx.sym.var("rows"), mx.sym.var("offset")
    net = mx.sym.take(rows, mx.sym.elemwise_add(offset, offset) - 1)
    (found,) = run(net, policy, rows=np.arange(8192).reshape(-1, 1) % 100, offset=[2049.0])
    assert found.ravel().tolist() == [97]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_label_that_is_computed_is_exact(policy):
    data, label = mx.sym.var("data"), mx.sym.var("label")
    net = mx.sym.pick(data, label + 1)
    (found,) = run(net, policy, data=np.arange(8192).reshape(1, -1) % 100, label=[ODD - 1.0])
    assert found.tolist() == [97]


def classes(size=ODD + 3):
    scores = np.zeros((1, size), "float32")
    scores[0, ODD] = 1
    return scores


FINDERS = {
    "argmax": lambda x: mx.sym.argmax(x, axis=1),
    "argmin": lambda x: mx.sym.argmin(-1 * x, axis=1),
    "argmax_channel": mx.sym.argmax_channel,
    "topk": lambda x: mx.sym.topk(x, k=1),
    "topk both": lambda x: mx.sym.topk(x, k=1, ret_typ="both")[1],
    "argsort": lambda x: mx.sym.slice_axis(mx.sym.argsort(x, is_ascend=False), axis=1, begin=0, end=1),
    "carried on": lambda x: mx.sym.stack(mx.sym.expand_dims(mx.sym.argmax(x, axis=1), axis=1)),
    "computed with": lambda x: mx.sym.argmax(x, axis=1) * 2 - ODD,
    "cast to float32": lambda x: mx.sym.cast(mx.sym.argmax(x, axis=1), dtype="float32") + 0,
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("find", FINDERS.values(), ids=FINDERS.keys())
def test_a_position_is_exact_and_comes_in_float32(find, policy):
    (found,) = run(find(mx.sym.var("x") * 1), policy, x=classes())
    assert found.dtype == np.float32
    assert found.ravel().tolist() == [ODD]


def detections(x):
    """Class, score and box of the best of some candidates, as detectors put them together."""
    scores = mx.sym.FullyConnected(x, num_hidden=2, no_bias=True, name="head")
    found = mx.sym.expand_dims(mx.sym.argmax(x, axis=1), axis=1)
    return mx.sym.Concat(found, mx.sym.slice_axis(scores, axis=1, begin=0, end=1), dim=1, name="detections")


@pytest.mark.parametrize("policy", ["O1", "O3", "float16"])
def test_positions_among_scores_are_exact(policy):
    x = classes()
    (found,) = run(detections(mx.sym.var("x")), policy, x=x, head_weight=np.ones((2, x.shape[1])))
    assert found.tolist() == [[ODD, 1]]


@pytest.mark.parametrize("policy", ["O1", "O3", "float16"])
def test_positions_are_compared_exactly_and_the_mask_is_a_value(policy):
    mask = mx.sym.broadcast_lesser(mx.sym.arange(ODD + 3), mx.sym.var("length"))
    (found,) = run(mx.sym.expand_dims(mask, axis=0, name="mask"), policy, length=[float(ODD)])
    assert found.dtype == (np.float16 if policy == "float16" else np.float32)
    assert found.sum(dtype="float64") == ODD


def test_what_a_product_gave_is_taken_for_an_integer_in_one_float32_step():
    x = mx.sym.FullyConnected(mx.sym.var("x"), num_hidden=4, no_bias=True, name="fc")
    shifted = mx.sym.Activation(x, act_type="sigmoid", name="sigmoid")
    scaled = mx.sym.floor(mx.sym.Reshape(shifted * 4099, shape=(-1,)), name="floor")
    for policy in ("O1", "O3"):
        found = precisions(mx.sym.cast(scaled, dtype="int32"), {"x": (64, 4)}, policy)
        assert {name: found[name] for name in ("fc", "sigmoid", "floor")} == {
            "fc": "float16", "sigmoid": "float16", "floor": "float32"}  # fmt: skip
        assert (
            found["_mulscalar0" if "_mulscalar0" in found else next(n for n in found if "mulscalar" in n)] == "float32"
        )


def block(data, name):
    conv = mx.sym.Convolution(data, num_filter=8, kernel=(3, 3), pad=(1, 1), no_bias=True, name=name)
    return mx.sym.BatchNorm(conv, name=name + "_bn")


@pytest.mark.parametrize("use", [lambda x: mx.sym.where(x > 0, x, x * 2), lambda x: mx.sym.cast(x > 0, dtype="int32")])
def test_a_comparison_of_features_leaves_them_low(use):
    x = block(mx.sym.var("data"), "a")
    net = mx.sym.Group([use(x), block(mx.sym.relu(x), "b")])
    for policy in ("O1", "O3"):
        found = precisions(net, {"data": (2, 3, 8, 8)}, policy)
        assert found["a_bn"] == found["b"] == "float16"


def test_what_follows_an_exact_value_is_not_tainted():
    x = block(mx.sym.var("data"), "a")
    shift = mx.sym.var("shift", shape=(1, 1, 1, 1)) + 1
    net = mx.sym.Group([mx.sym.cast(shift, dtype="int32"), block(mx.sym.broadcast_add(x, shift, name="add"), "b")])
    found = precisions(net, {"data": (2, 3, 8, 8)}, "O1")
    assert found["add"] == "float16"


def loop(steps, weight):
    """Count in a loop that computes with products beside it; positions are found in its body."""

    def body(x, states):
        count, hidden = states
        hidden = mx.sym.FullyConnected(hidden, weight, num_hidden=4, no_bias=True)
        return mx.sym.argmax(x, axis=0), [count + 1, hidden]

    return mx.sym.contrib.foreach(body, mx.sym.var("x"), [mx.sym.var("count"), mx.sym.var("hidden")])


@pytest.mark.parametrize("policy", ["O1", "O3", "float16"])
def test_a_counter_and_positions_in_a_loop_are_exact(policy):
    found, (count, hidden) = loop(3, mx.sym.var("w"))
    net = mx.sym.Group([mx.sym.identity(found, name="at"), mx.sym.cast(count, dtype="int32", name="n"), hidden])
    arrays = dict(x=np.tile(classes(), (3, 1)), count=[ODD - 3.0], hidden=np.ones((1, 4)), w=np.eye(4))
    positions, steps, hidden = run(net, policy, **arrays)
    assert positions.ravel().tolist() == [ODD] * 3
    assert steps.ravel().tolist() == [ODD]
    assert hidden.tolist() == [[1, 1, 1, 1]]


@pytest.mark.parametrize("policy", ["O1", "O3"])
def test_a_while_loop_counts_exactly(policy):
    _, (count, total) = mx.sym.contrib.while_loop(
        cond=lambda count, total: count < 4099,
        func=lambda count, total: ([], [count + 1, total + 2]),
        loop_vars=(mx.sym.var("count"), mx.sym.var("total")),
        max_iterations=16,
    )
    net = mx.sym.Group([mx.sym.cast(count, dtype="int32"), mx.sym.cast(total, dtype="int32")])
    count, total = run(net, policy, count=[4090.0], total=[ODD - 18.0])
    assert (count.tolist(), total.tolist()) == ([4099], [ODD])
