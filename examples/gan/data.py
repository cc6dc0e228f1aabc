"""Handwritten digits as the images that a generator is to draw."""

from __future__ import annotations

from typing import Iterator

import mxnet as mx
import numpy as np

from examples.common.batches import in_order, shuffled
from examples.common.loop import Data

HELD_OUT = 597


class Digits(Data):
    """scikit-learn's 1797 digits, scaled up from 8x8 pixels, in a fixed split.

    Batches are images (N, 1, size, size), float32 from -1 to 1, on the CPU.

    Args:
        size: Height and width in pixels; a multiple of 8.
    """

    def __init__(self, size: int) -> None:
        from sklearn.datasets import load_digits

        images = mx.nd.array(load_digits().images[:, None] / 8 - 1)
        images = mx.nd.contrib.BilinearResize2D(images, height=size, width=size).asnumpy()
        order = np.random.RandomState(0).permutation(len(images))
        self._held_out, self._training = images[order[:HELD_OUT]], images[order[HELD_OUT:]]
        self.count = len(self._training)

    def train(self, batch_size: int, epoch: int, seed: int) -> Iterator[mx.nd.NDArray]:
        """Yield the whole batches of an epoch, shuffled as epoch and seed decide."""
        rng = np.random.RandomState([seed, epoch])
        return (mx.nd.array(self._training[chosen]) for chosen in shuffled(self.count, batch_size, rng))

    def test(self, batch_size: int) -> Iterator[mx.nd.NDArray]:
        """Yield the batches held out, in order; the last one may be smaller."""
        return (mx.nd.array(self._held_out[part]) for part in in_order(HELD_OUT, batch_size))
