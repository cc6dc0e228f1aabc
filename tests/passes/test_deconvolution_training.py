"""A small DCGAN generator trained in emulated float16, with transposed convolutions, against float32."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon import nn

from mxmp.gluon import Trainer, convert

# With (16, 8, 1) plain MXNet cannot train the float32 net on AVX2: a reorder primitive is missing.
NOISE, BATCH = 6, 8
CHANNELS = [(16, 8, 2), (8, 8, 3), (5, 3, 1), (4, 4, 4)]
SCALE = 128  # no step is skipped
OPTIONS = {"learning_rate": 0.5, "momentum": 0.9}


def batch(channels):
    rng = np.random.default_rng(0)
    noise, images = rng.standard_normal((BATCH, NOISE)), np.tanh(rng.standard_normal((BATCH, channels, 12, 12)))
    return mx.nd.array(noise), mx.nd.array(images)


def make_generator(first, second, third):
    net = nn.HybridSequential(prefix="g_")
    with net.name_scope():
        net.add(nn.Dense(9 * first, in_units=NOISE), nn.HybridLambda(lambda F, x: F.reshape(x, (0, -1, 3, 3))))
        net.add(nn.BatchNorm(in_channels=first), nn.Activation("relu"))
        net.add(nn.Conv2DTranspose(second, 4, 2, 1, use_bias=False, in_channels=first))
        net.add(nn.BatchNorm(in_channels=second), nn.Activation("relu"))
        net.add(nn.Conv2DTranspose(third, 4, 2, 1, in_channels=second), nn.Activation("tanh"))
    mx.random.seed(0)
    net.initialize(mx.init.Normal(0.1))
    return net


def train(channels, policy, hybridize=None, steps=15):
    """Return the losses of some steps and the values that they leave."""
    net = make_generator(*channels)
    if policy:
        convert(net, policy)
    if hybridize is not None:
        net.hybridize(**hybridize)
    trainer = Trainer(net.collect_params(), "sgd", dict(OPTIONS), loss_scale=SCALE)
    noise, images = batch(channels[-1])
    losses = []
    for _ in range(steps):
        with mx.autograd.record():
            loss = ((net(noise).astype("float32") - images) ** 2).mean(axis=(1, 2, 3))
            with trainer.scale_loss(loss) as scaled:
                scaled.backward()
        trainer.step(BATCH)
        losses.append(float(loss.mean().asscalar()))
    return losses, net(noise).astype("float32").asnumpy()


def assert_alike(found, expected):
    """Check that training went as in float32, but not to the bit."""
    (losses, images), (exact_losses, exact_images) = found, expected
    assert exact_losses[-1] < 0.9 * exact_losses[0]
    np.testing.assert_allclose(losses, exact_losses, rtol=0.01)
    assert 0 < np.abs(images - exact_images).mean() < 0.01


@pytest.mark.parametrize("channels", CHANNELS, ids=str)
def test_gluon_trains_as_in_float32(channels):
    expected = train(channels, None)
    for policy, hybridize in [("O1", None), ("O2", {"static_alloc": True, "static_shape": True})]:
        assert_alike(train(channels, policy, hybridize), expected)
