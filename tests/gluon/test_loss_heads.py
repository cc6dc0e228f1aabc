"""Nets with a loss head inside: known on the parameters, refused by whoever scales the loss."""

from __future__ import annotations

import mxnet as mx
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

import mxmp
from mxmp.errors import TrainerError
from mxmp.gluon import Trainer, convert
from mxmp.scaling.loss_heads import refuse

X = mx.nd.ones((2, 4))
HEADS = {
    "SoftmaxOutput": lambda F, x: F.SoftmaxOutput(x, F.zeros((2,)), name="head"),
    "LinearRegressionOutput": lambda F, x: F.LinearRegressionOutput(x, F.zeros((2, 3)), name="head"),
    "make_loss": lambda F, x: F.make_loss(F.sum(x), name="head"),
    "MakeLoss": lambda F, x: F.MakeLoss(F.sum(x), name="head"),
}


class Net(gluon.HybridBlock):
    def __init__(self, head, **kwargs):
        super().__init__(prefix="net_", **kwargs)
        self.head = head
        with self.name_scope():
            self.body = nn.Dense(3, in_units=4)

    def hybrid_forward(self, F, x):
        return self.head(F, self.body(x))


def make(op="SoftmaxOutput", policy="O1"):
    net = Net(HEADS.get(op, lambda F, x: x))
    net.initialize()
    return convert(net, policy)


def params_of(net):
    return list(net.collect_params().values())


@pytest.mark.parametrize("op", HEADS)
def test_a_trained_loss_head_is_refused_by_name(op):
    net = make(op)
    with autograd.record():
        net(X)
    with pytest.raises(TrainerError, match=rf"^block 'net': node '(net_)?head' \({op}\) is a loss head: .*Take it off"):
        refuse(params_of(net))


def test_the_gradient_of_a_loss_head_cannot_be_scaled():
    """What the refusal is for: the gradient ignores the factor."""
    grads = []
    for factor in (1, 1024):
        mx.random.seed(0)
        net = make("make_loss")
        with autograd.record():
            loss = net(X) * factor
        loss.backward()
        grads.append(net.body.weight.grad().asnumpy())
    assert (grads[0] == grads[1]).all() and grads[0].any()


@pytest.mark.parametrize("op", ["SoftmaxOutput", "none"])
def test_inference_and_nets_without_one_are_let_through(op):
    net = make(op)
    net(X)
    if op == "none":
        with autograd.record():
            net(X)
    assert refuse(params_of(net)) is None


def test_it_stays_refused_until_the_net_runs_without():
    net = make()
    with autograd.record():
        net(X)
    for _ in range(2):
        with pytest.raises(TrainerError):
            refuse(params_of(net))
    net.head = HEADS.get("none", lambda F, x: x)
    convert(net, "O0")
    convert(net, "O1")
    with autograd.record():
        net(X)
    assert refuse(params_of(net)) is None


@pytest.mark.parametrize("converted", [True, False])
def test_a_head_that_runs_eagerly_is_refused(converted):
    """On the output of a net, or within one that is not converted: autograd has it in its history."""
    net = nn.Dense(3, in_units=4)
    net.initialize()
    if converted:
        convert(net, "O1")
    trainer = Trainer(net.collect_params(), "sgd", loss_scale=8)
    with autograd.record():
        out = mx.nd.SoftmaxOutput(net(X), mx.nd.zeros((2,)), name="eager")
    with pytest.raises(TrainerError, match=r"node '.*' \(SoftmaxOutput\) is a loss head"):
        with trainer.scale_loss(out):
            pass
    trainer.loss_scale = None
    with trainer.scale_loss(out) as scaled:
        scaled.backward()
    assert trainer.step(1)


def test_parameters_that_are_not_trained_are_let_through():
    net = make()
    net.collect_params().setattr("grad_req", "null")
    with autograd.record():
        net(X)
    assert refuse(params_of(net)) is None


def test_a_loss_head_within_a_loop_is_found():
    class Loop(gluon.HybridBlock):
        def __init__(self, **kwargs):
            super().__init__(prefix="net_", **kwargs)
            with self.name_scope():
                self.body = nn.Dense(3, in_units=4)

        def hybrid_forward(self, F, x):
            return F.contrib.foreach(lambda row, state: (F.make_loss(row), state), self.body(x), [F.zeros((1,))])[0]

    net = Loop()
    net.initialize()
    convert(net, "O1")
    with autograd.record():
        net(X)
    with pytest.raises(TrainerError, match=r"\(make_loss\) is a loss head"):
        refuse(params_of(net))


def test_a_mark_ends_with_the_window():
    """A net with a head that ran once, for the log, and whose body is then trained by itself."""
    net = make()
    with autograd.record():
        net(X)
    trainer = Trainer(net.collect_params(), "sgd", loss_scale=8)
    trainer.discard_grads()
    mxmp.gluon.restore(net)
    with autograd.record(), trainer.scale_loss(net.body(X).sum()) as scaled:
        scaled.backward()
    assert trainer.step(1)
