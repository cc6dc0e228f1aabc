"""Operators of float32 that are slow to train on a CPU, written out as others; MXNet's own are the oracle."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

from mxmp.gluon import Trainer, convert
from mxmp.passes import GuardLayouts
from mxmp.passes.cpu.written_out import WriteOut
from mxmp.passes.facts import float32_entries
from mxmp.symbol import from_graph, infer_facts, to_graph
from tests.passes.graphs import converted, step

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
    after = WriteOut(float32_entries(graph, facts)).run(graph)
    return from_graph(GuardLayouts().run(after), symbol)


def operators(symbol):
    return [node.op for node in to_graph(symbol).operators()]


def values_of(shapes, seed=0):
    rng = np.random.RandomState(seed)
    return {name: (3 * rng.randn(*shape)).astype("float32") for name, shape in shapes.items()}


def with_batch(shapes, batch):
    """Other shapes for the same network: another batch, and images of another size."""
    size = {4: 8}.get(len(shapes["x"]), shapes["x"][-1])  # of images
    other = {"x": (batch, *shapes["x"][1:-1], size), "scale": (batch, 16, 1, 1)}
    return {name: other.get(name, shape) for name, shape in shapes.items()}


@pytest.mark.parametrize("op, symbol, shapes", WRITTEN.values(), ids=WRITTEN)
def test_values_and_gradients_are_mxnets_for_other_shapes_too(op, symbol, shapes):
    after = written_out(symbol, shapes)
    assert op in operators(symbol) and op not in operators(after)
    assert after.list_outputs() == symbol.list_outputs() and after.list_arguments() == symbol.list_arguments()
    for given in (shapes, with_batch(shapes, 3), with_batch(shapes, 1)):
        values = values_of(given)
        ograds = [np.random.RandomState(1).randn(*given["x"])]
        (expected, *_), gradients = step(symbol, values, head_grads=ograds)
        (output, *_), found = step(after, values, head_grads=ograds)
        for one, other in [(expected, output), *((gradients[name], found[name]) for name in gradients)]:
            np.testing.assert_allclose(other, one, rtol=0, atol=2e-5 * np.abs(one).max())


@pytest.mark.parametrize("name", ["scaled channels", "scales first"])
def test_scales_may_be_shared_by_a_later_batch(name):
    _, symbol, shapes = WRITTEN[name]
    values = values_of({**shapes, "scale": (1, 16, 1, 1)})
    (expected, *_), gradients = step(symbol, values)
    (output, *_), found = step(written_out(symbol, shapes), values)
    for one, other in [(expected, output), *((gradients[key], found[key]) for key in gradients)]:
        np.testing.assert_allclose(other, one, rtol=0, atol=2e-5 * np.abs(one).max())


def test_relu6_has_the_same_bits():
    values = {"x": np.linspace(-9, 9, 4 * 16 * 16 * 17, dtype="float32").reshape(4, 16, 16, 17)}
    values["x"].flat[:3] = 6, np.inf, -np.inf
    symbol = mx.sym.clip(X, 0, 6)
    results = [step(each, values) for each in (symbol, written_out(symbol, {"x": values["x"].shape}))]
    for one, other in zip(*([*outputs, gradients["x"]] for outputs, gradients in results)):
        np.testing.assert_array_equal(one, other)


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
    values = {**values_of(shapes), "x": np.full(shapes["x"], value), "beta": np.zeros(shapes["beta"])}
    (output, *_), gradients = step(written_out(symbol, shapes), values, head_grads=[values_of(shapes, 1)["x"]])
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


# A network of two inputs, and what it is called with: first, then later.
SHAPES_OF_CALLS = {
    "the other is the scale": [((4, 16, 16, 16), (4, 16, 1, 1)), ((4, 16, 1, 1), (4, 16, 16, 16))],
    "scales of pixels": [((4, 16, 16, 16), (4, 16, 1, 1)), ((4, 16, 16, 16), (4, 1, 16, 16))],
    "none is broadcast": [((4, 16, 16, 16), (4, 16, 1, 1)), ((4, 16, 16, 16), (4, 16, 16, 16))],
    "one image": [((4, 16, 16, 16), (4, 16, 1, 1)), ((1, 16, 16, 16), (4, 16, 1, 1))],
    "scales of images": [((4, 16, 1, 1), (4, 16, 16, 16)), ((4, 1, 1, 1), (4, 16, 16, 16))],
    "shared scales": [((4, 16, 16, 16), (4, 16, 1, 1)), ((6, 16, 8, 8), (1, 16, 1, 1))],
}


class Scaled(nn.HybridBlock):
    """A product of two inputs behind a layer of low precision, or in front of it."""

    def __init__(self, product):
        super().__init__(prefix="scaled_")
        self.product = product
        with self.name_scope():
            self.conv = nn.Conv2D(16, 1, in_channels=16)

    def hybrid_forward(self, F, x, y, z):
        return self.product(F, x, y), self.conv(z)


def calls_of(product, calls, policy):
    """Return outputs, and gradients of the inputs, of calls of one net."""
    mx.random.seed(0)
    net, found = Scaled(product), []
    net.initialize()
    net = convert(net, policy)
    for number, shapes in enumerate(calls):
        rng = np.random.RandomState(number)
        x, y, z = (mx.nd.array(rng.randn(*shape)) for shape in (*shapes, (4, 16, 8, 8)))
        for array in (x, y):
            array.attach_grad()
        with autograd.record():
            output, _ = net(x, y, z)
        output.backward(mx.nd.array(rng.randn(*output.shape)))
        found.append([array.asnumpy() for array in (output, x.grad, y.grad)])
    return found


@pytest.mark.parametrize("calls", SHAPES_OF_CALLS.values(), ids=SHAPES_OF_CALLS)
def test_a_product_may_be_broadcast_otherwise_by_a_later_call(calls, run):
    calls = [*calls, calls[0]]
    found, expected = (calls_of(lambda F, x, y: F.broadcast_mul(x, y), calls, p) for p in ("mixed_bfloat16", "float32"))
    assert "broadcast_mul" not in {node.op for node in run[0].operators()}
    for one, other in zip(sum(expected, []), sum(found, [])):
        np.testing.assert_allclose(other, one, rtol=0, atol=2e-5 * np.abs(one).max())


def test_the_axis_of_a_layer_norm_may_not_be_the_last_of_a_later_call(run):
    calls = [((256, 96), (96,)), ((8, 96, 96), (96,)), ((256, 96), (96,))]

    def norm(F, x, y):
        return F.LayerNorm(x, y, F.zeros_like(y), axis=1)

    found, expected = (calls_of(norm, calls, policy) for policy in ("mixed_bfloat16", "float32"))
    assert "LayerNorm" not in {node.op for node in run[0].operators()}
    for one, other in zip(sum(expected, []), sum(found, [])):
        np.testing.assert_allclose(other, one, rtol=0, atol=2e-5 * np.abs(one).max())


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 0.0, -0.0, 3.0, 6.0], ids=str)
def test_a_clip_that_is_written_out_gives_what_clip_gives(value):
    symbol, values = mx.sym.clip(X, 0, 6), {"x": np.full(IMAGES["x"], value)}
    ((expected,), gradients), ((output,), found) = step(symbol, values), step(written_out(symbol, IMAGES), values)
    np.testing.assert_array_equal(output, expected)
    # The row of the table names the exception.
    np.testing.assert_array_equal(found["x"], 0 * gradients["x"] if np.isnan(value) else gradients["x"])


def clipped(policy, value, gradient):
    """Return the output and the gradient of a net's clip, of an input of one value and an incoming gradient of one."""
    net = Scaled(lambda F, x, y: F.clip(x, 0, 6))
    net.initialize()
    net, x = convert(net, policy), mx.nd.full(IMAGES["x"], value)
    x.attach_grad()
    with autograd.record():
        output, _ = net(x, x, x)
    output.backward(mx.nd.full(IMAGES["x"], gradient))
    return output.asnumpy(), x.grad.asnumpy()


