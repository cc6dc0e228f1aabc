"""Depthwise convolutions as groups of 32 channels, where AMX trains; float32's values are the oracle."""

import functools

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon import nn

import mxmp
from mxmp.symbol import to_graph
from tests.passes import graphs
from tests.passes.graphs import assert_same_steps, converted, on_cpu, operators, values_of, without_rounding
from tests.processors import AMD, AMX, KINDS

DATA = mx.sym.var("data")
SHAPE = (2, 3, 8, 8)


@pytest.fixture(autouse=True)
def _amx(on_processor):
    on_processor(AMX)


conv = functools.partial(graphs.conv, no_bias=True)


def block(data, **attrs):
    return mx.sym.Activation(mx.sym.BatchNorm(data, fix_gamma=False, **attrs), act_type="relu")


def mobile(channels=64, **attrs):
    """Return a depthwise layer between pointwise ones, each with its BatchNorm and relu."""
    depthwise = conv(block(conv(DATA, channels)), channels, name="depthwise", **{"num_group": channels, **attrs})
    return block(conv(block(depthwise), 32, 1))


def groups(symbol):
    return [int(node.get("num_group")) for node in to_graph(symbol).nodes if node.name == "depthwise"]


GROUPED = {
    "3 x 3": mobile(),
    "5 x 5, stride 2": mobile(kernel=5, stride=(2, 2)),
    "with a bias": mobile(no_bias=False),
    "dilated": mobile(dilate=(2, 2), pad=(2, 2)),
    "32 channels": mobile(32),
}
LAYER = conv(block(conv(DATA, 64)), 64, num_group=64, name="depthwise")
STAYS = {
    "24 channels": mobile(24),
    "groups of 2": mobile(num_group=32),
    "no relu behind it": mx.sym.BatchNorm(conv(block(conv(DATA, 64)), 64, num_group=64, name="depthwise")),
    "another reader": mx.sym.Group([block(LAYER), mx.sym.tanh(LAYER)]),
    "relu6": conv(mx.sym.clip(mx.sym.BatchNorm(conv(block(conv(DATA, 64)), 64, num_group=64, name="depthwise")), 0, 6), 8, 1),
}


@pytest.mark.parametrize("symbol", GROUPED.values(), ids=GROUPED)
def test_outputs_and_gradients_are_those_of_the_depthwise_layer(symbol):
    result = converted(symbol, {"data": SHAPE}, "mixed_bfloat16")
    after, channels = result.on_cpu(trains=True), groups(symbol)[0]
    assert groups(after) == [channels // 32] and groups(result.symbol) == [channels]  # what is reported and saved
    for batch in (2, 3):
        values = values_of(symbol, {"data": (batch, *SHAPE[1:])})
        assert_same_steps(symbol, without_rounding(after), values, bound=2e-4)


@pytest.mark.parametrize("symbol", STAYS.values(), ids=STAYS)
def test_other_layers_stay(symbol):
    assert groups(on_cpu(symbol, {"data": SHAPE})) == groups(symbol)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_only_amx_and_only_training_have_groups(kind, on_processor):
    on_processor(kind)
    result = converted(mobile(), {"data": SHAPE}, "mixed_bfloat16")
    found = groups(result.on_cpu(trains=True)) + groups(result.on_cpu()) + groups(result.on_cpu(trains=True, watched=True))
    assert found == [2 if kind == AMX else 64, 64, 64]
    assert groups(on_cpu(mobile(), {"data": SHAPE}, "O1")) == [64]


def test_layers_of_as_many_channels_share_a_mask():
    symbol = block(conv(block(conv(mobile(), 64, num_group=1)), 64, num_group=64))
    found = operators(on_cpu(symbol, {"data": SHAPE}))
    assert found.count("_eye") == 1 and found.count("batch_dot") == 2


def net_of(seed=0):
    mx.random.seed(seed)
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        for channels, kernel, count in ((32, 3, 1), (32, 3, 32), (64, 1, 1), (64, 3, 64), (32, 1, 1)):
            net.add(nn.Conv2D(channels, kernel, padding=kernel // 2, groups=count, use_bias=False), nn.BatchNorm())
            net.add(nn.Activation("relu"))
        net.add(nn.GlobalAvgPool2D(), nn.Dense(10))
    net.initialize(mx.init.Xavier())
    return net


def gradients(kind, policy, grad_req, on_processor):
    """Return the gradients of weights after two steps, each behind an inference, which moves weights to oneDNN's layouts."""
    on_processor(kind)
    net, x = net_of(), mx.nd.array(np.random.RandomState(0).uniform(size=(4, 3, 16, 16)))
    net(x)
    net.hybridize(static_alloc=True, static_shape=True)
    mxmp.gluon.convert(net, policy)
    net.collect_params().setattr("grad_req", grad_req)
    for _ in range(2):
        net(x).wait_to_read()
        with autograd.record():
            loss = net(x).square().sum()
        loss.backward()
    return [param.grad().asnumpy() for name, param in net.collect_params().items() if "weight" in name]


@pytest.mark.bfloat16
@pytest.mark.parametrize("grad_req", ["write", "add"])
def test_a_net_whose_weights_lie_in_a_layout_of_onednns_trains_as_exactly_as_without(grad_req, on_processor):
    """Reshape cannot read such a weight by itself."""
    exact = gradients(AMX, "float32", grad_req, on_processor)
    without, found = (gradients(kind, "mixed_bfloat16", grad_req, on_processor) for kind in (AMD, AMX))
    errors = [sum(np.linalg.norm(a - b) for a, b in zip(each, exact)) for each in (without, found)]
    assert 0 < errors[1] < 1.3 * errors[0]
