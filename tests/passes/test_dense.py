"""Layers whose weights do not earn their casts to bfloat16; the network in float32 is the oracle of their values."""

import functools

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn
from mxnet.gluon.model_zoo import vision

from mxmp.gluon import Trainer, convert
from mxmp.processors import AMD, AMX, EMULATED, INTEL, NO_BFLOAT16
from mxmp.symbol import from_graph, to_graph
from tests.passes.graphs import converted, step, without_rounding
from tests.values import BFLOAT16

DATA, WEIGHT = mx.sym.var("data"), mx.sym.var("weight")
DENSE = ("FullyConnected", "Convolution")


@pytest.fixture(autouse=True)
def _without_amx(on_processor):
    on_processor(AMD)


def layer(data, units=512, **attrs):
    return mx.sym.FullyConnected(data, num_hidden=units, **attrs)


def stack(*layers):
    data = DATA
    for attrs in layers:
        data = mx.sym.Activation(layer(data, **attrs), act_type="tanh")
    return data


def on_cpu(symbol, shapes, policy="mixed_bfloat16", trains=True, **options):
    return converted(symbol, shapes, policy).on_cpu(trains, **options)


def widened(symbol, op="FullyConnected"):
    """Return, for each layer, whether it reads its weight in float32."""
    graph = to_graph(symbol)
    layers = [node for node in graph.nodes if node.op == op]
    return [graph.nodes[node.inputs[1].node].is_variable for node in layers]


def unrolled(steps, batch, units=256):
    data, cell = mx.sym.var("data"), mx.rnn.LSTMCell(units, prefix="lstm_")
    states = [mx.sym.Reshape(mx.sym.slice_axis(data * 0, axis=1, begin=0, end=1), shape=(-3, -2)) for _ in range(2)]
    outputs, _ = cell.unroll(steps, data, states, layout="NTC", merge_outputs=True)
    return outputs, {"data": (batch, steps, units)}


def tied(rows, units=256, words=1000):
    """Return a network whose embedding is the weight of its last layer too."""
    data = layer(mx.sym.Embedding(DATA, WEIGHT, input_dim=words, output_dim=units), units, flatten=False)
    return layer(data, words, weight=WEIGHT, no_bias=True, flatten=False), {"data": (rows,)}


@pytest.mark.parametrize(
    "make, batch, many",
    [(vision.vgg11, 4, 64), (vision.alexnet, 16, 64)],
    ids=["VGG-11", "AlexNet"],
)
def test_dense_layers_of_few_rows_run_in_float32(make, batch, many):
    symbol = make()(DATA)
    for count, expected in ((batch, True), (many, False)):
        result = converted(symbol, {"data": (count, 3, 224, 224)}, "mixed_bfloat16")
        assert all(row.precision == "bfloat16" for row in result.report.rows if row.op in DENSE)  # the network's
        after = result.on_cpu(trains=True)
        assert widened(after) == [expected] * 3 and not any(widened(after, "Convolution"))
        assert not any(widened(result.on_cpu(trains=False)))


@pytest.mark.parametrize("steps, expected", [(3, True), (35, False)])
def test_the_readers_of_a_weight_earn_its_cast_together(steps, expected):
    symbol, shapes = unrolled(steps, 4)
    assert widened(on_cpu(symbol, shapes)) == [expected] * 2 * steps


@pytest.mark.parametrize("rows, expected", [(4, True), (256, False)])
def test_a_tied_embedding(rows, expected):
    symbol, shapes = tied(rows)
    assert widened(on_cpu(symbol, shapes))[-1] == expected


SMALL = {"data": (4, 512)}
LOW = functools.partial(mx.sym.amp_cast, dtype=BFLOAT16)

STAYS = {
    "its weight is small": (stack({"units": 64}), SMALL),
    "its batch is not known": (stack({}), {}),
    "its weight is read elsewhere": (layer(mx.sym.dot(DATA, WEIGHT), weight=WEIGHT), SMALL),
    "its data are more than its weight": (layer(DATA, 8, flatten=False), {"data": (2, 9, 2**13)}),
    "the network's own casts": (layer(LOW(DATA), weight=LOW(WEIGHT), no_bias=True) * 1, SMALL),
    "an image": (mx.sym.Convolution(DATA, num_filter=64, kernel=(3, 3)), {"data": (1, 256, 14, 14)}),
}


@pytest.mark.parametrize("symbol, shapes", STAYS.values(), ids=STAYS)
def test_what_stays(symbol, shapes):
    after = on_cpu(symbol, shapes)
    assert not any(widened(after) + widened(after, "Convolution"))


def test_the_convolution_of_single_pixels_is_a_dense_layer():
    symbol = mx.sym.Convolution(mx.sym.relu(DATA), num_filter=512, kernel=(1, 1))
    assert widened(on_cpu(symbol, {"data": (4, 512, 1, 1)}), "Convolution") == [True]


def test_other_policies_and_watched_graphs_stay():
    assert widened(on_cpu(stack({}), SMALL)) == [True]
    assert not any(widened(on_cpu(stack({}), SMALL, watched=True)) + widened(on_cpu(stack({}), SMALL, "O1")))


def test_what_shares_a_weight_with_an_output_stays():
    symbol = mx.sym.Group([layer(DATA, weight=WEIGHT), layer(DATA + 1, weight=WEIGHT) * 1])
    assert widened(on_cpu(symbol, SMALL)) == [True, True]
    assert widened(on_cpu(symbol, SMALL, "mixed_bfloat16,output=bfloat16")) == [False, False]


