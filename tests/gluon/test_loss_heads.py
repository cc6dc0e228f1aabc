"""Nets with a loss head inside: scaled where they are converted, refused elsewhere."""

from __future__ import annotations

import copy

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

import mxmp
from mxmp import amp
from mxmp.errors import TrainerError
from mxmp.gluon import Trainer, convert
from mxmp.train.loss_heads import refuse

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


def gradient(net, loss_of, trainer=None):
    """Return the gradient of the first layer's weight, without the loss scale that a trainer gave it."""
    with autograd.record():
        loss = loss_of(net(X))
    if trainer is None:
        loss.backward()
        return net.body.weight.grad().asnumpy()
    with trainer.scale_loss(loss) as scaled:
        scaled.backward()
    trainer.unscale()
    return net.body.weight.grad().asnumpy()


def same(out):
    return out


@pytest.mark.parametrize("flags", [{}, {"static_alloc": True}, {"static_alloc": True, "static_shape": True}], ids=str)
@pytest.mark.parametrize("op", HEADS)
def test_a_head_in_a_converted_net_is_scaled(op, flags):
    mx.random.seed(0)
    net = Net(HEADS[op])
    net.initialize()
    expected = gradient(net, same)
    convert(net, "O1")
    net.hybridize(**flags)
    trainer = Trainer(net.collect_params(), "sgd", loss_scale=1024)
    for _ in range(3):
        np.testing.assert_allclose(gradient(net, same, trainer), expected, rtol=2**-8)
        trainer.discard_grads()
    assert expected.any()
    np.testing.assert_allclose(gradient(net, same), expected, rtol=2**-8)  # outside of a block there is no scale


class MultiOutputLoss(gluon.loss.Loss):
    """Its gradient is that of the head inside, as in losses for segmentation."""

    def hybrid_forward(self, F, pred, label):
        softmax = F.SoftmaxOutput(pred, label, multi_output=True, use_ignore=True, ignore_label=-1, normalization="valid")
        loss = -F.pick(F.log(softmax), label, axis=1, keepdims=True)
        return F.mean(F.where(label.expand_dims(axis=1) == -1, F.zeros_like(loss), loss), axis=0, exclude=True)


def segmentation():
    """Return a net, images and labels."""
    mx.random.seed(0)
    net = nn.Conv2D(4, 3, padding=1, in_channels=3)
    net.initialize(mx.init.Xavier())
    labels = np.random.RandomState(0).randint(-1, 4, (2, 5, 5))
    return net, mx.nd.random.uniform(shape=(2, 3, 5, 5)), mx.nd.array(labels)


@pytest.mark.parametrize("way", ["convert", "amp.init"])
def test_a_loss_block_with_a_head_is_scaled(way):
    net, x, y = segmentation()
    loss_fn = MultiOutputLoss(None, 0)
    with autograd.record():
        loss = loss_fn(net(x), y)
    loss.backward()
    expected = net.weight.grad().asnumpy()
    if way == "convert":
        convert(net, "O1")
        convert(loss_fn, "O1")
    else:
        amp.init()
        net.hybridize()
        loss_fn.hybridize()
    try:
        trainer = Trainer(net.collect_params(), "sgd", loss_scale=1024)
        with autograd.record():
            losses = loss_fn(net(x), y)
        with trainer.scale_loss(losses) as scaled:
            scaled.backward()
        np.testing.assert_allclose(losses.asnumpy(), loss.asnumpy(), rtol=2**-8)
        np.testing.assert_allclose(net.weight.data().grad.asnumpy(), 1024 * expected, rtol=2**-5, atol=1e-2)
    finally:
        amp.disable()


def test_heads_of_two_trainers_have_the_scale_of_each():
    grads = []
    for scale in (8, 1024):
        net, x, y = segmentation()
        loss_fn = convert(MultiOutputLoss(None, 0), "O1")
        convert(net, "O1")
        trainer = Trainer(net.collect_params(), "sgd", loss_scale=scale)
        with autograd.record(), trainer.scale_loss(loss_fn(net(x), y)) as scaled:
            scaled.backward()
        grads.append(net.weight.data().grad.asnumpy() / scale)
    np.testing.assert_allclose(grads[0], grads[1], rtol=2**-5, atol=1e-4)
    assert grads[0].any()


def test_a_head_has_the_scale_of_its_block_after_one_within_it():
    net, other = make(), nn.Dense(1, in_units=4)
    other.initialize()
    outer, inner = (Trainer(params_of(each), "sgd", loss_scale=scale) for each, scale in ((net, 8), (other, 1024)))
    expected = gradient(net, lambda out: out)
    own_x = mx.nd.ones((2, 4))  # of an input that both read, the first backward would free what MXNet knows of it
    with autograd.record():
        loss, within = net(X), other(own_x)
    with outer.scale_loss(loss) as scaled:
        with inner.scale_loss(within) as scaled_within:
            scaled_within.backward()
        scaled.backward()
    np.testing.assert_allclose(net.body.weight.grad().asnumpy(), expected, rtol=2**-9)


def test_a_copied_net_with_a_head_is_scaled():
    mx.random.seed(0)
    net = make()
    expected = gradient(net, same)
    twin = copy.deepcopy(net)
    trainer = Trainer(twin.collect_params(), "sgd", loss_scale=512)
    np.testing.assert_allclose(gradient(twin, same, trainer), expected, rtol=2**-8)


def test_an_overflow_in_a_head_is_skipped():
    net = make()
    trainer = Trainer(net.collect_params(), "sgd", loss_scale=2.0**120)
    with autograd.record():
        loss = net(X)
    with trainer.scale_loss(loss) as scaled:
        scaled.backward()
    assert not trainer.step(1)


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
    net = loop()
    net.collect_params().setattr("grad_req", "null")
    with autograd.record():
        net(X)
    assert refuse(params_of(net)) is None


class Loop(gluon.HybridBlock):
    """A net with a head in a body of control flow, where it cannot be scaled."""

    def __init__(self, **kwargs):
        super().__init__(prefix="net_", **kwargs)
        with self.name_scope():
            self.body = nn.Dense(3, in_units=4)

    def hybrid_forward(self, F, x):
        return F.contrib.foreach(lambda row, state: (F.make_loss(row), state), self.body(x), [F.zeros((1,))])[0]


def loop():
    net = Loop()
    net.initialize()
    return convert(net, "O1")


def test_a_loss_head_within_a_loop_is_refused_by_name():
    net = loop()
    trainer = Trainer(net.collect_params(), "sgd", loss_scale=8)
    for _ in range(2):
        with autograd.record():
            loss = net(X)
        with pytest.raises(TrainerError, match=r"^block 'net': node '.*' \(make_loss\) is a loss head: .*Take it off"):
            with trainer.scale_loss(loss):
                pass


def test_a_mark_ends_with_the_window():
    """A net with a head that ran once, for the log, and whose body is then trained by itself."""
    net = loop()
    with autograd.record():
        net(X)
    trainer = Trainer(net.collect_params(), "sgd", loss_scale=8)
    trainer.discard_grads()
    mxmp.gluon.restore(net)
    with autograd.record(), trainer.scale_loss(net.body(X).sum()) as scaled:
        scaled.backward()
    assert trainer.step(1)
