"""Nets with a loss head inside: scaled where they are converted, refused elsewhere."""

import copy

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

from mxmp import amp
from mxmp.errors import TrainerError
from mxmp.gluon import Trainer, convert, restore
from tests.gluon.nets import Function
from tests.gluon.trainer_tools import run_backward

X = mx.nd.ones((2, 4))
HEADS = {
    "SoftmaxOutput": lambda F, x: F.SoftmaxOutput(x, F.zeros((2,)), name="head"),
    "LinearRegressionOutput": lambda F, x: F.LinearRegressionOutput(x, F.zeros((2, 3)), name="head"),
    "make_loss": lambda F, x: F.make_loss(F.sum(x), name="head"),
    "MakeLoss": lambda F, x: F.MakeLoss(F.sum(x), name="head"),
    # In a body of control flow, where it cannot be scaled.
    "loop": lambda F, x: F.contrib.foreach(lambda row, state: (F.make_loss(row), state), x, [F.zeros((1,))])[0],
    "none": lambda F, x: x,
}
SCALED = [op for op in HEADS if op not in ("loop", "none")]


def make(op="SoftmaxOutput", policy="O1"):
    """Return a net and the parameter that is looked at; its weights are the same each time."""
    mx.random.seed(0)
    head = HEADS[op]
    net = Function(lambda net, F, x: head(F, net.body(x)), body=nn.Dense(3, in_units=4))
    net.initialize()
    return (convert(net, policy) if policy else net), net.body.weight


def sgd(net, loss_scale):
    return Trainer(net.collect_params(), "sgd", loss_scale=loss_scale)


def gradient(weight, forward, trainer=None):
    """Return the gradient of a weight, times the loss scale of a trainer if there is one."""
    with autograd.record():
        loss = forward()
    run_backward(trainer, loss)
    return weight.data().grad.asnumpy()


@pytest.mark.parametrize("flags", [{}, {"static_alloc": True, "static_shape": True}], ids=["", "static"])
@pytest.mark.parametrize("op", SCALED)
def test_a_head_in_a_converted_net_is_scaled(op, flags):
    net, weight = make(op, None)
    expected = gradient(weight, lambda: net(X))
    convert(net, "O1")
    net.hybridize(**flags)
    trainer = sgd(net, 1024)
    for _ in range(3):
        np.testing.assert_allclose(gradient(weight, lambda: net(X), trainer), 1024 * expected, rtol=2**-8)
        trainer.discard_grads()
    assert expected.any()
    np.testing.assert_allclose(gradient(weight, lambda: net(X)), expected, rtol=2**-8)  # outside of a block as it is


class MultiOutputLoss(gluon.loss.Loss):
    """Its gradient is that of the head inside, as in losses for segmentation."""

    def hybrid_forward(self, F, pred, label):
        softmax = F.SoftmaxOutput(pred, label, multi_output=True, use_ignore=True, ignore_label=-1, normalization="valid")
        loss = -F.pick(F.log(softmax), label, axis=1, keepdims=True)
        return F.mean(F.where(label.expand_dims(axis=1) == -1, F.zeros_like(loss), loss), axis=0, exclude=True)


@pytest.mark.parametrize("way", ["convert", "amp.init"])
def test_a_loss_block_with_a_head_has_the_scale_of_each_trainer(way):
    net, loss_fn = nn.Conv2D(4, 3, padding=1, in_channels=3), MultiOutputLoss(None, 0)
    net.initialize(mx.init.Xavier())
    x = mx.nd.random.uniform(shape=(2, 3, 5, 5))
    y = mx.nd.array(np.random.RandomState(0).randint(-1, 4, (2, 5, 5)))
    expected, values = gradient(net.weight, lambda: loss_fn(net(x), y)), loss_fn(net(x), y).asnumpy()
    if way == "amp.init":
        amp.init()
    try:
        for block in (net, loss_fn):
            block.hybridize() if way == "amp.init" else convert(block, "O1")
        for scale in (8, 1024):
            trainer = sgd(net, scale)
            found = gradient(net.weight, lambda: loss_fn(net(x), y), trainer) / scale
            np.testing.assert_allclose(found, expected, rtol=2**-5, atol=1e-4)
            trainer.discard_grads()
        np.testing.assert_allclose(loss_fn(net(x), y).asnumpy(), values, rtol=2**-8)
    finally:
        amp.disable()


def test_a_head_has_the_scale_of_its_block_after_one_within_it():
    (net, weight), other = make(), nn.Dense(1, in_units=4)
    other.initialize()
    expected = gradient(weight, lambda: net(X))
    own_x = mx.nd.ones((2, 4))  # of an input that both read, the first backward would free what MXNet knows of it
    with autograd.record():
        loss, within = net(X), other(own_x)
    with sgd(net, 8).scale_loss(loss) as scaled:
        run_backward(sgd(other, 1024), within)
        scaled.backward()
    np.testing.assert_allclose(weight.data().grad.asnumpy(), 8 * expected, rtol=2**-9)


def test_a_copied_net_with_a_head_is_scaled_and_its_overflow_skipped():
    net, weight = make()
    expected, twin = gradient(weight, lambda: net(X)), copy.deepcopy(net)
    trainer = sgd(twin, 512)
    np.testing.assert_allclose(gradient(twin.body.weight, lambda: twin(X), trainer), 512 * expected, rtol=2**-8)
    trainer.discard_grads()
    trainer.loss_scale = 2.0**120
    gradient(twin.body.weight, lambda: twin(X), trainer)
    assert not trainer.step(1)


@pytest.mark.parametrize("op, recorded, trained", [("SoftmaxOutput", 0, 1), ("none", 1, 1), ("loop", 1, 0)])
def test_inference_and_nets_without_a_head_or_that_are_not_trained_are_let_through(op, recorded, trained):
    net, weight = make(op)
    if not trained:
        net.collect_params().setattr("grad_req", "null")
    with autograd.record() if recorded else autograd.pause():
        net(X)
    net.collect_params().setattr("grad_req", "write")
    trainer = sgd(net, 8)
    gradient(weight, lambda: net.body(X).sum(), trainer)
    assert trainer.step(1)


@pytest.mark.parametrize("converted", [True, False])
def test_a_head_that_runs_eagerly_is_refused(converted):
    """On the output of a net, or within one that is not converted: autograd has it in its history."""
    net, _ = make("none", "O1" if converted else None)
    trainer = sgd(net, 8)
    with autograd.record():
        out = mx.nd.SoftmaxOutput(net(X), mx.nd.zeros((2,)), name="eager")
    with pytest.raises(TrainerError, match=r"node '.*' \(SoftmaxOutput\) is a loss head"):
        run_backward(trainer, out)
    trainer.loss_scale = None
    run_backward(trainer, out)
    assert trainer.step(1)


def test_a_loss_head_within_a_loop_is_refused_by_name_until_the_window_ends():
    """As of a net with a head that ran once, for the log, and whose body is then trained by itself."""
    net, weight = make("loop")
    trainer = sgd(net, 8)
    for _ in range(2):
        with pytest.raises(TrainerError, match=r"^block 'net': node '.*' \(make_loss\) is a loss head: .*Take it off"):
            gradient(weight, lambda: net(X), trainer)
    trainer.discard_grads()
    restore(net)
    gradient(weight, lambda: net.body(X).sum(), trainer)
    assert trainer.step(1)
