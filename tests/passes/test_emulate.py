"""float16 on CPU: float32 arithmetic on float16 operands, rounded to float16; against numpy and MXNet's own kernels."""

import mxnet as mx
import numpy as np
import pytest

from mxmp import Policy
from mxmp.errors import PassError
from mxmp.symbol import convert_graph, to_graph
from tests.graph.text import to_text
from tests.numpy_layers import batch_norm, convolution
from tests.passes.oracle import EPS32, LOW, Run, assert_rounded, few_bits, float16, grid
from tests.symbol.small import TWICE

data, weight, other, bias = (mx.sym.var(name) for name in ("data", "weight", "other", "bias"))
ALL_LOW = Policy(compute_dtype="float16", names={"*": "float16"})


@pytest.fixture
def rng():
    return np.random.default_rng(0)


# Products: few-bit operands make every float32 sum exact, whatever its order, so results are
# bit-exact; on other operands the sum of n products of size s is off by n * s * EPS32 at most.


def convolved(shape, kernel, groups=1, **options):
    """Return the symbol of a convolution, the shapes of its inputs, and what it and its gradients are."""
    symbol = mx.sym.Convolution(
        data, weight, kernel=kernel[2:], num_filter=kernel[0], num_group=groups, no_bias=True, **options
    )
    return symbol, {"data": shape, "weight": kernel}, lambda x, w, head: convolution(
        x, w, groups=groups, head_grad=head, **options
    )


def deconvolved(shape, kernel, groups=1, biased=True, **options):
    """Return the same of a transposed convolution, which is a convolution's gradient by its data."""
    inputs = {"data": shape, "weight": kernel, **({"bias": (kernel[1] * groups,)} if biased else {})}
    symbol = mx.sym.Deconvolution(
        *map(mx.sym.var, inputs), kernel=kernel[2:], num_filter=kernel[1] * groups, num_group=groups,
        no_bias=not biased, **options,
    )  # fmt: skip
    used = {key: value for key, value in options.items() if key in ("stride", "pad", "dilate")}
    if "target_shape" in options:
        used["pad"] = (1,) * (len(shape) - 2)

    def exact(x, w, *last):
        by_data, out, by_weight = convolution(last[-1], w, groups=groups, head_grad=x, **used)
        if not biased:
            return out, by_data, by_weight
        return out + last[0].reshape(-1, *(1,) * (x.ndim - 2)), by_data, by_weight, last[1].sum((0, *range(2, x.ndim)))

    return symbol, inputs, exact


PRODUCTS = {
    "3x3": convolved((2, 3, 7, 6), (4, 3, 3, 3)),
    "1x1": convolved((2, 8, 4, 4), (5, 8, 1, 1)),
    "padded and strided": convolved((2, 3, 8, 8), (4, 3, 3, 3), stride=(2, 1), pad=(1, 2)),
    "dilated": convolved((2, 3, 9, 9), (4, 3, 3, 3), dilate=(2, 2), pad=(2, 2)),
    "two groups": convolved((2, 6, 5, 5), (4, 3, 3, 3), groups=2),
    "depthwise": convolved((2, 6, 5, 5), (6, 1, 3, 3), groups=6, pad=(1, 1)),
    "DCGAN": deconvolved((2, 8, 4, 4), (8, 4, 4, 4), stride=(2, 2), pad=(1, 1)),
    "16 channels": deconvolved((2, 16, 3, 3), (16, 16, 4, 4), stride=(2, 2), pad=(1, 1)),
    "one filter": deconvolved((2, 3, 4, 5), (3, 1, 3, 3), stride=(1, 1), pad=(1, 1)),
    "adjusted": deconvolved((2, 3, 3, 4), (3, 5, 3, 4), stride=(2, 3), pad=(1, 0), adj=(1, 2)),
    "up, two groups": deconvolved((2, 6, 4, 3), (6, 2, 4, 4), stride=(2, 2), pad=(1, 1), groups=2),
    "row": deconvolved((2, 4, 5), (4, 6, 4), stride=(2,), pad=(1,), adj=(1,)),
    "target row": deconvolved((2, 4, 3), (4, 3, 4), biased=False, stride=(2,), target_shape=(7,)),
    "target": deconvolved((2, 4, 3, 4), (4, 3, 4, 4), biased=False, stride=(2, 2), target_shape=(7, 9)),
    "FullyConnected": (
        mx.sym.FullyConnected(data, weight, bias, num_hidden=32), {"data": (16, 64), "weight": (32, 64), "bias": (32,)},
        lambda x, w, b, head: (x @ w.T + b, head @ w, head.T @ x, head.sum(0))),
    "dot": (mx.sym.dot(data, other), {"data": (16, 64), "other": (64, 24)},
        lambda a, b, head: (a @ b, head @ b.T, a.T @ head)),
    "batch_dot": (mx.sym.batch_dot(data, other), {"data": (3, 16, 64), "other": (3, 64, 24)},
        lambda a, b, head: (a @ b, head @ b.swapaxes(1, 2), a.swapaxes(1, 2) @ head)),
}  # fmt: skip


