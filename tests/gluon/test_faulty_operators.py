"""Operators that MXNet runs wrongly in a cached graph: in place, with static shapes, or behind a condition."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon import nn

from mxmp.gluon import convert
from tests.gluon.nets import Function, initialized, sequence

STATIC = {"static_alloc": True, "static_shape": True}


def values(net, *inputs, recorded=True):
    """Return the output of a net and, where it is recorded, the gradients of its parameters."""
    junk = [mx.nd.full(shape, np.nan) for shape in ((3, 4), (4, 4)) for _ in range(64)]
    mx.nd.waitall()
    del junk  # unwritten memory holds it next
    with autograd.record() if recorded else autograd.pause():
        out = net(*inputs)
        loss = (out**2).mean()
    if recorded:
        loss.backward()
    params = net.collect_params().values() if recorded else ()
    return [array.astype("float32").asnumpy() for array in (out, *(param.grad() for param in params))]


def check(found, expected):
    """Check for roundings to float16, in sums that cancel in part; in place a gradient is a quarter of what it is."""
    assert len(found) == len(expected)
    for array, wanted in zip(found, expected):
        assert np.linalg.norm(array - wanted) <= 0.05 * np.linalg.norm(wanted)


def prelus(channels=1):
    layers = [nn.Dense(8, in_units=5), nn.PReLU(in_channels=channels), nn.Dense(6, in_units=8), nn.PReLU()]
    return sequence(*layers, nn.Dense(2, in_units=6))


def prelu_in_a_loop():
    def looped(net, F, x):
        return F.contrib.foreach(lambda data, states: (net.act(data * 2) * 2, states), net.first(x), [])[0]

    return Function(looped, first=nn.Dense(6, in_units=5, flatten=False), act=nn.PReLU(in_channels=6))


MAKERS = {
    "one slope": prelus,
    "a slope for each channel": lambda: prelus(8),
    "in a part of a net": lambda: sequence(prelus(), nn.Dense(2, in_units=2)),
    "in a loop": prelu_in_a_loop,
}


@pytest.mark.parametrize("run_before", [False, True], ids=["trained", "run before"])
@pytest.mark.parametrize("flags", [{}, STATIC], ids=["plain", "static"])
@pytest.mark.parametrize("name", MAKERS)
def test_prelu_of_a_converted_net_gets_the_gradient_that_it_gets_operator_by_operator(name, flags, run_before):
    net = initialized(MAKERS[name](), mx.init.Normal(0.5))
    x = mx.nd.array(np.random.RandomState(0).randn(4, 3, 5) if name == "in a loop" else np.eye(8, 5) - 0.3)
    expected = values(net, x)
    if name != "in a loop":  # static shapes and loops are another matter
        net.hybridize(**flags)
    convert(net[0] if name == "in a part of a net" else net, "O1")
    if run_before:
        net(x).wait_to_read()
    check(values(net, x), expected)


def test_prelu_keeps_infinite_values_in_training():
    net = convert(initialized(sequence(nn.Dense(3, in_units=3), nn.PReLU()), mx.init.One()), "O1")
    with autograd.record():
        found = net(mx.nd.array([[np.inf, 0, 0], [-np.inf, 0, 0]]))
    assert found.asnumpy()[:, 0].tolist() == [np.inf, -np.inf]


def foreach(F, x):
    return F.contrib.foreach(lambda data, states: (F.tanh(data) * 2, states), x, [])[0]


def while_loop(F, x):
    state = [F.zeros((1,)), x]
    step = F.contrib.while_loop(lambda i, _: i < 3, lambda i, y: (y * 2, [i + 1, y * 1.5]), state, max_iterations=4)
    return step[1][1]


def cond(F, x):
    return F.contrib.cond(F.ones((1,)) > 0, lambda: F.tanh(x) * 3, lambda: x - 100)


def nested(F, x):
    """The inner condition depends on the data, and each branch has one of its own."""
    inner = [lambda: F.relu(x), lambda: F.tanh(x)]
    return F.contrib.cond(F.ones((1,)) < 0, lambda: F.tanh(x), lambda: F.contrib.cond(F.sum(x) > 100, *inner))


def dense(count):
    return (nn.Dense(4, in_units=4, flatten=False) for _ in range(count))


@pytest.mark.parametrize("recorded", [False, True], ids=["infers", "trains"])
@pytest.mark.parametrize("function", [foreach, while_loop, cond, nested])
def test_control_flow_with_static_shapes_gives_the_same_at_each_call(function, recorded):
    first, last = dense(2)
    net = Function(lambda net, F, x: net.last(function(F, net.first(x))), first=first, last=last)
    x = mx.nd.array(np.random.RandomState(0).rand(3, 4))
    expected = values(initialized(net, mx.init.Normal(0.5)), x, recorded=recorded)
    net.hybridize(**STATIC)
    convert(net, "O1")
    for _ in range(2):
        check(values(net, x, recorded=recorded), expected)


def branches(net, F, x, limit):
    """Layers in the branches, behind a layer that both and the condition read."""
    x = net.first(x)
    return F.contrib.cond(F.sum(x) > limit, lambda: net.yes(x), lambda: F.tanh(net.no(x)))


@pytest.mark.parametrize("limit", [-100, 100], ids=["then", "else"])
@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_each_parameter_gets_the_gradient_of_the_branch_that_ran(policy, limit):
    first, yes, no = dense(3)
    net = initialized(Function(branches, first=first, yes=yes, no=no), mx.init.Normal(0.5))
    inputs = mx.nd.array(np.random.RandomState(0).rand(3, 4)), mx.nd.array([limit])
    expected = values(net, *inputs)
    convert(net, policy)
    for _ in range(2):
        check(values(net, *inputs), expected)


def trained_net(policy):
    """Return a net with running statistics and a batch, while backward passes with static shapes are on their way."""
    layers = [layer for _ in range(4) for layer in (nn.Conv2D(16, 3, padding=1), nn.BatchNorm(), nn.Activation("relu"))]
    net, images = sequence(*layers, nn.Dense(4)), mx.nd.random.uniform(shape=(8, 3, 32, 32))
    net.initialize()
    net(images)
    convert(net, policy)
    net.hybridize(**STATIC)
    for _ in range(3):
        with autograd.record():
            loss = (net(images) ** 2).sum()
        loss.backward()
    return net, images


@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_inference_reads_the_statistics_that_backward_passes_with_static_shapes_write(policy):
    net, images = trained_net(policy)
    at_once = net(images).asnumpy()
    mx.nd.waitall()
    np.testing.assert_array_equal(at_once, net(images).asnumpy())


@pytest.mark.parametrize("save, file", [("save_parameters", "net"), ("export", "net-0000.params")])
def test_a_file_has_the_statistics_that_backward_passes_with_static_shapes_write(save, file, tmp_path):
    net, _ = trained_net("O1")
    files = []
    for folder in ("at_once", "later"):
        (tmp_path / folder).mkdir()
        getattr(net, save)(str(tmp_path / folder / "net"))
        files.append(mx.nd.load(str(tmp_path / folder / file)))
        mx.nd.waitall()
    for name, array in files[0].items():
        np.testing.assert_array_equal(array.asnumpy(), files[1][name].asnumpy())
