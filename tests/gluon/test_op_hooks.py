"""What an op hook of a converted net sees."""

import ctypes

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.base import NDArrayHandle
from mxnet.gluon import nn

from mxmp.gluon import convert
from tests.gluon.nets import initialized, sequence
from tests.values import as_float32, name_of

# MXNet warns whatever net.hybridize was given: it takes its pairs (name, value) for values.
pytestmark = pytest.mark.filterwarnings("ignore:register_op_hook is experimental:UserWarning")

X = mx.nd.array(np.random.RandomState(0).randn(2, 3, 6, 6))
HIDDEN = {"Convolution", "BatchNorm", "Activation", "Pooling"}


def make():
    first = nn.Conv2D(4, 3, in_channels=3), nn.BatchNorm(in_channels=4), nn.Activation("relu", prefix="net_relu_")
    return initialized(sequence(*first, nn.MaxPool2D(), nn.Dense(2, in_units=16, prefix="out_")), mx.init.Xavier())


def observe(net, monitor_all=False):
    """Return what an op hook sees of a call, (name, operator, dtype, value), and the call's output."""
    seen = []

    def callback(name, op, handle):
        array = mx.nd.NDArray(ctypes.cast(handle, NDArrayHandle), writable=False)
        seen.append((name.decode(), op.decode(), name_of(array.dtype), as_float32(array)))

    net.hybridize()
    net.register_op_hook(callback, monitor_all)
    return seen, net(X).asnumpy()


@pytest.mark.parametrize("records", [False, True])
@pytest.mark.parametrize("policy", ["O1", "O2", "O3", pytest.param("mixed_bfloat16", marks=pytest.mark.bfloat16)])
def test_a_hook_sees_the_operators_that_run(policy, records):
    net = make()
    wanted, _ = observe(net)
    convert(net, policy)
    with autograd.record(train_mode=False) if records else autograd.pause():
        expected = net(X).asnumpy()
        found, output = observe(net)
        assert len(observe(net, monitor_all=True)[0]) > len(found)
    assert np.array_equal(output, expected)  # the hook changes nothing
    assert {"Cast", "amp_cast"} & {op for _, op, *_ in found}
    own, before = ({(name, op) for name, op, *_ in each if op in HIDDEN} for each in (found, wanted))
    assert own == before and {op for _, op in own} == HIDDEN
    name, _, dtype, value = found[-1]
    assert name in ("out_fwd_output", "out_fwd_0") and dtype == "float32" and np.array_equal(value, output)
    convolution = next(dtype for _, op, dtype, _ in found if op == "Convolution")
    assert convolution == ("bfloat16" if policy == "mixed_bfloat16" else "float32")  # float16 is emulated
