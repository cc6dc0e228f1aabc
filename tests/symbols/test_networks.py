"""The networks and `get_symbol`: sizes and numbers of parameters as published, names, dtypes, errors."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

import symbols
from mxmp.policy import Policy
from mxmp.symbol import convert_graph
from tests import messages
from tests.symbols.networks import (
    CLASSIFIERS,
    FILES,
    count,
    draw,
    infer_shapes,
    input_shape,
    logits,
    nodes_of,
    run,
    run_bound,
    shapes_of,
)  # fmt: skip

LOW = pytest.mark.parametrize("dtype", ["float16", "bfloat16"])


@pytest.mark.parametrize("name", symbols.NETWORKS)
def test_a_network_is_float32_with_unique_names_that_are_the_same_at_each_build(name):
    symbol = symbols.get_symbol(name)
    args, outputs, aux = symbol.infer_type(data="float32")
    assert {np.dtype(t).name for t in (*args, *outputs, *aux)} == {"float32"}
    mx.sym.Convolution(mx.sym.relu(mx.sym.var("x")), kernel=(1, 1), num_filter=1)  # moves MXNet's counters of names
    assert symbols.get_symbol(name).tojson() == symbol.tojson()
    nodes = nodes_of(symbol)
    assert len({node["name"] for node in nodes}) == len(nodes)
    assert name not in CLASSIFIERS or not any("cast" in node["op"].lower() for node in nodes)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_inputs_and_outputs_are_those_that_module_expects(name):
    symbol, shape = symbols.get_symbol(name), input_shape(name)
    args, outputs, _ = symbol.infer_shape(data=shape)
    shapes = dict(zip(symbol.list_arguments(), args))
    assert symbol.list_outputs() == ["softmax_output"] and (shapes["data"], shapes["softmax_label"]) == (shape, (2,))
    assert outputs == [(2, 10 if name in ("mlp", "lenet") or name.startswith("cifar") else 1000)]


def test_every_file_of_a_classifier_is_found():
    assert set(FILES) <= set(symbols.NETWORKS) and "blocks" not in symbols.NETWORKS  # which has no get_symbol
    assert {"resnet", "resnet50_v1b", "vgg16_bn", "mobilenet_v2_1.0"} <= set(CLASSIFIERS)


# Numbers of parameters. Where a row names no other source: the weights of torchvision's models
# (https://pytorch.org/vision/stable/models.html), equal to those listed by https://github.com/osmr/imgclsmob
# (gluon/README.md and pytorch/README.md), counted by other code.

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
    assert count(shapes_of(symbols.get_symbol(name), data=input_shape(name))[0]) == COUNTS[name]


def test_inception_bn_has_the_published_parameters_but_for_biases():
    """11,295,240 in imgclsmob, as in Caffe's model, whose convolutions have a bias before BatchNorm."""
    shapes, _ = shapes_of(symbols.get_symbol("inception_bn"), data=input_shape("inception_bn"))
    assert count(shapes) + sum(s[0] for name, s in shapes.items() if name.endswith("gamma")) == 11_295_240


@pytest.mark.parametrize(
    "multiplier, millions", [(1.4, 6.06), (1.3, 5.34), (1.0, 3.47), (0.75, 2.61), (0.5, 1.95), (0.35, 1.66)]
)
def test_mobilenet_v2_has_the_authors_parameters_at_each_width(multiplier, millions):
    """research/slim/nets/mobilenet/README.md of tensorflow/models: 1001 classes, BatchNorm not counted."""
    symbol = symbols.get_symbol(f"mobilenet_v2_{multiplier}", num_classes=1001)
    counted = count(shapes_of(symbol, data=input_shape("mobilenet_v2"))[0], skip=("gamma", "beta"))
    assert round(counted / 1e6, 2) == millions


@pytest.mark.parametrize("num_layers", [8, 26, 164])
def test_cifar_resnet_has_the_layers_of_its_name(num_layers):
    shapes = infer_shapes(symbols.get_symbol("cifar_resnet", num_layers=num_layers), input_shape("cifar_resnet"))
    assert len([name for name in shapes if name.endswith("_weight") and "_sc_" not in name]) == num_layers