@pytest.mark.parametrize(
    "units, rows, expected",
    [(1024, 16, True), (1024, 32, True), (1024, 64, False), (1024, 512, False),
     (4096, 16, True), (4096, 64, True), (4096, 128, True), (4096, 256, False)],
)  # fmt: skip
def test_with_amx_dense_layers_are_those_that_were_faster(units, rows, expected, on_processor):
    """As measured, float32 and bfloat16 with casts, on a Xeon: docs of `kernels.WEIGHTS`."""
    on_processor(AMX)
    assert widened(on_cpu(layer(mx.sym.relu(DATA), units), {"data": (rows, units)})) == [expected]


@pytest.mark.parametrize(
    "filters, channels, kernel, batch, expected",
    [(512, 512, 3, 1, False), (512, 2048, 1, 1, True), (512, 2048, 1, 8, False), (512, 512, 3, 4, False)],
)
def test_with_amx_convolutions_count_pixels(filters, channels, kernel, batch, expected, on_processor):
    on_processor(AMX)
    symbol = mx.sym.Convolution(mx.sym.relu(DATA), num_filter=filters, kernel=(kernel,) * 2, pad=(kernel // 2,) * 2)
    assert widened(on_cpu(symbol, {"data": (batch, channels, 7, 7)}), "Convolution") == [expected]


@pytest.mark.parametrize("kind, rows", [(AMD, 25), (EMULATED, 25), (NO_BFLOAT16, 25)], ids=lambda value: str(value)[:20])
def test_on_an_epyc_a_weight_earns_its_casts_from_some_rows_on(kind, rows, on_processor):
    on_processor(kind)
    assert [widened(on_cpu(stack({}), {"data": (each, 512)})) for each in (rows, rows + 1)] == [[True], [False]]


def test_on_intel_without_amx_dense_layers_stay_float32(on_processor):
    on_processor(INTEL)
    assert widened(on_cpu(layer(mx.sym.relu(DATA), 512), {"data": (2048, 512)})) == [True]


SMALL_NETWORKS = {"stack": (stack({}, {}), SMALL), "lstm": unrolled(3, 4), "tied": tied(4)}


@pytest.mark.bfloat16
@pytest.mark.parametrize("symbol, shapes", SMALL_NETWORKS.values(), ids=SMALL_NETWORKS)
def test_in_native_bfloat16_float32_layers_are_no_less_exact(symbol, shapes):
    values = values_for(symbol, shapes)
    wrt = [name for name in values if name != "data"]
    networks = symbol, on_cpu(symbol, shapes, watched=True), on_cpu(symbol, shapes)
    assert any(widened(networks[2]) + widened(networks[2], "Convolution")) and not any(widened(networks[1]))
    steps = [[*outputs, *gradients.values()] for outputs, gradients in (step(each, values, wrt) for each in networks)]
    for exact, without, found in zip(*steps):
        assert np.linalg.norm(found - exact) <= 1.05 * np.linalg.norm(without - exact)


def values_for(symbol, given):
    return {
        name: np.random.RandomState(0).uniform(-1, 1, size).astype("float32")
        for name, size in zip(symbol.list_arguments(), symbol.infer_shape(**given)[0])
    }


@pytest.mark.parametrize("symbol, shapes", SMALL_NETWORKS.values(), ids=SMALL_NETWORKS)
def test_values_and_gradients_are_those_of_float32(symbol, shapes):
    after = without_rounding(on_cpu(symbol, shapes))
    assert after.list_arguments() == symbol.list_arguments()
    for batch in (shapes["data"][0], 2, 40):  # decided once
        values = values_for(symbol, {"data": (batch, *shapes["data"][1:])})
        wrt = [name for name in values if name != "data"]
        (expected, *_), gradients = step(symbol, values, wrt)
        (output, *_), found = step(after, values, wrt)
        for one, other in [(expected, output), *((gradients[name], found[name]) for name in wrt)]:
            np.testing.assert_allclose(other, one, rtol=0, atol=1e-5 * np.abs(one).max())


def dense_net(policy):
    mx.random.seed(0)
    net = nn.HybridSequential()
    net.add(nn.Dense(512, activation="relu", in_units=256), nn.Dense(512, in_units=512))
    net.initialize(mx.init.Xavier())
    return convert(net, policy)


def losses(net, batches):
    trainer, found = Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}), []
    for batch in batches:
        x, y = (mx.nd.array(np.random.RandomState(batch).randn(batch, units)) for units in (256, 512))
        with autograd.record():
            loss = gluon.loss.L2Loss()(net(x), y)
            with trainer.scale_loss(loss) as scaled:
                scaled.backward()
        trainer.step(batch)
        found.append(loss.mean().asscalar())
    return found


def test_a_smaller_last_batch_runs_the_same_graph(run):
    expected = losses(dense_net("float32"), (8, 8, 3))
    run.clear()
    np.testing.assert_allclose(losses(dense_net("mixed_bfloat16"), (8, 8, 3)), expected, rtol=1e-5)
    assert len(run) == 1 and all(widened(from_graph(run[0], None)))


@pytest.mark.parametrize("batch, expected", [(8, True), (64, False)])
def test_the_first_call_that_trains_decides_and_not_one_before_it(run, batch, expected):
    net = dense_net("mixed_bfloat16")
    for rows in (1, 64):
        net(mx.nd.ones((rows, 256)))
    losses(net, (batch,))
    assert widened(from_graph(run[-1], None)) == [expected] * 2
