"""Losses made of gradients (WGAN-GP) through converted nets, within a float32 region."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

from mxmp.gluon import Trainer, convert, precision
from tests.freeze import freeze
from tests.gluon.trainer_tools import run_backward

X = np.random.RandomState(0).randn(1, 4, 6).astype("float32")


class Product(gluon.HybridBlock):
    """A linear layer of (1, N, in_units) that has right second derivatives, which Dense has not."""

    def __init__(self, units, in_units, **kwargs):
        super().__init__(**kwargs)
        self.weight = self.params.get("weight", shape=(1, units, in_units))

    def hybrid_forward(self, F, x, weight):
        return F.batch_dot(x, weight, transpose_b=True)


class Critic(gluon.HybridBlock):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.first, self.second = Product(8, 6), Product(5, 8)
            self.score = nn.Dense(1, in_units=5, flatten=False)

    def hybrid_forward(self, F, x):
        return self.score(F.sigmoid(self.second(F.tanh(self.first(x)))))


def make(policy=None, hybridized=False):
    mx.random.seed(0)
    net = Critic(prefix="critic_")
    net.initialize(mx.init.Xavier())
    if hybridized:
        net.hybridize()
    return convert(net, policy) if policy else net


def penalty_of(net, x):
    with precision("float32"):
        score = net(x)
        (slope,) = autograd.grad(score, [x], create_graph=True, retain_graph=True)
    return score, (slope.square().sum(axis=2).sqrt() - 1).square().mean()


def step(net, trainer):
    x = mx.nd.array(X)
    x.attach_grad()
    with autograd.record():
        score, penalty = penalty_of(net, x)
        loss = score.mean() + 10 * penalty
    run_backward(trainer, loss)
    trainer.step(1)
    return penalty.asscalar()


@pytest.mark.behaviour("gradient penalty")
@pytest.mark.parametrize("hybridized", [False, True], ids=["plain", "hybridized"])
@pytest.mark.parametrize("policy", ["O1", pytest.param("mixed_bfloat16", marks=pytest.mark.bfloat16)])
def test_training_equals_the_float32_net_bit_for_bit(policy, hybridized):
    """A scale of a power of two moves exponents alone."""
    net, reference = make(policy, hybridized), make()
    trainer = Trainer(net.collect_params(), "adam", {"learning_rate": 0.01}, loss_scale=1024)
    plain = gluon.Trainer(reference.collect_params(), "adam", {"learning_rate": 0.01})
    net(mx.nd.array(X))  # the low precision graph is there too
    found = [step(net, trainer) for _ in range(5)]
    assert found == [step(reference, plain) for _ in range(5)] and found[-1] < found[0]
    values, expected = (freeze([p.data() for p in each.collect_params().values()]) for each in (net, reference))
    assert values == expected


def test_the_loss_itself_may_be_in_low_precision():
    """Gradients add up: those of the score through float16, those of the penalty through float32."""

    def gradients(with_score, with_penalty):
        net, x = make("O1"), mx.nd.array(X)
        x.attach_grad()
        with autograd.record():
            loss = net(x).mean() if with_score else mx.nd.zeros((1,))
            if with_penalty:
                loss = loss + penalty_of(net, x)[1]
        loss.backward()
        return [p.grad().asnumpy() for p in net.collect_params().values()]

    both = gradients(True, True)
    for total, score, penalty in zip(both, gradients(True, False), gradients(False, True)):
        np.testing.assert_allclose(total, score + penalty, rtol=1e-5, atol=1e-7)
    assert any(not np.array_equal(a, b) for a, b in zip(both, gradients(False, True)))