@pytest.mark.parametrize("num_classes", [1, 7])
@pytest.mark.parametrize("name", ["lenet", "resnet18_v2", "mobilenet_v2_1.0", "densenet121"])
def test_the_last_layer_has_one_row_per_class(name, num_classes):
    symbol = symbols.get_symbol(name, num_classes=num_classes)
    last = [shape for n, shape in infer_shapes(symbol, input_shape(name)).items() if n.endswith("weight")][-1]
    assert last[0] == num_classes and symbol.infer_shape(data=input_shape(name))[1] == [(2, num_classes)]


# Stages of the papers: output channels and edge for images of 224 pixels (299 in v3).
STAGES = {
    # Szegedy et al. 2014, table 1.
    "googlenet": {
        "conv1": (64, 112), "pool1": (64, 56), "conv2": (192, 56), "pool2": (192, 28), "inception_3a_concat": (256, 28),
        "inception_3b_concat": (480, 28), "pool3": (480, 14), "inception_4a_concat": (512, 14),
        "inception_4b_concat": (512, 14), "inception_4c_concat": (512, 14), "inception_4d_concat": (528, 14),
        "inception_4e_concat": (832, 14), "pool4": (832, 7), "inception_5a_concat": (832, 7),
        "inception_5b_concat": (1024, 7), "global_pool": (1024, 1),
    },
    # Ioffe and Szegedy 2015, figure 5, but for 4c and 4d (576 there) and 4e (1024 there).
    "inception_bn": {
        "conv1": (64, 112), "pool1": (64, 56), "conv2": (192, 56), "pool2": (192, 28), "inception_3a_concat": (256, 28),
        "inception_3b_concat": (320, 28), "inception_3c_concat": (576, 14), "inception_4a_concat": (576, 14),
        "inception_4b_concat": (576, 14), "inception_4c_concat": (608, 14), "inception_4d_concat": (608, 14),
        "inception_4e_concat": (1056, 7), "inception_5a_concat": (1024, 7), "inception_5b_concat": (1024, 7),
    },
    # Szegedy et al. 2015, table 1.
    "inception_v3": {
        "conv1": (32, 149), "conv2": (32, 147), "conv3": (64, 147), "pool1": (64, 73), "pool2": (192, 35),
        "mixed_35_3_concat": (288, 35), "mixed_17_0_concat": (768, 17), "mixed_17_4_concat": (768, 17),
        "mixed_8_0_concat": (1280, 8), "mixed_8_2_concat": (2048, 8), "global_pool": (2048, 1),
    },
    # He et al. 2015, table 1.
    "resnet101_v1": {
        "conv0": (64, 112), "pool0": (64, 56), "stage1_unit3_relu": (256, 56), "stage2_unit4_relu": (512, 28),
        "stage3_unit23_relu": (1024, 14), "stage4_unit3_relu": (2048, 7),
    },
    # Krizhevsky et al. 2012, figure 2.
    "alexnet_2012": {
        "conv1": (96, 55), "pool1": (96, 27), "conv2": (256, 27), "pool2": (256, 13), "conv3": (384, 13),
        "conv4": (384, 13), "conv5": (256, 13), "pool5": (256, 6),
    },
}  # fmt: skip


@pytest.mark.parametrize("name", STAGES)
def test_stages_have_the_sizes_of_the_paper(name):
    internals = symbols.get_symbol(name).get_internals()
    found = dict(zip(internals.list_outputs(), internals.infer_shape(data=input_shape(name, batch=1))[1]))
    assert {stage: found[f"{stage}_output"][1:3] for stage in STAGES[name]} == STAGES[name]


def test_layers_can_be_addressed_by_pattern():
    names = [node["name"] for node in nodes_of(symbols.get_symbol("resnet50_v1b")) if node["op"] != "null"]
    assert {"conv0", "pool0", "global_pool", "fc", "softmax"} <= set(names)
    assert sum(name.startswith("stage3_unit") for name in names) == 6 * 10 + 2  # units, nodes of each, a projection
    assert sum(name.endswith("_bn") for name in names) == 53  # as many as convolutions