@pytest.mark.bfloat16
@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_bfloat16,op:clip=bfloat16"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -0.0, 3.0], ids=str)
def test_a_clip_in_native_bfloat16_gives_what_it_gives_in_float32(value, policy):
    (expected, _), (found, _) = clipped("float32", value, 1), clipped(policy, value, 1)
    np.testing.assert_array_equal(found, expected)


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


def losses(net, batches):
    trainer, found = Trainer(net.collect_params(), "sgd", {"learning_rate": 0.05}), []
    for data in batches:
        with autograd.record():
            loss = gluon.loss.SoftmaxCrossEntropyLoss()(net(data), mx.nd.arange(len(data)) % 3)
            with trainer.scale_loss(loss) as scaled:
                scaled.backward()
        trainer.step(len(data))
        found.append(loss.mean().asscalar())
    return found


def trained(policy):
    mx.random.seed(0)
    net = Net()
    net.initialize(mx.init.Xavier())
    batches = [mx.nd.array(np.random.RandomState(k).randn(size, 3, 16, 16)) for k, size in enumerate((32, 32, 5, 32))]
    return losses(convert(net, policy), batches)


def test_a_network_of_them_trains_as_in_float32_with_a_partial_batch(run):
    """Through all passes for a CPU."""
    expected = trained("float32")
    run.clear()
    np.testing.assert_allclose(trained("mixed_bfloat16"), expected, rtol=1e-5)
    assert len(run) == 1 and not GONE & {node.op for node in run[0].operators()}  # one conversion for both batches


@pytest.mark.bfloat16
def test_in_bfloat16_they_train_as_without_it(monkeypatch):
    found = trained("mixed_bfloat16")
    monkeypatch.setattr(WriteOut, "run", lambda self, graph: graph)
    np.testing.assert_allclose(found, trained("mixed_bfloat16"), rtol=0.02)
