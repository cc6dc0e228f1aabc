"""First calls that wait for MXNet's engine, in which a Custom operator calls another net for the first time."""

import time

import mxnet as mx
import pytest
from mxnet import autograd
from mxnet.gluon import nn

from mxmp.gluon import convert
from tests.alone import alone
from tests.gluon.nets import sequence, started

X = mx.nd.ones((2, 3))


@mx.operator.register("mxmp_tests_calls_a_net")
class _CallsNetProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, shapes, dtypes):
        return _CallsNet()


class _CallsNet(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        time.sleep(0.5)  # the other call has begun
        net = convert(started(nn.Dense(3, in_units=3)), "O1")
        with autograd.pause():
            self.assign(out_data[0], req[0], net(in_data[0]))


def an_inference_after_training_with_static_shape():
    net = convert(started(sequence(nn.Dense(3, in_units=3), nn.BatchNorm(in_channels=3))), "O1")
    net.hybridize(static_alloc=True, static_shape=True)
    with autograd.record():
        loss = net(X).sum()
    loss.backward()
    output = mx.nd.Custom(X, op_type="mxmp_tests_calls_a_net")
    net(X)
    output.wait_to_read()


def a_hook_that_reads_values():
    class Net(nn.HybridBlock):
        def hybrid_forward(self, F, x):
            return F.Custom(x, op_type="mxmp_tests_calls_a_net") * 2

    net, values = convert(Net(), "O1"), []
    net.hybridize()
    net.register_op_hook(lambda *_: values.append(mx.nd.waitall()))
    net(X).wait_to_read()
    assert values


@pytest.mark.parametrize("check", [an_inference_after_training_with_static_shape, a_hook_that_reads_values])
def test_a_custom_operator_calls_a_net_while_a_first_call_waits_for_it(check):
    alone(check, timeout=60)
