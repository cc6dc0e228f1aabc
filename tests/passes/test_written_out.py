"""Operators of float32 that are slow to train on a CPU, written out as others; MXNet's own are the oracle."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from mxnet.gluon import nn

from mxmp.gluon import convert
from mxmp.passes.cpu.guards import GuardLayouts
from mxmp.passes.cpu.layouts import Layouts
from mxmp.passes.cpu.written_out import WriteOut
from mxmp.processors import EMULATED
from mxmp.symbol import from_graph, infer_facts, to_graph
from tests.passes.graphs import assert_same_steps, converted, losses_of, on_cpu, operators, step, values_of

X, GAMMA, BETA, SCALE = map(mx.sym.var, ("x", "gamma", "beta", "scale"))
IMAGES = {"x": (4, 16, 16, 16)}
CHANNELS = {**IMAGES, "gamma": (16,), "beta": (16,)}
GROUPS = {"gamma": (8,), "beta": (8,)}
ROWS = {"x": (8, 32, 96), "gamma": (96,), "beta": (96,)}
SCALED = {**IMAGES, "scale": (4, 16, 1, 1)}

# What is written out: the operator that is gone, the symbol, and the shapes of what it reads.
WRITTEN = {
    "relu6": ("clip", mx.sym.clip(X, 0, 6), IMAGES),
    "hard swish": ("clip", X * mx.sym.clip(X + 3, 0, 6) / 6, IMAGES),
    "tanh": ("tanh", mx.sym.tanh(X), IMAGES),
    "sigmoid": ("sigmoid", X * mx.sym.sigmoid(X), IMAGES),
    "gelu": ("erf", 0.5 * X * (1 + mx.sym.erf(X / 2**0.5)), IMAGES),
    "gelu, a product": ("erf", (1 + mx.sym.erf(X * 0.5**0.5)) * (X * 0.5), IMAGES),
    "scaled channels": ("broadcast_mul", mx.sym.broadcast_mul(X, SCALE), SCALED),
    "scales first": ("broadcast_mul", mx.sym.broadcast_mul(SCALE, X), SCALED),
    "LayerNorm": ("LayerNorm", mx.sym.LayerNorm(X, GAMMA, BETA), ROWS),
    "LayerNorm, by its axis": ("LayerNorm", mx.sym.LayerNorm(X, GAMMA, BETA, axis=2, eps=1e-2), ROWS),
    "InstanceNorm": ("InstanceNorm", mx.sym.InstanceNorm(X, GAMMA, BETA), CHANNELS),
    "GroupNorm": ("GroupNorm", mx.sym.GroupNorm(X, GAMMA, BETA, num_groups=8), {**IMAGES, **GROUPS}),
    "GroupNorm, one axis": (
        "GroupNorm", mx.sym.GroupNorm(X, GAMMA, BETA, num_groups=8, eps=1e-2), {**GROUPS, "x": (4, 16, 256)}),
    "InstanceNorm, one axis": ("InstanceNorm", mx.sym.InstanceNorm(X, GAMMA, BETA), {**CHANNELS, "x": (4, 16, 256)}),
}

# What stays, and why.
LEFT = {
    "few elements": (mx.sym.clip(X, 0, 6), {"x": (2, 8, 16, 16)}),
    "another bound": (mx.sym.clip(X, -1, 1), IMAGES),
    "an unknown shape": (mx.sym.LayerNorm(X, GAMMA, BETA), {}),
    "another axis": (mx.sym.LayerNorm(X, GAMMA, BETA, axis=1), {**ROWS, "gamma": (32,), "beta": (32,)}),
    "statistics": (mx.sym.LayerNorm(X, GAMMA, BETA, output_mean_var=True)[0], ROWS),
    "statistics of groups": (
        mx.sym.GroupNorm(X, GAMMA, BETA, num_groups=8, output_mean_var=True)[0], {**IMAGES, **GROUPS}),
    "one image": (mx.sym.broadcast_mul(X, SCALE), {"x": (1, 64, 16, 16), "scale": (1, 64, 1, 1)}),
    "scales of single pixels": (mx.sym.broadcast_mul(SCALE, X), {"x": (32, 512, 1, 1), "scale": (32, 512, 1, 1)}),
    "scaled pixels": (mx.sym.broadcast_mul(X, SCALE), {**IMAGES, "scale": (4, 1, 16, 16)}),
    "no gelu": (0.5 * X * (1 + mx.sym.erf(X / 2)), IMAGES),
    "gelu of another": (0.5 * X * (1 + mx.sym.erf(SCALE / 2**0.5)), {**IMAGES, "scale": IMAGES["x"]}),
}


def written_out(symbol, shapes, dtype="float32"):
    graph = to_graph(symbol)
    facts = infer_facts(symbol, graph, shapes, dict.fromkeys(symbol.list_arguments(), dtype), frozenset())
    after = WriteOut(Layouts.of(graph, facts, EMULATED)).run(graph)
    return from_graph(GuardLayouts().run(after), symbol)


def with_batch(shapes, batch):
    """Other shapes for the same network: another batch, and images of another size."""
    size = {4: 8}.get(len(shapes["x"]), shapes["x"][-1])  # of images
    other = {"x": (batch, *shapes["x"][1:-1], size), "scale": (batch, 16, 1, 1)}
    return {name: other.get(name, shape) for name, shape in shapes.items()}


@pytest.mark.parametrize("op, symbol, shapes", WRITTEN.values(), ids=WRITTEN)
def test_values_and_gradients_are_mxnets_for_other_shapes_too(op, symbol, shapes):
    after = written_out(symbol, shapes)
    assert op in operators(symbol) and op not in operators(after)
    for given in (shapes, with_batch(shapes, 3), with_batch(shapes, 1)):
        assert_same_steps(symbol, after, values_of(symbol, given))


IMAGE, SCALES = (4, 16, 16, 16), (4, 16, 1, 1)
# What is computed of two inputs, the operator that is gone, and what it is called with: first, then later.
LATER = {
    "the other is the scale": ("broadcast_mul", (IMAGE, SCALES), (SCALES, IMAGE)),
    "scales of pixels": ("broadcast_mul", (IMAGE, SCALES), (IMAGE, (4, 1, 16, 16))),
    "none is broadcast": ("broadcast_mul", (IMAGE, SCALES), (IMAGE, IMAGE)),
    "one image": ("broadcast_mul", (IMAGE, SCALES), ((1, 16, 16, 16), SCALES)),
    "scales of images": ("broadcast_mul", (SCALES, IMAGE), ((4, 1, 1, 1), IMAGE)),
    "shared scales": ("broadcast_mul", (IMAGE, SCALES), ((6, 16, 8, 8), (1, 16, 1, 1))),
    "a norm whose axis is the last": ("LayerNorm", ((256, 96), (96,)), ((8, 96, 96), (96,))),
}


def calls_of(op, shapes, policy):
    """Return outputs, and gradients of the inputs, of calls of one net, in which a layer is beside an operator."""

    def function(F, x, y, z):
        layer = F.Convolution(z, F.ones((16, 16, 1, 1)), num_filter=16, kernel=(1, 1), no_bias=True)
        return F.broadcast_mul(x, y) if op == "broadcast_mul" else F.LayerNorm(x, y, F.zeros_like(y), axis=1), layer

    net, found = convert(nn.HybridLambda(function), policy), []
    for number, call in enumerate(shapes):
        random = np.random.RandomState(number)
        x, y, z = (mx.nd.array(random.randn(*shape)) for shape in (*call, (4, 16, 8, 8)))
        for array in (x, y):
            array.attach_grad()
        with mx.autograd.record():
            output, _ = net(x, y, z)
        output.backward(mx.nd.array(random.randn(*output.shape)))
        found += [array.asnumpy() for array in (output, x.grad, y.grad)]
    return found


@pytest.mark.parametrize("op, first, later", LATER.values(), ids=LATER)
def test_shapes_of_a_later_call_may_be_such_that_nothing_can_be_written_out(op, first, later, run):
    found, expected = (calls_of(op, (first, later, first), policy) for policy in ("mixed_bfloat16", "float32"))
    assert op not in {node.op for node in run[0].operators()}
    for one, other in zip(expected, found):
        np.testing.assert_allclose(other, one, rtol=0, atol=2e-5 * np.abs(one).max())


def test_a_clip_from_0_on_has_the_bits_of_clip():
    values = {"x": np.linspace(-9, 9, 4 * 16 * 16 * 17, dtype="float32").reshape(4, 16, 16, 17)}
    values["x"].flat[:7] = 6, np.inf, -np.inf, np.nan, 0.0, -0.0, 3
    symbol = mx.sym.clip(X, 0, 6)
    (output,), gradients = step(symbol, values)
    (found,), found_gradients = step(written_out(symbol, {"x": values["x"].shape}), values)
    np.testing.assert_array_equal(found, output)
    # The row of the table names the exception.
    np.testing.assert_array_equal(found_gradients["x"], np.where(np.isnan(values["x"]), 0, gradients["x"]))


@pytest.mark.bfloat16
@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_bfloat16,op:clip=bfloat16"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -0.0, 3.0], ids=str)
def test_a_clip_in_native_bfloat16_gives_what_it_gives_in_float32(value, policy):
    net = mx.sym.Group([mx.sym.clip(X, 0, 6), mx.sym.Convolution(X, num_filter=16, kernel=(1, 1), no_bias=True)])
    values = {**values_of(net, IMAGES), "x": np.full(IMAGES["x"], value)}
    (found, _), _ = step(on_cpu(net, IMAGES, policy), values)
    np.testing.assert_array_equal(found, np.clip(values["x"], 0, 6))


@pytest.mark.parametrize("name, groups", [("InstanceNorm", 16), ("GroupNorm", 8)])
@pytest.mark.parametrize("spread", [0, 1])
def test_norms_of_values_far_from_zero_are_exact(name, groups, spread):
    _, symbol, shapes = WRITTEN[name]
    data = (1000 + spread * np.random.RandomState(0).randn(*shapes["x"])).astype("float32")
    rows = data.astype("float64").reshape(len(data), groups, -1)
    scale = np.sqrt(rows.var(-1, keepdims=True) + (1e-3 if name == "InstanceNorm" else 1e-5))
    expected = ((rows - rows.mean(-1, keepdims=True)) / scale).reshape(data.shape)
    values = {"x": data, "gamma": np.ones(groups), "beta": np.zeros(groups)}
    (output, *_), _ = step(written_out(symbol, shapes), values, wrt=())
    np.testing.assert_allclose(output, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("value", [1000.1, 1e6 + 0.3])
@pytest.mark.parametrize("name", ["LayerNorm", "LayerNorm, by its axis", "InstanceNorm", "GroupNorm"])
def test_norms_of_rows_of_one_value_give_zero(name, value):
    _, symbol, shapes = WRITTEN[name]
    shapes = {"x": (4, 8, 768), "gamma": (768,), "beta": (768,)} if "Layer" in name else shapes
    random = values_of(symbol, shapes)
    values = {**random, "x": np.full(shapes["x"], value), "beta": np.zeros(shapes["beta"])}
    (output, *_), gradients = step(written_out(symbol, shapes), values, head_grads=[random["x"]])
    assert not output.any() and not gradients["gamma"].any()


@pytest.mark.parametrize("spread", [0.01, 1])
def test_layer_norm_of_values_far_from_zero_is_exact(spread):
    shapes = {"x": (64, 768), "gamma": (768,), "beta": (768,)}
    rng = np.random.RandomState(0)
    data, head, gamma = (1000 + spread * rng.randn(64, 768)).astype("float32"), rng.randn(64, 768), rng.rand(768)
    rows = data.astype("float64")
    scale = np.sqrt(rows.var(-1, keepdims=True) + 1e-5)
    standard, by = (rows - rows.mean(-1, keepdims=True)) / scale, head * gamma
    into = by - by.mean(-1, keepdims=True) - standard * (by * standard).mean(-1, keepdims=True)
    symbol, values = mx.sym.LayerNorm(X, GAMMA, BETA), {"x": data, "gamma": gamma, "beta": np.zeros(768)}
    (output, *_), gradients = step(written_out(symbol, shapes), values, head_grads=[head])
    np.testing.assert_allclose(output, standard * gamma, rtol=0, atol=1e-5)
    np.testing.assert_allclose(gradients["x"], into / scale, rtol=0, atol=1e-5 * np.abs(into / scale).max())
    np.testing.assert_allclose(gradients["gamma"], (head * standard).sum(0), rtol=0, atol=1e-3)


@pytest.mark.parametrize("symbol, shapes", LEFT.values(), ids=LEFT)
def test_the_rest_stays(symbol, shapes):
    assert operators(written_out(symbol, shapes)) == operators(symbol)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_dtypes_stay(dtype):
    for op, symbol, shapes in (WRITTEN["relu6"], WRITTEN["sigmoid"], WRITTEN["gelu"]):
        assert op in operators(written_out(symbol, shapes, dtype))


class Net(nn.HybridSequential):
    """Each operator between layers, as in MobileNet, SE-ResNet, a style transfer and a BERT."""

    def __init__(self):
        super().__init__(prefix="net_")
        with self.name_scope():
            self.add(nn.Conv2D(16, 3, padding=1, in_channels=3), nn.BatchNorm(in_channels=16))
            self.add(nn.HybridLambda(lambda F, x: F.clip(x, 0, 6)), nn.Conv2D(16, 3, padding=1, in_channels=16))
            self.add(nn.InstanceNorm(in_channels=16), nn.Swish(), nn.HybridLambda(self.excite))
            self.add(nn.Conv2D(16, 1, in_channels=16), nn.HybridLambda(lambda F, x: x.reshape((0, 0, -1))))
            self.add(nn.LayerNorm(in_channels=256), nn.Dense(64, in_units=256, flatten=False))
            self.add(nn.HybridLambda(lambda F, x: x * 0.5 * (1 + F.erf(x / 2**0.5))), nn.Dense(3, in_units=1024))

    @staticmethod
    def excite(F, x):
        return F.broadcast_mul(x, F.sigmoid(F.Pooling(x, global_pool=True, pool_type="avg", kernel=(1, 1))))


GONE = {"clip", "InstanceNorm", "LayerNorm", "erf"}  # InstanceNorm has a broadcast_mul of its own
DATA = {"data": (32, 3, 16, 16)}


def test_what_trains_in_bfloat16_is_written_out_and_what_infers_is_not():
    net = Net()(mx.sym.var("data"))
    result = converted(net, DATA, "mixed_bfloat16")
    assert set(operators(result.symbol)) >= GONE  # what is reported, saved and counted
    assert not GONE & set(operators(result.on_cpu(trains=True)))
    assert set(operators(result.on_cpu(trains=False))) >= GONE
    assert set(operators(converted(net, DATA, "O1").on_cpu(trains=True))) >= GONE


def trained(policy):
    mx.random.seed(0)
    net, random = Net(), np.random.RandomState(0)
    net.initialize(mx.init.Xavier())
    batches = [(mx.nd.array(random.randn(size, 3, 16, 16)), mx.nd.arange(size) % 3) for size in (32, 32, 5, 32)]
    return losses_of(convert(net, policy), gluon.loss.SoftmaxCrossEntropyLoss(), batches, rate=0.05)


def test_a_network_of_them_trains_as_in_float32_with_a_partial_batch(run):
    """Through all passes for a CPU."""
    expected = trained("float32")
    run.clear()
    np.testing.assert_allclose(trained("mixed_bfloat16"), expected, rtol=1e-5)
    assert len(run) == 1 and not GONE & {node.op for node in run[0].operators()}  # one conversion for both batches