TERMS = {"convolution": 72, "deconvolution": 1024}  # of the longest sum; 64 of others


@pytest.mark.behaviour("bits of casts by hand")
@pytest.mark.parametrize("draw, size", [(few_bits, 0), (grid, 16)], ids=["few bits", "random"])
@pytest.mark.parametrize("symbol, shapes, exact", PRODUCTS.values(), ids=PRODUCTS)
def test_products_and_their_gradients_are_rounded_once(symbol, shapes, exact, draw, size, rng):
    slack = TERMS.get(symbol.name.rstrip("0123456789"), 64) * size * EPS32
    values = [draw(rng, *shape) for shape in shapes.values()]
    head = draw(rng, *symbol.infer_shape(**shapes)[1][0])
    found = Run(symbol, dict(zip(shapes, values)), head_grads=[head], wrt=tuple(shapes))
    for result, expected in zip([found.outputs[0], *found.grads.values()], exact(*values, head)):
        assert_rounded(result, expected, slack)


@pytest.mark.parametrize("case", ["DCGAN", "adjusted"])
def test_a_transposed_convolution_trains_and_infers_as_a_static_graph(case, rng):
    symbol, shapes, exact = PRODUCTS[case]
    values = [few_bits(rng, *shape) for shape in shapes.values()]
    head = few_bits(rng, *symbol.infer_shape(**shapes)[1][0])
    emulated = convert_graph(symbol, LOW, {"data": shapes["data"]}).on_cpu()
    call = mx.nd.CachedOp(emulated, [("static_alloc", True), ("static_shape", True)])
    arrays = {name: mx.nd.array(value) for name, value in zip(shapes, values)}
    for array in arrays.values():
        array.attach_grad()
    inputs, expected = [arrays[name] for name in emulated.list_inputs()], [*map(float16, exact(*values, head))]
    for _ in range(2):
        np.testing.assert_array_equal(call(*inputs).asnumpy(), expected[0])
        with mx.autograd.record():
            found = call(*inputs)
        found.backward(mx.nd.array(head))
        for result, wanted in zip([found, *(array.grad for array in arrays.values())], expected):
            np.testing.assert_array_equal(result.asnumpy(), wanted)


@pytest.mark.parametrize("shape, kernel", [((2, 4, 3, 3, 3), (2, 2, 2)), ((2, 4, 5, 5), (3, 3))], ids=["volume", "dilated"])
def test_transposed_convolutions_of_volumes_or_with_dilation_are_refused(shape, kernel):
    options = {} if len(kernel) == 3 else {"dilate": (2, 2)}
    up = mx.sym.Deconvolution(data, weight, kernel=kernel, num_filter=3, no_bias=True, name="up", **options)
    with pytest.raises(PassError, match="up.*three axes or dilation.*op:Deconvolution=float32"):
        convert_graph(up, LOW, {"data": shape}).on_cpu()


