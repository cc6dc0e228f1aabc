"""Shapes that inputs may come to have, guessed from what a net's first convolutions read."""

from __future__ import annotations

import mxnet as mx
import pytest
from mxnet import gluon
from mxnet.gluon import nn
from mxnet.gluon.model_zoo import vision

from mxmp.gluon import convert, traced_net
from mxmp.gluon.lookup import conversion_of
from mxmp.gluon.shapes import guess_shapes, known_shapes
from mxmp.symbol import to_graph


def guessed(net, *names):
    """Return the shapes that are guessed for a net's inputs."""
    symbol = net(*map(mx.sym.var, names or ["data"]))
    return guess_shapes(symbol, to_graph(symbol), dict(net.collect_params()))


NETS = {
    "an image of ImageNet": (lambda: nn.Conv2D(4, 3, in_channels=3), (1, 3, 224, 224)),
    "channels in groups": (lambda: nn.Conv2D(4, 3, groups=2, in_channels=6), (1, 6, 224, 224)),
    "a sequence": (lambda: nn.Conv1D(4, 3, in_channels=5), (1, 5, 224)),
    "a volume": (lambda: nn.Conv3D(1, 3, in_channels=1), (1, 1, 224, 224, 224)),
    "normalized": (lambda: stack(nn.BatchNorm(in_channels=3), nn.Conv2D(4, 3, in_channels=3)), (1, 3, 224, 224)),
    "an image of Inception": (
        lambda: stack(nn.Conv2D(1, 1, strides=8, in_channels=3), nn.Dense(2, in_units=38 * 38)),
        (1, 3, 299, 299),
    ),
    "an image of CIFAR": (lambda: stack(nn.Conv2D(4, 1, in_channels=3), nn.Dense(2, in_units=4096)), (1, 3, 32, 32)),
    "an image of MNIST": (lambda: stack(nn.Conv2D(1, 1, in_channels=1), nn.Dense(2, in_units=784)), (1, 1, 28, 28)),
}


def stack(*layers):
    net = nn.HybridSequential()
    net.add(*layers)
    return net


@pytest.mark.parametrize(("make", "shape"), NETS.values(), ids=NETS)
def test_an_image_is_guessed_that_the_net_takes(make, shape):
    assert guessed(make()) == {"data": shape}


UNKNOWN = {
    "channels that are not known": lambda: nn.Conv2D(4, 3),
    "no convolution": lambda: nn.Dense(4, in_units=3),
    "another layout": lambda: nn.Conv2D(4, 3, in_channels=3, layout="NHWC"),
    "another size": lambda: stack(nn.Conv2D(1, 1, in_channels=1), nn.Dense(2, in_units=100)),
    "another operator before": lambda: stack(nn.Flatten(), nn.Dense(3, in_units=3)),
}


@pytest.mark.parametrize("make", UNKNOWN.values(), ids=UNKNOWN)
def test_nothing_is_guessed_without_a_reason(make):
    assert guessed(make()) == {}


class Two(gluon.HybridBlock):
    """A net with two inputs, one read by a convolution, and the other by one too if ``both``."""

    def __init__(self, both, **kwargs):
        super().__init__(**kwargs)
        self.both = both
        with self.name_scope():
            self.left, self.right = nn.Conv2D(2, 3, in_channels=3), nn.Conv2D(2, 3, in_channels=1)

    def hybrid_forward(self, F, left, right):
        return self.left(left) + (self.right(right) if self.both else right)


def test_all_inputs_or_none_are_guessed():
    image = 224, 224
    assert guessed(Two(True), "a", "b") == {"a": (1, 3, *image), "b": (1, 1, *image)}
    assert guessed(Two(False), "a", "b") == {}


def test_known_shapes_are_those_of_inputs_and_finished_parameters():
    params = stack(nn.Dense(2, in_units=3, prefix="a_"), nn.Dense(2, prefix="b_")).collect_params()
    known = {"data": (1, 3), "a_weight": (2, 3), "a_bias": (2,), "b_bias": (2,)}
    assert known_shapes({"data": (1, 3)}, params) == known and known_shapes({}, params) == {}


@pytest.mark.parametrize("size", [224, 288])
@pytest.mark.parametrize("name", ["mobilenetv2_0.25", "squeezenet1.1", "resnet18_v2"])
def test_a_call_takes_over_the_placement_of_a_guessed_image(name, size, monkeypatch):
    net = vision.get_model(name, classes=10)
    net.initialize()
    x = mx.nd.ones((2, 3, size, size))
    net.infer_shape(x)
    for param in net.collect_params().values():
        param._finish_deferred_init()
    convert(net, "O1")
    anew = []
    monkeypatch.setattr(traced_net, "convert_graph", lambda *args, **kwargs: anew.append(args))
    early, graph = conversion_of(net).early_graph, conversion_of(net)._graph_for((x,))
    assert anew == [] and graph.converted.graph is early.converted.graph
    assert graph.converted.report.activation_bytes is not None


@pytest.mark.parametrize("name", ["mobilenetv2_0.25", "squeezenet1.1"])
def test_the_guess_does_not_show_in_the_report_before_the_call(name):
    net = vision.get_model(name, classes=10, prefix="net_")
    net.initialize()
    net.infer_shape(mx.nd.ones((2, 3, 224, 224)))
    for param in net.collect_params().values():
        param._finish_deferred_init()
    convert(net, "O1")
    found = conversion_of(net).report()
    assert found.activation_bytes is None and found == conversion_of(net).early.report
