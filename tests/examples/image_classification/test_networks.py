"""Networks by name."""

from __future__ import annotations

import click
import mxnet as mx
import numpy as np
import pytest

from examples.image_classification.networks import get_net, get_symbol

SHAPE = (1, 32, 32)


@pytest.mark.parametrize(
    "name", ["gluon/mobilenet0.25", "gluoncv/cifar_resnet20_v2", "symbols/cifar_resnet20_v1", "symbols/lenet"]
)
def test_a_net_gives_logits_for_gray_images(name):
    net = get_net(name, 7, SHAPE)
    net.initialize(mx.init.Xavier())
    assert net(mx.nd.zeros((2, *SHAPE))).shape == (2, 7)


@pytest.mark.parametrize("name", ["gluon/mobilenet0.25", "gluoncv/cifar_resnet20_v2", "symbols/lenet"])
def test_a_symbol_gives_softmax_for_gray_images(name):
    symbol = get_symbol(name, 7, SHAPE)
    assert symbol.list_outputs() == ["softmax_output"]
    _, shapes, _ = symbol.infer_shape(data=(2, *SHAPE))
    assert shapes == [(2, 7)]


def test_net_and_symbol_of_a_name_compute_the_same():
    net, symbol = get_net("symbols/lenet", 7, SHAPE), get_symbol("symbols/lenet", 7, SHAPE)
    net.initialize(mx.init.Xavier())
    images = mx.nd.random.normal(shape=(3, *SHAPE))
    wanted = mx.nd.softmax(net(images)).asnumpy()
    executor = symbol.simple_bind(mx.cpu(), data=images.shape, grad_req="null")
    executor.copy_params_from({name: param.data() for name, param in net.collect_params().items()})
    np.testing.assert_allclose(executor.forward(data=images)[0].asnumpy(), wanted, rtol=1e-5)


def test_a_net_of_symbols_is_initialized_as_gluon_does_it():
    net = get_net("symbols/cifar_resnet20_v1", 7, SHAPE)
    net.initialize(mx.init.Xavier())
    net(mx.nd.zeros((1, *SHAPE)))
    values = {name: param.data().asnumpy() for name, param in net.collect_params().items()}
    assert len(values) > 60
    for name, value in values.items():
        wanted = {"weight": None, "gamma": 1, "var": 1}.get(name.rpartition("_")[2], 0)
        assert (value == wanted).all() if wanted is not None else len(np.unique(value)) > 1, name


def test_parameters_are_called_the_same_every_time():
    first, second = (get_net("gluon/mobilenet0.25", 7, SHAPE) for _ in range(2))
    assert list(first.collect_params()) == list(second.collect_params())


def test_gluon_comes_before_symbols_for_a_net_and_after_for_a_symbol():
    assert not isinstance(get_net("resnet18_v1", 7, SHAPE), mx.gluon.SymbolBlock)
    assert "stage1_unit1_conv1_weight" in get_symbol("resnet18_v1", 7, SHAPE).list_arguments()


def test_a_symbol_of_gluon_is_checked_as_a_net_is():
    with pytest.raises(click.UsageError, match="it gives several outputs, so it is no image classifier"):
        get_symbol("gluoncv/fcn_resnet50_voc", 7, SHAPE)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cifar_resnet_20", "there is no such network; the nearest are cifar_resnet"),
        ("gluon/cifar_resnet20_v1", "gluon/cifar_resnet20_v1: there is no such network"),
        ("torch/resnet", "expected gluon/NAME, gluoncv/NAME, symbols/NAME, or NAME"),
        ("gluoncv/resnet50_v1b_kinetics400", "there is no such network"),
        ("gluoncv/yolo3_darknet53_voc", "GluonCV makes no classifier of it"),
        ("gluoncv/fcn_resnet50_voc", "it gives several outputs, so it is no image classifier"),
        ("gluoncv/hrnet_w18_small_v1_c", r"it gives \[\(2, 1000\)\], expected \[\(2, 7\)\]"),
        ("symbols/alexnet", "images of 1x32x32 do not fit it; try another --image-size"),
        ("symbols/bert_tiny", "images of 1x32x32 do not fit it"),
    ],
)
def test_what_is_no_classifier_of_such_images_is_refused_by_name(name, message):
    with pytest.raises(click.UsageError, match=message):
        get_net(name, 7, SHAPE)