def test_a_transposed_convolution_works_inside_of_a_loop(rng):
    x, w = few_bits(rng, 3, 2, 4, 3, 3), few_bits(rng, 4, 3, 4, 4)
    options = {"stride": (2, 2), "pad": (1, 1)}
    exact = deconvolved(x.shape[1:], w.shape, biased=False, **options)[2]
    out, _ = mx.sym.contrib.foreach(
        lambda x, _: (mx.sym.Deconvolution(x, weight, kernel=(4, 4), num_filter=3, no_bias=True, **options), []), data, []
    )
    found = Run(out, {"data": x, "weight": w})
    assert "float64" in found.converted.on_cpu().tojson()
    assert_rounded(found.outputs[0], np.stack([exact(each, w, np.zeros((2, 3, 6, 6)))[0] for each in x]))


# Functions of values on the float16 grid, of which MXNet has float16 kernels on CPU: the code that it runs on GPU.
NATIVE = {
    **{op: lambda F, x, y, op=op: getattr(F, op)(x, y)
       for op in ("elemwise_add", "elemwise_sub", "elemwise_mul", "elemwise_div")},
    **{op: lambda F, x, y, op=op: getattr(F, op)(x, F.slice_axis(y, axis=0, begin=0, end=1))
       for op in ("broadcast_add", "broadcast_sub", "broadcast_mul", "broadcast_div", "broadcast_maximum",
                  "broadcast_minimum")},
    **{op: lambda F, x, y, op=op: getattr(F, op)(x)
       for op in ("relu", "abs", "negative", "sigmoid", "tanh", "softsign", "erf")},
    "_plus_scalar": lambda F, x, y: x + 0.1,
    "_minus_scalar": lambda F, x, y: x - 1 / 3,
    "_rminus_scalar": lambda F, x, y: 0.1 - x,
    "_mul_scalar": lambda F, x, y: x * 0.1,
    "_div_scalar": lambda F, x, y: x / (1 / 3),
    "_rdiv_scalar": lambda F, x, y: 0.1 / x,
    "_maximum_scalar": lambda F, x, y: F.maximum(x, 0.1),
    "_minimum_scalar": lambda F, x, y: F.minimum(x, 0.1),
    "_not_equal_scalar": lambda F, x, y: x != 0.1,
    "_equal_scalar": lambda F, x, y: x == 0.1,
    "_greater_scalar": lambda F, x, y: x > 0.1,
    "_lesser_equal_scalar": lambda F, x, y: x <= 0.1,
    "sqrt": lambda F, x, y: F.sqrt(F.abs(x)),
    "clip": lambda F, x, y: F.clip(x, a_min=0.1, a_max=0.7),
    "Activation": lambda F, x, y: F.Activation(x, act_type="sigmoid"),
    "LeakyReLU": lambda F, x, y: F.LeakyReLU(x, act_type="leaky", slope=0.01),
    "Pad": lambda F, x, y: F.Pad(x, mode="constant", pad_width=(0, 0, 0, 0, 1, 1, 1, 1), constant_value=0.1),
    "SequenceMask": lambda F, x, y: F.SequenceMask(
        x, F.ones_like(x).slice((0, 0, 0, 0), (1, None, 1, 1)).reshape(-1), True, value=0.1
    ),
    "Pooling": lambda F, x, y: F.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="avg"),
    "UpSampling": lambda F, x, y: F.UpSampling(x, scale=2, sample_type="nearest"),
}  # fmt: skip


@pytest.mark.behaviour("bits of casts by hand")
@pytest.mark.parametrize("function", NATIVE.values(), ids=NATIVE)
def test_emulation_equals_the_float16_kernels_that_mxnet_has_on_cpu(function, rng):
    x, y = grid(rng, 3, 2, 16, 16), float16(np.exp2(rng.uniform(-14, 15, (3, 2, 16, 16))))
    x[0, 0, 0, :3], x[1], y[1:] = float16([0.1, 0.7, 1 / 3]), y[1] * np.sign(x[1]), -y[1:]
    inputs = {"data": x, "other": y}
    expected = function(mx.nd, *(mx.nd.array(value, dtype="float16") for value in inputs.values())).asnumpy()
    assert expected.dtype == np.float16
    symbol = function(mx.sym, data, other)
    found = Run(symbol, {name: inputs[name] for name in symbol.list_inputs()}, ALL_LOW)
    np.testing.assert_array_equal(found.outputs[0], expected.astype(np.float32))


