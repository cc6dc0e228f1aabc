"""Networks of the tests of mxmp.amp."""

import json

import mxnet as mx
import numpy as np
from mxnet import gluon
from mxnet.gluon import nn


def make(prefix="net_"):
    """Return two dense layers around a BatchNorm, for rows of 3 numbers."""
    net = nn.HybridSequential(prefix=prefix)
    with net.name_scope():
        net.add(nn.Dense(4, in_units=3), nn.BatchNorm(in_channels=4), nn.Dense(2, in_units=4))
    mx.random.seed(0)
    net.initialize(mx.init.Xavier(rnd_type="gaussian"))
    return net


def trainer_of(net, **kwargs):
    return gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.125}, **kwargs)


IMAGES = mx.nd.array(np.random.RandomState(0).rand(2, 2, 6, 6))


def images(hybridize=True):
    """Return a net of images, and its outputs in float32 for `IMAGES`."""
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Conv2D(3, 3, in_channels=2), nn.BatchNorm(in_channels=3), nn.Activation("relu"), nn.Dense(4))
    mx.random.seed(0)
    net.initialize(mx.init.Xavier(rnd_type="gaussian"))
    float32 = net(IMAGES).asnumpy()
    net.hybridize(hybridize)
    if hybridize:
        net(IMAGES)
    return net, float32


def nodes_of(symbol):
    return {node["name"]: node for node in json.loads(symbol.tojson(remove_amp_cast=False))["nodes"]}


def casts_of(symbol):
    return sorted(name for name, node in nodes_of(symbol).items() if node["op"] in ("Cast", "amp_cast"))


def two_layers():
    hidden = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, name="fc1")
    hidden = mx.sym.Activation(hidden, act_type="relu", name="act")
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(hidden, num_hidden=3, name="fc2"), name="softmax")


def unrolled(length):
    """Return a symbol with one FullyConnected per time step, which share their weight."""
    data, weight = mx.sym.var("data"), mx.sym.var("weight")
    steps = mx.sym.SliceChannel(data, axis=1, num_outputs=length, name="steps")
    layers = [mx.sym.FullyConnected(steps[t], weight, no_bias=True, num_hidden=3, name=f"fc{t}") for t in range(length)]
    layers = [mx.sym.LeakyReLU(layer, act_type="elu", name=f"elu{t}") for t, layer in enumerate(layers)]
    return mx.sym.SoftmaxOutput(sum(layers[1:], layers[0]), name="softmax"), ("data",), ("softmax_label",)


def buckets():
    return mx.mod.BucketingModule(unrolled, default_bucket_key=3, context=mx.cpu())


def bind(module, training=True):
    module.bind([("data", (4, 3, 2))], [("softmax_label", (4,))], for_training=training)
    return module


def ready():
    """Return a bucketing module that is bound and has parameters."""
    module = bind(buckets())
    module.init_params(mx.init.Normal(1.0))
    return module
