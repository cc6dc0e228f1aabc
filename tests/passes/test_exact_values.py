"""Positions, and what a network takes for integers, are exact under every policy."""

import mxnet as mx
import numpy as np
import pytest

from tests.passes.graphs import converted, precisions

ODD = 4097  # neither float16 nor bfloat16 has it
SCORES = np.zeros((1, ODD + 3), "float32")
SCORES[0, ODD] = 1
X = mx.sym.var("x")


def counter(dtype):
    """Return a counter that is cast to integers."""
    count = mx.sym.Reshape((X + 1) * 1, shape=(-1,))
    return mx.sym.cast(mx.sym.broadcast_sub(count, mx.sym.slice_axis(count, axis=0, begin=0, end=1)), dtype=dtype)


def detections():
    """Class and score of the best of some candidates, as detectors put them together."""
    scores = mx.sym.FullyConnected(X, num_hidden=2, no_bias=True, name="head")
    found = mx.sym.expand_dims(mx.sym.argmax(X, axis=1), axis=1)
    return mx.sym.Concat(found, mx.sym.slice_axis(scores, axis=1, begin=0, end=1), dim=1, name="detections")


def loop():
    """Count in a loop that computes with products beside it; positions are found in its body."""

    def body(x, states):
        hidden = mx.sym.FullyConnected(states[1], mx.sym.var("w"), num_hidden=4, no_bias=True)
        return mx.sym.argmax(x, axis=0), [states[0] + 1, hidden]

    found, (count, hidden) = mx.sym.contrib.foreach(body, X, [mx.sym.var("count"), mx.sym.var("hidden")])
    return mx.sym.Group([mx.sym.identity(found, name="at"), mx.sym.cast(count, dtype="int32", name="n"), hidden])


def handed_on():
    """A loop hands on an index, which a product computes, the last step to 4097, and a position."""

    def body(x, states):
        product = mx.sym.FullyConnected(x, mx.sym.var("w"), no_bias=True, num_hidden=1)
        outputs = [mx.sym.take(mx.sym.var("rows"), states[0]), mx.sym.identity(states[1])]
        return outputs, [product + 1, mx.sym.argmax(mx.sym.var("scores"), axis=1)]

    return mx.sym.Group(mx.sym.contrib.foreach(body, X, [mx.sym.var("index"), mx.sym.var("place")])[0])


def while_loop():
    _, states = mx.sym.contrib.while_loop(
        cond=lambda count, total: count < 4099,
        func=lambda count, total: ([], [count + 1, total + 2]),
        loop_vars=(mx.sym.var("count"), mx.sym.var("total")),
        max_iterations=16,
    )
    return mx.sym.Group([mx.sym.cast(state, dtype="int32") for state in states])


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
OFFSET = mx.sym.var("offset")
HUNDREDS = np.arange(8192) % 100

# A network, its inputs, and the values of its outputs.
EXACT = {
    **{f"a counter, cast to {dtype}": (counter(dtype), {"x": [0.0, 100.0, top]}, [[0, 100, top]])
       for dtype, top in (("int32", ODD), ("int64", ODD), ("uint8", 251))},
    "an index": (mx.sym.take(mx.sym.var("rows"), mx.sym.elemwise_add(OFFSET, OFFSET) - 1),
        {"rows": HUNDREDS.reshape(-1, 1), "offset": [2049.0]}, [[97]]),
    "a label": (mx.sym.pick(X, OFFSET + 1), {"x": HUNDREDS.reshape(1, -1), "offset": [ODD - 1.0]}, [[97]]),
    **{f"a position by {name}": (find(X * 1), {"x": SCORES}, [[ODD]]) for name, find in FINDERS.items()},
}  # fmt: skip
IN_FLOAT16 = {
    "positions among scores": (detections(), {"x": SCORES, "head_weight": np.ones((2, ODD + 3))}, [[ODD, 1]]),
    "a mask, which is compared exactly": (
        mx.sym.expand_dims(mx.sym.broadcast_lesser(mx.sym.arange(ODD + 3), OFFSET), axis=0),
        {"offset": [float(ODD)]}, [[1] * ODD + [0] * 3]),
    "a counter and positions in a loop": (
        loop(), {"x": np.tile(SCORES, (3, 1)), "count": [ODD - 3.0], "hidden": np.ones((1, 4)), "w": np.eye(4)},
        [[ODD] * 3, [ODD], [1] * 4]),
    "an index and a position that a loop hands on": (
        handed_on(), {"x": np.full((3, 1, 4), 1024), "index": np.zeros((1, 1)), "place": np.zeros(1), "w": np.ones((1, 4)),
                      "rows": HUNDREDS.reshape(-1, 1), "scores": SCORES}, [[0, 97, 97], [0, ODD, ODD]]),
    "counters of a while loop": (while_loop(), {"count": [4090.0], "total": [ODD - 18.0]}, [[4099], [ODD]]),
}  # fmt: skip


