"""Layers whose weights do not earn their casts to bfloat16; the network in float32 is the oracle of their values."""

import functools

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from mxnet.gluon import nn
from mxnet.gluon.model_zoo import vision

from mxmp.gluon import convert
from mxmp.symbol import from_graph, to_graph
from tests.passes.graphs import assert_same_steps, converted, losses_of, on_cpu, values_of, without_rounding
from tests.processors import AMD, AMX, EMULATED, INTEL, NO_BFLOAT16
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


@pytest.mark.parametrize("kind", [AMD, EMULATED, NO_BFLOAT16, INTEL], ids=lambda kind: kind.name)
def test_without_amx_a_weight_earns_its_casts_from_some_rows_on_but_never_on_intel(kind, on_processor):
    on_processor(kind)
    found = [widened(on_cpu(layer(mx.sym.relu(DATA)), {"data": (rows, 512)})) for rows in (25, 26, 2048)]
    assert found == [[True], [kind == INTEL], [kind == INTEL]]


SMALL_NETWORKS = {"stack": (stack({}, {}), SMALL), "lstm": unrolled(3, 4), "tied": tied(4)}


@pytest.mark.parametrize("symbol, shapes", SMALL_NETWORKS.values(), ids=SMALL_NETWORKS)
def test_values_and_gradients_are_those_of_float32(symbol, shapes):
    after = without_rounding(on_cpu(symbol, shapes))
    for batch in (shapes["data"][0], 2, 40):  # decided once
        values = values_of(symbol, {"data": (batch, *shapes["data"][1:])})
        values["data"] = abs(values["data"])  # among them indices
        assert_same_steps(symbol, after, values, wrt=[name for name in values if name != "data"])


def dense_net(policy):
    mx.random.seed(0)
    net = nn.HybridSequential()
    net.add(nn.Dense(512, activation="relu", in_units=256), nn.Dense(512, in_units=512))
    net.initialize(mx.init.Xavier())
    return convert(net, policy)


def losses(policy, *sizes, rows=()):
    """Return the losses of a net that trains on batches of some sizes, after calls of some rows."""
    net, random = dense_net(policy), np.random.RandomState(0)
    for count in rows:
        net(mx.nd.ones((count, 256)))
    batches = [[mx.nd.array(random.randn(size, units)) for units in (256, 512)] for size in sizes]
    return losses_of(net, gluon.loss.L2Loss(), batches)


def test_a_smaller_last_batch_runs_the_same_graph(run):
    expected = losses("float32", 8, 8, 3)
    run.clear()
    np.testing.assert_allclose(losses("mixed_bfloat16", 8, 8, 3), expected, rtol=1e-5)
    assert len(run) == 1 and all(widened(from_graph(run[0], None)))


@pytest.mark.parametrize("batch, expected", [(8, True), (64, False)])
def test_the_first_call_that_trains_decides_and_not_one_before_it(run, batch, expected):
    losses("mixed_bfloat16", batch, rows=(1, 64))
    assert widened(from_graph(run[-1], None)) == [expected] * 2
