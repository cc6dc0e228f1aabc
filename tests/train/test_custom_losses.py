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


@pytest.mark.parametrize("how", ["named", "blocked", "of data"])
def test_a_custom_operator_of_a_module_that_is_named_or_gives_no_gradient_trains(how):
    data = mx.sym.var("data")
    x = mx.sym.broadcast_add(data, mx.sym.var("bias", shape=(1, 2)))
    own = custom(mx.sym, {"named": x, "blocked": mx.sym.BlockGrad(x), "of data": data}[how])
    loss = mx.sym.MakeLoss(own if how == "named" else x + own)
    module = Module(loss, label_names=None, loss_scale=128, loss_heads=["own_loss"] if how == "named" else ())
    module.bind([("data", (1, 2))])
    module.init_params(mx.init.One())
    module.init_optimizer("local", "sgd", {"learning_rate": 1.0, "rescale_grad": 1.0})
    module.forward_backward(mx.io.DataBatch([mx.nd.ones((1, 2))], []))
    module.update()
    np.testing.assert_array_equal(module.get_params()[0]["bias"].asnumpy(), [[-1, -1]])


class Net(gluon.HybridBlock):
    def __init__(self):
        super().__init__(prefix="net_")
        self.weight = self.params.get("weight", shape=(2,))

    def hybrid_forward(self, F, x, weight):
        return custom(F, x * weight)


@pytest.mark.parametrize("policy", [None, "O1"])
def test_a_custom_loss_within_a_net_is_named_before_the_first_step(policy):
    net = Net()
    net.initialize(mx.init.One())
    if policy:
        convert(net, policy)
    trainer = Trainer(net, "sgd", loss_scale=128)
    name = "own_loss" if policy else "mxmp_test_loss_of_its_own"  # its type, where autograd has no other name
    with pytest.raises(MxmpError, match=name):
        with autograd.record():
            loss = net(mx.nd.ones((2,))).mean()
        with trainer.scale_loss(loss) as scaled:
            scaled.backward()
        trainer.step(1)
    np.testing.assert_array_equal(value(net.weight.data()), [1, 1])