def check(net, arrays, expected, policy):
    found = converted(net, {name: np.shape(array) for name, array in arrays.items()}, policy)
    values = {name: mx.nd.array(array, dtype="float32") for name, array in arrays.items()}
    assert [output.asnumpy().ravel().tolist() for output in found.on_cpu().bind(mx.cpu(), values).forward()] == expected


@pytest.mark.parametrize("policy", ["O1", "O2", "O3", "float16"])
@pytest.mark.parametrize("net, arrays, expected", [*EXACT.values(), *IN_FLOAT16.values()], ids=[*EXACT, *IN_FLOAT16])
def test_an_exact_value_is_never_rounded(net, arrays, expected, policy):
    check(net, arrays, expected, policy)


@pytest.mark.bfloat16
@pytest.mark.parametrize("net, arrays, expected", EXACT.values(), ids=EXACT)
def test_an_exact_value_is_never_rounded_to_bfloat16(net, arrays, expected):
    check(net, arrays, expected, "bfloat16,output=float32")


@pytest.mark.parametrize("policy", ["O1", "O3"])
def test_what_a_product_gave_is_taken_for_an_integer_in_one_float32_step(policy):
    x = mx.sym.FullyConnected(X, num_hidden=4, no_bias=True, name="fc")
    scaled = mx.sym._internal._mul_scalar(mx.sym.sigmoid(x, name="sigmoid"), scalar=4099, name="scaled")
    floor = mx.sym.floor(mx.sym.Reshape(scaled, shape=(-1,)), name="floor")
    found = precisions(mx.sym.cast(floor, dtype="int32"), {"x": (64, 4)}, policy)
    low = {name: found[name] for name in ("fc", "sigmoid", "scaled", "floor")}
    assert low == {"fc": "float16", "sigmoid": "float16", "scaled": "float32", "floor": "float32"}


def block(data, name):
    conv = mx.sym.Convolution(data, num_filter=8, kernel=(3, 3), pad=(1, 1), no_bias=True, name=name)
    return mx.sym.BatchNorm(conv, name=name + "_bn")


@pytest.mark.parametrize("policy", ["O1", "O3"])
@pytest.mark.parametrize("use", [lambda x: mx.sym.where(x > 0, x, x * 2), lambda x: mx.sym.cast(x > 0, dtype="int32")])
def test_a_comparison_of_features_leaves_them_low(use, policy):
    x = block(mx.sym.var("data"), "a")
    found = precisions(mx.sym.Group([use(x), block(mx.sym.relu(x), "b")]), {"data": (2, 3, 8, 8)}, policy)
    assert found["a_bn"] == found["b"] == "float16"


def test_what_follows_an_exact_value_is_not_tainted():
    x = block(mx.sym.var("data"), "a")
    shift = mx.sym.var("shift", shape=(1, 1, 1, 1)) + 1
    net = mx.sym.Group([mx.sym.cast(shift, dtype="int32"), block(mx.sym.broadcast_add(x, shift, name="add"), "b")])
    assert precisions(net, {"data": (2, 3, 8, 8)})["add"] == "float16"
