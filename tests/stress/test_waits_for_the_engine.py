"""First calls and copies that wait for MXNet's engine, in which a Custom operator calls a net for the first time."""

import copy
import pickle
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


def copies_of_a_net_that_computes_its_statistics():
    class Net(nn.HybridBlock):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm(in_channels=3)

        def hybrid_forward(self, F, x):
            return self.norm(F.Custom(x, op_type="mxmp_tests_calls_a_net"))

    for make_copy in (copy.deepcopy, lambda net: pickle.dumps(net.norm)):
        net = started(Net())
        convert(net.norm, "O1")
        with autograd.record():
            net(X)
        make_copy(net)


CHECKS = [
    an_inference_after_training_with_static_shape,
    a_hook_that_reads_values,
    copies_of_a_net_that_computes_its_statistics,
]


@pytest.mark.parametrize("check", CHECKS)
def test_a_custom_operator_calls_a_net_while_another_net_waits_for_it(check):
    alone(check, timeout=60)