def test_batch_norm_in_training(rng):
    x, gamma, beta, mean = grid(rng, 4, 3, 8, 8), rng.uniform(0.5, 1.5, 3), rng.standard_normal(3), np.ones(3) / 3
    symbol = mx.sym.BatchNorm(data, fix_gamma=False, eps=1e-3, momentum=0.9, name="bn")
    inputs = {"data": x, "bn_gamma": gamma, "bn_beta": beta, "bn_moving_mean": mean, "bn_moving_var": gamma}
    head = grid(rng, *x.shape)
    found = Run(symbol, inputs, Policy(compute_dtype="float16", ops={"BatchNorm": "float16"}), [head], wrt=("data", "bn_gamma", "bn_beta"))
    out, by_data = batch_norm(x, gamma, beta, 1e-3, head)
    assert_rounded(found.outputs[0], out, 64 * EPS32)
    assert_rounded(found.grads["data"], by_data, 64 * EPS32)
    # Its parameters and statistics are float32 throughout.
    np.testing.assert_allclose(found.grads["bn_beta"], head.sum((0, 2, 3)), rtol=1e-5)
    np.testing.assert_allclose(found.inputs["bn_moving_mean"].asnumpy(), 0.9 * mean + 0.1 * x.mean((0, 2, 3)), rtol=1e-5)


# Gradients: rounded, overflowing, and the rounding of casts itself.


def test_gradients_overflow_within_the_network():
    symbol = mx.sym.FullyConnected(data, weight, num_hidden=1, no_bias=True)
    inputs = {"data": np.array([[40000.0], [30000]]), "weight": np.array([[2.0**-15]])}
    for scale, by_weight, by_data in ((1, np.inf, 2.0**-15), (2.0**-11, float16(70000 * 2.0**-11), 0)):  # 2**-26
        found = Run(symbol, inputs, head_grads=[np.full((2, 1), scale)], wrt=("data", "weight"))
        np.testing.assert_array_equal(found.grads["weight"], [[by_weight]])
        np.testing.assert_array_equal(found.grads["data"], [[by_data]] * 2)


def test_gradients_between_layers_are_float16(rng):
    hidden = mx.sym.FullyConnected(data, weight, num_hidden=8, no_bias=True)
    symbol = mx.sym.FullyConnected(mx.sym.relu(hidden), other, num_hidden=4, no_bias=True)
    x, w1, w2, head = few_bits(rng, 4, 8), few_bits(rng, 8, 8) / 16, few_bits(rng, 4, 8) / 16, few_bits(rng, 4, 4)
    found = Run(symbol, {"data": x, "weight": w1, "other": w2}, head_grads=[head], wrt=("data", "weight", "other"))
    active = float16(x @ w1.T)
    between = float16((head @ w2) * (active > 0))
    assert np.any(between != (head @ w2) * (active > 0))
    expected = {"other": head.T @ np.maximum(active, 0), "weight": between.T @ x, "data": between @ w1}
    for name, gradient in expected.items():
        assert_rounded(found.grads[name], gradient, 8 * 2000 * EPS32)


def test_gradients_of_several_readers_are_summed_in_float32_and_rounded_once():
    layers = [mx.sym.FullyConnected(data, each, num_hidden=1, no_bias=True, name=each.name[0]) for each in (weight, other)]
    inputs = {"data": np.ones((1, 1)), "weight": np.ones((1, 1)), "other": np.array([[3.0]])}
    found = Run(mx.sym.Group(layers), inputs, head_grads=[np.array([[1.0]]), np.array([[2.0**-11]])], wrt=("data",))
    assert found.grads["data"][0, 0] == 1 + 2.0**-9  # 1 + 3 * 2**-11, a tie, to even


