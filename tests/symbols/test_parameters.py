"""Numbers of learned parameters against published ones.

Sources, where a row names no other: the weights of torchvision's models
(https://pytorch.org/vision/stable/models.html), equal to those listed by
https://github.com/osmr/imgclsmob (gluon/README.md and pytorch/README.md), counted by other code.
"""

from __future__ import annotations

import pytest

import symbols
from tests.symbols.networks import count, infer_shapes, input_shape

DATA_BN = 6  # gamma and beta for three channels: the normalization of the images in v2 that others leave out

COUNTS = {
    "mlp": (784 + 1) * 128 + (128 + 1) * 64 + (64 + 1) * 10,
    "lenet": 431_080,  # Caffe's lenet.prototxt
    "alexnet": 61_100_840,
    "alexnet_2012": 60_965_224,  # Caffe's bvlc_alexnet
    "vgg11": 132_863_336,
    "vgg13": 133_047_848,
    "vgg16": 138_357_544,
    "vgg19": 143_667_240,
    "vgg11_bn": 132_868_840,
    "vgg13_bn": 133_053_736,
    "vgg16_bn": 138_365_992,
    "vgg19_bn": 143_678_248,
    "googlenet": 6_998_552,  # Caffe's bvlc_googlenet, auxiliary classifiers left out
    "googlenet_bn": 6_624_904,
    "inception_v3": 23_834_568,
    "resnet18_v1": 11_689_512,
    "resnet34_v1": 21_797_672,
    "resnet50_v1": 25_557_032,
    "resnet101_v1": 44_549_160,
    "resnet152_v1": 60_192_808,
    "resnet18_v1b": 11_689_512,
    "resnet34_v1b": 21_797_672,
    "resnet50_v1b": 25_557_032,
    "resnet101_v1b": 44_549_160,
    "resnet152_v1b": 60_192_808,
    # imgclsmob's PreResNet.
    "resnet18_v2": 11_687_848 + DATA_BN,
    "resnet34_v2": 21_796_008 + DATA_BN,
    "resnet50_v2": 25_549_480 + DATA_BN,
    "resnet101_v2": 44_541_608 + DATA_BN,
    "resnet152_v2": 60_185_256 + DATA_BN,
    # imgclsmob's ResNet and PreResNet for CIFAR-10.
    "cifar_resnet20_v1": 272_474,
    "cifar_resnet56_v1": 855_770,
    "cifar_resnet110_v1": 1_730_714,
    "cifar_resnet20_v2": 272_282 + DATA_BN,
    "cifar_resnet56_v2": 855_578 + DATA_BN,
    "cifar_resnet110_v2": 1_730_522 + DATA_BN,
    "resnext50_32x4d": 25_028_904,
    "resnext101_32x4d": 44_177_704,  # imgclsmob
    "resnext101_64x4d": 83_455_272,
    # imgclsmob's MobileNet.
    "mobilenet1.0": 4_231_976,
    "mobilenet0.75": 2_585_560,
    "mobilenet0.5": 1_331_592,
    "mobilenet0.25": 470_072,
    "mobilenet_v2_1.0": 3_504_872,
    "densenet121": 7_978_856,
    "densenet161": 28_681_000,
    "densenet169": 14_149_480,
    "densenet201": 20_013_928,
}


@pytest.mark.parametrize("name", COUNTS)
def test_parameters_are_as_many_as_published(name):
    assert count(symbols.get_symbol(name), input_shape(name)) == COUNTS[name]


def test_inception_bn_has_the_published_parameters_but_for_biases():
    """11,295,240 in imgclsmob, as in Caffe's model, whose convolutions have a bias before BatchNorm."""
    symbol, shape = symbols.get_symbol("inception_bn"), input_shape("inception_bn")
    channels = sum(s[0] for name, s in infer_shapes(symbol, shape).items() if name.endswith("gamma"))
    assert count(symbol, shape) + channels == 11_295_240


@pytest.mark.parametrize(
    "multiplier, millions", [(1.4, 6.06), (1.3, 5.34), (1.0, 3.47), (0.75, 2.61), (0.5, 1.95), (0.35, 1.66)]
)
def test_mobilenet_v2_has_the_authors_parameters_at_each_width(multiplier, millions):
    """research/slim/nets/mobilenet/README.md of tensorflow/models: 1001 classes, BatchNorm not counted."""
    symbol = symbols.get_symbol(f"mobilenet_v2_{multiplier}", num_classes=1001)
    counted = count(symbol, input_shape("mobilenet_v2"), skip=("gamma", "beta"))
    assert round(counted / 1e6, 2) == millions


@pytest.mark.parametrize("num_layers, layers", [(8, 8), (26, 26), (164, 164)])
def test_cifar_resnet_has_the_layers_of_its_name(num_layers, layers):
    shapes = infer_shapes(symbols.get_symbol("cifar_resnet", num_layers=num_layers), input_shape("cifar_resnet"))
    weighted = [name for name in shapes if name.endswith("_weight") and "_sc_" not in name]
    assert len(weighted) == layers


@pytest.mark.parametrize("num_classes", [1, 7])
@pytest.mark.parametrize("name", ["lenet", "resnet18_v2", "mobilenet_v2_1.0", "densenet121"])
def test_the_last_layer_has_one_row_per_class(name, num_classes):
    symbol = symbols.get_symbol(name, num_classes=num_classes)
    shapes = infer_shapes(symbol, input_shape(name))
    last = list(shapes)[max(i for i, n in enumerate(shapes) if n.endswith("weight"))]
    assert shapes[last][0] == num_classes
    assert symbol.infer_shape(data=input_shape(name))[1] == [(2, num_classes)]
