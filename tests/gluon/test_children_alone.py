"""Children of a converted net that are called by themselves: they give what they give in float32."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon import nn, rnn

from mxmp.arrays import to_float32
from mxmp.gluon import convert
from tests.alone import alone


def sequential(*layers):
    net = nn.HybridSequential()
    with net.name_scope():
        net.add(*layers)
    return net


def conv():
    return nn.Conv2D(4, 3, in_channels=3)


IMAGE = mx.nd.array(np.random.RandomState(0).randn(2, 3, 8, 8))
CHILDREN = {
    "Conv2D": lambda: sequential(conv(), nn.Dense(2)),
    "BatchNorm": lambda: sequential(nn.BatchNorm(in_channels=3), conv()),
    "a Dense behind a Conv2D": lambda: sequential(sequential(conv(), nn.Dense(5)), nn.Dense(2)),
}


def called_alone(make, data):
    """Return the outputs of the first child of a net for the data in float32, and as they are under `bfloat16`."""
    net = make()
    net.initialize(mx.init.Xavier())
    net(IMAGE)
    expected = net[0](to_float32(data)).asnumpy()
    convert(net, "bfloat16")
    net(data).wait_to_read()
    return expected, to_float32(net[0](data)).asnumpy()


@pytest.mark.bfloat16
@pytest.mark.parametrize("make", CHILDREN.values(), ids=CHILDREN)
def test_a_child_of_a_bfloat16_net_takes_float32(make):
    expected, found = called_alone(make, IMAGE)
    np.testing.assert_allclose(found, expected, rtol=0.05, atol=0.05)


@pytest.mark.bfloat16
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["Conv2D", "a Dense behind a Conv2D"])
def test_a_child_of_a_bfloat16_net_takes_the_dtypes_that_the_net_takes(name, dtype):
    other = nn.Activation("relu")
    convert(other, dtype)
    data = other(IMAGE.abs())
    assert np.dtype(data.dtype).itemsize == 2  # bytes
    expected, found = called_alone(CHILDREN[name], data)
    np.testing.assert_allclose(found, expected, rtol=0.05, atol=0.05)


@pytest.mark.bfloat16
@pytest.mark.parametrize("kind", [rnn.RNNCell, rnn.LSTMCell, rnn.GRUCell])
def test_a_cell_of_a_bfloat16_net_can_be_called_by_itself(kind):
    cell, step = kind(4, input_size=3), mx.nd.ones((2, 3))
    net = rnn.HybridSequentialRNNCell()
    net.add(cell)
    net.initialize(mx.init.Xavier())
    expected = cell(step, cell.begin_state(batch_size=2))[0].asnumpy()
    convert(net, "bfloat16")
    net(step, net.begin_state(batch_size=2))
    np.testing.assert_allclose(cell(step, cell.begin_state(batch_size=2))[0].asnumpy(), expected, rtol=0.05, atol=0.05)


def run_transposed_convolution_backward():
    for policy in ("O2", "float16"):
        net = sequential(nn.Conv2DTranspose(4, 3, in_channels=3))
        net.initialize()
        convert(net, policy)
        net(IMAGE).wait_to_read()
        with autograd.record():
            output = net[0](IMAGE)
        output.backward()
        np.testing.assert_array_equal(to_float32(net[0].bias.grad()).asnumpy(), 2 * 10 * 10)


def test_a_transposed_convolution_that_is_called_by_itself_runs_backward():
    """In a process of its own: MXNet raises the same error for all that comes after it."""
    alone(run_transposed_convolution_backward)
