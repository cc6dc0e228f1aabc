"""Custom operators that ignore the gradient of their output, and so keep the loss scale from the gradients."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

from mxmp.errors import MxmpError
from mxmp.gluon import Trainer, convert
from mxmp.module import Module
from tests.gluon.trainer_tools import value


class Loss(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], in_data[0])

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], mx.nd.ones_like(in_data[0]))


@mx.operator.register("mxmp_test_loss_of_its_own")
class LossProp(mx.operator.CustomOpProp):
    def __init__(self):
        super().__init__(need_top_grad=False)

    def create_operator(self, ctx, shapes, dtypes):
        return Loss()


def custom(F, x):
    return F.Custom(x, op_type="mxmp_test_loss_of_its_own", name="own_loss")


@pytest.mark.xfail(strict=True, reason="step")
def test_a_custom_loss_before_a_loss_head_of_a_module_is_named_before_the_first_step():
    bias = mx.sym.var("bias", shape=(1, 2))
    symbol = mx.sym.MakeLoss(custom(mx.sym, mx.sym.broadcast_add(mx.sym.var("data"), bias)), name="loss")
    module = Module(symbol, label_names=None, loss_scale=128)
    with pytest.raises(MxmpError, match="own_loss"):
        module.bind([("data", (1, 2))])
        module.init_params(mx.init.One())
        module.init_optimizer("local", "sgd", {"learning_rate": 1.0})
        module.forward_backward(mx.io.DataBatch([mx.nd.ones((1, 2))], []))
        module.update()


class Net(gluon.HybridBlock):
    def __init__(self):
        super().__init__(prefix="net_")
        self.weight = self.params.get("weight", shape=(2,))

    def hybrid_forward(self, F, x, weight):
        return custom(F, x * weight)


@pytest.mark.xfail(strict=True, reason="step")
@pytest.mark.parametrize("policy", [None, "O1"])
def test_a_custom_loss_within_a_net_is_named_before_the_first_step(policy):
    net = Net()
    net.initialize(mx.init.One())
    if policy:
        convert(net, policy)
    trainer = Trainer(net, "sgd", loss_scale=128)
    with pytest.raises(MxmpError, match="own_loss"):
        with autograd.record():
            loss = net(mx.nd.ones((2,))).mean()
        with trainer.scale_loss(loss) as scaled:
            scaled.backward()
        trainer.step(1)
    np.testing.assert_array_equal(value(net.weight.data()), [1, 1])
