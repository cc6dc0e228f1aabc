"""Networks of the Gluon model zoo to infer with: random weights, and BatchNorm's statistics as after training."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Tuple

import mxnet as mx
import numpy as np
from mxnet import gluon
from mxnet.gluon import nn
from mxnet.gluon.model_zoo import vision

IMAGE_SIZES = {
    "resnet18_v1": 224,
    "resnet50_v1": 224,
    "resnet50_v2": 224,
    "mobilenet1.0": 224,
    "mobilenetv2_1.0": 224,
    "densenet121": 224,
    "squeezenet1.1": 224,
    "inceptionv3": 299,
}
"""The eight networks, and the height and width of the images that each was made for."""

OWN_SIZE = 0
"""For an image size: that of `IMAGE_SIZES`."""


class Model(NamedTuple):
    """A network with its values, from which nets and symbols are made, and what to run it on.

    Attributes:
        name: In the model zoo.
        net: The float32 net, not hybridized.
        images: (N, 3, H, W), float32.
        symbol: Its symbol, with one input, ``data``.
    """

    name: str
    net: gluon.HybridBlock
    images: mx.nd.NDArray
    symbol: Any

    def params(self) -> Tuple[Dict[str, Any], Dict[str, Any]]:
        """Return arguments and auxiliary states, by the names of the symbol: arrays of their own at each call.

        MXNet keeps weights in oneDNN's layouts once they have run, where contrib.amp cannot cast those of depthwise
        convolutions.
        """
        params = self.net.collect_params().items()
        arrays = {name: mx.nd.array(param.data().asnumpy()) for name, param in params}
        aux = set(self.symbol.list_auxiliary_states())
        args = {name: array for name, array in arrays.items() if name not in aux}
        return args, {name: array for name, array in arrays.items() if name in aux}

    def copy(self) -> gluon.HybridBlock:
        """Return a net of its own with the same values."""
        net = vision.get_model(self.name)
        pairs = list(zip(net.collect_params().values(), self.net.collect_params().values()))
        for param, given in pairs:
            param.shape = given.shape
        net.initialize(mx.init.Zero())
        for param, given in pairs:
            param.set_data(given.data())
        return net


def make_model(name: str, batch_size: int, image_size: int = OWN_SIZE, seed: int = 0) -> Model:
    """Return a network with values that depend on the seed alone.

    Args:
        name: Of a network of the model zoo.
        batch_size: Images in a batch.
        image_size: Height and width, or `OWN_SIZE`.
        seed: For weights, statistics and images.
    """
    mx.random.seed(seed)
    rng = np.random.RandomState(seed)
    size = image_size or IMAGE_SIZES.get(name, 224)
    net = vision.get_model(name)
    net.initialize(mx.init.MSRAPrelu())
    images = mx.nd.array(rng.normal(size=(batch_size, 3, size, size)))
    seen = max(
        2, -(-64 * 32**2 // size**2)
    )  # so many that the last layers, 32 times smaller, have 64 positions or more
    _train_norms(net, mx.nd.array(rng.normal(size=(seen, 3, size, size))), rng)
    return Model(name, net, images, net(mx.sym.var("data")))


def _train_norms(net: gluon.HybridBlock, images: mx.nd.NDArray, rng: np.random.RandomState) -> None:
    """Give each BatchNorm random scales and shifts, and statistics near those of what it reads.

    With those that a net starts with, means of 0 and variances of 1, rounding would be tested on layers that do
    nothing.
    """
    norms: List[nn.BatchNorm] = []
    net.apply(lambda block: norms.append(block) if isinstance(block, nn.BatchNorm) else None)

    def observe(norm: nn.BatchNorm, inputs: Any) -> None:
        found = inputs[0]
        mean = found.mean(axis=(0, 2, 3))
        variance = (found - mean.reshape((1, -1, 1, 1))).square().mean(axis=(0, 2, 3)).asnumpy()
        mean, channels = mean.asnumpy(), mean.shape
        values = {
            norm.gamma: rng.uniform(0.5, 1.5, channels),
            norm.beta: rng.normal(scale=0.2, size=channels),
            norm.running_mean: mean + 0.1 * np.sqrt(variance) * rng.normal(size=channels),
            norm.running_var: variance * rng.uniform(0.8, 1.25, channels),
        }
        for param, value in values.items():
            param.shape = channels
            param.set_data(mx.nd.array(value))

    hooks = [norm.register_forward_pre_hook(observe) for norm in norms]
    net(
        images
    ).wait_to_read()  # in inference: each BatchNorm takes its new statistics, and the next one sees what follows
    for hook in hooks:
        hook.detach()
