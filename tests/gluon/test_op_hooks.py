"""What an op hook of a converted net sees."""

import ctypes

import mxnet as mx
import numpy as np
import pytest
from mxnet.base import NDArrayHandle
from mxnet.gluon import nn

from mxmp.gluon import convert
from tests.gluon.nets import initialized, sequence

# MXNet warns whatever net.hybridize was given: it takes its pairs (name, value) for values.
pytestmark = pytest.mark.filterwarnings("ignore:register_op_hook is experimental:UserWarning")


def make():
    first = nn.Conv2D(4, 3, in_channels=3), nn.BatchNorm(in_channels=4), nn.Activation("relu", prefix="net_relu_")
    return initialized(sequence(*first, nn.MaxPool2D(), nn.Dense(2, in_units=16)), mx.init.Xavier())


def observe(net, monitor_all):
    """Return what an op hook sees of a call: (name, operator, dtype, array)."""
    seen = []

    def callback(name, op, handle):
        array = mx.nd.NDArray(ctypes.cast(handle, NDArrayHandle), writable=False)
        seen.append((name.decode(), op.decode(), array.dtype, array.asnumpy()))

    net.hybridize()
    net.register_op_hook(callback, monitor_all)
    registered = net._callback
    net(mx.nd.array(np.random.RandomState(0).randn(2, 3, 6, 6)))
    assert net._callback is registered
    return sorted(seen, key=lambda seen: seen[:2])


@pytest.mark.parametrize("monitor_all", [False, True], ids=["outputs", "inputs_too"])
@pytest.mark.parametrize("policy", ["O1", "O2", "O3", pytest.param("mixed_bfloat16", marks=pytest.mark.bfloat16)])
def test_a_hook_sees_the_net_as_it_was_written(policy, monitor_all):
    net = make()
    wanted = observe(net, monitor_all)
    found = observe(convert(net, policy), monitor_all)
    assert len(found) == len(wanted)
    for (name, op, dtype, value), (*names, _, exact) in zip(found, wanted):
        assert ([name, op], dtype) == (names, np.float32)
        np.testing.assert_allclose(value, exact, atol=0.08 if "bfloat16" in policy else 0.01, err_msg=name)
        if policy == "O1" and not monitor_all and "mean" not in name and "var" not in name:
            assert np.array_equal(value, value.astype(np.float16)), f"{name} is emulated and not rounded"
