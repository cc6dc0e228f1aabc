"""The same weights give the same logits in Gluon's counterpart of each network.

Counterparts are those of MXNet's and GluonCV's model zoos. That of lenet is put together here from Gluon's
layers.
"""

import mxnet as mx
import numpy as np
import pytest
from gluoncv.model_zoo import get_model
from mxnet.gluon import nn

import symbols
from tests.symbols.networks import draw, infer_shapes, logits, nodes_of, run


def parameters_in_order(symbol):
    """Return the names of a symbol's parameters from its input on, the longer arm of a sum first.

    Two graphs of one network have them in the same order, whatever the order of a sum's operands.
    """
    nodes, depth = nodes_of(symbol), []
    for node in nodes:
        depth.append(1 + max((depth[i] for i, *_ in node["inputs"]), default=0))
    order, seen = [], set()

    def visit(position):
        if position in seen:
            return
        seen.add(position)
        node = nodes[position]
        inputs = [i for i, *_ in node["inputs"]]
        for i in sorted(inputs, key=lambda i: -depth[i]) if "add" in node["op"] else inputs:
            visit(i)
        if node["op"] == "null" and node["name"] != "data":
            order.append(node["name"])

    visit(len(nodes) - 1)
    return order


def give(net, symbol, params):
    """Set the parameters of a Gluon net to those of a symbol, and return the symbol's that it lacks.

    A bias that the symbol lacks stays zero in Gluon.
    """
    theirs, ours = net.collect_params(), parameters_in_order(symbol)
    for name in parameters_in_order(net(mx.sym.var("data"))):
        shape = theirs[name].shape
        if not ours or ours[0].rsplit("_", 1)[1] != name.rsplit("_", 1)[1]:
            assert name.endswith("_bias"), f"{name} of Gluon meets {ours[:1]}"
            theirs[name].set_data(mx.nd.zeros(shape))
            continue
        value = params[ours.pop(0)]
        assert value.size == np.prod(shape), f"{name} of Gluon has shape {shape}, the symbol's {value.shape}"
        theirs[name].set_data(mx.nd.array(value.reshape(shape)))
    return ours


def check(symbol, net, shape):
    """Compare a network's logits with those of its counterpart."""
    head, rng = logits(symbol), np.random.default_rng(0)
    images = rng.standard_normal(shape, np.float32)
    params = draw(infer_shapes(head, shape), rng)
    net.initialize(mx.init.Zero())
    net.infer_shape(mx.nd.zeros(shape))
    net.hybridize()
    for name in give(net, head, params):
        assert name.endswith("_bias")
        params[name][:] = 0
    expected = net(mx.nd.array(images)).asnumpy()
    found = run(head, params, images).asnumpy()
    assert found.shape == expected.shape and np.abs(expected).max() > 1e-2
    # The same kernels on the same values: only the mean over all pixels may add them in another order
    # than the mean over a window of that size.
    np.testing.assert_allclose(found, expected, rtol=0, atol=4 * np.abs(expected).max() * np.finfo(np.float32).eps)


SMALL = "alexnet resnet18_v1 resnet50_v1b resnet18_v2 resnet50_v2 resnext50_32x4d mobilenet0.25"
ZOO = {
    **{name: (name, 64) for name in SMALL.split()},
    **{"vgg11_bn": ("vgg11_bn", 32), "mobilenet_v2_1.0": ("mobilenetv2_1.0", 64)},
    "googlenet_bn": ("googlenet", 224),  # Gluon's last pooling has a window of 7
    "inception_v3": ("inceptionv3", 299),  # and of 8
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO)
def test_logits_are_those_of_the_model_zoo(name):
    counterpart, size = ZOO[name]
    kwargs = {"pretrained_base": False} if name == "googlenet_bn" else {}
    check(symbols.get_symbol(name, num_classes=12), get_model(counterpart, classes=12, **kwargs), (1, 3, size, size))


def sequential(*blocks):
    net = nn.HybridSequential()
    net.add(*blocks)
    return net


def test_lenet_is_two_convolutions_and_two_dense_layers():
    convolutions = [(nn.Conv2D(n, 5, activation="tanh"), nn.MaxPool2D(2)) for n in (20, 50)]
    net = sequential(*convolutions[0], *convolutions[1], nn.Dense(500, activation="tanh"), nn.Dense(10))
    check(symbols.get_symbol("lenet"), net, (3, 1, 28, 28))


def test_cifar_resnet_v1_is_gluoncvs_with_the_relu_of_the_paper():
    """GluonCV has none after the first convolution."""
    theirs = get_model("cifar_resnet20_v1")
    conv, norm, *stages = theirs.features
    net = sequential(conv, norm, nn.Activation("relu"), *stages, theirs.output)
    check(symbols.get_symbol("cifar_resnet20_v1"), net, (2, 3, 32, 32))
