"""The networks and `get_symbol`: sizes and numbers of parameters as published, names, dtypes, errors."""

import mxnet as mx
import numpy as np
import pytest

import symbols
from mxmp import Policy
from mxmp.symbol import convert_graph, convert_symbol
from tests import messages
from tests.symbols.networks import count, input_shape, nodes_of, shapes_of


@pytest.mark.parametrize("name", symbols.NETWORKS)
def test_a_network_is_float32_with_unique_names_that_are_the_same_at_each_build(name):
    symbol = symbols.get_symbol(name)
    args, outputs, aux = symbol.infer_type(data="float32")
    assert {np.dtype(t).name for t in (*args, *outputs, *aux)} == {"float32"}
    mx.sym.Convolution(mx.sym.relu(mx.sym.var("x")), kernel=(1, 1), num_filter=1)  # moves MXNet's counters of names
    assert symbols.get_symbol(name).tojson() == symbol.tojson()
    nodes = nodes_of(symbol)
    assert len({node["name"] for node in nodes}) == len(nodes)


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
    "inception_bn": 11_295_240 - 10_016,  # without Caffe's biases before BatchNorm
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
}


@pytest.mark.parametrize("name", COUNTS)
def test_a_classifier_has_the_published_parameters_and_what_module_expects(name):
    symbol, shape = symbols.get_symbol(name), input_shape(name)
    assert count(shapes_of(symbol, data=shape)[0]) == COUNTS[name]
    args, outputs, _ = symbol.infer_shape(data=shape)
    shapes = dict(zip(symbol.list_arguments(), args))
    assert symbol.list_outputs() == ["softmax_output"] and (shapes["data"], shapes["softmax_label"]) == (shape, (2,))
    assert outputs == [(2, 10 if name in ("mlp", "lenet") or name.startswith("cifar") else 1000)]


@pytest.mark.parametrize(
    "multiplier, millions", [(1.4, 6.06), (1.3, 5.34), (1.0, 3.47), (0.75, 2.61), (0.5, 1.95), (0.35, 1.66)]
)
def test_mobilenet_v2_has_the_authors_parameters_at_each_width(multiplier, millions):
    """research/slim/nets/mobilenet/README.md of tensorflow/models: 1001 classes, BatchNorm not counted."""
    symbol = symbols.get_symbol(f"mobilenet_v2_{multiplier}", num_classes=1001)
    counted = count(shapes_of(symbol, data=input_shape("mobilenet_v2"))[0], skip=("gamma", "beta"))
    assert round(counted / 1e6, 2) == millions


# Stages of the papers whose networks have no Gluon counterpart: output channels and edge for images of 224 pixels.
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


def test_units_of_inception_bn_pool_as_in_figure_5_of_the_paper():
    nodes = [node for node in nodes_of(symbols.get_symbol("inception_bn")) if node["op"] == "Pooling"]
    kinds = [node["attrs"]["pool_type"] for node in nodes if node["name"].startswith("inception")]
    assert kinds == ["avg", "avg", "max", "avg", "avg", "avg", "avg", "max", "avg", "max"]


def test_layers_can_be_addressed_by_pattern():
    names = [node["name"] for node in nodes_of(symbols.get_symbol("resnet50_v1b")) if node["op"] != "null"]
    assert {"conv0", "pool0", "global_pool", "fc", "softmax"} <= set(names)
    assert sum(name.startswith("stage3_unit") for name in names) == 6 * 10 + 2  # units, nodes of each, a projection
    assert sum(name.endswith("_bn") for name in names) == 53  # as many as convolutions


@pytest.mark.parametrize(
    "name, sources",
    [
        ("alexnet_2012", {"norm1": "conv1_relu", "pool1": "norm1", "norm2": "conv2_relu", "pool2": "norm2"}),
        ("googlenet", {"norm1": "pool1", "norm2": "conv2_relu", "pool2": "norm2"}),  # figure 3
    ],
)
def test_response_normalization_stands_where_the_paper_has_it(name, sources):
    nodes = nodes_of(symbols.get_symbol(name))
    reads = {node["name"]: nodes[node["inputs"][0][0]]["name"] for node in nodes if node["inputs"]}
    assert {node: reads[node] for node in sources} == sources and sum(node["op"] == "LRN" for node in nodes) == 2


def test_response_normalization_is_that_of_the_paper():
    """Krizhevsky et al. 2012, section 3.3: k=2, n=5, alpha=1e-4 for each of the five, beta=0.75."""
    (attrs, *others) = (node["attrs"] for node in nodes_of(symbols.get_symbol("alexnet_2012")) if node["op"] == "LRN")
    assert {name: float(value) for name, value in attrs.items()} == {"knorm": 2, "nsize": 5, "alpha": 5e-4, "beta": 0.75}
    assert others == [attrs]


# get_symbol


def test_arguments_reach_the_network():
    assert symbols.get_symbol("vgg11").tojson() == symbols.vgg.get_symbol(num_layers=11).tojson()
    by_file = symbols.get_symbol("resnet", num_classes=5, num_layers=34, version="v2")
    assert by_file.tojson() == symbols.get_symbol("resnet34_v2", 5, dtype=np.float32).tojson()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["resnet18_v1b", "bert_tiny"])
def test_low_precision_is_mxmps_conversion(name, dtype):
    plain, mixed = symbols.get_symbol(name, num_classes=7), symbols.get_symbol(name, num_classes=7, dtype=dtype)
    assert nodes_of(convert_symbol(plain, f"mixed_{dtype}")) == nodes_of(mixed) != nodes_of(plain)
    assert nodes_of(convert_graph(mixed, Policy()).symbol) == nodes_of(plain)


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
