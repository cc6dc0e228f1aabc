"""float16 on CPU against numpy: float32 arithmetic on float16 operands, rounded to float16."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

from mxmp import Policy
from tests.numpy_layers import batch_norm, convolution
from tests.passes.oracle import EPS32, Run, assert_rounded, few_bits, float16, forced, grid

data, weight, other = (mx.sym.var(name) for name in ("data", "weight", "other"))


# Products: few-bit operands make every float32 sum exact, whatever its order, so results are
# bit-exact; on other operands the sum of n products of size s is off by n * s * EPS32 at most.

CONVOLUTIONS = {
    "3x3": ((2, 3, 7, 6), (4, 3, 3, 3), {}),
    "1x1": ((2, 8, 4, 4), (5, 8, 1, 1), {}),
    "padded and strided": ((2, 3, 8, 8), (4, 3, 3, 3), {"stride": (2, 1), "pad": (1, 2)}),
    "dilated": ((2, 3, 9, 9), (4, 3, 3, 3), {"dilate": (2, 2), "pad": (2, 2)}),
    "two groups": ((2, 6, 5, 5), (4, 3, 3, 3), {"groups": 2}),
    "depthwise": ((2, 6, 5, 5), (6, 1, 3, 3), {"groups": 6, "pad": (1, 1)}),
}


def convolution_symbol(kernel, num_filter, groups=1, **options):
    options = {"kernel": kernel, "num_filter": num_filter, "num_group": groups, "no_bias": True, **options}
    return mx.sym.Convolution(data, weight, name="conv", **options)


@pytest.mark.behaviour("bits of casts by hand")
@pytest.mark.parametrize("draw, slack", [(few_bits, 0), (grid, 72 * 16 * EPS32)], ids=["few bits", "random"])
@pytest.mark.parametrize("shape, kernel, options", CONVOLUTIONS.values(), ids=CONVOLUTIONS.keys())
def test_convolution_and_its_gradients(shape, kernel, options, draw, slack, rng):
    x, w = draw(rng, *shape), draw(rng, *kernel)
    symbol = convolution_symbol(kernel[2:], kernel[0], **options)
    head = draw(rng, *convolution(x, w, **options)[0].shape)
    found = Run(symbol, {"data": x, "weight": w}, head_grads=[head], wrt=("data", "weight"))
    out, by_data, by_weight = convolution(x, w, **options, head_grad=float16(head))
    assert_rounded(found.outputs[0], out, slack)
    assert_rounded(found.grads["data"], by_data, slack)
    assert_rounded(found.grads["weight"], by_weight, slack)


@pytest.mark.parametrize("draw, slack", [(few_bits, 0), (grid, 64 * 16 * EPS32)], ids=["few bits", "random"])
def test_fully_connected_and_its_gradients(draw, slack, rng):
    x, w, b, head = draw(rng, 16, 64), draw(rng, 32, 64), draw(rng, 32), draw(rng, 16, 32)
    symbol = mx.sym.FullyConnected(data, weight, mx.sym.var("bias"), num_hidden=32)
    found = Run(symbol, {"data": x, "weight": w, "bias": b}, head_grads=[head], wrt=("data", "weight", "bias"))
    assert_rounded(found.outputs[0], x @ w.T + b, slack)
    assert_rounded(found.grads["data"], head @ w, slack)
    assert_rounded(found.grads["weight"], head.T @ x, slack)
    assert_rounded(found.grads["bias"], head.sum(0), slack)


@pytest.mark.parametrize("draw, slack", [(few_bits, 0), (grid, 64 * 16 * EPS32)], ids=["few bits", "random"])
@pytest.mark.parametrize("op, batch", [("dot", ()), ("batch_dot", (3,))])
def test_products_and_their_gradients(op, batch, draw, slack, rng):
    a, b, head = draw(rng, *batch, 16, 64), draw(rng, *batch, 64, 24), draw(rng, *batch, 16, 24)
    symbol = getattr(mx.sym, op)(data, other)
    found = Run(symbol, {"data": a, "other": b}, head_grads=[head], wrt=("data", "other"))
    assert_rounded(found.outputs[0], a @ b, slack)
    assert_rounded(found.grads["data"], head @ np.swapaxes(b, -1, -2), slack)
    assert_rounded(found.grads["other"], np.swapaxes(a, -1, -2) @ head, slack)


ELEMENTWISE = {
    "elemwise_add": np.add,
    "elemwise_sub": np.subtract,
    "elemwise_mul": np.multiply,
    "elemwise_div": np.divide,
    "broadcast_add": np.add,
    "broadcast_sub": np.subtract,
    "broadcast_mul": np.multiply,
    "broadcast_div": np.divide,
    "broadcast_maximum": np.maximum,
    "broadcast_minimum": np.minimum,
}


@pytest.mark.behaviour("bits of casts by hand")
@pytest.mark.parametrize("op", ELEMENTWISE)
def test_elementwise_operators_are_bit_exact(op, rng):
    x, y = (np.exp2(rng.uniform(-14, 15, (64, 64))) * rng.choice((-1, 1), (64, 64)) for _ in range(2))
    y = y[:1] if op.startswith("broadcast") else y
    found = Run(getattr(mx.sym, op)(data, other), {"data": x, "other": y}, forced(op))
    operands = float16(x).astype(np.float32), float16(y).astype(np.float32)
    np.testing.assert_array_equal(found.outputs[0], float16(ELEMENTWISE[op](*operands)))


UNARY = {
    "relu": (mx.sym.relu, lambda x: np.maximum(x, 0), 0),
    "abs": (mx.sym.abs, np.abs, 0),
    "negative": (mx.sym.negative, np.negative, 0),
    "clip": (lambda x: mx.sym.clip(x, a_min=-0.5, a_max=1), lambda x: np.clip(x, -0.5, 1), 0),
    "sqrt": (lambda x: mx.sym.sqrt(mx.sym.abs(x)), lambda x: np.sqrt(np.abs(x)), 0),
    "sigmoid": (mx.sym.sigmoid, lambda x: 1 / (1 + np.exp(-x)), 4 * EPS32),
    "tanh": (mx.sym.tanh, np.tanh, 4 * EPS32),
    "Activation": (lambda x: mx.sym.Activation(x, act_type="sigmoid"), lambda x: 1 / (1 + np.exp(-x)), 8 * EPS32),
}


@pytest.mark.parametrize("op", UNARY)
def test_activations_are_within_float32_rounding(op, rng):
    function, oracle, slack = UNARY[op]
    x = grid(rng, 64, 64)
    found = Run(function(data), {"data": x}, Policy(compute_dtype="float16", names={"*": "float16"}))
    assert_rounded(found.outputs[0], oracle(x), slack)


SCALARS = {
    "_plus_scalar": (lambda x, s: x + s, np.add),
    "_minus_scalar": (lambda x, s: x - s, np.subtract),
    "_rminus_scalar": (lambda x, s: s - x, lambda x, s: s - x),
    "_mul_scalar": (lambda x, s: x * s, np.multiply),
    "_div_scalar": (lambda x, s: x / s, np.divide),
    "_maximum_scalar": (mx.sym.maximum, np.maximum),
    "_minimum_scalar": (mx.sym.minimum, np.minimum),
    "_greater_scalar": (lambda x, s: x > s, np.greater),
    "_lesser_equal_scalar": (lambda x, s: x <= s, np.less_equal),
    "_equal_scalar": (lambda x, s: x == s, np.equal),
}


@pytest.mark.parametrize("scalar", [2.0, 0.1, 1 / 3], ids=["on the grid", "a tenth", "a third"])
@pytest.mark.parametrize("op", SCALARS)
def test_scalars_are_rounded_like_operands(op, scalar, rng):
    function, oracle = SCALARS[op]
    x = np.concatenate([grid(rng, 1000), float16([0.1, 1 / 3, 2])])
    found = Run(function(data, scalar), {"data": x}, forced(op))
    expected = float16(oracle(x.astype(np.float32), np.float32(np.float16(scalar))))
    np.testing.assert_array_equal(found.outputs[0], expected)


# MXNet's own float16 kernels on CPU are the code that it runs on GPU.
NATIVE = {
    "_mul_scalar": lambda F, x: x * 0.1,
    "_plus_scalar": lambda F, x: x + 0.1,
    "_rdiv_scalar": lambda F, x: 0.1 / x,
    "_not_equal_scalar": lambda F, x: x != 0.1,
    "_maximum_scalar": lambda F, x: F.maximum(x, 0.1),
    "clip": lambda F, x: F.clip(x, a_min=0.1, a_max=0.7),
    "LeakyReLU": lambda F, x: F.LeakyReLU(x, act_type="leaky", slope=0.01),
    "Pad": lambda F, x: F.Pad(x, mode="constant", pad_width=(0, 0, 0, 0, 1, 1, 1, 1), constant_value=0.1),
    "SequenceMask": lambda F, x: F.SequenceMask(
        x, F.ones_like(x).slice((0, 0, 0, 0), (1, None, 1, 1)).reshape(-1), True, value=0.1
    ),
    "elemwise_div": lambda F, x: F.elemwise_div(x, F.reverse(x, axis=2)),
    "softsign": lambda F, x: F.softsign(x),
    "erf": lambda F, x: F.erf(x),
    "Pooling": lambda F, x: F.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="avg"),
    "UpSampling": lambda F, x: F.UpSampling(x, scale=2, sample_type="nearest"),
}


@pytest.mark.parametrize("op", NATIVE)
def test_emulation_equals_the_float16_kernels_that_mxnet_has_on_cpu(op, rng):
    x = grid(rng, 3, 2, 16, 16)
    x[0, 0, 0, :2] = float16([0.1, 0.7])
    expected = NATIVE[op](mx.nd, mx.nd.array(x, dtype="float16")).asnumpy()
    assert expected.dtype == np.float16
    found = Run(NATIVE[op](mx.sym, data), {"data": x}, Policy(compute_dtype="float16", names={"*": "float16"}))
    np.testing.assert_array_equal(found.outputs[0], expected.astype(np.float32))


def batch_norm_inputs(rng, shape=(4, 3, 8, 8)):
    channels = shape[1]
    return {
        "data": grid(rng, *shape),
        "bn_gamma": rng.uniform(0.5, 1.5, channels),
        "bn_beta": rng.standard_normal(channels),
        "bn_moving_mean": rng.standard_normal(channels) / 4,
        "bn_moving_var": rng.uniform(0.5, 1.5, channels),
    }


def test_batch_norm_in_training(rng):
    inputs = batch_norm_inputs(rng)
    symbol = mx.sym.BatchNorm(data, fix_gamma=False, eps=1e-3, momentum=0.9, name="bn")
    head = grid(rng, *inputs["data"].shape)
    found = Run(symbol, inputs, forced("BatchNorm"), [head], wrt=("data", "bn_gamma", "bn_beta"))
    out, by_data = batch_norm(inputs["data"], inputs["bn_gamma"], inputs["bn_beta"], 1e-3, head)
    assert_rounded(found.outputs[0], out, 64 * EPS32)
    assert_rounded(found.grads["data"], by_data, 64 * EPS32)
    # Its parameters and statistics are float32 throughout.
    np.testing.assert_allclose(found.grads["bn_beta"], head.sum((0, 2, 3)), rtol=1e-5)
    mean = 0.9 * inputs["bn_moving_mean"] + 0.1 * inputs["data"].mean((0, 2, 3))
    np.testing.assert_allclose(found.inputs["bn_moving_mean"].asnumpy(), mean, rtol=1e-5)
    assert np.any(float16(mean) != mean)