@pytest.mark.parametrize("op", [mx.sym.Cast, mx.sym.amp_cast], ids=["Cast", "amp_cast"])
def test_casts_round_as_numpy_does(op):
    """All float16 values, the float32 values halfway between them, and their neighbours."""
    every = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)
    finite = np.sort(every[np.isfinite(every)])
    points = np.float32([*((finite[1:] + finite[:-1]) / 2), 65520, -65520, 1e30, -1e30, 2.0**-149, -0.0])
    x = np.concatenate([every, points, np.nextafter(points, np.float32(np.inf)), np.nextafter(points, -np.float32(np.inf))])
    found = Run(op(op(data, dtype="float16"), dtype="float32"), {"data": x}, Policy(), head_grads=[x], wrt=("data",))
    with np.errstate(over="ignore"):
        expected = x.astype(np.float16).astype(np.float32)
    for result in (found.outputs[0], found.grads["data"]):
        np.testing.assert_array_equal(result, expected)  # NaN equals NaN here
        np.testing.assert_array_equal(np.signbit(result)[~np.isnan(x)], np.signbit(expected)[~np.isnan(x)])


def test_gradients_behind_a_sum_are_rounded_once():
    """Sparing a BatchNorm in front of a sum the second rounding of its gradient changes no bit.

    In front of a broadcast sum, whose gradient may be more than a copy, it is not spared.
    """
    conv = mx.sym.Convolution(data, weight, kernel=(3, 3), pad=(1, 1), num_filter=4, no_bias=True, name="conv")
    norm = mx.sym.BatchNorm(conv, name="norm", fix_gamma=False)
    shapes, runs = {"data": (2, 3, 8, 8), "weight": (4, 3, 3, 3), "other": (2, 4, 1, 1)}, []
    for add in (mx.sym.elemwise_add, mx.sym.broadcast_add):
        again = mx.sym.Convolution(mx.sym.relu(add(norm, conv)), other, kernel=(1, 1), num_filter=2, no_bias=True)
        inputs = {name: grid(np.random.default_rng(0), *shapes.get(name, (4,))) for name in again.list_inputs()}
        runs.append(Run(again, inputs, Policy.parse("O1"), [300 * inputs["data"][:, :2]], (*shapes, "norm_gamma")))
    assert [run.converted.on_cpu().tojson().count('"BlockGrad"') for run in runs] == [1, 0]
    for spared, wanted in zip(*(run.grads.values() for run in runs)):
        assert np.abs(wanted).max() > 0
        np.testing.assert_array_equal(spared, wanted)


# The graph: where it rounds, and what it leaves alone.


def emulated_text(symbol, policy=LOW, shapes=None):
    """Return the emulated graph, its variables left out."""
    lines = to_text(to_graph(convert_graph(symbol, policy, shapes).on_cpu())).splitlines()
    return [line for line in lines if " = null(" not in line]


def test_operators_on_the_grid_get_no_rounding():
    conv = mx.sym.Convolution(data, weight, kernel=(3, 3), num_filter=4, no_bias=True, name="conv")
    pooled = mx.sym.Pooling(mx.sym.relu(conv, name="relu"), kernel=(2, 2), pool_type="max", name="pool")
    parts = mx.sym.SliceChannel(mx.sym.Flatten(pooled, name="flat"), num_outputs=2, name="parts")
    symbol = mx.sym.FullyConnected(parts[0], other, num_hidden=2, no_bias=True, name="fc")
    assert emulated_text(symbol, shapes={"data": (2, 3, 8, 8)}) == [
        "data_cast_float16_as_float16 = Cast(data) {dtype: float16}",
        "data_cast_float16_as_float32 = Cast(data_cast_float16_as_float16) {dtype: float32}",
        "weight_cast_float16_as_float16 = Cast(weight) {dtype: float16}",
        "weight_cast_float16_as_float32 = Cast(weight_cast_float16_as_float16) {dtype: float32}",
        "conv = Convolution(data_cast_float16_as_float32, weight_cast_float16_as_float32) "
        "{kernel: (3, 3); no_bias: True; num_filter: 4}",
        "conv_as_float16 = Cast(conv) {dtype: float16}",
        "conv_as_float32 = Cast(conv_as_float16) {dtype: float32}",
        "relu = relu(conv_as_float32)",
        "pool = Pooling(relu) {kernel: (2, 2); pool_type: max} x2",
        "flat = Flatten(pool)",
        "parts = SliceChannel(flat) {num_outputs: 2} x2",
        "other_cast_float16_as_float16 = Cast(other) {dtype: float16}",
        "other_cast_float16_as_float32 = Cast(other_cast_float16_as_float16) {dtype: float32}",
        "fc_float16 = FullyConnected(parts, other_cast_float16_as_float32) {no_bias: True; num_hidden: 2}",
        "fc_float16_as_float16 = Cast(fc_float16) {dtype: float16}",
        "fc = Cast(fc_float16_as_float16) {dtype: float32}",
        "return fc",
    ]


