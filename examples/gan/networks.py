"""DCGAN's two networks, as small as digits allow.

References:
    Radford, Metz and Chintala, "Unsupervised Representation Learning with Deep Convolutional
    Generative Adversarial Networks", 2015, https://arxiv.org/abs/1511.06434
    Odena, Dumoulin and Olah, "Deconvolution and Checkerboard Artifacts", 2016,
    https://distill.pub/2016/deconv-checkerboard
Deviation: the generator doubles sizes by copying pixels before a convolution, as the second reference advises.
"""

from __future__ import annotations

from typing import Any

import mxnet as mx
from mxnet.gluon import nn

NOISE = 64
"""Numbers that an image is drawn from."""

_FIRST = 4  # height and width of the smallest feature maps


def initializer() -> mx.init.Initializer:
    """Return the initializer of the paper's weights."""
    return mx.init.Normal(0.02)


def make_generator(size: int, channels: int) -> nn.HybridSequential:
    """Return a network from noise (N, `NOISE`) to images (N, 1, size, size) from -1 to 1.

    Args:
        size: 16, 32, ...
        channels: Channels at half the size of an image, 4 or more; each smaller size has twice as many.
    """
    doublings = _doublings(size)
    width = channels << (doublings - 1)
    net = nn.HybridSequential(prefix="generator_")
    with net.name_scope():
        net.add(nn.Dense(width * _FIRST**2, use_bias=False, in_units=NOISE), nn.HybridLambda(_to_maps))
        for _ in range(doublings):
            net.add(nn.BatchNorm(in_channels=width), nn.Activation("relu"), nn.HybridLambda(_double))
            net.add(nn.Conv2D(width // 2, 3, 1, 1, use_bias=False, in_channels=width))
            width //= 2
        net.add(nn.BatchNorm(in_channels=width), nn.Activation("relu"))
        net.add(nn.Conv2D(1, 3, 1, 1, in_channels=width), nn.Activation("tanh"))
    return net


def make_discriminator(size: int, channels: int) -> nn.HybridSequential:
    """Return a network from images (N, 1, size, size) to logits (N, 1), large for real ones; as `make_generator`."""
    net = nn.HybridSequential(prefix="discriminator_")
    with net.name_scope():
        net.add(nn.Conv2D(channels, 4, 2, 1, in_channels=1), nn.LeakyReLU(0.2))
        for _ in range(_doublings(size) - 1):
            net.add(nn.Conv2D(2 * channels, 4, 2, 1, use_bias=False, in_channels=channels))
            channels *= 2
            net.add(nn.BatchNorm(in_channels=channels), nn.LeakyReLU(0.2))
        net.add(nn.Conv2D(1, _FIRST, in_channels=channels), nn.Flatten())
    return net


def _doublings(size: int) -> int:
    """Return how often the smallest feature maps double up to an image."""
    return (size // _FIRST).bit_length() - 1


def _to_maps(F: Any, x: Any) -> Any:
    return F.reshape(x, (0, -1, _FIRST, _FIRST))


def _double(F: Any, x: Any) -> Any:
    return F.UpSampling(x, scale=2, sample_type="nearest")