def test_resnet_versions_differ_in_where_the_stride_is():
    for version, strides in {"v1": ("(2, 2)", "(1, 1)"), "v1b": ("(1, 1)", "(2, 2)")}.items():
        attrs = {node["name"]: node.get("attrs") for node in nodes_of(symbols.get_symbol(f"resnet50_{version}"))}
        assert tuple(attrs[f"stage2_unit1_conv{number}"]["stride"] for number in (1, 2)) == strides


def test_resnet_features_are_the_last_stages_of_the_classifier():
    features = mx.sym.Group(symbols.resnet.get_features(mx.sym.Variable("data")))
    assert features.infer_shape(data=(1, 3, 512, 512))[1] == [(1, 1024, 32, 32), (1, 2048, 16, 16)]
    names = set(symbols.get_symbol("resnet50_v1").list_arguments())
    assert names - set(features.list_arguments()) == {"fc_weight", "fc_bias", "softmax_label"}


@pytest.mark.parametrize(
    "name, sources",
    [
        ("alexnet_2012", {"norm1": "conv1_relu", "pool1": "norm1", "norm2": "conv2_relu", "pool2": "norm2"}),
        ("googlenet", {"norm1": "pool1", "norm2": "conv2_relu", "pool2": "norm2"}),  # figure 3
    ],
)
def test_response_normalization_stands_where_the_paper_has_it_and_is_fused_rightly(name, sources):
    """These have no Gluon counterpart; the others' logits are compared with those of one."""
    symbol = symbols.get_symbol(name, num_classes=12)
    nodes, head, rng = nodes_of(symbol), logits(symbol), np.random.default_rng(0)
    reads = {node["name"]: nodes[node["inputs"][0][0]]["name"] for node in nodes if node["inputs"]}
    assert {node: reads[node] for node in sources} == sources and sum(node["op"] == "LRN" for node in nodes) == 2
    params, images = draw(infer_shapes(head, (2, 3, 64, 64)), rng), rng.standard_normal((2, 3, 64, 64), np.float32)
    plain, fused = (evaluate(head, params, images).asnumpy() for evaluate in (run, run_bound))
    eps = np.abs(plain).max() * np.finfo(np.float32).eps
    np.testing.assert_allclose(fused, plain, rtol=0, atol=16 * eps)  # a convolution with its ReLU: no sum changes


def test_response_normalization_is_that_of_the_paper():
    """Krizhevsky et al. 2012, section 3.3, in numpy and float64."""
    internals = symbols.get_symbol("alexnet_2012").get_internals()
    pair = mx.sym.Group([internals["conv1_relu_output"], internals["norm1_output"]])
    rng, shape = np.random.default_rng(0), (1, 3, 47, 47)
    params = {name: 30 * v for name, v in draw(infer_shapes(pair, shape), rng).items()}  # else the sum is lost beside k
    before, after = (out.asnumpy() for out in run(pair, params, rng.standard_normal(shape, np.float32)))
    padded = np.pad(before.astype(np.float64) ** 2, ((0, 0), (2, 2), (0, 0), (0, 0)))
    expected = before / (2 + 1e-4 * sum(padded[:, i : i + before.shape[1]] for i in range(5))) ** 0.75
    assert np.abs(expected / np.where(before, before, 1) - 2**-0.75).max() > 0.1  # the sum matters
    # pow(x, 0.75) in float32 is good to some ulps.
    np.testing.assert_allclose(after, expected, rtol=16 * np.finfo(np.float32).eps)