@pytest.mark.parametrize(
    "policy, dtypes",
    [("O2", ("float32", "float16")), ("compute=float16,output=float16", ("float16", "float32"))],
    ids=["parameters", "outputs"],
)
def test_float16_parameters_and_outputs_are_float16_arrays(policy, dtypes, rng):
    x, w, head = few_bits(rng, 4, 8), few_bits(rng, 3, 8), few_bits(rng, 4, 3)
    symbol = mx.sym.FullyConnected(data, weight, num_hidden=3, no_bias=True)
    found = Run(symbol, {"data": x, "weight": w}, Policy.parse(policy), [head], wrt=("weight",), params=("weight",))
    assert (found.outputs[0].dtype, found.grads["weight"].dtype) == dtypes
    assert_rounded(found.outputs[0], x @ w.T)
    assert_rounded(found.grads["weight"], head.T @ x)


NAMED = {
    "cast up": (mx.sym.FullyConnected(data, num_hidden=2, name="fc"), "float32"),
    "float16": (mx.sym.FullyConnected(data, num_hidden=2, name="fc"), "float16"),
    "behind an exact operator": (mx.sym.relu(mx.sym.FullyConnected(data, num_hidden=2), name="act"), "float32"),
    "two outputs": (mx.sym.Group([mx.sym.FullyConnected(data, num_hidden=2, name=n) for n in "ab"]), "float16"),
    "inner tensor": (mx.sym.FullyConnected(data, num_hidden=2, name="fc").get_internals(), "float32"),
    "float32 part": (mx.sym.softmax(mx.sym.FullyConnected(data, num_hidden=2), name="soft"), "float32"),
}


@pytest.mark.parametrize("symbol, dtype", NAMED.values(), ids=NAMED)
def test_outputs_keep_their_names(symbol, dtype):
    types = dict.fromkeys(symbol.list_inputs(), "float32")
    converted = convert_graph(symbol, Policy(compute_dtype="float16", output_dtype=dtype), {"data": (2, 3)}, types)
    emulated = converted.on_cpu()
    assert emulated.list_outputs() == converted.symbol.list_outputs()
    assert emulated.list_inputs() == converted.symbol.list_inputs()


@pytest.mark.behaviour("custom operators")
def test_an_operator_without_rule_runs_in_float16_itself(rng):
    x = grid(rng, 100)
    symbol = mx.sym.Custom(mx.sym.Cast(data, dtype="float16", name="low"), op_type=TWICE, name="own")
    assert emulated_text(symbol, Policy()) == [
        "low_as_float16 = Cast(data) {dtype: float16}",
        "low_as_float32 = Cast(low_as_float16) {dtype: float32}",
        "low_as_float161 = Cast(low_as_float32) {dtype: float16}",
        f"own = Custom(low_as_float161) {{op_type: {TWICE}}}",
        "return own",
    ]
    found = Run(symbol, {"data": x}, Policy()).outputs[0]
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found, x.astype(np.float16) * 2)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_a_graph_without_float16_is_left_alone(policy):
    net = mx.sym.relu(mx.sym.FullyConnected(data, num_hidden=2))
    text = convert_graph(net, Policy.parse(policy), {"data": (2, 3)}).on_cpu().tojson()
    assert "float16" not in text.replace("bfloat16", "") and "Cast" not in text
