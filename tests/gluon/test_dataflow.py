"""Values that low precision would lose on their way through a network: the same as in float32."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon import nn

from mxmp.gluon import convert


class Behind(mx.gluon.HybridBlock):
    """A function behind a layer that changes no value."""

    def __init__(self, function, **constants):
        super().__init__()
        self.function = function
        with self.name_scope():
            self.conv = nn.Conv2D(1, 1, in_channels=1, use_bias=False, weight_initializer="ones")
            for name, value in constants.items():
                setattr(self, name, self.params.get_constant(name, value))

    def hybrid_forward(self, F, x, **constants):
        return self.function(F, self.conv(x), **constants)


def step(policy, function, data, **constants):
    """Return the output of a call, and the gradient of its input."""
    net = Behind(function, **constants)
    net.initialize()
    net, x = convert(net, policy), mx.nd.array(data)
    x.attach_grad()
    with autograd.record():
        output = net(x)
    output.backward()
    return output.asnumpy(), x.grad.asnumpy()


def total(F, x):
    return F.sum(F.sum(F.sum(x, axis=3), axis=2), axis=1)


IMAGE = np.full((1, 1, 512, 512), 0.5)
ANCHORS = mx.nd.array([[[[1001.3, 2003.7, 3001.1, 4005.2]]]])
LARGE = mx.nd.array([[[[70000.0]]]])

CASES = {
    "Dice loss, axis by axis": (lambda F, x: 1 - 2 * total(F, x * x) / (total(F, x + x) + 1), IMAGE, {}),
    "pooling by two sums": (lambda F, x: F.sum(F.sum(x, axis=3), axis=2) / 512**2, 2 * IMAGE, {}),
    "anchors": (
        lambda F, x, anchors: F.broadcast_add(x, anchors).reshape((0, -1)), np.full((1, 1, 1, 4), 0.25), {"anchors": ANCHORS}),
    "positions through a product": (
        lambda F, x: F.broadcast_add(F.reshape(x, (1, 1)), F.sin(F.FullyConnected(
            F.arange(0, 4096).reshape((4096, 1)), F.ones((1, 1)), no_bias=True, num_hidden=1))),
        np.ones((1, 1, 1, 1)), {}),
    "the logarithm of a sigmoid": (
        lambda F, x: -F.log(F.clip(1 - F.sigmoid(x), 1e-12, 1)), np.full((1, 1, 1, 1), 10), {}),
    "a large constant, one image": (
        lambda F, x, large: F.broadcast_mul(x, large), np.full((1, 1, 1, 1), 0.5), {"large": LARGE}),
    "a large constant, two images": (
        lambda F, x, large: F.broadcast_mul(x, large), np.full((2, 1, 1, 1), 0.5), {"large": LARGE}),
}  # fmt: skip


@pytest.mark.xfail(strict=True, reason="engine")
@pytest.mark.parametrize("function, data, constants", CASES.values(), ids=CASES)
def test_values_under_o1_are_those_of_float32(function, data, constants):
    for expected, found in zip(*(step(policy, function, data, **constants) for policy in ("float32", "O1"))):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)