@pytest.mark.parametrize("name, shape", [("mlp", (1, 28, 28)), ("lenet", (1, 28, 28)), ("cifar_resnet", (3, 16, 16))])
def test_module_trains_the_network(name, shape):
    rng, labels = np.random.RandomState(0), np.arange(16) % 4
    images = rng.randn(16, *shape) * 0.3 + rng.randn(4, *shape)[labels]  # four patterns under noise
    kwargs = {"num_layers": 8} if name == "cifar_resnet" else {}
    module = mx.mod.Module(symbols.get_symbol(name, num_classes=4, **kwargs), context=mx.cpu())
    batches = mx.io.NDArrayIter(images.astype(np.float32), labels, batch_size=16)
    mx.random.seed(0)
    np.random.seed(0)  # MXNet's initializers draw from either
    # Running statistics keep 0.9 of what they were, and so need some tens of steps.
    module.fit(batches, num_epoch=40, optimizer_params={"learning_rate": 0.02}, initializer=mx.init.Xavier())
    assert module.score(batches, "acc")[0][1] > 0.9  # 0.25 by chance


# get_symbol


def test_arguments_reach_the_network():
    assert symbols.get_symbol("vgg11").tojson() == symbols.vgg.get_symbol(num_layers=11).tojson()
    by_file = symbols.get_symbol("resnet", num_classes=5, num_layers=34, version="v2")
    assert by_file.tojson() == symbols.get_symbol("resnet34_v2", 5).tojson()


@pytest.mark.parametrize("dtype", ["float32", "fp32", np.float32])
def test_float32_is_the_network_as_it_is_written(dtype):
    assert symbols.get_symbol("lenet", dtype=dtype).tojson() == symbols.lenet.get_symbol().tojson()


# One of each family: conversion is tested over all networks of Gluon elsewhere.
FAMILIES = [
    "mlp", "lenet", "alexnet_2012", "vgg11_bn", "googlenet", "inception_bn", "inception_v3", "resnet18_v1",
    "resnet50_v2", "resnext50_32x4d", "mobilenet0.5", "mobilenet_v2_1.0", "densenet121", "cifar_resnet20_v1",
    "bert_tiny",
]  # fmt: skip


@LOW
@pytest.mark.parametrize("name", FAMILIES)
def test_low_precision_reaches_every_convolution_and_product(name, dtype):
    plain, mixed = symbols.get_symbol(name), symbols.get_symbol(name, dtype=dtype)
    for names in ("list_arguments", "list_auxiliary_states", "list_outputs"):
        assert getattr(mixed, names)() == getattr(plain, names)()
    nodes, cast = nodes_of(mixed), {"float16": "Cast", "bfloat16": "amp_cast"}[dtype]
    heavy = [node for node in nodes if node["op"] in ("Convolution", "FullyConnected")]
    weights = [nodes[node["inputs"][1][0]] for node in heavy]  # cast, so that their data must be too
    assert heavy and {(weight["op"], weight["attrs"]["dtype"]) for weight in weights} == {(cast, dtype)}
    args, outputs, aux = mixed.infer_type(data="float32")
    assert {np.dtype(t).name for t in (*args, *outputs, *aux)} == {"float32"}


@LOW
def test_conversion_is_mxmps_and_leaves_shapes_alone(dtype):
    plain, mixed = (symbols.get_symbol("resnet18_v1b", num_classes=7, dtype=name) for name in ("float32", dtype))
    restored = convert_graph(mixed, Policy()).symbol
    assert nodes_of(restored) == nodes_of(plain) and mixed.infer_shape(data=(2, 3, 64, 64))[1] == [(2, 7)]
    assert nodes_of(convert_graph(restored, Policy.parse(f"mixed_{dtype}")).symbol) == nodes_of(mixed)


SMALL = {"lenet": (1, 28, 28), "cifar_resnet20_v1": (3, 32, 32), "mobilenet0.25": (3, 64, 64)}


@pytest.mark.parametrize("dtype, eps", [("float16", 2.0**-10), pytest.param("bfloat16", 2.0**-7, marks=pytest.mark.bfloat16)])
@pytest.mark.parametrize("name", SMALL)
def test_logits_are_nearly_those_of_float32(name, dtype, eps):
    head, shape, rng = logits(symbols.get_symbol(name)), (4, *SMALL[name]), np.random.default_rng(0)
    params, images = draw(infer_shapes(head, shape), rng), rng.standard_normal(shape, np.float32)
    expected = run(head, params, images).asnumpy()
    mixed = symbols.get_symbol(name, dtype=dtype)
    runnable = convert_graph(mixed, Policy.parse(f"mixed_{dtype}")).on_cpu()  # float16 emulated
    found = run(logits(runnable), params, images).asnumpy()
    assert found.dtype == np.float32
    # Some tens of layers, two roundings each, of random sign.
    assert eps / 8 < np.abs(found - expected).max() / np.abs(expected).max() < 16 * eps


