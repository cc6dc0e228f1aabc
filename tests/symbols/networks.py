"""What the tests of the classification networks share: their input shapes, and running them."""

from __future__ import annotations

import json

import mxnet as mx
import numpy as np

import symbols

FILES = (
    "mlp", "lenet", "alexnet", "vgg", "googlenet", "inception_bn", "inception_v3", "resnet", "cifar_resnet",
    "resnext", "mobilenet", "mobilenet_v2", "densenet",
)  # fmt: skip
CLASSIFIERS = [name for name, network in symbols.NETWORKS.items() if network.module.__name__.split(".")[1] in FILES]


def input_shape(name, batch=2):
    """Return the shape of the images that a network is published with."""
    if name in ("mlp", "lenet"):
        return (batch, 1, 28, 28)
    size = 32 if name.startswith("cifar") else 299 if name == "inception_v3" else 224
    return (batch, 3, size, size)


def infer_shapes(symbol, shape):
    """Return the shapes of arguments and auxiliary states by name, the inputs left out."""
    args, _, aux = symbol.infer_shape(data=shape)
    names = [*symbol.list_arguments(), *symbol.list_auxiliary_states()]
    return {n: s for n, s in zip(names, [*args, *aux]) if n not in ("data", "softmax_label")}


def count(symbol, shape, skip=()):
    """Return how many parameters a network learns, those whose names end in ``skip`` left out."""
    learned = set(symbol.list_arguments())
    shapes = infer_shapes(symbol, shape).items()
    return sum(int(np.prod(s)) for name, s in shapes if name in learned and not name.endswith(tuple(skip)))


def logits(symbol):
    """Return what goes into the loss head."""
    nodes = json.loads(symbol.tojson())["nodes"]
    assert nodes[-1]["op"] == "SoftmaxOutput" and nodes[-1]["name"] == "softmax"
    return symbol.get_children()[0]


def draw(shapes, rng):
    """Return parameters under which signals neither die nor explode, by name."""
    return {name: _draw(name, shape, rng) for name, shape in shapes.items()}


def _draw(name, shape, rng):
    if name.endswith(("gamma", "var")):
        return rng.uniform(0.5, 1.5, shape).astype(np.float32)
    if name.endswith("weight"):
        return (rng.standard_normal(shape, np.float32) * np.sqrt(2 / np.prod(shape[1:]))).astype(np.float32)
    return (0.1 * rng.standard_normal(shape, np.float32)).astype(np.float32)


def run(symbol, params, images):
    """Return the output of a symbol in inference, operator by operator as it is written."""
    values = {**params, "data": images}
    return mx.nd.CachedOp(symbol)(*[mx.nd.array(values[name]) for name in symbol.list_inputs()])


def run_bound(symbol, params, images):
    """Return the output of a symbol bound for inference, where MXNet fuses operators (oneDNN's on CPU)."""
    args = {name: mx.nd.array(value) for name, value in {**params, "data": images}.items()}
    aux = {name: args.pop(name) for name in symbol.list_auxiliary_states()}
    return symbol.bind(mx.cpu(), args, aux_states=aux, grad_req="null").forward(is_train=False)[0]
