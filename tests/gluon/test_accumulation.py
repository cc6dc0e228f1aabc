"""Gradients added up over several backwards before one step (``grad_req='add'``), in converted nets."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon import nn

from mxmp.errors import TrainerError
from mxmp.gluon import Trainer, convert
from tests.gluon.trainer_tools import TWO, value

BFLOAT16 = pytest.param("bfloat16", marks=pytest.mark.bfloat16)
MIXED_BFLOAT16 = pytest.param("mixed_bfloat16", marks=pytest.mark.bfloat16)
POLICIES = ["O1", "O2", MIXED_BFLOAT16, BFLOAT16]
MICRO_BATCHES = 4


def dense(policy, contexts=None):
    """Return a converted layer without bias, its weight zero, whose gradients add up."""
    net = nn.Dense(2, in_units=3, use_bias=False)
    net.initialize(mx.init.Zero(), ctx=contexts)
    net.collect_params().setattr("grad_req", "add")
    return convert(net, policy)


def sgd(net, loss_scale=2.0**6):
    return Trainer(net.collect_params(), "sgd", {"learning_rate": 0.125}, loss_scale=loss_scale)


def backward(net, trainer, x, head, ctx=None):
    """Run one micro-batch: x (2, 3) and the gradient of the output, head (2, 2)."""
    with autograd.record():
        out = mx.nd.Cast(net(mx.nd.array(x, ctx=ctx)), dtype="float32")
        loss = (out * mx.nd.array(head, ctx=ctx)).sum()
        with trainer.scale_loss(loss) as scaled:
            scaled.backward()


def micro_batches(seed, count=MICRO_BATCHES):
    """Return small whole numbers: their products and sums stay below 2**8, exact in every dtype."""
    draw = np.random.RandomState(seed)
    return [(draw.randint(-2, 3, (2, 3)), draw.randint(-2, 3, (2, 2))) for _ in range(count)]


@pytest.mark.behaviour("accumulation")
@pytest.mark.parametrize("contexts", [1, 2])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_window_steps_with_the_sum_of_its_backwards(policy, contexts):
    contexts = TWO[:contexts]
    net = dense(policy, contexts)
    trainer, weight = sgd(net), np.zeros((2, 3))
    for window in range(3):
        batches = micro_batches(window)
        for i, (x, head) in enumerate(batches):
            backward(net, trainer, x, head, contexts[i % len(contexts)])
        total = sum(head.T @ x for x, head in batches)
        trainer.unscale()
        for ctx in contexts:
            np.testing.assert_array_equal(net.weight.grad(ctx).asnumpy(), total)
        assert trainer.step(1)
        net.weight.zero_grad()
        weight = weight - 0.125 * total
        for ctx in contexts:
            np.testing.assert_array_equal(value(net.weight.data(ctx)), weight)


@pytest.mark.behaviour("accumulation")
@pytest.mark.parametrize("policy", ["O1", "O2", MIXED_BFLOAT16])
def test_sums_of_a_deeper_net_are_those_of_single_backwards(policy):
    """Bit for bit where gradients are stored in float32, else within the roundings of the additions."""
    draw = np.random.RandomState(0)
    images = [mx.nd.array(draw.randn(2, 2, 6, 6)) for _ in range(MICRO_BATCHES)]
    net = nn.HybridSequential()
    net.add(nn.Conv2D(3, 3, in_channels=2), nn.BatchNorm(in_channels=3), nn.Activation("relu"))
    net.add(nn.Conv2D(4, 3, in_channels=3), nn.Dense(5, in_units=16))
    mx.random.seed(0)
    net.initialize(mx.init.Xavier())
    convert(net, policy)
    params = [p for p in net.collect_params().values() if p.grad_req != "null"]

    def gradients(chosen):
        for image in chosen:
            with autograd.record():
                mx.nd.square(net(image) - 1).mean().backward()
        return [value(p.grad()) for p in params]

    single = [gradients([image]) for image in images]
    for p in params:
        p.grad_req = "add"
    added = gradients(images)
    for p, found, *parts in zip(params, added, *single):
        total = np.zeros_like(found)
        for part in parts:
            total = total + part  # float32, in the order of the backwards
        # Each of the three additions in float16 rounds a partial sum by up to 2**-11 of it.
        bound = MICRO_BATCHES * 2.0**-11 * sum(map(np.abs, parts)) if p.grad().dtype == np.float16 else 0.0
        assert (np.abs(found - total) <= bound).all(), p.name
        assert np.abs(total).max() > 0


@pytest.mark.parametrize("policy", POLICIES)
def test_zeroing_unscaled_gradients_zeroes_what_the_next_backward_adds_to(policy):
    net = dense(policy)
    trainer = sgd(net)
    (x, head), second = micro_batches(0, 2)
    backward(net, trainer, x, head)
    trainer.unscale()
    net.weight.zero_grad()
    trainer.discard_grads()
    backward(net, trainer, *second)
    assert trainer.step(1)
    np.testing.assert_array_equal(value(net.weight.data()), -0.125 * (second[1].T @ second[0]))


@pytest.mark.parametrize("call", ["save_states", "load_states"])
def test_without_scale_loss_too_nothing_is_saved_in_mid_window(call, tmp_path):
    net = dense("O1")
    trainer = sgd(net, None)
    with autograd.record():
        net(mx.nd.ones((2, 3))).sum().backward()
    with pytest.raises(
        TrainerError, match=f"^{call} came in the middle of an accumulation window: .*'{net.weight.name}'"
    ):
        getattr(trainer, call)(str(tmp_path / "states"))
    assert trainer.step(1)
    trainer.save_states(str(tmp_path / "states"))
    trainer.load_states(str(tmp_path / "states"))


def test_a_second_backward_that_overwrites_is_an_error():
    net = nn.Dense(2, in_units=3, use_bias=False)
    net.initialize(mx.init.Zero())
    trainer = sgd(net, 8)
    backward(net, trainer, np.ones((2, 3)), np.ones((2, 2)))
    message = (
        f"overwrote the gradient of parameter '{net.weight.name}'.*If that gradient is not wanted, call discard_grads"
    )
    with pytest.raises(TrainerError, match=f"scale_loss: .*{message}"):
        backward(net, trainer, 2 * np.ones((2, 3)), np.ones((2, 2)))
    with pytest.raises(TrainerError, match=f"step: .*{message}"):
        trainer.step(1)
    trainer.discard_grads()
    backward(net, trainer, np.ones((2, 3)), np.ones((2, 2)))
    trainer.discard_grads()  # a first pass whose gradients are only looked at
    backward(net, trainer, 2 * np.ones((2, 3)), np.ones((2, 2)))
    assert trainer.step(1)
    assert (value(net.weight.data()) == -0.5).all()