def refused(*args, **kwargs):
    return lambda: symbols.get_symbol(*args, **kwargs)


MESSAGES = {
    "name": (refused("resnet51_v1"), ValueError, "unknown network 'resnet51_v1'; the nearest are resnet50_v1, ...The networks are alexnet, ..."),
    "no name": (refused(50), ValueError, "unknown network 50. The networks are alexnet, ..."),
    "dtype": (refused("mlp", dtype="fp61"), ValueError, "dtype='fp61': expected one of float32, float16, bfloat16."),
    "wide dtype": (refused("mlp", dtype="float64"), ValueError, "dtype='float64': expected one of float32, float16, bfloat16."),
    "argument": (refused("mlp", hiden=(3,)), ValueError, "mlp has no argument 'hiden'; it takes num_classes, hidden."),
    "fixed": (refused("vgg16", num_layers=11), ValueError, "vgg16: the name already says num_layers=16; leave num_layers out, or give it to 'vgg'."),
    "classes": (refused("resnet18_v1", num_classes=0), ValueError, "num_classes=0: expected a positive integer."),
    "no classes": (refused("lenet", num_classes="ten"), ValueError, "num_classes='ten': expected a positive integer."),
    "vgg": (refused("vgg", num_layers=12), ValueError, "num_layers=12: expected one of 11, 13, 16, 19."),
    "resnet": (refused("resnet", num_layers=51), ValueError, "num_layers=51: expected one of 18, 34, 50, 101, 152."),
    "resnet version": (refused("resnet", version="v3"), ValueError, "version='v3': expected one of 'v1', 'v1b', 'v2'."),
    "resnext": (refused("resnext", num_layers=152), ValueError, "num_layers=152: expected one of 50, 101."),
    "densenet": (refused("densenet", num_layers=120), ValueError, "num_layers=120: expected one of 121, 161, 169, 201."),
    "cifar": (refused("cifar_resnet", num_layers=21), ValueError, "num_layers=21: expected 6n + 2, such as 20, 32, 44, 56 or 110."),
    "cifar version": (refused("cifar_resnet", version="v1b"), ValueError, "version='v1b': expected one of 'v1', 'v2'."),
    "alexnet": (refused("alexnet", columns=3), ValueError, "columns=3: expected one of 1, 2."),
    "mobilenet": (refused("mobilenet", multiplier=2.0), ValueError, "multiplier=2.0: expected one of 1.0, 0.75, 0.5, 0.25."),
    "heads": (refused("transformer", num_hidden=64, num_heads=3), ValueError, "num_heads=3: expected a divisor of num_hidden=64."),
    "no heads": (refused("transformer", num_heads=0), ValueError, "num_heads=0: expected a divisor of num_hidden=256."),
    "attention": (refused("transformer", attention="flash"), ValueError, "attention='flash': expected one of 'batch_dot', 'interleaved'."),
    "norm": (refused("transformer", norm="none"), ValueError, "norm='none': expected one of 'post', 'pre'."),
    "no classes of transformer": (refused("transformer", num_classes=0), ValueError, "num_classes=0: expected a positive integer."),
    "tied": (refused("lstm_lm", tie_weights=True, num_embed=4, num_hidden=6), ValueError, "tie_weights: num_embed=4 differs from num_hidden=6; make them equal."),
    "ssd": (refused("ssd", network="resnet50", data_shape=300), ValueError, "...('resnet50', 300): expected one of ('vgg16_reduced', 300), ..."),
}  # fmt: skip


@messages.each(MESSAGES)
def test_messages(call, error, text, tmp_path):
    messages.check(call, error, text, tmp_path)
