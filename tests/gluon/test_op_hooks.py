"""What an op hook of a converted net sees."""

from __future__ import annotations

import ctypes

import mxnet as mx
import numpy as np
import pytest
from mxnet.base import NDArrayHandle
from mxnet.gluon import nn

from mxmp.gluon import convert

# MXNet warns whatever net.hybridize was given: it takes its pairs (name, value) for values.
pytestmark = pytest.mark.filterwarnings("ignore:register_op_hook is experimental:UserWarning")

POLICIES = ["O1", "O2", "O3", pytest.param("mixed_bfloat16", marks=pytest.mark.bfloat16)]


def make():
    mx.random.seed(0)
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Conv2D(4, 3, in_channels=3), nn.BatchNorm(in_channels=4), nn.Activation("relu"))
        net.add(nn.MaxPool2D(), nn.Dense(2, in_units=16))
    net.initialize(mx.init.Xavier())
    return net


def observe(net, monitor_all=False):
    """Return what an op hook sees of a call: (name, operator, dtype, array)."""
    seen = []

    def callback(name, op, handle):
        array = mx.nd.NDArray(ctypes.cast(handle, NDArrayHandle), writable=False)
        seen.append((name.decode(), op.decode(), array.dtype, array.asnumpy()))

    net.hybridize()
    net.register_op_hook(callback, monitor_all)
    net(mx.nd.array(np.random.RandomState(0).randn(2, 3, 6, 6)))
    return seen


@pytest.mark.parametrize("monitor_all", [False, True], ids=["outputs", "inputs_too"])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_hook_sees_the_net_as_it_was_written(policy, monitor_all):
    wanted = observe(make(), monitor_all)
    found = observe(convert(make(), policy), monitor_all)
    assert sorted((name, op) for name, op, _, _ in found) == sorted((name, op) for name, op, _, _ in wanted)
    assert {dtype for _, _, dtype, _ in found} == {np.float32}
    values = {name: value for name, _, _, value in wanted}
    for name, _, _, value in found:
        np.testing.assert_allclose(value, values[name], atol=0.08 if "bfloat16" in policy else 0.01, err_msg=name)


def test_what_a_hook_sees_of_emulated_operators_is_rounded():
    rounded = [value for name, _, _, value in observe(convert(make(), "O1")) if "mean" not in name and "var" not in name]
    assert rounded and all(np.array_equal(value, value.astype(np.float16)) for value in rounded)


def test_the_hook_of_the_net_stays_what_it_was():
    net = convert(make(), "O1")
    observe(net)
    callback = net._callback
    net(mx.nd.ones((2, 3, 6, 6)))
    assert net._callback is callback
